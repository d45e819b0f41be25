//! `initialize` of a client: a session, and what its upstreams declare.
//! Spec: SPEC L-01, L-02, L-05, T-40; DESIGN §5 (knowledge); BRIDGING §5.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::missing_upstreams::{left_out, not_ready};
use super::route::invalid;
use super::{EMPTY, Relay, RelayFailure};
use crate::call::{MAX_DECLARED, Principal, Reply, ServerDeclaration, UpstreamLink};
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::protocol::{Era, Message, Revision, json};
use crate::session::{DeliveryMode, NewSession, Session, SessionRefused};
use crate::telemetry::metrics::{COUNTERS, LABELED};
use crate::translate::merge::MergedMember;
use crate::translate::{effective_capabilities, merge};
use crate::upstream::declaration_cache::DeclarationKey;

/// Capabilities presumed for an upstream that has not declared any yet.
const PRESUMED: &str = r#"{"resources":{"subscribe":true},"completions":{},"logging":{}}"#;

const TOO_MUCH: &str = "params.capabilities and params.clientInfo may have 64 KiB each";

impl Relay {
    /// Opens a session and answers with its capabilities.
    ///
    /// # Errors
    /// [`RelayFailure`] when there is no room for a session, or its only upstream cannot be opened.
    ///
    /// # Cancel safety
    /// A session whose answer is never sent ends by its idle lifetime.
    pub async fn initialize(
        &self,
        principal: Arc<Principal>,
        endpoint: Arc<Endpoint>,
        message: &Message,
        delivery: DeliveryMode,
    ) -> Result<(Arc<Session>, Reply), RelayFailure> {
        let asked = message
            .param_str("protocolVersion")
            .ok_or_else(|| invalid("params.protocolVersion must be a string"))?;
        // Spec: SPEC L-01. The modern revision is never negotiated here.
        let fallback = match delivery {
            DeliveryMode::Streams => Revision::LATEST_LEGACY,
            DeliveryMode::Connection { fallback, .. } => fallback,
        };
        let revision = Revision::parse(&asked)
            .filter(|revision| revision.era() == Era::Legacy)
            .unwrap_or(fallback);
        let capabilities = message.param("capabilities").unwrap_or("{}");
        let client_info = client_info(message);
        if capabilities.len() > MAX_DECLARED || client_info.len() > MAX_DECLARED {
            return Err(invalid(TOO_MUCH).into());
        }
        let is_pure = self.is_pure(&endpoint);
        let new = NewSession {
            principal,
            endpoint,
            revision,
            capabilities: effective_capabilities::capabilities(capabilities, revision, is_pure),
            client_info: Bytes::copy_from_slice(client_info.as_bytes()),
            delivery,
        };
        let opening = self.parts.sessions.open(new).map_err(refused)?;
        let session = opening.session();
        match self.declare(session).await {
            Ok(result) => Ok((Arc::clone(session), Reply::Result(result))),
            Err(fault) => {
                self.parts.sessions.close(session);
                Err(fault.into())
            }
        }
    }

    async fn declare(&self, session: &Arc<Session>) -> Result<Bytes, Fault> {
        let endpoint = &session.endpoint;
        if let [upstream] = endpoint.upstreams.as_slice()
            && self.is_pure(endpoint)
        {
            let declared = self.learn(session, upstream, None).await?;
            return Ok(merge::pure(session.revision, &declared));
        }
        let all = endpoint.upstreams.iter().map(|upstream| async move {
            let wait = self.hello_wait(session, upstream);
            let (declared, missing) = match self.learn(session, upstream, Some(wait)).await {
                Ok(declared) => (Some(declared), self.why_doubtful(session, upstream)),
                Err(fault) => {
                    LABELED.upstream_skipped.add(upstream, 1);
                    left_out(&self.parts.upstreams, upstream, "new session", &fault);
                    let why = self.why_missing(session, upstream, Some(&fault));
                    (self.presumed(session, upstream), Some(why))
                }
            };
            MergedMember {
                upstream: Arc::clone(upstream),
                declared,
                missing,
            }
        });
        let declared = join_all(all).await;
        Ok(merge::merged(session.revision, &declared, &self.ourselves))
    }

