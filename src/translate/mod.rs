//! Translation of messages: into another revision (`project`), for a merged endpoint (`naming`, `rewrite`, `mapping`,
//! `merge`), and into another design of tasks (`task`). Also the questions that a client can be asked
//! (`effective_capabilities`, `answer_validation`, `input_responses`).
//!
//! Pure: values and bytes in, bytes out. Nothing waits, and nothing knows a session or a connection.

pub(crate) mod answer_validation;
pub mod effective_capabilities;
pub(crate) mod input_responses;
pub(crate) mod mapping;
pub mod merge;
pub mod naming;
pub(crate) mod project;
pub mod rewrite;
pub(crate) mod task;
