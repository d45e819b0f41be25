//! The spine: what happens to a request between its client and the upstreams.
//!
//! [`Relay::handle`] calls the steps in order and does nothing else: bind (done by the caller), route,
//! decide, choose the link, send. The route precedes the decision because rules use the upstream's
//! spelling of names (`docs/adr`).

mod accounts;
mod consents;
mod discover;
mod forward;
mod implicit_session;
mod initialize;
mod intake;
mod levels;
mod list_changes;
mod listen;
mod map_reply;
mod methods;
mod notify;
mod parts;
mod program_use;
mod refused_links;
mod route;
mod url_elicitation;
mod with_account;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::call::{Call, NoticeArrival, Principal, Reply};
use crate::catalog::make_room;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
pub use crate::outbound::RelayFailure;
use crate::outbound::{RequestHandler, UpstreamTarget};
use crate::ownership::Ownership;
use crate::protocol::methods::{ListKind, is_list};
use crate::protocol::{Message, json};
use crate::session::Session;
use crate::store::notices::{ListChange, ListChangeReceiver, SharedNotices};
pub use crate::tasks::FollowedTask;
use crate::tasks::asks_for_task;
use crate::telemetry::trace;

use self::forward::{Forward, ForwardParts};
use self::initialize::SessionOpener;
use self::list_changes::{LISTS, SharedChanges, known_list};
use self::listen::Subscriptions;
pub use self::listen::{FOLLOWED, SubscriptionFilter, WatchedUpstreams};
use self::notify::ClientNotices;
pub(crate) use self::notify::modern_notification;
pub use self::parts::RelayParts;
use self::program_use::own_program;
use self::route::{RequestRoute, Router};

/// The spine: one part for each step of a request, and what else clients ask of it.
#[derive(Debug)]
pub struct Relay {
    router: Router,
    parts: ForwardParts,
    /// Sessions, and what their upstreams can do.
    pub(crate) opener: SessionOpener,
    /// Notifications of clients, and their GET streams.
    pub(crate) notices: ClientNotices,
    /// `subscriptions/listen`.
    pub(crate) subscriptions: Subscriptions,
    /// `limits.call_wait`.
    list_wait: Duration,
    changes: SharedChanges,
}

