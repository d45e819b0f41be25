//! `CallbackFault`: why a callback is refused before its answer is read.

/// Why a callback is refused before its answer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallbackFault {
    /// Its `state` is missing, unknown, used, or older than ten minutes.
    State,
    /// The browser's cookie is missing, or is not the one that began.
    Browser,
    /// Nobody is logged in, or not any more.
    Login,
    /// Another person is logged in than the one who began.
    Person,
    /// It arrives at another redirect URI than that of the client that asked.
    Address,
}

impl CallbackFault {
    /// One word for the log.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Browser => "browser",
            Self::Login => "login",
            Self::Person => "person",
            Self::Address => "address",
        }
    }
}
