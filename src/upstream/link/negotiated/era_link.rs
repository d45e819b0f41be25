//! `EraLink`: a link that determines at its first use which era its upstream speaks.

mod contradiction;
mod current_link;
mod negotiation;
mod presumption;
mod reconsideration;
mod resolve;
mod state;
mod watch;

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use self::current_link::CurrentLink;
use self::resolve::EraResolver;
use self::state::NegotiatedState;
use self::watch::EraDoubts;
use super::{EraCell, EraVerdict};
use crate::call::{Call, LogLevel, Reply, ServerDeclaration, UpstreamContinuation, UpstreamLink};
use crate::fault::Fault;
use crate::grants::TokenFailure;
use crate::protocol::Message;
use crate::sync::shared_failure::SharedFailure;
use crate::upstream::carrier::http::login::UpstreamLogin;
use crate::upstream::carrier::{Carrier, LinkSettings};
use crate::upstream::deadlines::before_sending;
use crate::upstream::error::LinkError;
use crate::upstream::first_start::FirstStartWitness;
use crate::upstream::link::modern::ToolSchemas;
use crate::upstream::link::session_state::SessionState;
use crate::upstream::lock;
use crate::upstream::not_reached::NotReached;

/// A link of either era.
#[derive(Debug)]
pub(in crate::upstream) struct EraLink {
    /// This link, for tasks that run on after their caller has gone.
    own: Weak<Self>,
    settings: Arc<LinkSettings>,
    cell: Arc<EraCell>,
    current: CurrentLink,
    resolving: SharedFailure<LinkError>,
    doubts: EraDoubts,
    first_start: FirstStartWitness,
}

impl EraLink {
    pub(in crate::upstream) fn new(
        settings: Arc<LinkSettings>,
        cell: Arc<EraCell>,
        schemas: Arc<ToolSchemas>,
    ) -> Arc<Self> {
        let adopted = lock(&settings.adopted).clone();
        Arc::new_cyclic(|own| {
            let state = SessionState::with(watch::doubt(own), adopted.as_ref());
            Self {
                own: Weak::clone(own),
                current: CurrentLink::new(Arc::clone(&settings), Arc::clone(&cell), schemas, state),
                settings,
                cell,
                resolving: SharedFailure::default(),
                doubts: EraDoubts::default(),
                first_start: FirstStartWitness::default(),
            }
        })
    }

    /// The current link, created at the first use.
    async fn inner(&self) -> Result<NegotiatedState, LinkError> {
        match self.current.get() {
            Some(inner) => Ok(inner),
            // Boxed, since it runs once and is large.
            None => Box::pin(self.first()).await,
        }
    }

    async fn first(&self) -> Result<NegotiatedState, LinkError> {
        let turn = self.resolving.attempt().await;
        if let Some(inner) = self.current.get() {
            return Ok(inner);
        }
        if let Some(failed) = turn.spared() {
            return Err(failed);
        }
        let resolved = self.resolve().await;
        let resolved = resolved.map_err(LinkError::of_opening);
        if let Err(error) = &resolved {
            turn.share(error.clone());
        }
        resolved
    }

    async fn resolve(&self) -> Result<NegotiatedState, LinkError> {
        let inner = EraResolver::new(&self.current).find(false).await?;
        self.current.put(&inner)?;
        Ok(inner)
    }

    /// Records the outcome of a use of the link, before anything is concluded from it.
    async fn settle<T>(&self, inner: &NegotiatedState, outcome: &Result<T, LinkError>) {
        let NegotiatedState::Legacy { link, presumption } = inner else {
            return;
        };
        // A cancellation proves nothing, and other callers may be waiting for the same link.
        let is_cancelled = matches!(outcome, Err(LinkError::Cancelled));
        if !presumption.is_pending() || is_cancelled && link.declared().is_none() {
            return;
        }
        if outcome.is_ok() || link.declared().is_some() {
            presumption.confirm();
            self.cell.learn(&EraVerdict::Legacy);
        } else {
            // The presumption was wrong: the next use probes again, unless another caller has already replaced the
            // link.
            self.cell.mute.invalidate(&self.settings.owner);
            self.current.forget(link);
            link.close().await;
        }
    }

    /// The start of a use of the upstream. While the upstream is stuck, a use over the network without an open session
    /// is refused at once; children have a backoff of their own for each owner.
    fn begin(&self) -> Result<Instant, LinkError> {
        if self.settings.health.is_stuck() && self.current.is_remote() && !self.has_session() {
            let reason = self.settings.health.public_reason();
            return Err(LinkError::Unreachable(NotReached::lately(reason)));
        }
        let LinkSettings { health, owner, .. } = &*self.settings;
        self.first_start.began(&health.first_starts, owner);
        Ok(Instant::now())
    }

