//! `SessionSettings`: lifetimes and caps of sessions, and `SessionRefused` where a cap is reached.

use std::time::Duration;

/// Lifetimes and caps.
#[derive(Debug, Clone, Copy)]
pub struct SessionSettings {
    /// Without a request or an open stream.
    pub idle: Duration,
    /// Whatever happens, but for the running calls of an implicit session.
    pub absolute: Duration,
    /// Live sessions of one principal.
    pub max_per_principal: usize,
    /// Live sessions.
    pub max_total: usize,
    /// How long a question that names no call waits for a stream.
    pub hold_question: Duration,
}

/// Why no session can be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionRefused {
    /// The principal has as many busy sessions as it may have.
    #[error("too many sessions of this principal are in use")]
    Principal,
    /// The replica has as many sessions as it may have.
    #[error("too many sessions")]
    Total,
}
