//! Server-sent events: a bounded reader and a writer. Spec: WHATWG HTML §9.2, SPEC T-16.

mod decode;
mod encode;

pub use decode::{SseDecoder, SseError, SseEvent};
pub use encode::{NumberedEvents, encode_comment, encode_endpoint, encode_event, encode_retry};
