//! `SessionRefused`: why no session can be opened.

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
