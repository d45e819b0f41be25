//! `OfflineRefusals`: an authorization server may list the scope `offline_access`, and refuse it to a user or a client all
//! the same. Keycloak, for instance, demands a role of the user for it. The user's next authorization leaves it out.

use std::time::Duration;

use moka::sync::Cache;

use super::callback::CallbackRefusal;
use super::scopes::OFFLINE;
use crate::vault::GrantKey;

/// Users whose refusals are remembered.
const MAX_USERS: u64 = 10_000;
/// For how long `offline_access` is left out.
const REMEMBERED: Duration = Duration::from_hours(1);

/// The users of one upstream whose authorization failed because of `offline_access`.
#[derive(Debug)]
pub(super) struct OfflineRefusals {
    refused: Cache<GrantKey, ()>,
    /// Whether the configuration names `offline_access`: then it is requested every time.
    is_configured: bool,
}

impl OfflineRefusals {
    /// None yet. `configured` are the scopes of the configuration.
    pub(super) fn new(configured: &[String]) -> Self {
        let refused = Cache::builder().max_capacity(MAX_USERS);
        Self {
            refused: refused.time_to_live(REMEMBERED).build(),
            is_configured: has_offline(configured),
        }
    }

    /// `scopes`, without `offline_access` where it was refused to the user of `key`.
    pub(super) fn leave_out(&self, key: &GrantKey, mut scopes: Vec<String>) -> Vec<String> {
        if self.refused.contains_key(key) {
            scopes.retain(|scope| scope != OFFLINE);
        }
        scopes
    }

    /// Whether a refusal of the `asked` scopes may be one of `offline_access`, and the next attempt could leave that out.
    pub(super) fn may_note(&self, asked: &[String]) -> bool {
        !self.is_configured && has_offline(asked)
    }

    /// Remembers the user of `key` where `refusal` may be one of `offline_access`, which was among the `asked` scopes;
    /// the refusal then says so.
    pub(super) fn note(
        &self,
        key: &GrantKey,
        asked: &[String],
        refusal: CallbackRefusal,
    ) -> CallbackRefusal {
        let code = refusal.word();
        // `not_allowed` is Keycloak's, of a code.
        let is_of_scopes = matches!(code, "invalid_scope" | "not_allowed");
        if !is_of_scopes || !self.may_note(asked) {
            return refusal;
        }
        self.refused.insert(key.clone(), ());
        CallbackRefusal::Offline(code)
    }
}

fn has_offline(scopes: &[String]) -> bool {
    scopes.iter().any(|scope| scope == OFFLINE)
}
