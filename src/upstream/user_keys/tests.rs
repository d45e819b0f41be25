use super::*;
use crate::call::samples::owner;
use crate::clock::{SystemClock, TestClock};
use crate::vault::REFUSED_FOR;
use crate::vault::samples::{pasted_key, vault_with_clock};

const AUTH: &str = "[upstreams.up.auth]\nkind = \"user_key\"\nheader = \"X-Key\"\nprefix = \"\"\n";

fn keys_at(url: &str, vault: &Vault) -> Arc<UserKeys> {
    let text = format!("[auth]\nmode = \"none\"\n[upstreams.up]\nurl = {url:?}\n{AUTH}");
    let config = crate::config::parse(&text, "test.toml", &|_| None).unwrap();
    let upstream = &config.upstreams[0];
    let Some(crate::config::UpstreamAuth::UserKey(config)) = &upstream.auth else {
        panic!("has keys of callers");
    };
    let audit = AuditSink::idle(Arc::new(SystemClock));
    let keeping = AccountKeeping::new(vault, &audit);
    UserKeys::new(upstream, HeaderMap::new(), (config, Some(keeping)))
}

async fn paste(keys: &UserKeys, vault: &Vault, subject: &str, key: &str) {
    let record = GrantRecord {
        placement: keys.placement.clone(),
        ..pasted_key(&keys.resource, key)
    };
    let place = keys.key(owner(subject));
    vault.put_grant(&place, &record).await.unwrap();
}

/// A principal's requests that belong to no call.
fn requester(account: Account) -> Requester {
    Requester {
        account,
        caller: None,
    }
}

/// The key that requests of a principal carry.
async fn sent(keys: &UserKeys, account: Account) -> Option<String> {
    let held = match keys.for_request(&requester(account)) {
        Credential::Held(held) => held,
        Credential::Awaited(awaited) => awaited.await.ok()?,
        Credential::Ready(headers) => {
            assert_eq!(
                account,
                Account::Common,
                "a caller's request waits for a key"
            );
            assert!(!headers.contains_key("x-key"), "no key is everybody's");
            return None;
        }
    };
    Some(held.headers()["x-key"].to_str().unwrap().to_owned())
}

/// The account of a principal, as a call finds it.
async fn account(keys: &UserKeys, subject: &str) -> (AccountState, Account) {
    let state = keys.look_up(owner(subject)).await.unwrap();
    assert_eq!(keys.known(owner(subject)), Some(state));
    (state, keys.account_of(owner(subject)))
}

#[tokio::test]
async fn each_principal_has_its_own_key_cold_and_warm() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault_with_clock(&dir, Arc::new(SystemClock)).await;
    let keys = keys_at("https://up.test/mcp", &vault);
    for name in ["alice", "bob"] {
        paste(&keys, &vault, name, &format!("key-of-{name}")).await;
    }
    for _ in 0..2 {
        for name in ["alice", "bob"] {
            let (_, account) = account(&keys, name).await;
            assert_eq!(sent(&keys, account).await, Some(format!("key-of-{name}")));
        }
        let (state, carol) = account(&keys, "carol").await;
        assert_eq!(state, AccountState::Missing);
        assert_eq!(sent(&keys, carol).await, None);
    }
    assert_eq!(sent(&keys, Account::Common).await, None);
}

#[tokio::test]
async fn connection_of_a_replaced_key_carries_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault_with_clock(&dir, Arc::new(SystemClock)).await;
    let keys = keys_at("https://up.test/mcp", &vault);
    paste(&keys, &vault, "alice", "older").await;
    let (_, before) = account(&keys, "alice").await;
    paste(&keys, &vault, "alice", "newer").await;
    assert_eq!(sent(&keys, before).await, None);
    let (_, after) = account(&keys, "alice").await;
    assert_ne!(before, after);
    assert_eq!(sent(&keys, after).await.as_deref(), Some("newer"));
    assert_eq!(sent(&keys, before).await, None);
}

#[tokio::test]
async fn key_goes_to_no_other_url_than_it_was_pasted_for() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault_with_clock(&dir, Arc::new(SystemClock)).await;
    let keys = keys_at("https://up.test/mcp", &vault);
    paste(&keys, &vault, "alice", "key").await;
    let (state, _) = account(&keys, "alice").await;
    assert!(state.is_connected());
    let moved = keys_at("https://moved.test/mcp", &vault);
    let (state, alice) = account(&moved, "alice").await;
    assert_eq!(state, AccountState::Missing);
    assert_eq!(sent(&moved, alice).await, None);
}

#[tokio::test]
async fn refused_key_stays_and_is_tried_again_after_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let clock = TestClock::at(1_800_000_000);
    let vault = vault_with_clock(&dir, Arc::<TestClock>::clone(&clock)).await;
    let keys = keys_at("https://up.test/mcp", &vault);
    paste(&keys, &vault, "alice", "key").await;
    let held = |account| match keys.for_request(&requester(account)) {
        Credential::Held(held) => held,
        other => panic!("no key is held: {other:?}"),
    };
    let refuse = async |account, status| {
        let challenge = Challenge::of(&HeaderMap::new());
        keys.refused(&requester(account), held(account), status, challenge)
            .await
    };
    let (_, alice) = account(&keys, "alice").await;
    let stands = refuse(alice, StatusCode::FORBIDDEN).await;
    assert_eq!(stands.unwrap(), Renewal::Stands);
    let failure = refuse(alice, StatusCode::UNAUTHORIZED).await.unwrap_err();
    assert!(failure.asks_user());
    let (state, same) = account(&keys, "alice").await;
    assert_eq!((state, same), (AccountState::Refused, alice));
    assert_eq!(sent(&keys, alice).await, None);

    clock.advance(REFUSED_FOR);
    assert!(account(&keys, "alice").await.0.is_connected());
    let on_trial = held(alice);
    assert!(on_trial.is_on_trial());
    keys.accepted(alice, on_trial).await;
    assert!(account(&keys, "alice").await.0.is_connected());
    assert!(!held(alice).is_on_trial());
}

#[tokio::test]
async fn removed_key_has_no_connection() {
    let dir = tempfile::tempdir().unwrap();
    let here = vault_with_clock(&dir, Arc::new(SystemClock)).await;
    let there = vault_with_clock(&dir, Arc::new(SystemClock)).await;
    here.poll_changes().await.unwrap();
    let keys = keys_at("https://up.test/mcp", &here);
    paste(&keys, &here, "alice", "key").await;
    let (_, alice) = account(&keys, "alice").await;
    assert_ne!(alice.connection(), 0);
    let place = keys.key(owner("alice"));
    here.remove_grant(&place).await.unwrap();
    let (state, _) = account(&keys, "alice").await;
    assert_eq!(state, AccountState::Missing);
    // Has it leave the cache of the vault.
    paste(&keys, &there, "alice", "key").await;
    there.remove_grant(&place).await.unwrap();
    here.poll_changes().await.unwrap();
    assert!(here.cached_grant(&place).is_none());
    assert_eq!(keys.account_of(owner("alice")).connection(), 0);
}
