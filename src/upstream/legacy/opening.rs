//! How a connection of a legacy link comes about: its carrier is opened and hands are shaken.
//! Spec: SPEC L-01, L-08, U-05.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::connection::Connection;
use super::wire::Wire;
use super::{Settings, handshake};
use crate::protocol::{DecodeError, Message};
use crate::upstream::carrier::{Carrier, Older, Started};
use crate::upstream::duplex::Messages;
use crate::upstream::error::LinkError;
use crate::upstream::http::client::HttpClient;
use crate::upstream::http::wire::{Bounds, HttpWire, LONGEST_ARRAY};
use crate::upstream::stdio::Patience;
use crate::upstream::unread;

/// The second half of the handshake.
const INITIALIZED: Bytes =
    Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);

impl Connection {
    /// Opens the carrier, unless it is given, and shakes hands.
    pub(super) async fn open(
        settings: &Arc<Settings>,
        started: Option<Started>,
    ) -> Result<Arc<Self>, LinkError> {
        match &settings.carrier {
            Carrier::Http(client, bounds, None) => {
                Self::open_http(settings, client, *bounds, &mut None).await
            }
            Carrier::Http(client, bounds, Some(older)) => {
                Self::open_either(settings, client, *bounds, older).await
            }
            Carrier::Duplex(source) => {
                let started = match started {
                    Some(started) => started,
                    None => Started::new(source, settings, Patience::SpawnWait).await?,
                };
                Self::greet(settings, started).await
            }
        }
    }

    /// Opens one more where there is one: over the carrier that is `started`, if it is.
    pub(super) async fn open_further(
        settings: &Arc<Settings>,
        started: Option<Started>,
    ) -> Result<Arc<Self>, LinkError> {
        let started = match (started, &settings.carrier) {
            (Some(started), _) => started,
            (None, Carrier::Http(client, bounds, _)) => {
                Started::over_events(client, *bounds, settings).await?
            }
            (None, Carrier::Duplex(source)) => {
                Started::new(source, settings, Patience::SpawnWait).await?
            }
        };
        Self::greet(settings, started).await
    }

    /// `said` is set to the words of a refusal that names no request.
    async fn open_http(
        settings: &Arc<Settings>,
        client: &HttpClient,
        bounds: Bounds,
        said: &mut Option<String>,
    ) -> Result<Arc<Self>, LinkError> {
        let wire = HttpWire::new(settings.name.clone(), client.clone(), bounds);
        let first = handshake::request(settings);
        // The upstream may ask something under the same number before (SPEC L-03).
        let is_reply =
            |message: &Message| message.number() == Some(1) && message.method().is_none();
        let take = &mut |message: Message| {
            if message.id().is_none() {
                *said = handshake::words(&message);
            }
            is_reply(&message).then_some(message)
        };
        let reply = wire.request(first, None, take).await;
        let declared = handshake::read(&reply?)?;
        wire.set_version(declared.revision.as_str());
        let wire = Arc::new(wire);
        post_initialized(settings, &wire).await?;
        Ok(Self::new(settings, Wire::Http(wire), declared))
    }

    /// Streamable HTTP, or where that is refused the transport before it; what was found is tried
    /// first the next time. Spec: SPEC U-05.
    async fn open_either(
        settings: &Arc<Settings>,
        client: &HttpClient,
        bounds: Bounds,
        older: &Older,
    ) -> Result<Arc<Self>, LinkError> {
        let open_older = async || {
            let opened = Started::over_events(client, bounds, settings).await?;
            Self::greet(settings, opened).await
        };
        if older.is_spoken() {
            match open_older().await {
                // It may have learnt something newer.
                Err(LinkError::Status(_) | LinkError::Invalid(_)) => older.note(false),
                other => return other,
            }
        }
        let mut said = None;
        let refused = match Self::open_http(settings, client, bounds, &mut said).await {
            Err(error @ LinkError::Status(400 | 404 | 405)) => error,
            other => return other.map_err(|error| handshake::refused(error, said.as_deref())),
        };
        match open_older().await {
            Ok(connection) => {
                tracing::info!(upstream = %settings.name, "upstream speaks HTTP+SSE of 2024-11-05");
                older.note(true);
                Ok(connection)
            }
            Err(error @ (LinkError::Invalid(_) | LinkError::Handshake(_))) => Err(error),
            // Who says why is believed; else what stands before the stream is the cause (SPEC U-06).
            Err(error) if said.is_none() && handshake::is_no_answer(&error) => Err(error),
            Err(_) => Err(handshake::refused(refused, said.as_deref())),
        }
    }

