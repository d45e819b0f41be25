//! `EraLink`: a link that determines at its first use which era its upstream speaks.

mod contradiction;
mod negotiation;
mod reconsideration;
mod resolve;
mod state;
mod watch;

use std::future::ready;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use self::state::NegotiatedState;
use super::{EraCell, EraVerdict};
use crate::call::{Call, LogLevel, Reply, ServerDeclaration, UpstreamContinuation, UpstreamLink};
use crate::fault::Fault;
use crate::grants::TokenFailure;
use crate::protocol::Message;
use crate::sync::desired::Desired;
use crate::sync::shared_failure::SharedFailure;
use crate::upstream::carrier::duplex::DuplexSource;
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
    schemas: Arc<ToolSchemas>,
    current: Mutex<Option<NegotiatedState>>,
    resolving: SharedFailure<LinkError>,
    listening: Desired<bool>,
    /// Subscriptions and log level, kept at a change of the era.
    state: SessionState,
    /// Whether a modern link serves a legacy client in place of the stateless legacy side, and no call has succeeded
    /// yet.
    stands_by: AtomicBool,
    /// Reports that the era may have changed, since the last check that settled them.
    doubts: AtomicU32,
    /// When a check last found that the upstream is modern although it refuses `subscriptions/listen`.
    confirmed: Mutex<Option<Instant>>,
    first_start: FirstStartWitness,
    /// Whether the session has ended: the link is not used again.
    ended: AtomicBool,
}

impl EraLink {
    pub(in crate::upstream) fn new(
        settings: Arc<LinkSettings>,
        cell: Arc<EraCell>,
        schemas: Arc<ToolSchemas>,
    ) -> Arc<Self> {
        let adopted = lock(&settings.adopted).clone();
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            state: SessionState::with(watch::doubt(own), adopted.as_ref()),
            settings,
            cell,
            schemas,
            current: Mutex::default(),
            resolving: SharedFailure::default(),
            listening: Desired::default(),
            stands_by: AtomicBool::new(false),
            doubts: AtomicU32::new(0),
            confirmed: Mutex::default(),
            first_start: FirstStartWitness::default(),
            ended: AtomicBool::new(false),
        })
    }

    fn current(&self) -> Option<NegotiatedState> {
        lock(&self.current).clone()
    }

    /// Records the outcome of a use of the link, before anything is concluded from it.
    async fn settle<T>(&self, inner: &NegotiatedState, outcome: &Result<T, LinkError>) {
        let NegotiatedState::Legacy { link, presumed } = inner else {
            return;
        };
        // A cancellation proves nothing, and other callers may be waiting for the same link.
        let is_cancelled = matches!(outcome, Err(LinkError::Cancelled));
        if !presumed.load(Ordering::Relaxed) || is_cancelled && link.declared().is_none() {
            return;
        }
        if outcome.is_ok() || link.declared().is_some() {
            presumed.store(false, Ordering::Relaxed);
            self.cell.learn(&EraVerdict::Legacy);
        } else {
            // The presumption was wrong: the next use probes again, unless another caller has already replaced the
            // link.
            self.cell.mute.invalidate(&self.settings.owner);
            {
                let mut current = lock(&self.current);
                if let Some(NegotiatedState::Legacy { link: now, .. }) = &*current
                    && Arc::ptr_eq(now, link)
                {
                    *current = None;
                }
            }
            link.close().await;
        }
    }

    /// The start of a use of the upstream. While the upstream is stuck, a use over the network without an open session
    /// is refused at once; children have a backoff of their own for each owner.
    fn begin(&self) -> Result<Instant, LinkError> {
        if self.settings.health.is_stuck() && self.is_remote() && !self.has_session() {
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

    fn is_remote(&self) -> bool {
        !matches!(
            self.settings.carrier,
            Carrier::Duplex(DuplexSource::Children(_))
        )
    }

    fn has_session(&self) -> bool {
        matches!(self.current(), Some(NegotiatedState::Legacy { link, .. }) if link.declared().is_some())
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
        let stands_by = self.stands_by.load(Ordering::Relaxed);
        let is_refused = stands_by && contradiction::is_of_form(&reply);
        let is_contradicted = contradiction::is_in(inner.era(), self.is_piped(), &reply)
            || self.contradicts_listening(&inner, request, &reply);
        if !is_refused && !is_contradicted {
            if stands_by && reply.is_ok() {
                self.stands_by.store(false, Ordering::Relaxed);
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
            self.state.doubt.raise(error);
        }
        opened
    }

    /// Ends a subscription without followers.
    pub(in crate::upstream) async fn unsubscribe(&self, uri: &str) {
        match self.current() {
            Some(NegotiatedState::Legacy { link, .. }) => link.unsubscribe(uri).await,
            Some(NegotiatedState::Modern(link)) => link.unsubscribe(uri),
            None => self.state.followed.remove(uri),
        }
    }

    /// Sets the log level at a legacy upstream; a modern upstream gets the level with every call.
    pub(in crate::upstream) async fn set_level(&self, level: LogLevel) {
        match self.current() {
            Some(NegotiatedState::Legacy { link, .. }) => link.set_level(level).await,
            Some(NegotiatedState::Modern(_)) | None => self.state.set_level(level),
        }
    }

    /// Pings an idle child; `None` where no child runs, or its era has no ping.
    pub(in crate::upstream) async fn ping(&self, limit: Duration) -> Option<Result<(), LinkError>> {
        match self.current()? {
            NegotiatedState::Legacy { link, .. } => link.ping(limit).await,
            // The modern era has no ping: its calls show whether the child is alive.
            NegotiatedState::Modern(_) => None,
        }
    }

    /// Closes the current link, even if the returned future is never polled.
    fn close_inner(&self) -> BoxFuture<'static, ()> {
        let inner = lock(&self.current).take();
        inner.map_or_else(|| Box::pin(ready(())) as _, |inner| inner.close())
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
            if let Some(NegotiatedState::Legacy { link, .. }) = self.current() {
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
            if let Some(NegotiatedState::Legacy { link, .. }) = self.current() {
                link.prepare().await;
            }
        })
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        match self.current()? {
            NegotiatedState::Legacy { link, .. } => link.declared(),
            NegotiatedState::Modern(link) => link.declared(),
        }
    }

    fn continuation(&self) -> Option<UpstreamContinuation> {
        match self.current()? {
            NegotiatedState::Legacy { link, .. } => link.continuation(),
            NegotiatedState::Modern(_) => None,
        }
    }

    fn ends_with_process(&self) -> bool {
        let current = self.current();
        current.is_some_and(|current| match current {
            NegotiatedState::Legacy { link, .. } => link.ends_with_process(),
            NegotiatedState::Modern(_) => false,
        })
    }

    fn notice_feed(&self) -> Option<u64> {
        match self.current()? {
            NegotiatedState::Legacy { link, .. } => link.notice_feed(),
            NegotiatedState::Modern(link) => link.notice_feed(),
        }
    }

    fn wait_until_live(&self) -> BoxFuture<'_, bool> {
        Box::pin(self.until_heard_in_its_era())
    }

    fn listen(&self, wanted: bool) {
        let listen = |wanted: &bool| {
            if let Some(inner) = self.current() {
                inner.listen(*wanted);
            }
        };
        self.listening.set_and_apply(|wish| *wish = wanted, listen);
    }

    fn disown(&self) {
        if let Some(NegotiatedState::Legacy { link, .. }) = self.current() {
            link.disown();
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.ended.store(true, Ordering::Release);
        self.close_inner()
    }
}
