//! `SessionLinks`: the link of a session to each of its upstreams, and what the upstream declares.
//! Spec: DESIGN §5 (knowledge), §6.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::EMPTY;
use super::missing::{left_out, not_ready};
use super::view::EndpointViews;
use crate::call::{Notice, NoticeIntake, NullIntake, ServerDeclaration, UpstreamLink};
use crate::config::Config;
use crate::fault::{Fault, FaultKind};
use crate::runtime::lifecycle::TaskSpawner;
use crate::session::{NoticeSource, Session};
use crate::telemetry::metrics::LABELED;
use crate::telemetry::request_tag;
use crate::telemetry::trace;
use crate::translate::merge::MergedMember;
use crate::upstream::declaration_cache::{DeclarationCache, DeclarationKey};
use crate::upstream::{ClientContext, Upstreams};

/// Capabilities presumed for an upstream that has not declared any yet.
const PRESUMED: &str = r#"{"resources":{"subscribe":true},"completions":{},"logging":{}}"#;

/// Links of adopted sessions are opened within this time.
const REOPENED_WITHIN: Duration = Duration::from_secs(1);

/// Makes the receiver of an upstream's messages outside calls, for one session.
pub(crate) trait IntakeFactory: std::fmt::Debug + Send + Sync {
    /// The intake of `session` for `upstream`.
    fn intake(&self, session: &Arc<Session>, upstream: &Arc<str>) -> Arc<dyn NoticeIntake>;
}

/// The links of sessions to their upstreams.
#[derive(Debug)]
pub(crate) struct SessionLinks {
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) declarations: DeclarationCache,
    pub(crate) views: EndpointViews,
    /// Runs background work.
    pub(crate) spawner: TaskSpawner,
    /// `mcp.connect_wait`.
    pub(crate) connect_wait: Duration,
    /// JSON text of our own `Implementation`.
    pub(super) ourselves: Arc<str>,
    intakes: Weak<dyn IntakeFactory>,
}

impl SessionLinks {
    pub(crate) fn new(
        settings: &Config,
        upstreams: Arc<Upstreams>,
        spawner: TaskSpawner,
        ourselves: &Arc<str>,
        intakes: Weak<dyn IntakeFactory>,
    ) -> Self {
        Self {
            upstreams,
            declarations: DeclarationCache::default(),
            views: EndpointViews::new(settings),
            spawner,
            connect_wait: settings.mcp.connect_wait,
            ourselves: Arc::clone(ourselves),
            intakes,
        }
    }

    /// The session's link to an upstream, made when there is none yet.
    ///
    /// # Errors
    /// There is no such upstream, or the session has ended.
    pub(crate) fn link(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
    ) -> Result<Arc<dyn UpstreamLink>, Fault> {
        if let Some(link) = self.checked_link(session, upstream) {
            return Ok(link);
        }
        let connection = self.connection(session, upstream);
        if let Some(connection) = connection {
            self.end_other_account(session, upstream, connection);
        }
        if let Some(link) = session.links().get(upstream) {
            return Ok(link);
        }
        let client = ClientContext {
            adopted: session.adopted_link(upstream),
            ..self.client(session, upstream)
        };
        let made = self.upstreams.link(upstream, client).ok_or_else(|| {
            Fault::downstream(FaultKind::InvalidParams, "there is no such upstream")
        })?;
        let (links, closed) = (session.links(), session.closed());
        let link = links.get_or(closed, upstream, connection, || Arc::clone(&made));
        // Lost the race to another call, or the session has ended: release the lease of a shared link.
        if link.as_ref().is_none_or(|link| !Arc::ptr_eq(link, &made)) {
            self.spawner.spawn(async move { made.close().await });
        }
        let link = link.ok_or_else(|| {
            Fault::downstream(
                FaultKind::UnknownSession,
                "the session has ended, initialize again",
            )
        })?;
        session.tell_links();
        // A shared link may be open already, and then reports no further change.
        if link.declared().is_some() {
            session.record_changed();
        }
        Ok(link)
    }

