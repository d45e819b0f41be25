//! The header of every answer of the admin port.

use http::header::CACHE_CONTROL;
use http::{HeaderName, HeaderValue};

/// Nothing between keeps an answer: each one is of this moment.
pub(super) const NO_STORE: (HeaderName, HeaderValue) =
    (CACHE_CONTROL, HeaderValue::from_static("no-store"));
