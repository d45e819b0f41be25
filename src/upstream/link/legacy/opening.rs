//! Opening a connection of a legacy link: its carrier, then the handshake.
//! Spec: SPEC L-01, L-08, U-05.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::connection::LegacyConnection;
use super::reading::read_lines;
use super::wire::LegacyWire;
use super::{LinkSettings, handshake};
use crate::call::ServerDeclaration;
use crate::process::WaitPolicy;
use crate::protocol::Message;
use crate::protocol::salvage;
use crate::upstream::carrier::duplex::{DuplexReceiver, DuplexSender};
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::carrier::http::http_session::{HttpSession, ResponseBounds};
use crate::upstream::carrier::{Carrier, LegacySseOnly, ProbeStage, StartedConnection, read_first};
use crate::upstream::error::LinkError;
use crate::upstream::room::ArrivingMessage;

/// The second half of the handshake.
const INITIALIZED: Bytes =
    Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);

/// Opens connections of a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionOpening<'a> {
    settings: &'a Arc<LinkSettings>,
}

impl<'a> ConnectionOpening<'a> {
    /// For a link with these settings.
    pub(super) fn new(settings: &'a Arc<LinkSettings>) -> Self {
        Self { settings }
    }

    /// Opens the carrier, unless it is given, and does the handshake.
    pub(super) async fn open(
        self,
        started: Option<StartedConnection>,
    ) -> Result<Arc<LegacyConnection>, LinkError> {
        match &self.settings.carrier {
            Carrier::Http(client, bounds, None) => self.over_http(client, *bounds, &mut None).await,
            Carrier::Http(client, bounds, Some(older)) => {
                self.open_either(client, *bounds, older).await
            }
            Carrier::Duplex(source) => {
                let started = match started {
                    Some(started) => started,
                    None => {
                        StartedConnection::new(source, self.settings, WaitPolicy::SpawnWait).await?
                    }
                };
                self.greet(started).await
            }
        }
    }

    /// Opens a further connection: over `started`, if given.
    pub(super) async fn open_further(
        self,
        started: Option<StartedConnection>,
    ) -> Result<Arc<LegacyConnection>, LinkError> {
        let started = match (started, &self.settings.carrier) {
            (Some(started), _) => started,
            (None, Carrier::Http(client, bounds, _)) => {
                StartedConnection::over_events(client, *bounds, self.settings).await?
            }
            (None, Carrier::Duplex(source)) => {
                StartedConnection::new(source, self.settings, WaitPolicy::SpawnWait).await?
            }
        };
        self.greet(started).await
    }

    /// POSTs `initialize`. `said` is set to the words of a refusal that names no request.
    ///
    /// # Cancel safety
    /// A session that the upstream has opened by then is ended, as is one of a failed handshake.
    pub(super) async fn over_http(
        self,
        client: &HttpClient,
        bounds: ResponseBounds,
        said: &mut Option<String>,
    ) -> Result<Arc<LegacyConnection>, LinkError> {
        let client = client.behind(&self.settings.fence);
        let wire = HttpSession::new(self.settings.name.clone(), client, bounds);
        let wire = Arc::new(wire);
        let mut unused = UnusedWire {
            settings: self.settings,
            wire: Arc::clone(&wire),
            is_kept: false,
        };
        let first = handshake::request(self.settings);
        // The upstream may ask something under the same number before (SPEC L-03).
        let is_reply =
            |message: &Message| message.number() == Some(1) && message.method().is_none();
        let take = &mut |message: Message| {
            if message.id().is_none() {
                *said = handshake::words(&message);
            }
            is_reply(&message).then_some(message)
        };
        let reply = wire.begin(first, take).await;
        let declared = handshake::read(&reply?, &self.settings.upstream)?;
        wire.set_version(declared.revision.as_str());
        post_initialized(self.settings, &wire).await?;
        unused.is_kept = true;
        Ok(LegacyConnection::new(
            self.settings,
            LegacyWire::Http(wire),
            declared,
        ))
    }