    /// The client context of the session at an upstream.
    pub(crate) fn client(&self, session: &Arc<Session>, upstream: &Arc<str>) -> ClientContext {
        // Without a gateway there is no client to tell.
        let intake = self.intakes.upgrade().map_or_else(
            || Arc::new(NullIntake) as Arc<dyn NoticeIntake>,
            |intakes| intakes.intake(session, upstream),
        );
        ClientContext {
            owner: session.owner(),
            caller: session.principal.access().cloned(),
            session: session.key(),
            capabilities: self.upstreams.declarable(upstream, &session.capabilities),
            client_info: session.client_info.clone(),
            offer: session.revision,
            intake,
            adopted: None,
        }
    }

    /// Opens an upstream in the background for a session answered from another session's page, so that
    /// change notices reach the session as if it had sent the list request.
    pub(crate) fn open_later(&self, session: &Arc<Session>, upstream: &Arc<str>) {
        if let Ok(link) = self.link(session, upstream)
            && link.declared().is_none()
        {
            self.spawner.spawn_service(async move {
                drop(link.open().await);
            });
        }
    }

    /// Opens the link of an adopted session in the background, after up to a second: sessions are adopted together.
    pub(crate) fn reopen(self: &Arc<Self>, session: &Arc<Session>, upstream: &Arc<str>) {
        let (links, session, upstream) =
            (Arc::clone(self), Arc::clone(session), Arc::clone(upstream));
        let pause = REOPENED_WITHIN.mul_f64(rand::random_range(0.0..1.0));
        self.spawner.spawn_service(async move {
            tokio::time::sleep(pause).await;
            // Has the account looked up that the link is made for.
            if links.lacks_account(&session, &upstream).await {
                return;
            }
            if let Ok(link) = links.link(&session, &upstream) {
                drop(link.open().await);
            }
        });
    }

