//! Why a request does not reach another replica.

use std::io;

use super::connections::ForwardedBody;

/// A request that another replica has not answered.
#[derive(Debug)]
pub struct Unforwarded {
    /// Why.
    pub failure: ForwardFailure,
    /// The body of the request, if no byte of the body was sent.
    pub unsent: Option<ForwardedBody>,
}

/// Why a request could not be forwarded, or its answer breaks off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardFailure {
    /// The replica has no lease: the request was not sent.
    #[error("the replica is gone")]
    NoReplica,
    /// It refuses connections.
    #[error("the replica cannot be reached")]
    Unreachable(#[source] io::Error),
    /// It did not answer a handshake in time.
    #[error("the replica is silent")]
    Silent,
    /// It closed the connection in order. A replica does so only if it has not begun the request.
    #[error("the replica closed the connection before it had begun the request")]
    Closed,
    /// The connection broke: the request may have run.
    #[error("the connection to the replica broke")]
    Broken(#[source] hyper::Error),
    /// Its lease ended meanwhile: the request may have run.
    #[error("the replica was lost")]
    Gone,
    /// Another replica answers at its address.
    #[error("another replica answers at the address")]
    AnotherReplica,
}

impl ForwardFailure {
    /// One word for metrics.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::NoReplica => "no_replica",
            Self::Unreachable(_) => "unreachable",
            Self::Silent => "silent",
            Self::Closed => "closed",
            Self::Broken(_) => "broken",
            Self::Gone => "lost",
            Self::AnotherReplica => "another_replica",
        }
    }

    /// Whether nothing listens at the address, on a machine that answers.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Unreachable(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Whether the request may have reached the replica.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Gone)
    }
}
