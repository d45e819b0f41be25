//! `TokenSubject`: whose token is requested.

use super::identity_assertion::IdentityProvider;
use crate::call::{CallerAccess, CallerToken, OwnerKey};

/// The scopes and the subject of one token request.
#[derive(Debug, Clone, Copy)]
pub(super) struct WantedToken<'a> {
    /// Scopes beyond those that every request of the account names.
    pub(super) further: &'a [String],
    /// Whose token is requested.
    pub(super) subject: TokenSubject<'a>,
}

/// Whose token is requested, and with what proof.
#[derive(Debug, Clone, Copy)]
pub(super) enum TokenSubject<'a> {
    /// The gateway's own.
    Gateway,
    /// A caller's: its token is exchanged.
    Caller(&'a CallerAccess, &'a CallerToken),
    /// A person's: the identity provider asserts the person's identity.
    Person(&'a IdentityProvider, OwnerKey),
}

impl<'a> TokenSubject<'a> {
    /// The caller whose token is exchanged.
    pub(super) fn caller(self) -> Option<&'a CallerAccess> {
        match self {
            Self::Caller(caller, _) => Some(caller),
            Self::Gateway | Self::Person(..) => None,
        }
    }

    /// The caller's token, whose end is the end of the new one.
    pub(super) fn token(self) -> Option<&'a CallerToken> {
        match self {
            Self::Caller(_, token) => Some(token),
            Self::Gateway | Self::Person(..) => None,
        }
    }

    /// The principal that the token belongs to; `None` for the gateway's own.
    pub(super) fn owner(self) -> Option<OwnerKey> {
        match self {
            Self::Gateway => None,
            Self::Caller(caller, _) => Some(caller.owner()),
            Self::Person(_, owner) => Some(owner),
        }
    }
}
