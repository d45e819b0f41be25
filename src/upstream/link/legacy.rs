//! One logical connection to a legacy upstream: opened when first needed, opened again when the
//! upstream forgets it or its child is gone, with log level and subscriptions restored.
//! Spec: SPEC U-02, U-04, D-06, L-08; DESIGN §6.

mod answers;
mod calls;
mod connection;
mod connection_choice;
mod draining;
mod extra_connections;
mod get_stream;
pub(in crate::upstream) mod handshake;
mod in_flight;
mod inbound;
mod input_turn;
mod link_connections;
mod next_turn;
pub(super) mod offer;
mod open_questions;
mod opening;
mod pending_calls;
mod pending_reply;
mod ping;
mod post_stream;
mod question;
mod reading;
mod reconnect;
mod related;
mod restore;
mod room;
mod spent_stream;
mod subscribe;
mod task_progress;
mod wire;

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use crate::call::{Call, LogLevel, Reply, ServerDeclaration, UpstreamContinuation};
use crate::protocol::json::quote;
use crate::protocol::{Era, Message, methods};
use crate::telemetry::metrics::LABELED;

use super::session_state::SessionState;
use crate::upstream::carrier::{LinkSettings, StartedConnection};
use crate::upstream::error::LinkError;
use connection::LegacyConnection;
use link_connections::LinkConnections;
use offer::SpareSession;
use ping::Ping;
use subscribe::PendingSubscribes;

/// A link of the legacy era.
#[derive(Debug)]
pub struct LegacyLink {
    /// Itself, for what goes on when its caller has gone.
    own: Weak<Self>,
    settings: Arc<LinkSettings>,
    connections: Arc<LinkConnections>,
    /// State that a fresh connection has to be sent again.
    state: SessionState,
    /// Subscriptions that are asked for now.
    asking: PendingSubscribes,
}