    /// Substitute for the declaration of a late upstream, since a legacy client learns capabilities only once:
    /// the last declaration; for an upstream never seen before, `PRESUMED`, harmless if wrong; for a failing
    /// upstream `None`.
    pub(super) fn presumed(
        &self,
        session: &Session,
        upstream: &Arc<str>,
    ) -> Option<Arc<ServerDeclaration>> {
        let last = self
            .declarations
            .last(&self.knowledge_key(session, upstream));
        let is_new = !self.parts.upstreams.is_failing(upstream);
        last.or_else(|| {
            let capabilities = Bytes::from_static(PRESUMED.as_bytes());
            let declared = ServerDeclaration::new(session.revision, capabilities, EMPTY, None);
            is_new.then(|| Arc::new(declared))
        })
    }

    /// Declaration of an upstream to this session: cached, or requested now on the session's own link
    /// within `wait`. A slower handshake continues in the background.
    pub(super) async fn learn(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        wait: Option<Duration>,
    ) -> Result<Arc<ServerDeclaration>, Fault> {
        let key = self.knowledge_key(session, upstream);
        if let Some(known) = self.declarations.get(&key) {
            return Ok(known);
        }
        let link = self.link(session, upstream)?;
        let declared = match wait {
            None => link.open().await?,
            Some(_) if self.is_in_vain(session, upstream) => {
                return Err(not_ready(&self.parts.upstreams, upstream));
            }
            Some(wait) => {
                let opened = tokio::time::timeout(wait, self.open_aside(link)).await;
                opened.map_err(|_| not_ready(&self.parts.upstreams, upstream))??
            }
        };
        self.declarations.learn(key, &declared);
        Ok(declared)
    }

    /// Opens a link in a background task, so that the handshake continues if the caller is dropped.
    pub(super) async fn open_aside(
        &self,
        link: Arc<dyn UpstreamLink>,
    ) -> Result<Arc<ServerDeclaration>, Fault> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.parts.tasks.spawn_service(async move {
            drop(sender.send(link.open().await));
        });
        receiver.await.map_err(Fault::internal)?
    }

    pub(super) fn knowledge_key(&self, session: &Session, upstream: &Arc<str>) -> DeclarationKey {
        let capabilities = self
            .parts
            .upstreams
            .declarable(upstream, &session.capabilities);
        DeclarationKey {
            upstream: Arc::clone(upstream),
            offer: session.revision,
            capabilities: capabilities.fingerprint(),
            account: self.parts.upstreams.account(upstream, session.owner()),
        }
    }
}

/// JSON text of the `clientInfo`; without its icons if over `MAX_DECLARED`, since nothing depends on icons.
fn client_info(message: &Message) -> Cow<'_, str> {
    let said = message.param("clientInfo");
    let info = said.filter(|info| info.starts_with('{'));
    let info = info.unwrap_or(r#"{"name":"unknown","version":"0"}"#);
    if info.len() > MAX_DECLARED
        && let Ok(members) = json::members(info)
    {
        return json::object(members.into_iter().filter(|(name, _)| name != "icons")).into();
    }
    info.into()
}

pub(super) fn refused(refused: SessionRefused) -> Fault {
    COUNTERS.sessions_refused.add(1);
    let (kind, side) = match refused {
        SessionRefused::Principal => (FaultKind::CallerBusy, FaultSide::Downstream),
        SessionRefused::Total => (FaultKind::GatewayBusy, FaultSide::Gateway),
    };
    Fault::new(kind, side, refused.to_string()).retry(RetryHint::After(Duration::from_secs(5)))
}