    /// The session that another replica had at the upstream, the first time it is asked for. There is no handshake: the
    /// upstream would begin another session.
    pub(super) fn continued(self) -> Option<Arc<LegacyConnection>> {
        let Carrier::Http(client, bounds, _) = &self.settings.carrier else {
            return None;
        };
        let (continuation, first_id) = self.settings.take_continuation()?;
        let id = HeaderValue::from_str(continuation.id.expose()).ok()?;
        let client = client.behind(&self.settings.fence);
        let wire = HttpSession::new(self.settings.name.clone(), client, *bounds);
        wire.set_version(continuation.declared.revision.as_str());
        wire.continue_as(id);
        let declared = if self.settings.upstream.list_changed {
            continuation.declared
        } else {
            let declared = ServerDeclaration::clone(&continuation.declared);
            Arc::new(declared.without_list_changed())
        };
        let wire = LegacyWire::Http(Arc::new(wire));
        Some(LegacyConnection::with_ids_from(
            first_id,
            self.settings,
            wire,
            declared,
        ))
    }

    /// Streamable HTTP, or HTTP+SSE where Streamable HTTP is refused; the transport that worked is
    /// tried first the next time. Spec: SPEC U-05.
    async fn open_either(
        self,
        client: &HttpClient,
        bounds: ResponseBounds,
        older: &LegacySseOnly,
    ) -> Result<Arc<LegacyConnection>, LinkError> {
        if let Some(outcome) = self.open_known_older(client, bounds, older).await {
            return outcome;
        }
        let mut said = None;
        match self.over_http(client, bounds, &mut said).await {
            Err(error) => {
                self.open_older_after(error, said.as_deref(), client, bounds, older)
                    .await
            }
            opened => opened,
        }
    }

    /// HTTP+SSE, where that has worked before; `None` where Streamable HTTP has to be tried.
    pub(super) async fn open_known_older(
        self,
        client: &HttpClient,
        bounds: ResponseBounds,
        older: &LegacySseOnly,
    ) -> Option<Result<Arc<LegacyConnection>, LinkError>> {
        if !older.is_spoken() {
            return None;
        }
        match self.open_older(client, bounds).await {
            // It may have learnt something newer.
            Err(LinkError::Status(_) | LinkError::Invalid(_)) => {
                older.note(false);
                None
            }
            outcome => Some(outcome),
        }
    }

    /// HTTP+SSE, where `error` is a refusal of Streamable HTTP that an older server may give; else, and where HTTP+SSE
    /// fails too, the error to tell. `said` is the text that came with `error`.
    pub(super) async fn open_older_after(
        self,
        error: LinkError,
        said: Option<&str>,
        client: &HttpClient,
        bounds: ResponseBounds,
        older: &LegacySseOnly,
    ) -> Result<Arc<LegacyConnection>, LinkError> {
        if !matches!(error, LinkError::Status(400 | 404 | 405)) && !error.is_older_stream() {
            return Err(handshake::refused(error, said));
        }
        match self.open_older(client, bounds).await {
            Ok(connection) => {
                tracing::info!(upstream = %self.settings.name, "upstream speaks HTTP+SSE of 2024-11-05");
                older.note(true);
                Ok(connection)
            }
            Err(error @ (LinkError::Invalid(_) | LinkError::Handshake(_))) => Err(error),
            // The refusal of Streamable HTTP is believed if it has words (`said`); else the cause is a status in front
            // of the stream, as of a firewall (SPEC U-06).
            Err(error) if said.is_none() && handshake::is_no_answer(&error) => Err(error),
            Err(_) => Err(handshake::refused(error, said)),
        }
    }

    async fn open_older(
        self,
        client: &HttpClient,
        bounds: ResponseBounds,
    ) -> Result<Arc<LegacyConnection>, LinkError> {
        let opened = StartedConnection::over_events(client, bounds, self.settings).await?;
        self.greet(opened).await
    }