    /// Records what a use of the upstream, begun at `since`, says about its health.
    fn note<T>(&self, since: Instant, outcome: &Result<T, LinkError>) {
        let LinkSettings { health, owner, .. } = &*self.settings;
        self.first_start.ended(&health.first_starts, owner, outcome);
        match outcome {
            Ok(_) => self.settings.health.succeeded(),
            // Where callers have accounts the gateway has none: nothing is wrong.
            Err(error) if self.settings.is_turned_away(error) => {}
            Err(error) => {
                let (settings, health) = (&self.settings, &self.settings.health);
                let login = settings.carrier.login();
                if self.speaks_of_health(error) {
                    health.failed(since, error, login.map(|login| &**login));
                } else {
                    health.call_failed(error, login.map(|login| &**login));
                }
                if let (LinkError::Status(401), Some(login)) = (error, login) {
                    self.look_for_issuer(login);
                }
            }
        }
    }

    /// Determines in the background which issuer's tokens the upstream accepts, once an hour at most.
    fn look_for_issuer(&self, login: &Arc<UpstreamLogin>) {
        if !login.is_due() {
            return;
        }
        let (login, health) = (Arc::clone(login), Arc::clone(&self.settings.health));
        self.settings.tasks.spawn_service(async move {
            if login.look().await.is_some() {
                health.names_issuer(&LinkError::Status(401), &login);
            }
        });
    }

    fn has_session(&self) -> bool {
        matches!(self.current.get(), Some(NegotiatedState::Legacy { link, .. }) if link.declared().is_some())
    }

    /// Whether a failure is about reaching the upstream, rather than about one call.
    fn speaks_of_health(&self, error: &LinkError) -> bool {
        match error {
            LinkError::Unreachable(_) | LinkError::Unopened { .. } | LinkError::Handshake(_) => {
                true
            }
            // About the account, not about the upstream.
            LinkError::Status(401 | 403) if self.settings.upstream.auth.is_some() => false,
            LinkError::Cancelled
            | LinkError::Account(_)
            | LinkError::AtCapacity { .. }
            | LinkError::AwaitsAnswer
            | LinkError::NoRoom
            | LinkError::Fenced
            | LinkError::Unsendable(_) => false,
            LinkError::Lost { .. }
            | LinkError::Unread { .. }
            | LinkError::SessionGone
            | LinkError::Busy { .. }
            | LinkError::Status(_)
            | LinkError::TooLarge { .. }
            | LinkError::Invalid(_)
            | LinkError::Unanswered(_)
            | LinkError::Garbled { .. }
            | LinkError::Timeout => self.declared().is_none(),
        }
    }

    async fn call_inner(&self, request: &Message, call: &Call) -> Result<Reply, LinkError> {
        self.admit_caller(call)?;
        let since = self.begin()?;
        let outcome = self.call_era(request, call).await;
        self.note(since, &outcome);
        outcome
    }

    /// Records the caller of a call, where callers' tokens are exchanged. A duplex connection has one token for all its
    /// messages: calls with other scopes need another session.
    fn admit_caller(&self, call: &Call) -> Result<(), LinkError> {
        let carrier = &self.settings.carrier;
        let (Some(link), Some(caller)) = (carrier.caller(), call.principal.access()) else {
            return Ok(());
        };
        link.called(caller);
        if matches!(carrier, Carrier::Duplex(_)) && link.current().key() != caller.key() {
            return Err(LinkError::Account(TokenFailure::other_scopes()));
        }
        Ok(())
    }

    async fn call_era(&self, request: &Message, call: &Call) -> Result<Reply, LinkError> {
        let limit = self.settings.upstream.total_timeout;
        let inner = before_sending(&call.cancel, limit, self.inner()).await?;
        let reply = inner.call(request, call).await;
        self.settle(&inner, &reply).await;
        let stands_by = self.current.stands_by();
        let is_refused = stands_by && contradiction::is_of_form(&reply);
        let is_contradicted = contradiction::is_in(inner.era(), self.current.is_piped(), &reply)
            || self.contradicts_listening(&inner, request, &reply);
        if !is_refused && !is_contradicted {
            if stands_by && reply.is_ok() {
                self.current.call_succeeded();
            }
            return reply;
        }
        let other = if is_refused && matches!(inner, NegotiatedState::Modern(_)) {
            Box::pin(self.fall_back(&inner)).await
        } else {
            Box::pin(self.reconsider(&inner)).await
        };
        match other {
            // Safe to send again: a request that contradicts an era is refused before it runs (SPEC E-04).
            Some(other) => {
                Box::pin(self.raise_level(&other, request, call)).await;
                other.call(request, call).await
            }
            None => reply,
        }
    }

