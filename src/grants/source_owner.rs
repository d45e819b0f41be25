//! `SourceOwner`: whose tokens a source requests.

use std::sync::Arc;

use super::held_token::HeldToken;
use super::identity_assertion::IdentityProvider;
use crate::call::{CallerAccess, OwnerKey};

/// Whose tokens a source requests.
#[derive(Debug)]
pub(super) enum SourceOwner {
    /// The gateway's own.
    Gateway,
    /// A caller's, by exchange of the caller's token.
    Caller(Arc<CallerAccess>),
    /// A person's, by an assertion of the identity provider.
    Person(Arc<IdentityProvider>, OwnerKey),
}

impl SourceOwner {
    /// The number of the caller's newest token.
    pub(super) fn subject_number(&self) -> Option<u64> {
        match self {
            Self::Caller(caller) => Some(caller.token()?.number),
            Self::Gateway | Self::Person(..) => None,
        }
    }

    /// Whether a request would bring a token that lasts longer than `token`.
    pub(super) fn can_outlast(&self, token: &HeldToken) -> bool {
        match self {
            Self::Gateway => true,
            Self::Caller(_) => {
                token.ends_with.is_none() || token.ends_with != self.subject_number()
            }
            // Else it fails: only another login brings a token then.
            Self::Person(provider, person) => provider.has_id_token(*person),
        }
    }
}
