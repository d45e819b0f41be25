//! `probe`: asks an upstream behind a pipe which era it speaks. Spec: SPEC U-05, U-06, U-09, D-07, D-08.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::call::ServerDeclaration;
use crate::process::WaitPolicy;
use crate::protocol::Era;
use crate::upstream::carrier::duplex::DuplexSource;
use crate::upstream::carrier::{Carrier, LinkSettings, StartedConnection};
use crate::upstream::error::LinkError;
use crate::upstream::link::legacy::handshake;
use crate::upstream::link::modern::discover::{self, DiscoverVerdict};
use crate::upstream::room::ArrivingMessage;

/// How long a child may take to answer `server/discover`, which it may not know, before it also gets `initialize`.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two checks whether a starting child has read the request.
const LOOK: Duration = Duration::from_millis(100);

/// How long the answer to `server/discover` may follow the one to `initialize`, for a child that found both requests
/// when it began to read.
const BEHIND: Duration = Duration::from_millis(250);

/// Outcome of a probe.
#[derive(Debug)]
pub(super) enum ProbeFinding {
    /// The modern era, and the child that answered, if it can be used.
    Modern(Arc<ServerDeclaration>, Option<StartedConnection>),
    /// The legacy era, proven.
    Legacy(Option<StartedConnection>),
    /// Probably the legacy era: nothing contradicts it. Cached once the handshake succeeds.
    Presumed(LegacySign),
    /// No verdict: a child has read `server/discover` and `initialize`, and answers neither.
    Mute(LinkError),
}

/// Why an upstream is presumed legacy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LegacySign {
    /// The upstream is connected, and does not answer.
    Silence,
    /// The connection ended, perhaps because of the unknown request.
    End,
}

/// Probes an upstream behind a pipe, over the connection `started` if there is one. A child's `connect_timeout` counts
/// from its start.
///
/// # Errors
/// [`LinkError`] when there is no evidence for either era, or the upstream supports no revision that the gateway knows.
pub(super) async fn probe(
    settings: &LinkSettings,
    started: Option<StartedConnection>,
) -> Result<ProbeFinding, LinkError> {
    let limit = settings.upstream.connect_timeout;
    match &settings.carrier {
        // HTTP upstreams are probed by `era_link/negotiation.rs`; HTTP+SSE exists only in the legacy era.
        Carrier::Http(..) | Carrier::Duplex(DuplexSource::Events(..)) => {
            Ok(ProbeFinding::Legacy(None))
        }
        Carrier::Duplex(source) => {
            let started = match started {
                Some(started) => started,
                // Does not wait for a child's permit: other sessions wait for this probe.
                None => tokio::time::timeout(
                    limit,
                    StartedConnection::new(source, settings, WaitPolicy::None),
                )
                .await
                .unwrap_or(Err(LinkError::Timeout))?,
            };
            over_pipe(started, settings, limit).await
        }
    }
}

