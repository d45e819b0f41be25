//! The other tables: pending authorizations, lists, registrations, revocations.

use drawbridge::database::SqlValue;
use drawbridge::vault::{
    MAX_LIST, MAX_PENDING, MAX_PENDING_PER_OWNER, PendingError, PendingRecord, RegistrationRecord,
};
use rstest::rstest;

use super::*;

fn pending(upstream: &str) -> PendingRecord {
    PendingRecord {
        upstream: upstream.to_owned(),
        issuer: "https://as.test".to_owned(),
        token_endpoint: "https://as.test/token".to_owned(),
        revocation_endpoint: None,
        resource: "https://tracker.test/mcp".to_owned(),
        client_id: "client-1".to_owned(),
        auth_method: Some("none".to_owned()),
        names_issuer: false,
        redirect_uri: "https://gw.test/connect/callback".to_owned(),
        scopes: vec!["read".to_owned()],
        verifier: Some(Secret::new("verifier")),
        nonce: None,
        cookie_digest: "digest".to_owned(),
        program: Some("Inspector".to_owned()),
    }
}

fn state(n: u8) -> [u8; 32] {
    [n; 32]
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn state_works_once_and_for_ten_minutes(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    let put = async |n| {
        let (state, record) = (state(n), pending("tracker"));
        let put = vault.pending().put(owner("alice"), &state, &record);
        put.await.unwrap();
    };
    put(1).await;
    put(2).await;
    let (whose, taken) = vault.pending().take(&state(1)).await.unwrap().unwrap();
    assert_eq!(whose, owner("alice"));
    assert_eq!(taken.verifier.unwrap().expose(), "verifier");
    assert!(vault.pending().take(&state(1)).await.unwrap().is_none());
    assert!(vault.pending().take(&state(9)).await.unwrap().is_none());
    clock.advance(10 * MINUTE);
    assert!(vault.pending().take(&state(2)).await.unwrap().is_none());
    put(3).await;
    clock.advance(10 * MINUTE);
    assert_eq!(vault.sweep(DAY).await.unwrap().pending, 1);
    // The row of another user under the caller's own state.
    put(4).await;
    let raw = db.open().await;
    let moved = "UPDATE pending SET owner = $1";
    let values = [SqlValue::from(owner("mallory").bytes())];
    raw.execute(moved, &values).await.unwrap();
    assert!(vault.pending().take(&state(4)).await.unwrap().is_none());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn oldest_of_too_many_pending_makes_room(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    let put = async |who: &str, n| {
        clock.advance(Duration::from_millis(1));
        let record = pending("tracker");
        vault.pending().put(owner(who), &state(n), &record).await
    };
    put("bob", 200).await.unwrap();
    let most = u8::try_from(MAX_PENDING_PER_OWNER).unwrap();
    for n in 0..=most {
        put("alice", n).await.unwrap();
    }
    assert!(vault.pending().take(&state(0)).await.unwrap().is_none());
    assert!(vault.pending().take(&state(1)).await.unwrap().is_some());
    assert!(vault.pending().take(&state(most)).await.unwrap().is_some());
    assert!(vault.pending().take(&state(200)).await.unwrap().is_some());
    // Those of all others: one more is refused, and none of them goes.
    let raw = db.open().await;
    let bytes = if backend == Backend::Sqlite {
        "BLOB"
    } else {
        "BYTEA"
    };
    let fill = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MAX_PENDING}) \
         INSERT INTO pending SELECT CAST(CAST(i AS TEXT) AS {bytes}), CAST(CAST(i AS TEXT) AS {bytes}), '', \
         CAST('' AS {bytes}), 0, $1 FROM n"
    );
    let ends = i64::try_from((START + 3600) * 1000).unwrap();
    let fill = Box::leak(fill.into_boxed_str());
    raw.execute(fill, &[ends.into()]).await.unwrap();
    let refused = put("carol", 201).await.unwrap_err();
    assert!(matches!(refused, PendingError::Full), "{refused}");
    clock.advance(2 * 60 * MINUTE);
    put("carol", 202).await.unwrap();
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn lists_live_as_long_as_their_grant(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let vault = db.vault(&["k1"], &clock()).await;
    let alice = key("alice");
    let list = async |kind: &str| vault.lists().get(&alice, kind).await.unwrap();
    let keep = async |version, kind, text: &str| {
        let kept = vault.lists().put(&alice, version, (kind, text)).await;
        kept.unwrap()
    };
    assert!(!keep(1, "tools", "[]").await);
    assert_eq!(list("tools").await, None);
    let version = vault.put_grant(&alice, &record("a")).await.unwrap();
    assert!(keep(version, "tools", "[1]").await);
    assert!(keep(version, "tools", "[2]").await);
    assert!(keep(version, "prompts", "[3]").await);
    assert!(!keep(version - 1, "tools", "[4]").await);
    assert_eq!(list("tools").await.as_deref(), Some("[2]"));
    let long = "x".repeat(MAX_LIST + 1);
    assert!(!keep(version, "tools", &long).await);
    let bob = vault.lists().get(&key("bob"), "tools").await.unwrap();
    assert_eq!(bob, None);
    // One list in place of another one of the same principal.
    let raw = db.open().await;
    let swap = "UPDATE kept_lists SET sealed = (SELECT sealed FROM kept_lists WHERE kind = 'tools') \
                WHERE kind = 'prompts'";
    raw.execute(swap, &[]).await.unwrap();
    assert_eq!(list("prompts").await, None);
    // A new token keeps them, the end of the account does not.
    vault.put_grant(&alice, &record("b")).await.unwrap();
    assert_eq!(list("tools").await.as_deref(), Some("[2]"));
    vault.remove_grant(&alice).await.unwrap();
    vault.put_grant(&alice, &record("c")).await.unwrap();
    assert_eq!(list("tools").await, None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn lists_outlive_a_grant_that_its_server_ended(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    let alice = key("alice");
    let list = async || vault.lists().get(&alice, "tools").await.unwrap();
    let keep = async |version, text| {
        let kept = vault.lists().put(&alice, version, ("tools", text)).await;
        kept.unwrap()
    };
    let version = vault.put_grant(&alice, &record("a")).await.unwrap();
    assert!(keep(version, "[1]").await);
    // Another account has other lists.
    let mut other = record("b");
    other.account = Some("Bob".to_owned());
    let version = vault.put_grant(&alice, &other).await.unwrap();
    assert_eq!(list().await, None);
    assert!(keep(version, "[2]").await);
    assert!(vault.end_grant(&alice, version).await.unwrap());
    assert_eq!(list().await.as_deref(), Some("[2]"));
    clock.advance(2 * DAY);
    vault.sweep(DAY).await.unwrap();
    assert_eq!(list().await, None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn reconnected_account_is_not_revoked(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let vault = db.vault(&["k1"], &clock()).await;
    let due = async || vault.revocations().due(10).await.unwrap().len();
    vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    let mut unnamed = record("b");
    unnamed.account = None;
    vault.put_grant(&key("alice"), &unnamed).await.unwrap();
    assert_eq!(due().await, 0);
    let mut elsewhere = record("c");
    elsewhere.client_id = Some("client-2".to_owned());
    vault.put_grant(&key("alice"), &elsewhere).await.unwrap();
    assert_eq!(due().await, 2);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn registration_belongs_to_its_issuer(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    let (issuer, other) = ("https://as.test", "https://other.test");
    for n in 0..12 {
        clock.advance(Duration::from_millis(1));
        let record = RegistrationRecord {
            issuer: issuer.to_owned(),
            client_id: format!("client-{n}"),
            client_secret: Some(Secret::new(format!("secret-{n}"))),
            auth_method: "client_secret_basic".to_owned(),
            redirect_uri: Some("https://gw.test/connect/callback".to_owned()),
            secret_ends: None,
            scopes: Vec::new(),
        };
        vault.registrations().put(&record).await.unwrap();
    }
    let newest = newest_of(&vault, issuer).await.unwrap();
    assert_eq!(newest.client_id, "client-11");
    assert_eq!(newest.client_secret.unwrap().expose(), "secret-11");
    assert!(newest_of(&vault, other).await.is_none());
    let of = async |client: &str| vault.registrations().get(issuer, client).await.unwrap();
    assert_eq!(of("client-4").await.unwrap().client_id, "client-4");
    assert!(of("client-3").await.is_none(), "the ninth newest");
    // An edited issuer does not carry the secret to another server.
    let raw = db.open().await;
    let moved = "UPDATE registrations SET issuer = $1";
    raw.execute(moved, &[other.into()]).await.unwrap();
    assert!(newest_of(&vault, other).await.is_none());
}

/// The newest registration at `issuer` that is not set aside.
async fn newest_of(vault: &Vault, issuer: &str) -> Option<RegistrationRecord> {
    let current = vault.registrations().current(issuer).await.unwrap();
    current.into_iter().next()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn registration_that_is_set_aside_stays_for_its_grants(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    let issuer = "https://as.test";
    let put = async |client: &str| {
        clock.advance(Duration::from_millis(1));
        let record = RegistrationRecord {
            issuer: issuer.to_owned(),
            client_id: client.to_owned(),
            client_secret: None,
            auth_method: "none".to_owned(),
            redirect_uri: None,
            secret_ends: None,
            scopes: Vec::new(),
        };
        vault.registrations().put(&record).await.unwrap();
    };
    let newest = async || {
        let newest = newest_of(&vault, issuer).await;
        newest.map(|record| record.client_id)
    };
    let set_aside = async |client: &str| {
        let registrations = vault.registrations();
        registrations.set_aside(issuer, client).await.unwrap();
    };
    let is_there = async |client: &str| {
        let found = vault.registrations().get(issuer, client).await.unwrap();
        found.is_some()
    };
    for client in ["first", "second", "third"] {
        put(client).await;
    }
    set_aside("second").await;
    assert_eq!(newest().await.as_deref(), Some("third"));
    // The older ones are not used again either.
    set_aside("third").await;
    assert_eq!(newest().await, None);
    for n in 0..6 {
        put(&format!("later-{n}")).await;
    }
    set_aside("first").await;
    assert_eq!(newest().await.as_deref(), Some("later-5"));
    assert!(!is_there("first").await, "the ninth newest");
    assert!(is_there("second").await && is_there("third").await);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn registrations_of_all_issuers_are_bounded(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    let put = async |issuer: &str| {
        clock.advance(Duration::from_millis(1));
        let record = RegistrationRecord {
            issuer: issuer.to_owned(),
            client_id: "client".to_owned(),
            client_secret: None,
            auth_method: "none".to_owned(),
            redirect_uri: None,
            secret_ends: None,
            scopes: Vec::new(),
        };
        vault.registrations().put(&record).await.unwrap();
    };
    put("https://oldest.test").await;
    put("https://as.test").await;
    let raw = db.open().await;
    let copy = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 998) \
         INSERT INTO registrations SELECT issuer || CAST(i AS TEXT), client_id, key_id, sealed, made \
         FROM registrations, n WHERE issuer = 'https://as.test'";
    raw.execute(copy, &[]).await.unwrap();
    let is_there = async |issuer| newest_of(&vault, issuer).await.is_some();
    assert!(is_there("https://oldest.test").await);
    put("https://newest.test").await;
    assert!(!is_there("https://oldest.test").await);
    assert!(is_there("https://as.test").await && is_there("https://newest.test").await);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn revocation_is_tried_again_for_a_week(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    // Another account with the same refresh token and another access token: only that one is void.
    let mut same = record("b");
    same.account = Some("Bob".to_owned());
    same.refresh_token = record("a").refresh_token;
    vault.put_grant(&key("alice"), &same).await.unwrap();
    let due = vault.revocations().due(10).await.unwrap();
    let tokens = due.iter().map(|due| due.record.token.as_ref().unwrap());
    let tokens: Vec<_> = tokens.map(Secret::expose).collect();
    assert_eq!(tokens, ["access-a"]);
    assert_eq!(due[0].record.hint, "access_token");
    assert_eq!(due[0].record.endpoint, "https://as.test/revoke");
    // Taken: not due for another process, nor here before a pause that grows.
    assert!(vault.revocations().due(10).await.unwrap().is_empty());
    clock.advance(MINUTE);
    assert_eq!(vault.revocations().due(10).await.unwrap()[0].tries, 1);
    clock.advance(MINUTE);
    assert!(vault.revocations().due(10).await.unwrap().is_empty());
    clock.advance(MINUTE);
    let due = vault.revocations().due(10).await.unwrap();
    vault.revocations().finish(&due[0]).await.unwrap();
    clock.advance(DAY);
    assert!(vault.revocations().due(10).await.unwrap().is_empty());
    vault.remove_grant(&key("alice")).await.unwrap();
    clock.advance(8 * DAY);
    assert_eq!(vault.sweep(100 * DAY).await.unwrap().revocations, 2);
    assert!(vault.revocations().due(10).await.unwrap().is_empty());
}

// `drawbridge vault revoke --all` queues both tokens of each account before the first server is told.
#[tokio::test]
async fn tokens_of_all_accounts_wait_to_be_revoked() {
    let db = Backend::Sqlite.database().await.unwrap();
    let vault = db.vault(&["k1"], &clock()).await;
    let raw = db.open().await;
    let text = "INSERT INTO revocations (id, key_id, sealed, tries, due, made) \
         WITH RECURSIVE tokens (number) AS \
         (SELECT 1 UNION ALL SELECT number + 1 FROM tokens WHERE number < $1) \
         SELECT randomblob(16), 'k', x'00', 0, $2, $2 + number FROM tokens";
    let made = i64::try_from(START).unwrap() * 1000;
    for (more, given_up) in [(20_000, 0), (80_001, 1)] {
        let values = [SqlValue::Int(more), SqlValue::Int(made)];
        raw.execute(text, &values).await.unwrap();
        let swept = vault.sweep(100 * DAY).await.unwrap();
        assert_eq!(swept.revocations, given_up);
    }
}
