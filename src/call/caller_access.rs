//! `CallerAccess`: issuer, subject, client, endpoint and scopes of a caller's tokens, with the newest token, for upstreams
//! that exchange callers' tokens. Spec: RFC 8693; SPEC A-22.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::keys::{AccessKey, OwnerKey};
use crate::secret::Secret;

/// A verified token of a caller.
#[derive(Debug)]
pub struct CallerToken {
    /// The token.
    pub secret: Secret,
    /// When it ends; `None` where its issuer does not say.
    pub ends: Option<Instant>,
    /// Its number among those of its [`CallerAccess`].
    pub number: u64,
}

impl CallerToken {
    fn has_ended(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() >= ends)
    }
}

/// The newest token of one caller with one set of scopes. Principals with equal keys share it, also those in sessions, so
/// that a session uses the token of the caller's last request.
#[derive(Debug)]
pub struct CallerAccess {
    key: AccessKey,
    issuer: Box<str>,
    owner: OwnerKey,
    newest: watch::Sender<Option<Arc<CallerToken>>>,
}

impl CallerAccess {
    /// The access under `key` of `owner`, whose tokens `issuer` signs; without a token.
    #[must_use]
    pub fn new(key: AccessKey, issuer: &str, owner: OwnerKey) -> Arc<Self> {
        Arc::new(Self {
            key,
            issuer: issuer.into(),
            owner,
            newest: watch::Sender::new(None),
        })
    }

    /// What tells it from other accesses.
    #[must_use]
    pub fn key(&self) -> &AccessKey {
        &self.key
    }

    /// The issuer of the tokens.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The owner of what belongs to the caller.
    #[must_use]
    pub fn owner(&self) -> OwnerKey {
        self.owner
    }

    /// Takes the token of a request, verified just now, which ends at `ends`. The one before is dropped.
    pub fn bring(&self, token: &str, ends: Option<Instant>) {
        let is_known = |newest: &Option<Arc<CallerToken>>| {
            let newest = newest.as_ref();
            newest.is_some_and(|newest| newest.secret.expose() == token && !newest.has_ended())
        };
        if is_known(&self.newest.borrow()) {
            return;
        }
        self.newest.send_if_modified(|newest| {
            if is_known(newest) {
                return false;
            }
            *newest = Some(Arc::new(CallerToken {
                secret: Secret::new(token),
                ends,
                number: newest.as_ref().map_or(0, |before| before.number + 1),
            }));
            true
        });
    }

    /// The newest token, unless it has ended.
    #[must_use]
    pub fn token(&self) -> Option<Arc<CallerToken>> {
        let newest = self.newest.borrow().clone();
        newest.filter(|token| !token.has_ended())
    }

    /// A receiver that is told of each new token.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<CallerToken>>> {
        self.newest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call::Principal;

    fn principal(subject: &str, client: &str, scopes: &[&str]) -> Principal {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        Principal::new("https://issuer", subject, client, scopes, None)
    }

    fn access() -> Arc<CallerAccess> {
        let alice = principal("alice", "c", &[]);
        CallerAccess::new(
            alice.access_key("https://gw/mcp"),
            alice.issuer(),
            alice.owner(),
        )
    }

    #[test]
    fn subject_client_endpoint_and_scopes_are_told_apart() {
        let of = |principal: &Principal| principal.access_key("https://gw/a");
        let alice = principal("alice", "c", &["r", "w"]);
        assert_eq!(of(&alice), of(&principal("alice", "c", &["w", "r", "w"])));
        assert_ne!(of(&alice), of(&principal("bob", "c", &["r", "w"])));
        assert_ne!(of(&alice), of(&principal("alice", "d", &["r", "w"])));
        assert_ne!(of(&alice), of(&principal("alice", "c", &["r"])));
        assert_ne!(of(&alice), alice.access_key("https://gw/b"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_token_counts_until_its_end() {
        let access = access();
        assert!(access.token().is_none());
        access.bring("one", None);
        access.bring("two", Some(Instant::now() + Duration::from_mins(1)));
        let token = access.token().unwrap();
        assert_eq!((token.secret.expose(), token.number), ("two", 1));
        access.bring("two", None);
        assert_eq!(access.token().unwrap().number, 1, "the same token");
        tokio::time::advance(Duration::from_mins(1)).await;
        assert!(access.token().is_none());
    }

    #[tokio::test]
    async fn debug_output_hides_the_token() {
        let access = access();
        access.bring("hunter2", None);
        assert!(!format!("{access:?}").contains("hunter2"));
    }
}