    /// Shakes hands on an open connection, unless a probe has done so.
    async fn greet(self, started: StartedConnection) -> Result<Arc<LegacyConnection>, LinkError> {
        let StartedConnection {
            child,
            mut lines,
            stage,
            ..
        } = started;
        // One that waited long for its place is not given up for others of its owner meanwhile.
        let _busy = child.busy();
        let declared = match stage {
            ProbeStage::Fresh | ProbeStage::Asked => {
                let request = handshake::request(self.settings);
                let declared = self.declaration(&child, &mut lines);
                child.ask_first(request, declared).await?
            }
            ProbeStage::Greeted => self.declaration(&child, &mut lines).await?,
            ProbeStage::Answered(answer) => handshake::read(&answer, &self.settings.upstream)?,
            // It was asked beside another question: a fresh one may answer otherwise.
            ProbeStage::Refused => return Err(child.lost()),
        };
        let told = child.tell_first(INITIALIZED).await;
        without_refusal(self.settings, told)?;
        let connection = LegacyConnection::new(self.settings, LegacyWire::Duplex(child), declared);
        self.settings.tasks.spawn_service(read_lines(
            Arc::downgrade(&connection),
            self.settings.message_depth,
            lines,
        ));
        Ok(connection)
    }

    /// Reads the answer to `initialize`.
    async fn declaration(
        self,
        child: &DuplexSender,
        lines: &mut DuplexReceiver,
    ) -> Result<Arc<ServerDeclaration>, LinkError> {
        let mut room = ArrivingMessage::new(self.settings.arriving_share());
        loop {
            let line = lines.next_in(&mut room).await;
            let line = line.ok_or_else(|| child.lost())?;
            match read_first(child, &line, self.settings).await {
                Some(message) if message.number() == Some(1) && message.method().is_none() => {
                    return handshake::read(&message, &self.settings.upstream);
                }
                None if salvage::answered(&line) == Some(1) => {
                    let why = Message::parse(line, self.settings.message_depth).err();
                    let why = why.map(|error| error.to_string());
                    return Err(LinkError::Invalid(why.unwrap_or_default()));
                }
                _ => {
                    tracing::debug!(upstream = %self.settings.name, "ignored output before initialize");
                }
            }
        }
    }
}

/// The wire of a handshake under way. Dropped before `is_kept` is set, it ends the session that
/// the upstream has opened, if any: no link will use it.
#[derive(Debug)]
struct UnusedWire<'a> {
    settings: &'a Arc<LinkSettings>,
    wire: Arc<HttpSession>,
    is_kept: bool,
}

impl Drop for UnusedWire<'_> {
    fn drop(&mut self) {
        if self.is_kept || !self.wire.has_session() {
            return;
        }
        let limit = self.settings.upstream.connect_timeout;
        let wire = Arc::clone(&self.wire);
        self.settings.tasks.spawn_service(async move {
            drop(timeout(limit, wire.close()).await);
        });
    }
}

/// How long an upstream may take to say that it has heard of the end of the handshake.
const TAKEN: Duration = Duration::from_secs(1);

/// Posts the second half of the handshake. A post without a refusal in time counts as taken: the handshake is done, and
/// the only other answer is 202 (SPEC U-04).
async fn post_initialized(
    settings: &Arc<LinkSettings>,
    wire: &Arc<HttpSession>,
) -> Result<(), LinkError> {
    let limit = settings.upstream.connect_timeout;
    let (sender, outcome) = oneshot::channel();
    let posting = Arc::clone(wire);
    // The post goes on after the wait: a cancelled post may stop the work that it started upstream.
    settings.tasks.spawn_service(async move {
        let posted = timeout(limit, posting.send(INITIALIZED)).await;
        drop(sender.send(posted.unwrap_or(Err(LinkError::Timeout))));
    });
    let Ok(posted) = timeout(TAKEN.min(limit / 4), outcome).await else {
        tracing::info!(
            upstream = %settings.name,
            "upstream does not answer `notifications/initialized`: going on without"
        );
        return Ok(());
    };
    let posted = posted.unwrap_or(Err(LinkError::Lost { last_words: None }));
    without_refusal(settings, posted)
}

/// The outcome of the second half of the handshake. A refusal that says "not understood" counts as taken: some servers
/// know no notifications, and serve the session all the same. A server that does not serve it refuses the next request. A
/// lost session has an error of its own.
fn without_refusal(
    settings: &LinkSettings,
    posted: Result<(), LinkError>,
) -> Result<(), LinkError> {
    match posted {
        Err(LinkError::Status(status @ (400 | 404..=406 | 415 | 422 | 501))) => {
            tracing::info!(
                upstream = %settings.name,
                status,
                "upstream refuses `notifications/initialized`: going on without"
            );
            Ok(())
        }
        posted => posted,
    }
}
