//! The spine: what happens to a request between its client and the upstreams.
//!
//! [`Relay::handle`] calls the steps in order and does nothing else: bind (done by the caller), route,
//! decide, choose the link, send. The route precedes the decision because rules use the upstream's
//! spelling of names (`docs/adr`).

mod discover;
mod forward;
mod implicit_session;
mod initialize;
mod intake;
mod listen;
mod map_reply;
mod methods;
mod notify;
mod route;
mod url_elicitation;

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::audit;
use crate::call::{Call, Reply};
use crate::catalog::{Catalog, CatalogParts, make_room};
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
pub use crate::outbound::RelayFailure;
use crate::outbound::{
    AuditedPolicy, EditDepth, IntakeFactory, ReplySources, RequestHandler, SessionLinks,
    UpstreamTarget,
};
use crate::policy::ToolPolicy;
use crate::protocol::methods::{ListKind, is_list};
use crate::runtime::lifecycle::TaskSpawner;
use crate::seal::Sealer;
use crate::session::{Session, SessionRegistry};
pub use crate::tasks::FollowedTask;
use crate::tasks::{TaskParts, Tasks, asks_for_task};
use crate::translate::merge::GatewayInfo;
use crate::upstream::Upstreams;

use self::forward::Forward;
pub use self::listen::{FOLLOWED, SubscriptionFilter, WatchedUpstreams};
use self::route::RequestRoute;

/// The spine and what it needs.
#[derive(Debug)]
pub struct Relay {
    settings: Arc<Config>,
    links: Arc<SessionLinks>,
    policy: Arc<AuditedPolicy>,
    catalog: Catalog,
    tasks: Tasks,
    sessions: Arc<SessionRegistry>,
    ourselves: GatewayInfo,
    sources: ReplySources,
    edits: EditDepth,
}

/// What a [`Relay`] is made of.
#[derive(Debug)]
pub struct RelayParts {
    /// The whole configuration.
    pub settings: Arc<Config>,
    /// Where to.
    pub upstreams: Arc<Upstreams>,
    /// Who may what.
    pub policy: Arc<ToolPolicy>,
    /// Who did what.
    pub audit: audit::AuditSink,
    /// Seals cursors.
    pub sealer: Arc<Sealer>,
    /// Legacy sessions.
    pub sessions: Arc<SessionRegistry>,
    /// Background work.
    pub tasks: TaskSpawner,
}

impl Relay {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: RelayParts) -> Arc<Self> {
        let RelayParts {
            settings,
            upstreams,
            policy,
            audit,
            sealer,
            sessions,
            tasks,
        } = parts;
        let ourselves = GatewayInfo::new(&settings.mcp);
        let policy = Arc::new(AuditedPolicy::new(policy, audit));
        let edits = EditDepth::new(settings.limits.json_depth);
        Arc::new_cyclic(|own| {
            let intakes: Weak<dyn IntakeFactory> = Weak::<Self>::clone(own);
            let links = Arc::new(SessionLinks::new(&settings, upstreams, tasks, intakes));
            let catalog = Catalog::new(&CatalogParts {
                settings: &settings,
                links: &links,
                policy: &policy,
                sealer: &sealer,
                sessions: &sessions,
                ourselves: &ourselves.info,
                edits,
            });
            let sources = ReplySources::new(Arc::clone(&ourselves.info), settings.lists.ttl);
            let handler: Weak<dyn RequestHandler> = Weak::<Self>::clone(own);
            let tasks = Tasks::new(TaskParts {
                limits: &settings.limits,
                links: &links,
                policy: &policy,
                sealer: &sealer,
                sessions: &sessions,
                sources: &sources,
                edits,
                handler,
            });
            Self {
                settings,
                links,
                policy,
                catalog,
                tasks,
                sessions,
                ourselves,
                sources,
                edits,
            }
        })
    }

    /// Answers one request of a session.
    ///
    /// # Errors
    /// [`RelayFailure`] when no upstream answered.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request upstream.
    pub async fn handle(&self, call: &Call, session: &Arc<Session>) -> Result<Reply, RelayFailure> {
        let answer = self.answer(call, session).await?;
        if call.message.method().is_some_and(is_list) {
            let wait = self.settings.limits.call_wait;
            Box::pin(make_room(call, &answer, wait)).await?;
        }
        Ok(answer)
    }

    async fn answer(&self, call: &Call, session: &Arc<Session>) -> Result<Reply, RelayFailure> {
        match self.route(call, session).await? {
            RequestRoute::Here(reply) => Ok(reply),
            RequestRoute::One(target) => {
                let home = target.home.as_ref().unwrap_or(session);
                if asks_for_task(call, home)
                    && let Some(begun) = Box::pin(self.tasks.begin(call, home, &target)).await?
                {
                    return Ok(begun);
                }
                self.forward(call, home, &target).await
            }
            RequestRoute::List(list) => self.catalog.merged.list(call, session, list).await,
            RequestRoute::Everywhere => self.tell_all(call, session).await,
            RequestRoute::Task(own) => Box::pin(self.tasks.handle(call, &own)).await,
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
            relay: self,
            call,
            session,
            target,
            permit: self.policy.decide(call, target)?,
        };
        methods::handle(&forward).await
    }

    /// Starts and lists the upstreams of `mcp.warm` in the background, each in a session of the gateway's own on
    /// one of `endpoints` that shows it. The session ends after that, and its own child with it.
    pub fn warm(&self, endpoints: &[Arc<Endpoint>]) {
        self.catalog.own.warm(endpoints);
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
        self.catalog.own.list_alone(endpoint, upstream, limit).await
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
