//! `CallbackFault`: why a callback is refused before its answer is read.

/// Why a callback is refused before its answer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallbackFault {
    /// `state` is missing, unknown, used, or older than ten minutes.
    State,
    /// The browser's cookie is missing, or another browser started the authorization.
    Browser,
    /// The person's login is missing or has expired.
    Login,
    /// Another person started the authorization.
    Person,
    /// The redirect URI is not that of the client that asked.
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
