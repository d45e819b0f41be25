//! Upstreams where callers have accounts of their own: whose a session's link is, and how a session without an account
//! sees the upstream.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;

use super::links::SessionLinks;
use crate::call::{ServerDeclaration, UpstreamLink};
use crate::fault::Fault;
use crate::grants::TokenFailure;
use crate::session::Session;

/// Capabilities presumed for an upstream that the caller has no account at.
const EVERYTHING: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"completions":{},"logging":{}}"#;

/// Why a request failed for want of an account: then it has not run, and the caller's user can help.
pub(crate) fn want_of_account(fault: &Fault) -> Option<&TokenFailure> {
    let mut next = fault.source();
    while let Some(cause) = next {
        if let Some(failure) = cause.downcast_ref::<TokenFailure>() {
            return Some(failure).filter(|failure| failure.asks_user());
        }
        next = cause.source();
    }
    None
}

impl SessionLinks {
    /// Whether the caller has to connect an account before anything can be sent to the upstream. `false` where the
    /// database fails: the request finds out, and says so.
    pub(crate) async fn lacks_account(&self, session: &Session, upstream: &str) -> bool {
        let accounts = self.upstreams.caller_accounts();
        if !accounts.has(upstream) {
            return false;
        }
        let state = accounts.state(upstream, session.owner());
        matches!(state.await, Ok(Some(state)) if !state.is_connected())
    }

    /// Whether a call of `program` can go on without a look-up of its caller's account: the last look-up still holds, or
    /// callers have no accounts at the upstream.
    pub(crate) fn account_is_known<'p>(
        &self,
        session: &Session,
        upstream: &str,
        program: impl FnOnce() -> Option<&'p str>,
    ) -> bool {
        if !self.upstreams.caller_accounts().is_any() {
            return true;
        }
        let generation = self.upstreams.caller_accounts().generation(session.owner());
        generation
            .is_some_and(|generation| session.links().is_checked(upstream, generation, program))
            || !self.upstreams.caller_accounts().has(upstream)
    }

    /// The session's link, if open and if nothing has to be looked up for it.
    pub(super) fn checked_link(
        &self,
        session: &Session,
        upstream: &str,
    ) -> Option<Arc<dyn UpstreamLink>> {
        if !self.upstreams.caller_accounts().is_any() {
            return session.links().get(upstream);
        }
        let generation = self
            .upstreams
            .caller_accounts()
            .generation(session.owner())?;
        session.links().checked(upstream, generation)
    }

    /// The number of the account that the session's requests use now; `None` where callers have none of their own.
    pub(super) fn connection(&self, session: &Session, upstream: &str) -> Option<i64> {
        let has_accounts = self.upstreams.caller_accounts().has(upstream);
        let account = || self.upstreams.account(upstream, session.owner());
        has_accounts.then(|| account().connection())
    }

    /// Ends what the session has of another account than that of `connection`: its link, and the lists that it was
    /// given. Says whether there was a link.
    pub(crate) fn end_other_account(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        connection: i64,
    ) -> bool {
        let Some(link) = session.links().take_of_another(upstream, connection) else {
            return false;
        };
        session.list_validity().forget(upstream);
        self.spawner
            .spawn_service(async move { link.close().await });
        true
    }

    /// What an upstream is presumed to declare to a caller that has no account there yet: everything, as a legacy client
    /// learns it once. `None` where the caller needs no account, or has one.
    pub(super) async fn without_account(
        &self,
        session: &Session,
        upstream: &str,
    ) -> Option<Arc<ServerDeclaration>> {
        let lacks = self.lacks_account(session, upstream).await;
        lacks.then(|| {
            let capabilities = Bytes::from_static(EVERYTHING.as_bytes());
            let info = Bytes::copy_from_slice(self.ourselves.as_bytes());
            let declared = ServerDeclaration::new(session.revision, capabilities, info, None);
            Arc::new(declared)
        })
    }

    /// The same after the upstream has just refused the account.
    ///
    /// # Errors
    /// `fault`, if it is for another reason.
    pub(super) async fn or_without_account(
        &self,
        session: &Session,
        upstream: &str,
        fault: Fault,
    ) -> Result<Arc<ServerDeclaration>, Fault> {
        let presumed = if want_of_account(&fault).is_some() {
            self.without_account(session, upstream).await
        } else {
            None
        };
        presumed.ok_or(fault)
    }
}
