//! The spine: what happens to a request between its client and the upstreams.
//!
//! [`Relay::handle`] calls the steps in order and does nothing else: bind (done by the caller), route,
//! decide, choose the link, send. The route precedes the decision because rules use the upstream's
//! spelling of names (`docs/adr`).

mod cached_list_reply;
mod catalog;
mod discover;
mod extension_methods;
mod forward;
mod icons;
mod implicit_session;
mod initialize;
mod intake;
mod internal_call;
mod list_deadline;
mod list_room;
mod listen;
mod lists;
mod map_reply;
mod methods;
mod missing_upstreams;
mod notify;
mod page_fetch;
mod pages;
mod param_headers;
mod resolve_name;
mod revalidate;
mod route;
mod send;
mod tasks;
mod tools;
mod unknown_methods;
mod uris;
mod url_elicitation;
mod view;
mod warm;

use std::sync::{Arc, Weak};

use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;

use crate::audit;
use crate::call::{Call, OwnerKey, Reply, ServerDeclaration, UpstreamLink};
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::policy::{Denial, Permit, ToolPolicy};
use crate::protocol::methods::{ListKind, is_list};
use crate::runtime::lifecycle::TaskSpawner;
use crate::seal::Sealer;
use crate::session::{Session, SessionRegistry};
use crate::store::events::SessionKey;
use crate::store::lists::ContentDigest;
use crate::sync::fair_permits::FairPermits;
use crate::telemetry::metrics::LABELED;
use crate::translate::merge::GatewayInfo;
use crate::translate::naming::{NameIndex, NamePrefixes};
use crate::upstream::Upstreams;
use crate::upstream::declaration_cache::DeclarationCache;

use self::catalog::ListCatalog;
use self::forward::Forward;
pub use self::listen::{FOLLOWED, SubscriptionFilter, WatchedUpstreams};
use self::lists::SessionIndex;
use self::map_reply::ReplySource;
use self::route::{RequestRoute, UpstreamTarget};
pub use self::tasks::FollowedTask;
use self::tasks::{PendingInputs, asks_for_task};
use self::view::EndpointView;

/// The spine and what it needs.
#[derive(Debug)]
pub struct Relay {
    /// Itself, for what goes on in the background.
    own: Weak<Self>,
    parts: RelayParts,
    ourselves: GatewayInfo,
    declarations: DeclarationCache,
    /// The marks of all upstreams.
    prefixes: NamePrefixes,
    /// What upstreams listed.
    catalog: ListCatalog,
    /// Indexes by digest of the lists, for names that do not contain their upstream.
    indexes: Cache<ContentDigest, Arc<NameIndex>>,
    /// The last of each session.
    session_indexes: Cache<(SessionKey, ListKind), SessionIndex>,
    /// Tasks that ask while their clients poll.
    desks: Arc<PendingInputs>,
    /// For lists that are looked at again.
    rechecks: Arc<FairPermits<OwnerKey>>,
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

/// Why a request has no reply from an upstream.
#[derive(Debug)]
pub enum RelayFailure {
    /// Something failed.
    Fault(Fault),
    /// Policy refused.
    Denied(Denial),
}

impl From<Fault> for RelayFailure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Denial> for RelayFailure {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl Relay {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: RelayParts) -> Arc<Self> {
        let upstreams = parts.settings.upstreams.iter();
        let prefixes = NamePrefixes::new(upstreams.map(|upstream| upstream.name.as_str().into()));
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            rechecks: FairPermits::new(revalidate::AT_ONCE),
            catalog: ListCatalog::new(&parts.settings.lists),
            ourselves: GatewayInfo::new(&parts.settings.mcp),
            desks: {
                let limits = &parts.settings.limits;
                PendingInputs::new(limits.parked_per_principal, limits.parked_total)
            },
            parts,
            declarations: DeclarationCache::default(),
            prefixes,
            indexes: Cache::builder().max_capacity(INDEXES).build(),
            session_indexes: Cache::builder()
                .max_capacity(INDEXES)
                .time_to_live(INDEX_LIFE)
                .build(),
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
            Box::pin(self.make_room_for_list(call, &answer)).await?;
        }
        Ok(answer)
    }