    /// Shakes hands on a connection that is open, unless it was done already.
    async fn greet(settings: &Arc<Settings>, started: Started) -> Result<Arc<Self>, LinkError> {
        let Started {
            child,
            mut lines,
            greeted,
            answer,
            refused,
            ..
        } = started;
        if refused {
            // It was asked beside another question: a fresh one may answer otherwise.
            return Err(child.lost());
        }
        // One that waited long for its place is not given up for others of its owner meanwhile.
        let _busy = child.busy();
        let reading = async {
            if let Some(answer) = &answer {
                return handshake::read(answer);
            }
            loop {
                let line = lines.next().await.ok_or_else(|| child.lost())?;
                match Message::parse(line.clone(), settings.message_depth) {
                    Ok(message) if message.number() == Some(1) && message.method().is_none() => {
                        return handshake::read(&message);
                    }
                    Err(error) if unread::answered(&line) == Some(1) => {
                        return Err(LinkError::Invalid(error.to_string()));
                    }
                    _ => tracing::debug!(upstream = %settings.name, "line before handshake"),
                }
            }
        };
        let declared = if greeted {
            reading.await?
        } else {
            let request = handshake::request(settings);
            child.ask_first(request, reading).await?
        };
        child.tell_first(INITIALIZED).await?;
        let connection = Self::new(settings, Wire::Duplex(child), declared);
        settings.tasks.spawn_service(read_lines(
            Arc::downgrade(&connection),
            settings.message_depth,
            lines,
        ));
        Ok(connection)
    }
}

/// How long an upstream may take to say that it has heard of the end of the handshake.
const TAKEN: Duration = Duration::from_secs(1);

/// Posts the second half of the handshake. What is not refused in time counts as taken: the upstream has
/// shaken hands, and all that it could say is 202 (SPEC U-04).
async fn post_initialized(settings: &Arc<Settings>, wire: &Arc<HttpWire>) -> Result<(), LinkError> {
    let limit = settings.upstream.connect_timeout;
    let (sender, outcome) = oneshot::channel();
    let posting = Arc::clone(wire);
    // It goes on when it is not waited for any more: to break it off may stop what it began.
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
    posted.unwrap_or(Err(LinkError::Lost { last_words: None }))
}

fn suspect(connection: &Connection, error: &DecodeError) {
    connection.suspect(&format!("a line is no JSON-RPC message: {error}"));
}

/// Notes a line that is no message. Where it was meant as a reply, nothing else comes for its call.
fn not_read(connection: &Connection, line: &[u8], error: &DecodeError) {
    suspect(connection, error);
    if let Some(id) = unread::answered(line) {
        connection.fail(id, LinkError::Invalid(error.to_string()));
    }
}

/// Reads a child until it is gone. Does not keep the connection: one that nobody has any more
/// takes its child with it.
async fn read_lines(connection: Weak<Connection>, depth: usize, mut lines: Messages) {
    while let Some(line) = lines.next().await {
        let Some(connection) = connection.upgrade() else {
            return;
        };
        let has_arrays = connection.declared().revision.supports_batches();
        if !has_arrays || !Message::is_batch(&line) {
            match Message::parse(line.clone(), depth) {
                Ok(message) => drop(connection.on_message(message, None)),
                Err(error) => not_read(&connection, &line, &error),
            }
            continue;
        }
        match Message::parse_batch(line, depth, LONGEST_ARRAY) {
            Ok(elements) => elements.into_iter().for_each(|element| match element {
                Ok(message) => drop(connection.on_message(message, None)),
                Err(error) => suspect(&connection, &error),
            }),
            Err(error) => suspect(&connection, &error),
        }
    }
    if let Some(connection) = connection.upgrade() {
        connection.note_end();
        connection.fail_all();
    }
}
