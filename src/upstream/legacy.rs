//! One logical connection to a legacy upstream: opened when first needed, opened again when the
//! upstream forgets it or its child is gone, with log level and subscriptions restored.
//! Spec: SPEC U-02, U-04, D-06, L-08; DESIGN §6.

mod activity;
mod connection;
mod handshake;
mod inbound;
mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::call::{Call, ClientCapabilities, Declared, Intake, OwnerKey, Reply, UpstreamLink};
use crate::config;
use crate::fault::Fault;
use crate::lifecycle::Tasks;
use crate::protocol::{Message, Revision};
use crate::telemetry::metrics::LABELED;

use super::error::LinkError;
use connection::Connection;
pub(super) use wire::Carrier;

/// What a link is made with.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) upstream: Arc<config::Upstream>,
    pub(super) name: Arc<str>,
    pub(super) carrier: Carrier,
    pub(super) owner: OwnerKey,
    pub(super) capabilities: ClientCapabilities,
    pub(super) client_info: Bytes,
    pub(super) offer: Revision,
    pub(super) intake: Arc<dyn Intake>,
    pub(super) exclusive: bool,
    pub(super) tasks: Tasks,
    pub(super) message_depth: usize,
}

/// A link of the legacy era.
#[derive(Debug)]
pub struct LegacyLink {
    settings: Arc<Settings>,
    current: Mutex<Option<Arc<Connection>>>,
    opening: tokio::sync::Mutex<()>,
    remembered: Mutex<Remembered>,
    listening: AtomicBool,
    /// Whoever had this link is gone: nothing is opened any more.
    ended: AtomicBool,
}

/// What a fresh connection has to be told again.
#[derive(Debug, Default, Clone)]
struct Remembered {
    level: Option<String>,
    subscriptions: HashMap<String, usize>,
}

impl LegacyLink {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            settings: Arc::new(settings),
            current: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            remembered: Mutex::default(),
            listening: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    fn open_connection(&self) -> Option<Arc<Connection>> {
        lock(&self.current)
            .as_ref()
            .filter(|open| !open.is_closed())
            .map(Arc::clone)
    }

    async fn connection(&self) -> Result<Arc<Connection>, LinkError> {
        if let Some(open) = self.open_connection() {
            return Ok(open);
        }
        let _opening = self.opening.lock().await;
        if let Some(open) = self.open_connection() {
            return Ok(open);
        }
        if self.ended.load(Ordering::Acquire) {
            return Err(LinkError::Cancelled);
        }
        let open = tokio::time::timeout(
            self.settings.upstream.connect_timeout,
            Connection::open(&self.settings),
        );
        let connection = open.await.unwrap_or(Err(LinkError::Timeout)).inspect_err(|error| {
            LABELED.upstream_failed.add(&self.settings.name, 1);
            tracing::warn!(upstream = %self.settings.name, error = %error, "upstream not opened");
        })?;
        LABELED.upstream_opened.add(&self.settings.name, 1);
        self.restore(&connection).await;
        let previous = lock(&self.current).replace(Arc::clone(&connection));
        if let Some(previous) = previous {
            previous.close().await;
        }
        // The session ended while this was opened: nobody would ever close it.
        if self.ended.load(Ordering::Acquire) {
            connection.close().await;
            return Err(LinkError::Cancelled);
        }
        let declared = connection.declared();
        self.settings.intake.opened(&self.settings.name, declared);
        connection.listen(self.listening.load(Ordering::Relaxed));
        Ok(connection)
    }

    /// Tells a fresh connection what the last one knew (SPEC U-02, D-06).
    async fn restore(&self, connection: &Arc<Connection>) {
        let remembered = lock(&self.remembered).clone();
        if let Some(level) = remembered.level {
            connection.tell("logging/setLevel", "level", &level).await;
        }
        for uri in remembered.subscriptions.keys() {
            connection.tell("resources/subscribe", "uri", uri).await;
        }
    }

    /// Keeps what a successful request changed for the next connection. `false` when other
    /// sessions still need the subscription that this request would end.
    fn forward(&self, request: &Message) -> bool {
        let mut remembered = lock(&self.remembered);
        let (method, uri) = (request.method(), request.param("uri"));
        match (method, uri) {
            (Some("logging/setLevel"), _) => {
                remembered.level = request.param("level").map(str::to_owned);
            }
            (Some("resources/subscribe"), Some(uri)) => {
                let count = remembered.subscriptions.entry(uri.to_owned()).or_default();
                // One session that asks twice is still one.
                *count = if self.settings.exclusive {
                    1
                } else {
                    *count + 1
                };
            }
            (Some("resources/unsubscribe"), Some(uri)) => {
                if let Some(count) = remembered.subscriptions.get_mut(uri) {
                    *count -= 1;
                    if *count > 0 {
                        return false;
                    }
                    remembered.subscriptions.remove(uri);
                }
            }
            _ => {}
        }
        true
    }

    async fn call_inner(&self, request: &Message, call: &Call) -> Result<Reply, LinkError> {
        if !self.forward(request) {
            return Ok(Reply::Result(Bytes::from_static(b"{}")));
        }
        let connection = self.connection().await?;
        match connection.call(request, call).await {
            // The upstream refused the session before it looked at the call: nothing has run.
            Err(LinkError::SessionGone) => {
                LABELED.upstream_lost.add(&self.settings.name, 1);
                connection.forget();
                let connection = self.connection().await?;
                connection.call(request, call).await
            }
            other => other,
        }
    }
}

impl UpstreamLink for LegacyLink {
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
            if let Some(connection) = self.open_connection() {
                connection.send(message).await;
            }
        })
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<Declared>, Fault>> {
        Box::pin(async move {
            let connection = self.connection().await;
            connection
                .map(|connection| Arc::clone(connection.declared()))
                .map_err(|error| error.into_fault(&self.settings.name))
        })
    }

    fn declared(&self) -> Option<Arc<Declared>> {
        self.open_connection()
            .map(|connection| Arc::clone(connection.declared()))
    }

    fn listen(&self, wanted: bool) {
        self.listening.store(wanted, Ordering::Relaxed);
        if let Some(connection) = self.open_connection() {
            connection.listen(wanted);
        }
    }

    fn hearing(&self) -> Option<u64> {
        self.open_connection()?.hearing()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.ended.store(true, Ordering::Release);
            let connection = lock(&self.current).take();
            if let Some(connection) = connection {
                connection.close().await;
            }
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
