//! Changed accounts: the links, lists and tasks of a session at an upstream belong to the account that they were opened with.

use std::sync::Arc;

use moka::sync::Cache;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::Relay;
use super::list_changes::LISTS;
use crate::call::{Notice, NoticeArrival};
use crate::session::NoticeSource;
use crate::upstream::AccountState;
use crate::vault::GrantKey;

/// Accounts whose state is remembered between two changes.
const MAX_KNOWN: u64 = 100_000;

impl Relay {
    /// Ends what sessions have open at an upstream whenever its account is connected, replaced, refused or removed, and
    /// tells their clients that lists have changed. Runs until the vault is gone.
    ///
    /// # Cancel safety
    /// Changes that were not read yet are not told.
    pub async fn follow_accounts(self: Arc<Self>, mut changes: Receiver<GrantKey>) {
        let known = Cache::new(MAX_KNOWN);
        loop {
            match changes.recv().await {
                Ok(key) => {
                    let accounts = self.parts.links.upstreams.caller_accounts();
                    for upstream in accounts.upstreams_of(&key) {
                        let owner = key.owner;
                        let key = GrantKey { owner, upstream };
                        self.account_changed(&key, &known).await;
                    }
                }
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(
                        missed,
                        "accounts change faster than sessions can be told: all sessions are looked at"
                    );
                    self.look_at_all(&known).await;
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Looks at every account: it is not known which ones have changed.
    async fn look_at_all(&self, known: &Cache<GrantKey, AccountState>) {
        let mut owners = self.parts.links.upstreams.shared_accounts().owners();
        owners.extend(self.opener.sessions.owners().all());
        for owner in owners {
            for upstream in self.parts.links.upstreams.caller_accounts().upstreams() {
                let key = GrantKey::new(owner, upstream);
                self.account_changed(&key, known).await;
            }
        }
    }

    /// Tells the sessions of a changed account; not where it was refreshed, which is another token of the same account.
    async fn account_changed(&self, key: &GrantKey, known: &Cache<GrantKey, AccountState>) {
        let (links, upstream) = (&self.parts.links, &key.upstream);
        let accounts = links.upstreams.caller_accounts();
        let shared = links.upstreams.shared_accounts();
        if !accounts.has(upstream) {
            return;
        }
        let sessions = self.opener.sessions.owners().sessions(key.owner);
        let is_shared = shared.has(upstream, key.owner);
        if sessions.is_empty() && !is_shared {
            known.invalidate(key);
            return;
        }
        // A refresh may take as long as its server does: the accounts of others wait here.
        let state = accounts.kept(upstream, key.owner).await;
        // If the database fails, the state of the account is unknown.
        let state = state.ok().flatten();
        match state {
            Some(state) if known.get(key) == Some(state) => return,
            Some(state) if !sessions.is_empty() => known.insert(key.clone(), state),
            _ => known.invalidate(key),
        }
        let account = links.upstreams.account(upstream, key.owner);
        // A shared link is kept for a while after its last session.
        shared.end_others(upstream, key.owner, account.connection());
        let arrival = NoticeArrival::now(None);
        for session in sessions {
            if !session.endpoint.upstreams.contains(upstream) {
                continue;
            }
            links.end_other_account(&session, upstream, account.connection());
            if state.is_some_and(AccountState::is_connected)
                && let Some(finished) = self.parts.consents.finished(&session, upstream)
            {
                session.tell(finished, NoticeSource::of(upstream));
            }
            let intake = links.client(&session, upstream).intake;
            for what in LISTS {
                intake.notice(upstream, Notice::list_changed(what), arrival);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast;

    use super::super::pairings::{pasted, with_keys, with_shared_keys};
    use super::*;
    use crate::call::samples::owner;
    use crate::upstream::ClientContext;
    use crate::vault::samples::vault;

    #[tokio::test]
    async fn session_hears_of_a_change_among_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault(&dir).await;
        let f = with_keys(vault.clone());
        let key = GrantKey::new(f.session.owner(), "up");
        vault.put_grant(&key, &pasted()).await.unwrap();
        let stranger = GrantKey::new(owner("stranger"), "up");
        // The link was made without an account. Others change nothing about it.
        let (sender, receiver) = broadcast::channel(1);
        sender.send(stranger.clone()).unwrap();
        drop(sender);
        Arc::clone(&f.relay).follow_accounts(receiver).await;
        assert!(f.session.links().get("up").is_some());
        // The second change takes the place of the first before that is read.
        let (sender, receiver) = broadcast::channel(1);
        sender.send(key).unwrap();
        sender.send(stranger).unwrap();
        drop(sender);
        Arc::clone(&f.relay).follow_accounts(receiver).await;
        assert!(f.session.links().get("up").is_none());
    }

    // Its last session has left.
    #[tokio::test]
    async fn shared_link_ends_with_a_change_among_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault(&dir).await;
        let f = with_shared_keys(vault.clone());
        let key = GrantKey::new(owner("alice"), "up");
        vault.put_grant(&key, &pasted()).await.unwrap();
        let links = &f.relay.parts.links;
        let upstreams = &links.upstreams;
        upstreams
            .caller_accounts()
            .kept("up", key.owner)
            .await
            .unwrap();
        let client = ClientContext {
            owner: key.owner,
            ..links.client(&f.session, &"up".into())
        };
        let _link = upstreams.link("up", client).unwrap();
        assert!(upstreams.shared_accounts().has("up", key.owner));
        vault.remove_grant(&key).await.unwrap();
        let (sender, receiver) = broadcast::channel(1);
        for other in ["bob", "carol"] {
            sender.send(GrantKey::new(owner(other), "up")).unwrap();
        }
        drop(sender);
        Arc::clone(&f.relay).follow_accounts(receiver).await;
        assert!(!upstreams.shared_accounts().has("up", key.owner));
    }
}
