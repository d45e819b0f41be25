//! Keeps the tokens of callers for upstreams that exchange them: a caller's requests with the same scopes share one
//! `CallerAccess`, which has the newest token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::call::{AccessKey, CallerAccess, Principal};
use crate::lock::lock;

/// How long a token that is accepted for the sake of clocks, after its end, can be exchanged.
const LATE: Duration = Duration::from_secs(5);

/// The accesses in use. An entry ends with the last principal that has it.
#[derive(Debug, Default)]
pub(super) struct CallerTokens(Mutex<HashMap<AccessKey, Weak<CallerAccess>>>);

impl CallerTokens {
    /// `principal`, verified on the endpoint with the identifier `resource`, with the access that its other tokens have
    /// too.
    pub(super) fn keep(&self, principal: Principal, resource: &str) -> Principal {
        let key = principal.access_key(resource);
        let mut known = lock(&self.0);
        let access = known.get(&key).and_then(Weak::upgrade);
        let access = access.unwrap_or_else(|| {
            // Cheap on average: only when the map would grow anyway.
            if known.len() == known.capacity() {
                known.retain(|_, access| access.strong_count() > 0);
            }
            let access = CallerAccess::new(key, principal.issuer(), principal.owner());
            known.insert(key, Arc::downgrade(&access));
            access
        });
        drop(known);
        principal.with_access(access)
    }
}

/// Notes that `principal` has brought `token` at `now`, since the Unix epoch.
pub(super) fn bring(principal: &Principal, token: &[u8], now: Duration) {
    let Some(access) = principal.access() else {
        return;
    };
    let Ok(token) = std::str::from_utf8(token) else {
        return;
    };
    let ends = principal.expires_at().map(|at| {
        let left = at.saturating_sub(now);
        let left = if left.is_zero() { LATE } else { left };
        // An end that no clock reaches is none that matters.
        Instant::now()
            .checked_add(left)
            .unwrap_or_else(|| Instant::now() + Duration::from_hours(24 * 365))
    });
    access.bring(token, ends);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(subject: &str) -> Principal {
        Principal::new("https://issuer", subject, "c", Vec::new(), None)
    }

    #[test]
    fn principals_alike_share_an_access_while_one_lives() {
        let tokens = CallerTokens::default();
        let [first, second] = [0, 1].map(|_| tokens.keep(principal("alice"), "https://gw"));
        let other = tokens.keep(principal("bob"), "https://gw");
        let access = |principal: &Principal| Arc::clone(principal.access().unwrap());
        assert!(Arc::ptr_eq(&access(&first), &access(&second)));
        assert!(!Arc::ptr_eq(&access(&first), &access(&other)));
        bring(&first, b"token", Duration::ZERO);
        assert_eq!(access(&second).token().unwrap().secret.expose(), "token");
        drop((first, second));
        assert!(
            access(&tokens.keep(principal("alice"), "https://gw"))
                .token()
                .is_none()
        );
    }

    #[test]
    fn accesses_without_a_principal_are_forgotten() {
        let tokens = CallerTokens::default();
        for number in 0..1000 {
            drop(tokens.keep(principal(&number.to_string()), "https://gw"));
        }
        assert!(lock(&tokens.0).len() < 10);
    }

    #[tokio::test]
    async fn token_accepted_after_its_end_can_be_exchanged_at_once() {
        let tokens = CallerTokens::default();
        let ends = Some(Duration::from_secs(100));
        let late = Principal::new("https://issuer", "alice", "c", Vec::new(), ends);
        let late = tokens.keep(late, "https://gw");
        bring(&late, b"token", Duration::from_secs(130));
        assert!(late.access().unwrap().token().is_some());
    }
}
