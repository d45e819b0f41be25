//! Calls go on without a look-up of their account until something changes.

use super::*;
use crate::vault::GrantKey;
use crate::vault::samples::vault;

/// A session with a link of its owner's account.
struct Connected {
    f: PairingFixture,
    upstream: Arc<ScriptedUpstream>,
    vault: Vault,
    key: GrantKey,
    _dir: tempfile::TempDir,
}

impl Connected {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault(&dir).await;
        let upstream = ScriptedUpstream::new(ScriptStep::Modern);
        let f = fixture_with(Arc::clone(&upstream) as _, KEYS, Some(vault.clone()));
        let key = GrantKey::new(f.session.owner(), "up");
        let connection = vault.put_grant(&key, &pasted()).await.unwrap();
        drop(f.session.links().take_of_another("up", connection));
        let link = || Arc::clone(&upstream) as _;
        let (links, closed) = (f.session.links(), f.session.closed());
        links.get_or(closed, &"up".into(), Some(connection), link);
        Self {
            f,
            upstream,
            vault,
            key,
            _dir: dir,
        }
    }

    /// Makes a call; returns how many have reached the upstream by the link.
    async fn call(&self) -> usize {
        let call = self.f.call(ModernClient::new(), CancellationToken::new());
        drop(self.f.relay.handle(&call, &self.f.session).await);
        self.upstream.calls()
    }

    fn is_known(&self, program: Option<&str>) -> bool {
        let links = &self.f.relay.parts.links;
        links.account_is_known(&self.f.session, "up", || program)
    }
}

#[tokio::test]
async fn account_is_known_from_the_first_call_on() {
    let connected = Connected::new().await;
    assert!(!connected.is_known(None));
    assert_eq!(connected.call().await, 1);
    assert!(connected.is_known(None));
    assert_eq!(connected.call().await, 2);
}

#[tokio::test]
async fn call_after_a_disconnection_is_not_sent() {
    let connected = Connected::new().await;
    assert_eq!(connected.call().await, 1);
    connected.vault.remove_grant(&connected.key).await.unwrap();
    assert!(!connected.is_known(None));
    assert_eq!(connected.call().await, 1);
}

#[tokio::test]
async fn call_after_a_switch_is_not_sent_by_the_link_of_the_other_account() {
    let connected = Connected::new().await;
    assert_eq!(connected.call().await, 1);
    let (vault, key) = (&connected.vault, &connected.key);
    vault.put_grant(key, &pasted()).await.unwrap();
    assert!(!connected.is_known(None));
    assert_eq!(connected.call().await, 1);
}

// Each has its first use in the audit log.
#[tokio::test]
async fn use_by_another_program_of_the_session_is_noted() {
    let connected = Connected::new().await;
    let editor = r#"{"name":"editor"}"#;
    connected.call().await;
    assert!(!connected.is_known(Some(editor)));
    let links = &connected.f.relay.parts.links;
    let check = links
        .upstreams
        .caller_accounts()
        .check("up", connected.key.owner);
    let session = &connected.f.session;
    session
        .links()
        .set_checked("up", check.unwrap(), Some(editor));
    assert!(connected.is_known(Some(editor)));
    assert!(!connected.is_known(None));
}

#[tokio::test]
async fn look_up_of_another_account_than_that_of_the_link_is_not_kept() {
    let connected = Connected::new().await;
    let (vault, key) = (&connected.vault, &connected.key);
    vault.put_grant(key, &pasted()).await.unwrap();
    let upstreams = &connected.f.relay.parts.links.upstreams;
    upstreams
        .caller_accounts()
        .kept("up", key.owner)
        .await
        .unwrap();
    let check = upstreams.caller_accounts().check("up", key.owner).unwrap();
    connected.f.session.links().set_checked("up", check, None);
    assert!(!connected.is_known(None));
}
