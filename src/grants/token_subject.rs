//! `TokenSubject`: whose token an account asks for.

use super::identity_assertion::IdentityProvider;
use crate::call::{CallerAccess, CallerToken, OwnerKey};

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// Scopes beyond those that are asked for anyway.
    pub(super) further: &'a [String],
    /// Whose token it is.
    pub(super) subject: TokenSubject<'a>,
}

/// Whose token is asked for, and what proves that.
#[derive(Debug, Clone, Copy)]
pub(super) enum TokenSubject<'a> {
    /// The gateway's own.
    Gateway,
    /// A caller's, whose token is exchanged.
    Caller(&'a CallerAccess, &'a CallerToken),
    /// A person's, whose identity provider asserts who that is.
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

    /// The caller's token, with which the new one ends.
    pub(super) fn token(self) -> Option<&'a CallerToken> {
        match self {
            Self::Caller(_, token) => Some(token),
            Self::Gateway | Self::Person(..) => None,
        }
    }

    /// The owner of what belongs to it.
    pub(super) fn owner(self) -> Option<OwnerKey> {
        match self {
            Self::Gateway => None,
            Self::Caller(caller, _) => Some(caller.owner()),
            Self::Person(_, owner) => Some(owner),
        }
    }
}
