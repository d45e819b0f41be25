//! `probe`: asks an upstream behind a pipe which era it speaks. Spec: SPEC U-05, U-06, U-09, D-07, D-08.
//!
//! `server/discover` goes first. A peer that has read it and does not answer within [`PATIENCE`] is sent `initialize`
//! too. The first row that applies decides:
//!
//! | event | state of `initialize` | finding |
//! | --- | --- | --- |
//! | the result of `server/discover` names our modern revision | any | `Modern` |
//! | -32022 that lists only revisions that we do not know | any | an error |
//! | -32022 that lists a modern revision of ours, or has no list, twice | any | an error |
//! | any other answer to `server/discover` | any | `Legacy` |
//! | the connection ends | any | `Ended` |
//! | time is over | answered | `Legacy` |
//! | time is over | refused | `Silent` |
//! | time is over at a socket | any | `Silent` |
//! | time is over at a child that has read all | sent | `Mute` |
//! | time is over at another child | any | an error |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::call::ServerDeclaration;
use crate::process::WaitPolicy;
use crate::protocol::Era;
use crate::upstream::carrier::duplex::DuplexSource;
use crate::upstream::carrier::{LinkSettings, ProbeStage, StartedConnection};
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
    /// The upstream is connected and does not answer `server/discover`; it refused `initialize`, or does not answer that
    /// either. It is probably legacy: cached once the handshake succeeds.
    Silent,
    /// The connection ended, perhaps because of the unknown request. Also probably legacy.
    Ended,
    /// No verdict: a child has read `server/discover` and `initialize`, and answers neither.
    Mute(LinkError),
}

/// Probes an upstream behind a pipe, over the connection `started` if there is one. A child's `connect_timeout` counts
/// from its start.
///
/// # Errors
/// [`LinkError`] when there is no evidence for either era, or the upstream supports no revision that the gateway knows.
pub(super) async fn probe(
    source: &DuplexSource,
    settings: &LinkSettings,
    started: Option<StartedConnection>,
) -> Result<ProbeFinding, LinkError> {
    // HTTP+SSE exists only in the legacy era.
    if let DuplexSource::Events(..) = source {
        return Ok(ProbeFinding::Legacy(None));
    }
    let limit = settings.upstream.connect_timeout;
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
    over_pipe(started, settings).await
}

async fn over_pipe(
    mut started: StartedConnection,
    settings: &LinkSettings,
) -> Result<ProbeFinding, LinkError> {
    let limit = settings.upstream.connect_timeout;
    // A socket is ready once it is open; a child may start slowly.
    let mut end = if started.child.is_child() {
        started.until(limit)
    } else {
        Instant::now() + limit / 2
    };
    started.stage = ProbeStage::Asked;
    if !tell(&started, discover::request(0, settings)).await {
        return Ok(ProbeFinding::Ended);
    }
    let mut is_repeated = false;
    let mut read_since = None;
    let mut room = ArrivingMessage::new(settings.arriving_share());
    loop {
        let wait = match (&started.stage, read_since) {
            (ProbeStage::Asked, Some(since)) => end.min(since + PATIENCE),
            (ProbeStage::Asked, None) => end.min(Instant::now() + LOOK),
            _ => end,
        };
        let line = match tokio::time::timeout_at(wait, started.lines.next_in(&mut room)).await {
            Ok(Some(line)) => line,
            // The child died of the unknown request: its successor gets `initialize` alone.
            Ok(None) => return Ok(ProbeFinding::Ended),
            Err(_) if Instant::now() >= end => return unanswered(started, settings),
            // A slow start is not silence: the wait for the answer begins once the child has read the request.
            Err(_) if read_since.is_none() => {
                read_since = started.child.is_read().then(Instant::now);
                continue;
            }
            Err(_) => {
                if !tell(&started, handshake::request(settings)).await {
                    return Ok(ProbeFinding::Ended);
                }
                started.stage = ProbeStage::Greeted;
                continue;
            }
        };
        let Some(message) = started.read(&line, settings).await else {
            continue;
        };
        if message.method().is_some() {
            continue;
        }
        match (message.number(), &started.stage) {
            (Some(0), _) => match discover::judge(&message, true, &settings.upstream) {
                DiscoverVerdict::Modern(declared) => {
                    // A slow child got both requests, and may consider the connection a legacy session: modern clients
                    // get a fresh child (SPEC D-08).
                    let fits = matches!(started.stage, ProbeStage::Asked)
                        || settings.client == Era::Legacy;
                    return Ok(ProbeFinding::Modern(declared, fits.then_some(started)));
                }
                DiscoverVerdict::Legacy => return Ok(ProbeFinding::Legacy(Some(started))),
                DiscoverVerdict::Foreign(revisions) => return Err(discover::foreign(&revisions)),
                DiscoverVerdict::Again if is_repeated => return Err(discover::refuses()),
                DiscoverVerdict::Again => {
                    is_repeated = true;
                    if !tell(&started, discover::request(0, settings)).await {
                        return Ok(ProbeFinding::Ended);
                    }
                }
            },
            // The child skipped the unknown request and answered the handshake, or answers in another order. An error
            // here is no handshake: the answer to `server/discover` may still follow.
            (Some(1), ProbeStage::Greeted) if message.result().is_some() => {
                started.stage = ProbeStage::Answered(message);
                end = end.min(Instant::now() + BEHIND);
            }
            (Some(1), ProbeStage::Greeted) if message.error().is_some() => {
                started.stage = ProbeStage::Refused;
                end = end.min(Instant::now() + PATIENCE);
            }
            _ => {}
        }
    }
}

/// The finding about a peer that has not answered `server/discover` in time.
fn unanswered(
    started: StartedConnection,
    settings: &LinkSettings,
) -> Result<ProbeFinding, LinkError> {
    let child = &started.child;
    match started.stage {
        ProbeStage::Answered(_) => Ok(ProbeFinding::Legacy(Some(started))),
        ProbeStage::Refused => Ok(ProbeFinding::Silent),
        _ if !child.is_child() => Ok(ProbeFinding::Silent),
        ProbeStage::Greeted if child.is_read() => {
            Ok(ProbeFinding::Mute(started.timed_out(settings)))
        }
        _ => Err(started.timed_out(settings)),
    }
}

/// Has `initialize` answered on the connection of a probe that was answered in the modern era. A connection that was
/// not probed is returned unchanged.
///
/// # Errors
/// The connection, if the upstream refuses the handshake and still serves the modern era; `None` if the connection is
/// closed or silent.
pub(super) async fn greet(
    mut started: StartedConnection,
    settings: &LinkSettings,
) -> Result<StartedConnection, Option<StartedConnection>> {
    let is_sent = match started.stage {
        ProbeStage::Fresh | ProbeStage::Answered(_) => return Ok(started),
        ProbeStage::Refused => return Err(Some(started)),
        ProbeStage::Asked => tell(&started, handshake::request(settings)).await,
        ProbeStage::Greeted => true,
    };
    if !is_sent {
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
            started.stage = ProbeStage::Refused;
            return Err(Some(started));
        }
        started.stage = ProbeStage::Answered(message);
        return Ok(started);
    }
    Err(None)
}

async fn tell(started: &StartedConnection, message: Bytes) -> bool {
    started.child.send(message).await.is_ok()
}
