//! One process refreshes a grant at a time, and no result is lost.

use drawbridge::vault::{GrantLease, LEASE, LeaseOutcome};
use futures_util::future::join_all;
use rstest::rstest;

use super::*;

fn held(outcomes: impl IntoIterator<Item = LeaseOutcome>) -> usize {
    let held = outcomes
        .into_iter()
        .filter(|outcome| matches!(outcome, LeaseOutcome::Held(_)));
    held.count()
}

/// The database, a vault in it with the grant of alice, the grant's version and its lease, which is held.
async fn leased(
    backend: Backend,
    clock: &Arc<TestClock>,
) -> Option<(TestDatabase, Vault, i64, GrantLease)> {
    let db = backend.database().await?;
    let vault = db.vault(&["k1"], clock).await;
    let version = vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    let LeaseOutcome::Held(lease) = vault.leases().take(&key("alice"), version).await.unwrap()
    else {
        panic!("nobody refreshes");
    };
    Some((db, vault, version, lease))
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_a_hundred_holds_the_lease(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let (one, other) = (
        db.vault(&["k1"], &clock).await,
        db.vault(&["k1"], &clock).await,
    );
    let version = one.put_grant(&key("alice"), &record("a")).await.unwrap();
    let attempts = (0..100).map(|n| {
        let vault = if n % 2 == 0 {
            one.clone()
        } else {
            other.clone()
        };
        tokio::spawn(async move { vault.leases().take(&key("alice"), version).await.unwrap() })
    });
    let outcomes = join_all(attempts).await.into_iter().map(Result::unwrap);
    assert_eq!(held(outcomes), 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn lease_ends_by_itself_or_when_given_back(#[case] backend: Backend) {
    let clock = clock();
    let Some((_db, vault, version, dead)) = leased(backend, &clock).await else {
        return;
    };
    let lease = async || vault.leases().take(&key("alice"), version).await.unwrap();
    let LeaseOutcome::Busy(ends) = lease().await else {
        panic!("it is held");
    };
    assert_eq!(ends, Duration::from_secs(START) + LEASE);
    clock.advance(LEASE);
    let LeaseOutcome::Held(second) = lease().await else {
        panic!("it has ended");
    };
    // The one that is late gives back what is not its own any more.
    vault.leases().release(dead).await.unwrap();
    assert!(matches!(lease().await, LeaseOutcome::Busy(_)));
    vault.leases().release(second).await.unwrap();
    assert!(matches!(lease().await, LeaseOutcome::Held(_)));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn late_result_is_kept_unless_superseded(#[case] backend: Backend) {
    let clock = clock();
    let Some((_db, vault, version, first)) = leased(backend, &clock).await else {
        return;
    };
    let lease = async |version| vault.leases().take(&key("alice"), version).await.unwrap();
    clock.advance(2 * LEASE);
    let LeaseOutcome::Held(second) = lease(version).await else {
        panic!("it has ended");
    };
    // The refresh token was rotated for the first one: without its result the grant would be lost.
    let newer = vault.leases().finish(&first, &record("b")).await.unwrap();
    let newer = newer.unwrap();
    assert_eq!(
        vault.leases().finish(&second, &record("c")).await.unwrap(),
        None
    );
    assert_eq!(token(&vault, &key("alice")).await.unwrap(), "access-b");
    let LeaseOutcome::Newer(grant) = lease(version).await else {
        panic!("it was refreshed");
    };
    assert_eq!(grant.version, newer);
    // What was refreshed is not leased, and a refused old token does not end it.
    assert!(!vault.end_grant(&key("alice"), version).await.unwrap());
    assert!(matches!(lease(newer).await, LeaseOutcome::Held(_)));
    assert!(vault.end_grant(&key("alice"), newer).await.unwrap());
    assert!(matches!(lease(newer).await, LeaseOutcome::Gone));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn refresh_of_a_replaced_grant_is_void(#[case] backend: Backend) {
    let Some((_db, vault, _, lease)) = leased(backend, &clock()).await else {
        return;
    };
    // Disconnected and connected again: the row is another one, with the same key.
    vault.remove_grant(&key("alice")).await.unwrap();
    vault
        .put_grant(&key("alice"), &record("new"))
        .await
        .unwrap();
    assert_eq!(
        vault.leases().finish(&lease, &record("b")).await.unwrap(),
        None
    );
    assert_eq!(token(&vault, &key("alice")).await.unwrap(), "access-new");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn refresh_of_a_removed_grant_is_revoked(#[case] backend: Backend) {
    let Some((_db, vault, _, lease)) = leased(backend, &clock()).await else {
        return;
    };
    vault.remove_grant(&key("alice")).await.unwrap();
    let void = vault.leases().finish(&lease, &record("b")).await.unwrap();
    assert_eq!(void, None);
    let due = vault.revocations().due(10).await.unwrap();
    let tokens = due.iter().map(|due| due.record.token.as_ref().unwrap());
    let fresh = tokens.filter(|token| token.expose().ends_with("-b"));
    assert_eq!(fresh.count(), 2);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn refresh_without_access_token_is_revoked_and_has_ended(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let vault = db.vault(&["k1"], &clock()).await;
    let version = vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    let LeaseOutcome::Held(lease) = vault.leases().take(&key("alice"), version).await.unwrap()
    else {
        panic!("nobody refreshes");
    };
    let useless = GrantRecord {
        access_token: None,
        access_ends: None,
        ..record("b")
    };
    assert!(
        vault
            .leases()
            .finish(&lease, &useless)
            .await
            .unwrap()
            .is_some()
    );
    let grant = vault.read_grant(&key("alice")).await.unwrap().unwrap();
    assert!(grant.record.refresh_token.is_none());
    let due = vault.revocations().due(10).await.unwrap();
    let tokens: Vec<_> = due
        .iter()
        .map(|due| due.record.token.as_ref().unwrap().expose())
        .collect();
    assert_eq!(tokens, ["refresh-b"]);
    vault.count().await.unwrap();
    assert_eq!(vault.census().unwrap()["tracker"].ended, 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn unkept_tokens_are_revoked_unless_they_share_an_account(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let vault = db.vault(&["k1"], &clock()).await;
    vault.put_grant(&key("bob"), &record("a")).await.unwrap();
    for name in ["alice", "bob"] {
        vault.revoke_unkept(&key(name), &record("b")).await.unwrap();
    }
    let due = vault.revocations().due(10).await.unwrap();
    let owners: Vec<_> = due.iter().map(|due| due.record.owner.unwrap()).collect();
    assert_eq!(owners, [*owner("alice").bytes(); 2]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn lease_of_a_wrong_clock_is_taken_over(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let (right, fast) = (clock(), clock());
    fast.advance(DAY);
    let (here, there) = (
        db.vault(&["k1"], &right).await,
        db.vault(&["k1"], &fast).await,
    );
    let version = here.put_grant(&key("alice"), &record("a")).await.unwrap();
    for vault in [&there, &here] {
        let outcome = vault.leases().take(&key("alice"), version).await.unwrap();
        assert!(matches!(outcome, LeaseOutcome::Held(_)), "{outcome:?}");
    }
}

/// The answer to the refresh under way may be the only copy of a rotated refresh token.
#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn refusal_during_a_refresh_takes_nothing_from_it(#[case] backend: Backend) {
    let Some((_db, vault, version, lease)) = leased(backend, &clock()).await else {
        return;
    };
    let alice = key("alice");
    assert!(!vault.mark_refused(&alice, version, true).await.unwrap());
    let written = vault.leases().finish(&lease, &record("b")).await.unwrap();
    let version = written.expect("the refresh is written");
    assert_eq!(token(&vault, &alice).await.unwrap(), "access-b");
    assert!(vault.mark_refused(&alice, version, true).await.unwrap());
}
