//! `SessionPlace`: which replica has a session.

use crate::ownership::Ownership;

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::downstream) enum SessionPlace {
    /// It lives here, or is over.
    Here,
    /// This replica owns the implicit session, and opens it here if it is not open.
    Own(Ownership),
    /// An implicit session that has ended with its owner: a further request begins another.
    Ended,
    /// Another replica with a lease owns it.
    At(Ownership),
    /// Not known now: the shared store does not answer, or its owner may come back.
    Unknown,
}