    async fn open_inner(&self) -> Result<Arc<ServerDeclaration>, LinkError> {
        let since = self.begin()?;
        let outcome = self.open_era().await;
        self.note(since, &outcome);
        outcome
    }

    async fn open_era(&self) -> Result<Arc<ServerDeclaration>, LinkError> {
        let inner = self.inner().await?;
        let opened = inner.open().await;
        self.settle(&inner, &opened).await;
        if let Err(error @ LinkError::Handshake(_)) = &opened {
            if let Some(other) = Box::pin(self.reconsider(&inner)).await {
                return other.open().await;
            }
            // `reconsider` may have been too early, and a client that only listens makes no call that would repeat it.
            self.current.state.doubt.raise(error);
        }
        opened
    }

    /// Ends a subscription without followers.
    pub(in crate::upstream) async fn unsubscribe(&self, uri: &str) {
        match self.current.get() {
            Some(NegotiatedState::Legacy { link, .. }) => link.unsubscribe(uri).await,
            Some(NegotiatedState::Modern(link)) => link.notices().unsubscribe(uri),
            None => self.current.state.followed.remove(uri),
        }
    }

    /// Sets the log level at a legacy upstream; a modern upstream gets the level with every call.
    pub(in crate::upstream) async fn set_level(&self, level: LogLevel) {
        match self.current.get() {
            Some(NegotiatedState::Legacy { link, .. }) => link.set_level(level).await,
            Some(NegotiatedState::Modern(_)) | None => self.current.state.set_level(level),
        }
    }

    /// Pings an idle child; `None` where no child runs, or its era has no ping.
    pub(in crate::upstream) async fn ping(&self, limit: Duration) -> Option<Result<(), LinkError>> {
        match self.current.get()? {
            NegotiatedState::Legacy { link, .. } => link.ping(limit).await,
            // The modern era has no ping: its calls show whether the child is alive.
            NegotiatedState::Modern(_) => None,
        }
    }
}

impl UpstreamLink for EraLink {
    fn upstream(&self) -> &Arc<str> {
        &self.settings.name
    }

    fn call<'a>(
        &'a self,
        request: &'a Message,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, Fault>> {
        Box::pin(async move {
            self.call_inner(request, call)
                .await
                .map_err(|error| error.into_fault(&self.settings.name))
        })
    }

    fn notify(&self, message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // A modern upstream accepts none of the notifications that legacy clients send.
            if let Some(NegotiatedState::Legacy { link, .. }) = self.current.get() {
                link.notify(message).await;
            }
        })
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>> {
        Box::pin(async move {
            let declared = self.open_inner().await;
            declared.map_err(|error| error.into_fault(&self.settings.name))
        })
    }

    fn prepare(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(NegotiatedState::Legacy { link, .. }) = self.current.get() {
                link.prepare().await;
            }
        })
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        match self.current.get()? {
            NegotiatedState::Legacy { link, .. } => link.declared(),
            NegotiatedState::Modern(link) => link.declared(),
        }
    }

    fn continuation(&self) -> Option<UpstreamContinuation> {
        match self.current.get()? {
            NegotiatedState::Legacy { link, .. } => link.continuation(),
            NegotiatedState::Modern(_) => None,
        }
    }

    fn ends_with_process(&self) -> bool {
        let current = self.current.get();
        current.is_some_and(|current| match current {
            NegotiatedState::Legacy { link, .. } => link.ends_with_process(),
            NegotiatedState::Modern(_) => false,
        })
    }

    fn notice_feed(&self) -> Option<u64> {
        match self.current.get()? {
            NegotiatedState::Legacy { link, .. } => link.notice_feed(),
            NegotiatedState::Modern(link) => link.notices().notice_feed(),
        }
    }

    fn wait_until_live(&self) -> BoxFuture<'_, bool> {
        Box::pin(self.until_heard_in_its_era())
    }

    fn listen(&self, wanted: bool) {
        self.current.listen(wanted);
    }

    fn disown(&self) {
        if let Some(NegotiatedState::Legacy { link, .. }) = self.current.get() {
            link.disown();
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.current.end()
    }
}
