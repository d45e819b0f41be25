//! Why a request has no reply from an upstream.

use crate::fault::Fault;
use crate::policy::Denial;

/// Why a request has no reply from an upstream.
#[derive(Debug)]
pub enum RelayFailure {
    /// Something failed.
    Fault(Fault),
    /// Policy refused.
    Denied(Denial),
}

impl From<Fault> for RelayFailure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Denial> for RelayFailure {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}
