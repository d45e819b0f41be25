//! `initialize` of a client: a session, and what its upstreams declare.
//! Spec: SPEC L-01, L-02, L-05, T-40; DESIGN §5 (knowledge); BRIDGING §5.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::call::{MAX_DECLARED, Principal, Reply};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::outbound::{RelayFailure, SessionLinks, invalid, left_out, refused};
use crate::protocol::{Era, Message, Revision, json, without_nulls};
use crate::session::{DeliveryMode, NewSession, Session, SessionRegistry};
use crate::telemetry::metrics::LABELED;
use crate::translate::merge::{GatewayInfo, MergedMember};
use crate::translate::{effective_capabilities, merge};

const TOO_MUCH: &str = "params.capabilities and params.clientInfo may have 64 KiB each";

/// Opens the sessions of clients, and says what their upstreams can do.
#[derive(Debug)]
pub(crate) struct SessionOpener {
    pub(super) links: Arc<SessionLinks>,
    pub(super) sessions: Arc<SessionRegistry>,
    pub(super) ourselves: GatewayInfo,
}

impl SessionOpener {
    /// Opens a session and answers with its capabilities.
    ///
    /// # Errors
    /// [`RelayFailure`] when there is no room for a session, or its only upstream cannot be opened.
    ///
    /// # Cancel safety
    /// A session whose answer is never sent ends by its idle lifetime.
    pub(crate) async fn initialize(
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
        let is_pure = self.links.views.is_pure(&endpoint);
        let new = NewSession {
            principal,
            endpoint,
            revision,
            capabilities: effective_capabilities::capabilities(capabilities, revision, is_pure),
            client_info: Bytes::copy_from_slice(without_nulls(&client_info).as_bytes()),
            delivery,
        };
        let claim = self
            .sessions
            .owners()
            .claim_place(new.principal.owner())
            .await;
        let opening = self.sessions.open(new, claim.as_ref()).map_err(refused)?;
        drop(claim);
        let session = opening.session();
        match self.declare(session).await {
            Ok(result) => Ok((Arc::clone(session), Reply::Result(result))),
            Err(fault) => {
                self.sessions.close(session);
                Err(fault.into())
            }
        }
    }

    async fn declare(&self, session: &Arc<Session>) -> Result<Bytes, Fault> {
        let endpoint = &session.endpoint;
        if let [upstream] = endpoint.upstreams.as_slice()
            && self.links.views.is_pure(endpoint)
        {
            let declared = self.links.learn(session, upstream, None).await?;
            return Ok(merge::pure(session.revision, &declared));
        }
        let all = endpoint.upstreams.iter().map(|upstream| async move {
            let wait = self.links.hello_wait(session, upstream);
            let (declared, missing) = match self.links.learn(session, upstream, Some(wait)).await {
                Ok(declared) => (Some(declared), self.links.why_doubtful(session, upstream)),
                Err(fault) => {
                    LABELED.upstream_skipped.add(upstream, 1);
                    left_out(&self.links.upstreams, upstream, "new session", &fault);
                    let why = self.links.why_missing(session, upstream, Some(&fault));
                    (self.links.presumed(session, upstream), Some(why))
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
