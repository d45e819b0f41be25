//! The spine: what happens to a request between its client and the upstreams.
//!
//! [`Relay::handle`] calls the steps in order and does nothing else: bind (done by the caller), route,
//! decide, choose the link, send. The route precedes the decision because rules use the upstream's
//! spelling of names (`docs/adr`).

mod absent;
mod bring_back;
mod catalog;
mod discover;
mod flight;
mod foreign;
mod forward;
mod icons;
mod initialize;
mod intake;
mod kept;
mod list_room;
mod listen;
mod lists;
mod methods;
mod named;
mod nobody;
mod notify;
mod pages;
mod param_headers;
mod patience;
mod provided;
mod recheck;
mod route;
mod send;
mod tasks;
mod tools;
mod uris;
mod url_required;
mod view;
mod visit;
mod warm;

use std::sync::{Arc, Weak};

use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;

use crate::audit;
use crate::call::{Call, Declared, OwnerKey, Reply, UpstreamLink};
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::policy::{Denial, Permit, ToolPolicy};
use crate::protocol::methods::{ListKind, is_list};
use crate::runtime::lifecycle::Tasks;
use crate::seal::Sealer;
use crate::session::{Session, Sessions};
use crate::store::events::SessionKey;
use crate::store::lists::Digest;
use crate::sync::fair_permits::FairPermits;
use crate::telemetry::metrics::LABELED;
use crate::translate::merge::Ourselves;
use crate::translate::naming::{Index, Prefixes};
use crate::upstream::Upstreams;
use crate::upstream::knowledge::Knowledge;

use self::bring_back::Source;
use self::catalog::Catalog;
use self::forward::Forward;
pub use self::listen::{FOLLOWED, Filter, Heard};
use self::lists::Indexed;
use self::route::{Route, Target};
pub use self::tasks::FollowedTask;
use self::tasks::{Desks, asks_for_task};
use self::view::View;

/// The spine and what it needs.
#[derive(Debug)]
pub struct Relay {
    /// Itself, for what goes on in the background.
    own: Weak<Self>,
    parts: Parts,
    ourselves: Ourselves,
    knowledge: Knowledge,
    /// The marks of all upstreams.
    prefixes: Prefixes,
    /// What upstreams listed.
    catalog: Catalog,
    /// Indexes by digest of the lists, for names that do not contain their upstream.
    indexes: Cache<Digest, Arc<Index>>,
    /// The last of each session.
    session_indexes: Cache<(SessionKey, ListKind), Indexed>,
    /// Tasks that ask while their clients poll.
    desks: Arc<Desks>,
    /// For lists that are looked at again.
    rechecks: Arc<FairPermits<OwnerKey>>,
}

/// What a [`Relay`] is made of.
#[derive(Debug)]
pub struct Parts {
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
    pub sessions: Arc<Sessions>,
    /// Background work.
    pub tasks: Tasks,
}

/// Why a request has no reply from an upstream.
#[derive(Debug)]
pub enum Failure {
    /// Something failed.
    Fault(Fault),
    /// Policy refused.
    Denied(Denial),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Denial> for Failure {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl Relay {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: Parts) -> Arc<Self> {
        let upstreams = parts.settings.upstreams.iter();
        let prefixes = Prefixes::new(upstreams.map(|upstream| upstream.name.as_str().into()));
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            rechecks: FairPermits::new(recheck::AT_ONCE),
            catalog: Catalog::new(&parts.settings.lists),
            ourselves: Ourselves::new(&parts.settings.mcp),
            desks: {
                let limits = &parts.settings.limits;
                Desks::new(limits.parked_per_principal, limits.parked_total)
            },
            parts,
            knowledge: Knowledge::default(),
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
    /// [`Failure`] when no upstream answered.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request upstream.
    pub async fn handle(&self, call: &Call, session: &Arc<Session>) -> Result<Reply, Failure> {
        let answer = self.answer(call, session).await?;
        if call.message.method().is_some_and(is_list) {
            Box::pin(self.make_room_for_list(call, &answer)).await?;
        }
        Ok(answer)
    }

    async fn answer(&self, call: &Call, session: &Arc<Session>) -> Result<Reply, Failure> {
        match self.route(call, session).await? {
            Route::Here(reply) => Ok(reply),
            Route::One(target) => {
                let home = target.home.as_ref().unwrap_or(session);
                if asks_for_task(call, home)
                    && let Some(begun) = Box::pin(self.host(call, home, &target)).await?
                {
                    return Ok(begun);
                }
                self.forward(call, home, &target).await
            }
            Route::List(list) => self.list(call, session, list).await,
            Route::Everywhere => self.tell_all(call, session).await,
            Route::Task(own) => Box::pin(self.about_hosted(call, &own)).await,
        }
    }

    /// Handles a request routed to one upstream.
    async fn forward(
        &self,
        call: &Call,
        session: &Arc<Session>,
        target: &Target,
    ) -> Result<Reply, Failure> {
        let forward = Forward {
            relay: self,
            call,
            session,
            target,
            permit: self.decide(call, target)?,
        };
        methods::handle(&forward).await
    }

    fn source(&self, call: &Call, declared: Option<Arc<Declared>>, view: &View) -> Source {
        let ourselves = Arc::clone(&self.ourselves.info);
        Source::new(
            declared,
            call,
            view,
            self.parts.settings.lists.ttl,
            ourselves,
        )
    }

    fn decide(&self, call: &Call, target: &Target) -> Result<Permit, Failure> {
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
        let seat = self.seat(session, upstream);
        let made = self.parts.upstreams.link(upstream, seat).ok_or_else(|| {
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
