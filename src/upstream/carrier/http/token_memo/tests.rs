//! A remembered token is dropped with everything that changes its account.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};

use super::*;
use crate::audit::AuditSink;
use crate::call::OwnerKey;
use crate::call::samples::owner;
use crate::clock::{Clock as _, SystemClock};
use crate::config;
use crate::grants::{Challenge, Renewal, TokenFailure};
use crate::process::HostEnvironment;
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::user_accounts::AccountKeeping;
use crate::upstream::user_tokens::PrincipalTokens;
use crate::upstream::{Upstreams, user_accounts::UserAccounts as _};
use crate::vault::samples::{user_grant, vault};
use crate::vault::{GrantKey, GrantRecord, LeaseOutcome, Vault};

const URL: &str = "https://up.test/mcp";

/// Counts the look-ups of tokens.
#[derive(Debug)]
struct CountedLookups(PrincipalTokens, AtomicUsize);

impl Credentials for CountedLookups {
    fn account_of(&self, owner: OwnerKey) -> Account {
        self.0.account_of(owner)
    }

    fn for_request(&self, requester: &Requester) -> Credential<'_> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.for_request(requester)
    }

    fn generation(&self, owner: OwnerKey) -> Option<u64> {
        self.0.generation(owner)
    }

    fn refused(
        &self,
        requester: &Requester,
        used: Arc<HeldToken>,
        status: StatusCode,
        challenge: Challenge,
    ) -> BoxFuture<'_, Result<Renewal, TokenFailure>> {
        self.0.refused(requester, used, status, challenge)
    }
}

/// A principal with an account, and the memo of its client.
struct Fixture {
    vault: Vault,
    tokens: CountedLookups,
    memo: TokenMemo,
    requester: Requester,
    dir: tempfile::TempDir,
}

fn tokens_in(vault: &Vault) -> PrincipalTokens {
    let text = format!(
        "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = {URL:?}\n[upstreams.up.auth]\nkind = \"user\"\n"
    );
    let config = config::parse(&text, "test.toml", &|_| None).unwrap();
    let audit = AuditSink::idle(Arc::new(SystemClock));
    let keeping = AccountKeeping::new(vault, &audit);
    let host = HostEnvironment::current();
    let upstreams = Upstreams::new(&config, host, Some(keeping), TaskSpawner::new()).unwrap();
    PrincipalTokens {
        upstream: "up".into(),
        tokens: upstreams.caller_accounts().tokens().next().cloned(),
        fixed: HeaderMap::new(),
    }
}

fn key() -> GrantKey {
    GrantKey::new(owner("alice"), "up")
}

/// A grant of `token`, which `lasts` and cannot be refreshed.
fn record(token: &str, lasts: Option<Duration>) -> GrantRecord {
    let ends = lasts.map(|lasts| SystemClock.now() + lasts);
    GrantRecord {
        access_ends: ends.and_then(|ends| u64::try_from(ends.as_millis()).ok()),
        ..user_grant(token)
    }
}

impl Fixture {
    /// The token `old` was sent by two requests; the second made no look-up.
    async fn warm(lasts: Option<Duration>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault(&dir).await;
        vault.poll_changes().await.unwrap();
        vault
            .put_grant(&key(), &record("old", lasts))
            .await
            .unwrap();
        let tokens = tokens_in(&vault);
        assert!(tokens.look_up(owner("alice")).await.unwrap().is_connected());
        let requester = Requester {
            account: tokens.account_of(owner("alice")),
            caller: None,
        };
        let warm = Self {
            vault,
            tokens: CountedLookups(tokens, AtomicUsize::new(0)),
            memo: TokenMemo::default(),
            requester,
            dir,
        };
        for _ in 0..2 {
            assert_eq!(warm.sent().await.as_deref(), Some("Bearer old"));
        }
        assert_eq!(warm.lookups(), 1);
        warm
    }

    fn lookups(&self) -> usize {
        self.tokens.1.load(Ordering::Relaxed)
    }

    async fn token(&self) -> Option<Arc<HeldToken>> {
        match self.memo.credential(&self.tokens, &self.requester) {
            Credential::Held(held) => Some(held),
            Credential::Awaited(awaited) => awaited.await.ok(),
            Credential::Ready(_) => panic!("these are no token of a caller"),
        }
    }

    /// What the next request carries.
    async fn sent(&self) -> Option<String> {
        let token = self.token().await?;
        Some(
            token.headers()["authorization"]
                .to_str()
                .unwrap()
                .to_owned(),
        )
    }
}

#[tokio::test]
async fn token_of_a_disconnected_account_is_not_sent() {
    let f = Fixture::warm(None).await;
    f.vault.remove_grant(&key()).await.unwrap();
    assert_eq!(f.sent().await, None);
}

#[tokio::test]
async fn token_of_an_account_that_ended_elsewhere_is_not_sent() {
    let f = Fixture::warm(None).await;
    let elsewhere = vault(&f.dir).await;
    elsewhere.remove_grant(&key()).await.unwrap();
    f.vault.poll_changes().await.unwrap();
    assert_eq!(f.sent().await, None);
}

#[tokio::test]
async fn token_of_a_switched_account_is_not_sent_over_the_old_connection() {
    let f = Fixture::warm(None).await;
    let other = record("other", None);
    f.vault.put_grant(&key(), &other).await.unwrap();
    assert_eq!(f.sent().await, None);
}

#[tokio::test]
async fn refreshed_token_is_sent_at_once() {
    let f = Fixture::warm(None).await;
    let grant = f.vault.grant(&key()).await.unwrap().unwrap();
    let lease = f.vault.leases().take(&key(), grant.version).await.unwrap();
    let LeaseOutcome::Held(lease) = lease else {
        panic!("{lease:?}");
    };
    let finished = f.vault.leases().finish(&lease, &record("new", None)).await;
    assert!(finished.unwrap().is_some());
    assert_eq!(f.sent().await.as_deref(), Some("Bearer new"));
}

#[tokio::test]
async fn token_that_the_upstream_refused_is_not_sent() {
    let f = Fixture::warm(None).await;
    let used = f.token().await.unwrap();
    let challenge = Challenge::of(&HeaderMap::new());
    let status = StatusCode::UNAUTHORIZED;
    let refused = f.tokens.refused(&f.requester, used, status, challenge);
    assert!(refused.await.unwrap_err().asks_user());
    assert_eq!(f.sent().await, None);
}

#[tokio::test]
async fn token_that_ends_while_the_machine_is_suspended_is_not_sent() {
    let hour = Duration::from_hours(1);
    let f = Fixture::warm(Some(hour)).await;
    crate::clock::suspend_for(hour);
    assert_eq!(f.sent().await, None);
}

#[tokio::test]
async fn token_of_one_account_is_not_sent_for_another() {
    let mut f = Fixture::warm(None).await;
    f.requester.account = f.tokens.account_of(owner("bob"));
    assert_eq!(f.sent().await, None);
}

#[tokio::test]
async fn change_of_another_account_costs_no_lookup() {
    let f = Fixture::warm(None).await;
    let bob = GrantKey::new(owner("bob"), "up");
    let bobs = record("bob's", None);
    f.vault.put_grant(&bob, &bobs).await.unwrap();
    assert_eq!(f.sent().await.as_deref(), Some("Bearer old"));
    assert_eq!(f.lookups(), 1);
}