impl Relay {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: RelayParts) -> Arc<Self> {
        parts.assemble()
    }

    /// Answers one request of a session.
    ///
    /// # Errors
    /// [`RelayFailure`] when no upstream answered.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request upstream.
    pub async fn handle(&self, call: &Call, session: &Arc<Session>) -> Result<Reply, RelayFailure> {
        // Token requests are spans below that of the call, and audit records of accounts name its trace.
        let upstreams = &self.parts.links.upstreams;
        let is_traced = || trace::is_recorded() || call.trace.is_known();
        let has_steps = upstreams.any_credentials() && is_traced();
        let parent = has_steps.then(|| call.trace.clone());
        // Pinned here, so that the frame holds the future once.
        let answer = pin!(self.answer(call, session));
        let answer = match parent {
            None => answer.await?,
            Some(_) => trace::below(parent, answer).await?,
        };
        if call.message.method().is_some_and(is_list) {
            Box::pin(make_room(call, &answer, self.list_wait)).await?;
        }
        Ok(answer)
    }

    /// Whether a session cannot outlive the replica that owns it, because of its connection to `upstream`.
    #[must_use]
    pub fn ends_with_replica(&self, upstream: &str) -> bool {
        self.opener.links.upstreams.ends_with_replica(upstream)
    }

    /// Opens the links of an adopted session to `upstreams` in the background, so that it hears of changes again.
    pub fn reopen(&self, session: &Arc<Session>, upstreams: &[Arc<str>]) {
        for upstream in upstreams {
            self.opener.links.reopen(session, upstream);
        }
    }

    /// The replica that keeps the session of a task of a modern client; `None` for a task that lives in none, and for a
    /// handle not issued to this client.
    #[must_use]
    pub fn owner_of_task(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        task: &str,
    ) -> Option<Ownership> {
        self.parts.tasks.handles.owner(principal, endpoint, task)
    }

    async fn answer(&self, call: &Call, session: &Arc<Session>) -> Result<Reply, RelayFailure> {
        let (catalog, tasks) = (&self.parts.catalog, &self.parts.tasks);
        match self.router.route(call, session).await? {
            RequestRoute::Here(reply) => Ok(reply),
            RequestRoute::One(target) => {
                let home = target.home.as_ref().unwrap_or(session);
                if asks_for_task(call, home)
                    && let Some(begun) = Box::pin(tasks.begin(call, home, &target)).await?
                {
                    return Ok(begun);
                }
                self.forward(call, home, &target).await
            }
            RequestRoute::List(kind) => catalog.merged.list(call, session, kind).await,
            RequestRoute::Everywhere => Ok(self.parts.levels.tell_all(call, session).await),
            RequestRoute::Connect(target) => {
                Box::pin(with_account::connect(&self.parts, call, session, &target)).await
            }
            RequestRoute::Task(own) => Box::pin(tasks.handle(call, &own)).await,
        }
    }

    /// Handles a request routed to one upstream.
    async fn forward(
        &self,
        call: &Call,
        session: &Arc<Session>,
        target: &UpstreamTarget,
    ) -> Result<Reply, RelayFailure> {
        let forward = Forward {
            parts: &self.parts,
            call,
            session,
            target,
            permit: self.parts.policy.decide(call, target)?,
        };
        let (links, upstream) = (&self.parts.links, &target.upstream);
        if !links.account_is_known(session, upstream, || own_program(call)) {
            return Box::pin(with_account::answer(&forward)).await;
        }
        match methods::handle(&forward).await {
            Err(RelayFailure::Fault(fault)) if links.upstreams.caller_accounts().has(upstream) => {
                Box::pin(with_account::again(&forward, fault)).await
            }
            answered => answered,
        }
    }

    /// Authorizes a request as [`Relay::handle`] does, without sending it: for a retry that resumes a call already
    /// at its upstream. Touches the session, since a resumed call skips the session look-up that normally does.
    ///
    /// # Errors
    /// [`RelayFailure`] when it must not go on.
    pub async fn authorize(&self, call: &Call, session: &Arc<Session>) -> Result<(), RelayFailure> {
        session.touch();
        if let RequestRoute::One(target) = self.router.route(call, session).await? {
            self.parts.policy.decide(call, &target)?;
            // Without an account no tool can be looked at: the call itself asks for one.
            let links = &self.parts.links;
            if !links.lacks_account(session, &target.upstream).await {
                let tools = &self.parts.catalog.tools;
                tools.check_param_headers(call, session, &target).await?;
            }
        }
        Ok(())
    }

    /// How long an upstream waits for an answer of its client.
    #[must_use]
    pub fn ask_timeout(&self, upstream: &str) -> Option<Duration> {
        let settings = self.parts.links.upstreams.settings(upstream)?;
        Some(settings.ask_timeout)
    }

    /// How long a question of an upstream waits behind others until it may be put to its client.
    #[must_use]
    pub fn ask_wait(&self, upstream: &str) -> Option<Duration> {
        let settings = self.parts.links.upstreams.settings(upstream)?;
        Some(settings.ask_wait)
    }

    /// Tells other replicas of changed lists through `notices` from now on. Only the first call has an effect.
    pub fn share_changes(&self, notices: Arc<SharedNotices>) {
        self.changes.share(notices);
    }

    /// Tells sessions in the background of changes that were not heard here. `None` stands for all upstreams.
    fn tell_later(&self, upstream: Option<&str>, lists: Vec<&'static str>) {
        let told = (&self.parts.links, &self.opener.sessions);
        let pages = &self.parts.catalog.pages.shared;
        self.changes.tell_later(told, pages, upstream, lists);
    }

    /// [`is_retry_safe`](Self::is_retry_safe) for the bytes of a request.
    #[must_use]
    pub fn may_repeat(&self, endpoint: &Endpoint, request: &Bytes) -> bool {
        let message = Message::parse(request.clone(), json::MAX_DEPTH);
        message
            .is_ok_and(|message| message.id().is_some() && self.is_retry_safe(endpoint, &message))
    }

    /// Whether a request calls a tool that stands in `retry_safe` of its upstream, judged by the message alone. A call that
    /// begins a task never does.
    #[must_use]
    pub fn is_retry_safe(&self, endpoint: &Endpoint, message: &Message) -> bool {
        self.router.is_retry_safe(endpoint, message)
    }

    /// Raises the log level of a parked call's upstream to the level of the retry that resumes the call.
    pub fn raise_level_of_parked(&self, call: Call, session: Arc<Session>, at: &Arc<str>) {
        self.parts.levels.raise_of_parked(call, session, at);
    }

    /// Starts and lists the upstreams of `mcp.warm` in the background, each in a session of the gateway's own on
    /// one of `endpoints` that shows it. The session ends after that, and its own child with it.
    pub fn warm(&self, endpoints: &[Arc<Endpoint>]) {
        self.parts.catalog.own.warm(endpoints);
    }

    /// Opens and lists `upstream` in a session of the gateway's own on `endpoint`, which has to show it; returns the
    /// number of entries of each list that the upstream declares. Handshake and lists together take no longer than
    /// `limit`.
    ///
    /// # Errors
    /// The [`Fault`] of the first list that failed, or of the handshake.
    ///
    /// # Cancel safety
    /// The session of a dropped future stays open until
    /// [`SessionRegistry::close_all`](crate::session::SessionRegistry::close_all).
    pub async fn list_alone(
        &self,
        endpoint: &Arc<Endpoint>,
        upstream: &Arc<str>,
        limit: Duration,
    ) -> Result<Vec<(ListKind, usize)>, Fault> {
        let own = &self.parts.catalog.own;
        own.list_alone(endpoint, upstream, limit).await
    }
}

impl ListChangeReceiver for Relay {
    fn changed(&self, change: &ListChange) {
        if let Some(what) = known_list(change) {
            self.tell_later(Some(&change.upstream), vec![what]);
        }
    }

    fn changed_again(&self, change: &ListChange) {
        if let Some(what) = known_list(change) {
            let pages = &self.parts.catalog.pages.shared;
            let arrival = NoticeArrival::now(None);
            self.changes
                .record(pages, Some(&change.upstream), &[what], arrival);
        }
    }

    fn missed(&self) {
        self.tell_later(None, LISTS.to_vec());
    }
}

impl RequestHandler for Relay {
    fn handle<'a>(
        &'a self,
        call: &'a Call,
        session: &'a Arc<Session>,
    ) -> BoxFuture<'a, Result<Reply, RelayFailure>> {
        Box::pin(Self::handle(self, call, session))
    }
}

#[cfg(test)]
mod pairings;
