//! `ModernServerLink`: a link to an upstream of the modern era. Every request is self-contained: it has an id of the
//! gateway and all the metadata that the upstream needs, and opens its connection on demand. Legacy requests without a
//! modern counterpart (levels, subscriptions) are answered here. Spec: MCP 2026-07-28; SPEC §2b…2f, §3, §4; BRIDGING
//! §3.2…§3.5, §3.7.

mod connection;
pub(super) mod discover;
mod envelope;
mod inbound;
mod listen;
mod outgoing_call;
mod pipe;
mod question;
mod room;
mod rounds;
mod running_request;
mod schemas;
mod send;
mod unmarked;
mod url_elicitations;

use std::sync::Arc;

use bytes::Bytes;

use self::connection::ModernConnection;
use self::listen::LinkNotices;
use self::outgoing_call::OutgoingCall;
pub(in crate::upstream) use self::schemas::ToolSchemas;
use super::session_state::SessionState;
use crate::call::{Call, LogLevel, Reply, ServerDeclaration};
use crate::protocol::{Message, json};
use crate::upstream::carrier::{LinkSettings, StartedConnection};
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// A link of the modern era.
#[derive(Debug)]
pub(super) struct ModernServerLink {
    settings: Arc<LinkSettings>,
    schemas: Arc<ToolSchemas>,
    /// The tools of `schemas` that this link used last.
    tools: schemas::SeenTools,
    connection: Arc<ModernConnection>,
    /// Subscriptions and log level, kept for a link of the other era that may replace this one.
    state: SessionState,
    notices: Arc<LinkNotices>,
}

impl ModernServerLink {
    /// A link that keeps `state`; `known` is the declaration that another link received, `started` a child that was
    /// started for the probe.
    pub(super) fn new(
        settings: Arc<LinkSettings>,
        schemas: Arc<ToolSchemas>,
        state: SessionState,
        known: Option<Arc<ServerDeclaration>>,
        started: Option<StartedConnection>,
    ) -> Arc<Self> {
        let connection = ModernConnection::new(Arc::clone(&settings), known, started);
        let notices = LinkNotices::new(&connection, &schemas, &state);
        Arc::new(Self {
            settings,
            schemas,
            tools: schemas::SeenTools::default(),
            connection,
            state,
            notices,
        })
    }

    /// The upstream's declaration, if known.
    pub(super) fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        self.connection.declared()
    }

    /// Records the declaration that the era probe has just received.
    pub(super) fn told(&self, declared: &Arc<ServerDeclaration>) {
        self.connection.told(declared);
    }

    /// Requests the upstream's declaration, unless this link has done so.
    pub(super) async fn open_inner(&self) -> Result<Arc<ServerDeclaration>, LinkError> {
        self.connection.open().await
    }

    /// The change notices that the sessions of the link want.
    pub(in crate::upstream) fn notices(&self) -> &Arc<LinkNotices> {
        &self.notices
    }

    /// Answers a call, or sends it and waits for its reply within the upstream's deadlines.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request upstream.
    pub(super) async fn call_inner(
        &self,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, LinkError> {
        if self.connection.closed().is_cancelled() {
            return Err(LinkError::Cancelled);
        }
        match request.method() {
            // Modern requests carry their level, and connections need no ping.
            Some("ping") => return Ok(empty()),
            Some("logging/setLevel") => {
                let level = request.param_str("level");
                if let Some(level) = level.and_then(|word| LogLevel::parse(&word)) {
                    self.state.set_level(level);
                }
                return Ok(empty());
            }
            Some("resources/subscribe") => return self.notices.subscribe(request).await,
            Some("resources/unsubscribe") => {
                if let Some(uri) = request.param_str("uri") {
                    self.notices.unsubscribe(&uri);
                }
                return Ok(empty());
            }
            _ => {}
        }
        let outgoing = OutgoingCall::new(request, call, Arc::new(CallActivity::new()));
        let upstream = &self.settings.upstream;
        // Pinned outside `select!`: `abort` sets the reason before the running request is dropped.
        let mut work = std::pin::pin!(self.rounds(&outgoing));
        tokio::select! {
            // A reply that is ready takes precedence over a deadline or a cancellation.
            biased;
            reply = &mut work => reply,
            () = outgoing.activity.expired(upstream.idle_timeout, upstream.total_timeout) => {
                outgoing.abort("timeout");
                Err(if outgoing.activity.awaits_room() {
                    LinkError::no_room()
                } else {
                    let request = lock(&outgoing.running).clone();
                    self.connection.timed_out(outgoing.activity.started(), request.as_deref())
                })
            }
            () = call.cancel.cancelled() => {
                outgoing.abort(call.link.cancel_reason().unwrap_or("cancelled by the client"));
                Err(LinkError::Cancelled)
            }
        }
    }

    /// Closes the link and its child permanently.
    ///
    /// # Cancel safety
    /// Closes both in any case, in a task of its own.
    pub(super) fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        self.connection.close()
    }
}

fn empty() -> Reply {
    Reply::Result(Bytes::from_static(b"{}"))
}

/// Parses a request of the gateway's own.
fn own(text: String) -> Result<Message, LinkError> {
    Message::parse(text.into(), json::MAX_DEPTH)
        .map_err(|error| LinkError::Invalid(error.to_string()))
}