    /// Opens a link in a background task, so that the handshake continues if the caller is dropped.
    async fn open_aside(
        &self,
        link: Arc<dyn UpstreamLink>,
    ) -> Result<Arc<ServerDeclaration>, Fault> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let opened = trace::keep(async move {
            drop(sender.send(link.open().await));
        });
        self.spawner.spawn_service(request_tag::keep(opened));
        receiver.await.map_err(Fault::internal)?
    }

    /// Declaration of an upstream to this session: cached, or requested now on the session's own link
    /// within `wait`. A slower handshake continues in the background.
    ///
    /// # Errors
    /// The upstream cannot be reached, or not in time.
    pub(crate) async fn learn(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        wait: Option<Duration>,
    ) -> Result<Arc<ServerDeclaration>, Fault> {
        let open = |link: Arc<dyn UpstreamLink>| async move {
            match wait {
                None => link.open().await,
                Some(_) if self.is_in_vain(session, upstream) => {
                    Err(not_ready(&self.upstreams, upstream))
                }
                Some(wait) => {
                    let opened = tokio::time::timeout(wait, self.open_aside(link)).await;
                    opened.unwrap_or_else(|_| Err(not_ready(&self.upstreams, upstream)))
                }
            }
        };
        self.known_or(session, upstream, open).await
    }

    /// Declaration of the only upstream of an endpoint, without the shortcut for stuck upstreams: a merged
    /// answer that went out without the upstream is no reason to skip it here.
    ///
    /// # Errors
    /// The upstream cannot be reached.
    pub(crate) async fn learn_alone(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
    ) -> Result<Arc<ServerDeclaration>, Fault> {
        let open = |link| self.open_aside(link);
        self.known_or(session, upstream, open).await
    }

    /// The declaration that is kept for this session, or that of its own link, which `open` opens.
    async fn known_or<F: Future<Output = Result<Arc<ServerDeclaration>, Fault>>>(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        open: impl FnOnce(Arc<dyn UpstreamLink>) -> F,
    ) -> Result<Arc<ServerDeclaration>, Fault> {
        let key = self.knowledge_key(session, upstream);
        if let Some(known) = self.declarations.get(&key) {
            return Ok(known);
        }
        if let Some(stand_in) = self.without_account(session, upstream).await {
            return Ok(stand_in);
        }
        let declared = match open(self.link(session, upstream)?).await {
            Ok(declared) => declared,
            Err(fault) => return self.or_without_account(session, upstream, fault).await,
        };
        self.declarations.learn(key, &declared);
        Ok(declared)
    }

    /// Substitute for the declaration of a late upstream, since a legacy client learns capabilities only once:
    /// the last declaration; for an upstream never seen before, `PRESUMED`, harmless if wrong; for a failing
    /// upstream `None`.
    pub(crate) fn presumed(
        &self,
        session: &Session,
        upstream: &Arc<str>,
    ) -> Option<Arc<ServerDeclaration>> {
        let last = self
            .declarations
            .last(&self.knowledge_key(session, upstream));
        let is_new = !self.upstreams.is_failing(upstream);
        last.or_else(|| {
            let capabilities = Bytes::from_static(PRESUMED.as_bytes());
            let declared = ServerDeclaration::new(session.revision, capabilities, EMPTY, None);
            is_new.then(|| Arc::new(declared))
        })
    }

    /// The fresh declaration of an upstream to this session, if it is cached.
    pub(crate) fn known(
        &self,
        session: &Session,
        upstream: &Arc<str>,
    ) -> Option<Arc<ServerDeclaration>> {
        self.declarations
            .get(&self.knowledge_key(session, upstream))
    }

    /// Cache key of an upstream's declaration to this session.
    pub(crate) fn knowledge_key(&self, session: &Session, upstream: &Arc<str>) -> DeclarationKey {
        let capabilities = self.upstreams.declarable(upstream, &session.capabilities);
        DeclarationKey {
            upstream: Arc::clone(upstream),
            offer: session.revision,
            capabilities: capabilities.fingerprint(),
            account: self.upstreams.account(upstream, session.owner()),
        }
    }

    /// The declarations of all upstreams of the session. Each upstream is waited for as `wait` says.
    pub(crate) async fn members(
        &self,
        session: &Arc<Session>,
        wait: impl Fn(&Arc<str>) -> Duration,
    ) -> Vec<MergedMember> {
        let wait = &wait;
        let upstreams = session.endpoint.upstreams.iter();
        let all = upstreams.map(|upstream| async move {
            let declared = self.learn(session, upstream, Some(wait(upstream))).await;
            let missing = match &declared {
                Ok(_) => self.why_doubtful(session, upstream),
                Err(fault) => Some(self.why_missing(session, upstream, Some(fault))),
            };
            MergedMember {
                upstream: Arc::clone(upstream),
                declared: self.or_left_out(upstream, declared),
                missing,
            }
        });
        join_all(all).await
    }

    /// Whether `has` is true for the declaration of an upstream of the session. Waits for upstreams no longer than
    /// `mcp.connect_wait`, and not at all if a known declaration suffices.
    pub(crate) async fn any_declares(
        &self,
        session: &Arc<Session>,
        has: impl Fn(&ServerDeclaration) -> bool,
    ) -> bool {
        let is_known = |upstream: &Arc<str>| {
            let known = self.known(session, upstream);
            known.is_some_and(|declared| has(&declared))
        };
        if session.endpoint.upstreams.iter().any(is_known) {
            return true;
        }
        let members = self.members(session, |_| self.connect_wait).await;
        let mut declared = members.iter().filter_map(|one| one.declared.as_deref());
        declared.any(has)
    }

    /// The declaration of an upstream; logs the failure if there is none.
    pub(crate) fn or_left_out(
        &self,
        upstream: &Arc<str>,
        declared: Result<Arc<ServerDeclaration>, Fault>,
    ) -> Option<Arc<ServerDeclaration>> {
        if let Err(fault) = &declared {
            LABELED.upstream_skipped.add(upstream, 1);
            left_out(&self.upstreams, upstream, "discovery", fault);
        }
        declared.ok()
    }

    /// Whether clients are told of changed lists of an upstream.
    pub(crate) fn tells_changes(&self, upstream: &str) -> bool {
        let settings = self.upstreams.settings(upstream);
        settings.is_none_or(|settings| settings.list_changed)
    }

    /// Sends the client `list_changed` of one list of an upstream, unless it is switched off.
    pub(crate) fn tell_changed(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        what: &'static str,
    ) {
        if self.tells_changes(upstream) {
            session.tell(Notice::list_changed(what), NoticeSource::of(upstream));
        }
    }
}
