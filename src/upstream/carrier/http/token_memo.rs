//! `TokenMemo`: the token that the requests of one client carried last. It is sent again, without another look-up, until
//! the account changes, for a minute at most.

use std::sync::{Arc, PoisonError, RwLock};

use crate::grants::HeldToken;
use crate::upstream::account::Account;
use crate::upstream::credentials::{Credential, Credentials, Requester};
use crate::vault::AccountCheck;

/// The token of the account of one client.
#[derive(Debug, Default)]
pub(super) struct TokenMemo(RwLock<Option<KnownToken>>);

/// A token that was good when it was looked up.
#[derive(Debug)]
struct KnownToken {
    account: Account,
    token: Arc<HeldToken>,
    check: AccountCheck,
}

impl TokenMemo {
    /// The credential of a request of `requester`, out of `credentials` where it is not known. Waits for no lock.
    pub(super) fn credential<'a>(
        &self,
        credentials: &'a dyn Credentials,
        requester: &Requester,
    ) -> Credential<'a> {
        let owner = requester.account.owner();
        let Some(generation) = owner.and_then(|owner| credentials.generation(owner)) else {
            return credentials.for_request(requester);
        };
        if let Some(token) = self.known(requester.account, generation) {
            return Credential::Held(token);
        }
        let credential = credentials.for_request(requester);
        if let Credential::Held(token) = &credential {
            let check = AccountCheck::new(token.connection(), generation, token.due());
            self.keep(KnownToken {
                account: requester.account,
                token: Arc::clone(token),
                check,
            });
        }
        credential
    }

    /// Forgets the token: the upstream has refused it.
    pub(super) fn forget(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn known(&self, account: Account, generation: u64) -> Option<Arc<HeldToken>> {
        // While another call holds the write lock, this call looks the token up itself.
        let known = self.0.try_read().ok()?;
        let known = known.as_ref()?;
        let is_good = known.account == account && known.check.is_good(generation);
        is_good.then(|| Arc::clone(&known.token))
    }

    fn keep(&self, known: KnownToken) {
        if let Ok(mut slot) = self.0.try_write() {
            *slot = Some(known);
        }
    }
}

#[cfg(test)]
mod tests;