    async fn answer(&self, call: &Call, session: &Arc<Session>) -> Result<Reply, RelayFailure> {
        match self.route(call, session).await? {
            RequestRoute::Here(reply) => Ok(reply),
            RequestRoute::One(target) => {
                let home = target.home.as_ref().unwrap_or(session);
                if asks_for_task(call, home)
                    && let Some(begun) = Box::pin(self.host(call, home, &target)).await?
                {
                    return Ok(begun);
                }
                self.forward(call, home, &target).await
            }
            RequestRoute::List(list) => self.list(call, session, list).await,
            RequestRoute::Everywhere => self.tell_all(call, session).await,
            RequestRoute::Task(own) => Box::pin(self.about_hosted(call, &own)).await,
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
            permit: self.decide(call, target)?,
        };
        methods::handle(&forward).await
    }

    fn source(
        &self,
        call: &Call,
        declared: Option<Arc<ServerDeclaration>>,
        view: &EndpointView,
    ) -> ReplySource {
        let ourselves = Arc::clone(&self.ourselves.info);
        ReplySource::new(
            declared,
            call,
            view,
            self.parts.settings.lists.ttl,
            ourselves,
        )
    }

    fn decide(&self, call: &Call, target: &UpstreamTarget) -> Result<Permit, RelayFailure> {
        let decision = self.parts.policy.decide(
            &call.principal,
            &call.endpoint,
            &target.upstream,
            call.message.method().unwrap_or_default(),
            target.name.as_deref(),
        );
        if let Err(denial) = &decision {
            LABELED.policy_denied.add(&denial.rule, 1);
            let name = target.name.as_deref();
            let record = audit::AuditRecord::new(call, &target.upstream, name, Some(&denial.rule));
            self.parts.audit.record(record);
        }
        Ok(decision?)
    }

    /// Decides about the part of one upstream in a request that several answer. Audited like any
    /// other decision.
    fn decide_part(
        &self,
        call: &Call,
        upstream: &Arc<str>,
        method: &str,
    ) -> Result<Permit, Denial> {
        let policy = &self.parts.policy;
        let decision = policy.decide(&call.principal, &call.endpoint, upstream, method, None);
        if let Err(denial) = &decision {
            LABELED.policy_denied.add(&denial.rule, 1);
            let record = audit::AuditRecord::new(call, upstream, None, Some(&denial.rule));
            self.parts.audit.record(record);
        }
        decision
    }

    /// The audit record of the part of one upstream, taken when it is dropped.
    fn audit_part<'a>(&'a self, call: &'a Call, upstream: &Arc<str>) -> audit::PendingRecord<'a> {
        let record = audit::AuditRecord::new(call, upstream, None, None);
        self.parts.audit.begin(call, record)
    }

    /// The session's link to an upstream, made when there is none yet.
    fn link(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
    ) -> Result<Arc<dyn UpstreamLink>, Fault> {
        if let Some(link) = session.link(upstream) {
            return Ok(link);
        }
        let client = self.client(session, upstream);
        let made = self.parts.upstreams.link(upstream, client).ok_or_else(|| {
            Fault::downstream(FaultKind::InvalidParams, "there is no such upstream")
        })?;
        let link = session.link_or(upstream, || Arc::clone(&made));
        // Lost the race to another call, or the session has ended: release the lease of a shared link.
        if link.as_ref().is_none_or(|link| !Arc::ptr_eq(link, &made)) {
            self.parts.tasks.spawn(async move { made.close().await });
        }
        let link = link.ok_or_else(|| {
            Fault::downstream(
                FaultKind::UnknownSession,
                "the session has ended, initialize again",
            )
        })?;
        session.tell_links();
        Ok(link)
    }
}

/// Seal context of a cursor: endpoint, upstream, binding of the caller, method (SPEC C-40, A-30).
fn cursor_context(call: &Call, upstream: &str) -> Vec<u8> {
    let mut context = endpoint_context(&call.endpoint);
    context.extend_from_slice(upstream.as_bytes());
    context.push(0);
    context.extend_from_slice(call.principal.binding().bytes());
    context.extend_from_slice(call.message.method().unwrap_or_default().as_bytes());
    context
}

fn endpoint_context(endpoint: &Endpoint) -> Vec<u8> {
    let mut context = endpoint.name.as_bytes().to_vec();
    context.push(0);
    context
}

/// Indexes of names kept at most.
const INDEXES: u64 = 1024;
/// How long an index is believed.
const INDEX_LIFE: Duration = Duration::from_secs(30);

/// A result without content.
const EMPTY: Bytes = Bytes::from_static(b"{}");

#[cfg(test)]
mod pairings;