async fn over_pipe(
    mut started: StartedConnection,
    settings: &LinkSettings,
    limit: Duration,
) -> Result<ProbeFinding, LinkError> {
    let is_child = started.child.is_child();
    // A socket is ready once it is open; a child may start slowly.
    let mut end = if is_child {
        started.until(limit)
    } else {
        Instant::now() + limit / 2
    };
    let mut asked = 1_u8;
    started.asked = true;
    if !tell(&started, discover::request(0, settings)).await {
        return Ok(ProbeFinding::Presumed(LegacySign::End));
    }
    let mut read_since = None;
    let mut room = ArrivingMessage::new(settings.arriving_share());
    loop {
        let wait = match read_since {
            _ if started.greeted => end,
            Some(since) => end.min(since + PATIENCE),
            None => end.min(Instant::now() + LOOK),
        };
        let line = match tokio::time::timeout_at(wait, started.lines.next_in(&mut room)).await {
            Ok(Some(line)) => line,
            // The child died of the unknown request: its successor gets `initialize` alone.
            Ok(None) => return Ok(ProbeFinding::Presumed(LegacySign::End)),
            Err(_) if !started.greeted && Instant::now() < end => {
                if read_since.is_none() {
                    // A slow start is not silence: the wait for the answer begins once the child has read the request.
                    read_since = started.child.is_read().then(Instant::now);
                    continue;
                }
                started.greeted = tell(&started, handshake::request(settings)).await;
                if started.greeted {
                    continue;
                }
                return Ok(ProbeFinding::Presumed(LegacySign::End));
            }
            Err(_) if started.answer.is_some() => return Ok(ProbeFinding::Legacy(Some(started))),
            // The upstream refused `initialize`, and leaves `server/discover` unanswered.
            Err(_) if started.refused || !is_child => {
                return Ok(ProbeFinding::Presumed(LegacySign::Silence));
            }
            Err(_) if started.greeted && started.child.is_read() => {
                return Ok(ProbeFinding::Mute(started.timed_out(settings)));
            }
            Err(_) => return Err(started.timed_out(settings)),
        };
        let Some(message) = started.read(&line, settings).await else {
            continue;
        };
        if message.method().is_some() {
            continue;
        }
        match message.number() {
            Some(0) => match discover::judge(&message, true, &settings.upstream) {
                DiscoverVerdict::Modern(declared) => {
                    // A slow child got both requests, and may consider the connection a legacy session: modern clients
                    // get a fresh child (SPEC D-08).
                    let fits = !started.greeted || settings.client == Era::Legacy;
                    return Ok(ProbeFinding::Modern(declared, fits.then_some(started)));
                }
                DiscoverVerdict::Legacy => return Ok(ProbeFinding::Legacy(Some(started))),
                DiscoverVerdict::Foreign(revisions) => return Err(discover::foreign(&revisions)),
                DiscoverVerdict::Again if asked < 2 => {
                    asked += 1;
                    if !tell(&started, discover::request(0, settings)).await {
                        return Ok(ProbeFinding::Presumed(LegacySign::End));
                    }
                }
                DiscoverVerdict::Again => return Err(discover::refuses()),
            },
            // The child skipped the unknown request and answered the handshake, or answers in another order. An error
            // here is no handshake: the answer to `server/discover` may still follow.
            Some(1) if message.result().is_some() && started.answer.is_none() => {
                started.answer = Some(message);
                end = end.min(Instant::now() + BEHIND);
            }
            Some(1) if message.error().is_some() => {
                started.refused = true;
                end = end.min(Instant::now() + PATIENCE);
            }
            _ => {}
        }
    }
}

/// Sends `initialize` on the connection of a probe that was answered in the modern era, unless the probe has done so.
/// Returns the connection with the answer.
///
/// # Errors
/// The connection, if the upstream refuses the handshake and still serves the modern era; `None` if the connection is
/// closed or silent.
pub(super) async fn greet(
    mut started: StartedConnection,
    settings: &LinkSettings,
) -> Result<StartedConnection, Option<StartedConnection>> {
    if started.answer.is_some() {
        return Ok(started);
    }
    if started.refused {
        return Err(Some(started));
    }
    if !started.greeted && !tell(&started, handshake::request(settings)).await {
        return Err(None);
    }
    let end = Instant::now() + PATIENCE;
    let mut room = ArrivingMessage::new(settings.arriving_share());
    while let Ok(Some(line)) = tokio::time::timeout_at(end, started.lines.next_in(&mut room)).await
    {
        let Some(message) = started.read(&line, settings).await else {
            continue;
        };
        if message.method().is_some() || message.number() != Some(1) {
            continue;
        }
        if message.result().is_none() {
            return Err(Some(started));
        }
        started.greeted = true;
        started.answer = Some(message);
        return Ok(started);
    }
    Err(None)
}

async fn tell(started: &StartedConnection, message: Bytes) -> bool {
    started.child.send(message).await.is_ok()
}