impl LegacyLink {
    /// A link that keeps `state`; `started` is a child that was started to find out what it speaks.
    pub(super) fn new(
        settings: Arc<LinkSettings>,
        state: SessionState,
        started: Option<StartedConnection>,
    ) -> Arc<Self> {
        let connections = LinkConnections::new(Arc::clone(&settings), state.clone(), started);
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            settings,
            connections,
            state,
            asking: PendingSubscribes::default(),
        })
    }

    /// Opens the connection if needed and tells what the upstream declared.
    pub(super) async fn open_inner(&self) -> Result<Arc<ServerDeclaration>, LinkError> {
        let connection = self.connections.connection().await?;
        Ok(Arc::clone(connection.declared()))
    }

    /// See [`LinkConnections::open_session`].
    ///
    /// # Errors
    /// [`LinkError`] when it cannot be told.
    pub(super) async fn open_session(&self) -> Result<bool, LinkError> {
        self.connections.open_session().await
    }

    /// Makes the session of `offer` this link's own.
    ///
    /// # Errors
    /// [`LinkError::Cancelled`] when the link has ended meanwhile.
    pub(in crate::upstream) async fn accept(&self, offer: SpareSession) -> Result<(), LinkError> {
        match offer.take() {
            Some(connection) => self.connections.install(&connection).await,
            None => Ok(()),
        }
    }

    /// Asks the child of the link, if one runs and no request waits for it. An error that it answers with is an
    /// answer.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request upstream.
    pub(in crate::upstream) async fn ping(&self, limit: Duration) -> Option<Result<(), LinkError>> {
        let connection = self.connections.open()?;
        Ping::over(&connection).of_child(limit).await
    }

    /// Asks an upstream over HTTP for a sign of life, in the session of the link; opens it if needed. Takes
    /// `connect_timeout` at most.
    ///
    /// # Errors
    /// [`LinkError`] when it could not be opened, or there was no answer. An error that it answers with is an
    /// answer.
    ///
    /// # Cancel safety
    /// When dropped, the upstream is told that the request is cancelled.
    pub(in crate::upstream) async fn knock(&self) -> Result<Reply, LinkError> {
        let limit = self.settings.upstream.connect_timeout;
        let asked = async {
            let connection = self.connections.connection().await?;
            match Ping::over(&connection).in_session().await {
                // The answer to a handshake tells more than this error.
                Err(LinkError::SessionGone) => {
                    connection.forget();
                    self.connections
                        .connection()
                        .await
                        .map(|_| Reply::Result(Bytes::from_static(b"{}")))
                }
                answer => answer,
            }
        };
        let asked = timeout(limit, asked).await;
        asked.unwrap_or(Err(LinkError::Timeout))
    }

    /// Ends a subscription that no session has any more.
    pub(in crate::upstream) async fn unsubscribe(&self, uri: &str) {
        self.state.followed.remove(uri);
        if let Some(connection) = self.connections.open() {
            let uri = quote(uri);
            connection.tell("resources/unsubscribe", "uri", &uri).await;
        }
        self.connections.hold();
    }

    /// The sessions at the link want other log messages than before.
    pub(in crate::upstream) async fn set_level(&self, level: LogLevel) {
        self.state.set_level(level);
        let level = quote(level.as_str());
        if let Some(connection) = self.connections.open() {
            connection.tell("logging/setLevel", "level", &level).await;
        }
        self.connections.extra.set_level(&level).await;
    }

    pub(super) async fn call_inner(
        &self,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, LinkError> {
        if request.method() == Some("resources/subscribe")
            && let Some(uri) = request.param_str("uri")
        {
            return Box::pin(self.subscribe(&uri, request, call)).await;
        }
        self.call_through(request, call).await
    }

    async fn call_through(&self, request: &Message, call: &Call) -> Result<Reply, LinkError> {
        let place = self.connections.place(request, call).await?;
        let reply = match place.connection.call(request, call).await {
            // The upstream refused the session before it looked at the call: nothing has run.
            Err(LinkError::SessionGone) => {
                // The end of a pipe is counted as it comes.
                if !place.connection.is_pipe() {
                    LABELED.upstream_lost.add(&self.settings.name, 1);
                }
                place.connection.forget();
                drop(place);
                Box::pin(self.call_again(request, call)).await
            }
            // Nothing has run: the connection broke on the way, or the upstream led to its other URL.
            Err(LinkError::Unread { redirect }) => {
                if redirect.is_none() {
                    LABELED.calls_repeated.add(&self.settings.name, 1);
                }
                drop(place);
                Box::pin(self.call_again(request, call)).await
            }
            // It may have run, and twice is as good as once.
            Err(LinkError::Lost { .. }) if self.may_repeat(request, &place.connection) => {
                LABELED.calls_repeated.add(&self.settings.name, 1);
                tracing::warn!(upstream = %self.settings.name, "lost a reply: retrying the call");
                drop(place);
                Box::pin(self.call_again(request, call)).await
            }
            other => other,
        }?;
        self.remember(request, &reply);
        if request.method() == Some("logging/setLevel")
            && let Some(level) = request.param("level")
        {
            Box::pin(self.connections.extra.set_level(level)).await;
        }
        Ok(reply)
    }

    async fn call_again(&self, request: &Message, call: &Call) -> Result<Reply, LinkError> {
        let place = self.connections.place(request, call).await?;
        let reply = place.connection.call(request, call).await;
        reply.map_err(LinkError::of_last_try)
    }

    /// Whether a call whose reply was lost is made again: what reads, over HTTP, where a connection may
    /// break for no reason of the upstream's; and the tools that the operator names.
    fn may_repeat(&self, request: &Message, connection: &LegacyConnection) -> bool {
        let safe = &self.settings.upstream.retry_safe;
        match request.method() {
            Some("tools/call") => request
                .param_str("name")
                .is_some_and(|name| safe.iter().any(|tool| *tool == name)),
            Some(method) => !connection.is_pipe() && methods::is_repeatable(method),
            None => false,
        }
    }

    /// Keeps the changes of a successful request for the next connection.
    fn remember(&self, request: &Message, reply: &Reply) {
        if reply.error().is_some() {
            return;
        }
        let uri = || request.param_str("uri").unwrap_or_default();
        match request.method() {
            Some("logging/setLevel") => {
                let level = request.param_str("level");
                if let Some(level) = level.and_then(|word| LogLevel::parse(&word)) {
                    self.state.set_level(level);
                }
            }
            Some("resources/subscribe") => {
                self.state.followed.insert(uri().into_owned());
            }
            Some("resources/unsubscribe") => {
                self.state.followed.remove(&uri());
            }
            _ => return,
        }
        self.connections.hold();
    }
}

/// As [`crate::call::UpstreamLink`] has them.
impl LegacyLink {
    pub(super) async fn notify(&self, message: Bytes) {
        for connection in self.connections.all() {
            connection.notify(message.clone()).await;
        }
    }

    /// See [`crate::call::UpstreamLink::prepare`].
    pub(super) async fn prepare(&self) {
        if let Some(connection) = self.connections.open()
            && let Some(get_stream) = &connection.get_stream
            && self.settings.client == Era::Legacy
        {
            get_stream.hear_changes().await;
        }
    }

    pub(super) fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        self.connections
            .open()
            .map(|connection| Arc::clone(connection.declared()))
    }

    pub(super) fn continuation(&self) -> Option<UpstreamContinuation> {
        self.connections.open()?.continuation()
    }

    /// See [`crate::call::UpstreamLink::ends_with_process`].
    pub(super) fn ends_with_process(&self) -> bool {
        let open = self.connections.open();
        open.is_some_and(|connection| connection.is_pipe())
    }

    /// See [`crate::call::UpstreamLink::disown`].
    pub(super) fn disown(&self) {
        if let Some(connection) = self.connections.open() {
            connection.disown();
        }
    }

    pub(super) fn notice_feed(&self) -> Option<u64> {
        self.connections.open()?.notice_feed()
    }

    /// Sets whether changes are listened for.
    pub(super) fn listen(&self, wanted: bool) {
        self.connections.listen(wanted);
    }

    /// See [`crate::call::UpstreamLink::wait_until_live`].
    pub(super) async fn wait_until_live(&self) -> bool {
        self.connections.wait_until_live().await
    }

    /// Closes the link and its connections, for good.
    ///
    /// # Cancel safety
    /// Closes them in any case, in tasks of their own.
    pub(super) fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        self.connections.close()
    }
}
