//! `StopReason`: why the gateway stopped a child.

/// Why we stopped a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The child ended or closed its output.
    ClosedOutput,
    /// The child ended or closed its input.
    ClosedInput,
    /// The connection was closed or dropped.
    Dropped,
    /// Unused for `stdio.idle`.
    Idle,
    /// The principal needed the place.
    Evicted,
    /// The gateway stops.
    ShutDown,
}

impl StopReason {
    /// One word for the log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::ClosedOutput => "closed_its_output",
            Self::ClosedInput => "closed_its_input",
            Self::Dropped => "session_over",
            Self::Idle => "idle",
            Self::Evicted => "place_needed",
            Self::ShutDown => "shutdown",
        }
    }
}
