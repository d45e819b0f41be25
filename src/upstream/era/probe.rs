//! Asking an upstream what it speaks. Spec: SPEC U-05, U-06, U-09, D-07, D-08.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::call::Declared;
use crate::protocol::{Era, Message};
use crate::upstream::carrier::{Carrier, Settings, Started};
use crate::upstream::duplex::Source;
use crate::upstream::error::LinkError;
use crate::upstream::http::wire::HttpWire;
use crate::upstream::legacy::handshake;
use crate::upstream::modern::discover::{self, Verdict};
use crate::upstream::stdio::Patience;

/// How long a child may think about a request that it may not know, before it is spoken to in
/// another way.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the answer to the first question may come behind that to the handshake, from a child
/// that found both when it was ready to read.
const BEHIND: Duration = Duration::from_millis(250);

/// What a probe found.
#[derive(Debug)]
pub(super) enum Found {
    /// The modern era; over a pipe with the child that said so.
    Modern(Arc<Declared>, Option<Started>),
    /// The legacy era, for certain.
    Legacy(Option<Started>),
    /// Most likely the legacy era: it said nothing to the contrary. Believed once it shakes hands.
    Presumed(Sign),
}

/// Why an upstream is most likely legacy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// It is there, and says nothing.
    Silence,
    /// The connection ended: of a question that it does not know, or of something else.
    End,
}

/// Probes an upstream within its `connect_timeout`: the child that is `started`, if it is.
///
/// # Errors
/// [`LinkError`] when there is no evidence either way, or it speaks nothing that we do.
pub(super) async fn probe(
    settings: &Settings,
    started: Option<Started>,
) -> Result<Found, LinkError> {
    let limit = settings.upstream.connect_timeout;
    match &settings.carrier {
        Carrier::Http(client, bounds, _) => {
            let wire = HttpWire::new(Arc::clone(&settings.name), (**client).clone(), *bounds);
            let probe = tokio::time::timeout(limit, over_http(&wire, settings));
            probe.await.unwrap_or(Err(LinkError::Timeout))
        }
        // There was no modern era over this transport.
        Carrier::Duplex(Source::Events(..)) => Ok(Found::Legacy(None)),
        Carrier::Duplex(source) => {
            let started = match started {
                Some(started) => started,
                // Others wait for their turn to ask meanwhile, and not for this one's place as well.
                None => tokio::time::timeout(limit, Started::new(source, settings, Patience::None))
                    .await
                    .unwrap_or(Err(LinkError::Timeout))?,
            };
            over_pipe(started, settings, limit).await
        }
    }
}

async fn over_http(wire: &HttpWire, settings: &Settings) -> Result<Found, LinkError> {
    for id in 0..2 {
        let message = discover::request(id, settings);
        let (status, reply) = wire.probe(message, discover::headers()).await?;
        let verdict = match (status.as_u16(), reply) {
            // A wall, an outage or a redirection says nothing of what is behind it (SPEC U-06).
            (300..=399 | 401 | 403 | 429 | 500.., reply) => {
                return Err(reply.err().unwrap_or(LinkError::Status(status.as_u16())));
            }
            (_, Ok(reply)) => discover::judge(&reply, false, settings.upstream.run_tasks),
            (_, Err(_)) => Verdict::Legacy,
        };
        match verdict {
            Verdict::Modern(declared) => return Ok(Found::Modern(declared, None)),
            Verdict::Legacy => return Ok(Found::Legacy(None)),
            Verdict::Foreign(revisions) => return Err(foreign(&revisions)),
            Verdict::Again => {}
        }
    }
    Err(refuses())
}

async fn over_pipe(
    mut started: Started,
    settings: &Settings,
    limit: Duration,
) -> Result<Found, LinkError> {
    let mut end = Instant::now() + limit / 2;
    let mut asked = 1_u8;
    started.asked = true;
    if !tell(&started, discover::request(0, settings)).await {
        return Ok(Found::Presumed(Sign::End));
    }
    loop {
        let wait = if started.greeted {
            end
        } else {
            end.min(Instant::now() + PATIENCE)
        };
        let line = match tokio::time::timeout_at(wait, started.lines.next()).await {
            Ok(Some(line)) => line,
            Err(_) if !started.greeted => {
                started.greeted = tell(&started, handshake::request(settings)).await;
                if started.greeted {
                    continue;
                }
                return Ok(Found::Presumed(Sign::End));
            }
            Err(_) if started.answer.is_some() => return Ok(Found::Legacy(Some(started))),
            // It died of a request that it does not know, or sulks: a fresh one is asked nothing of
            // the kind.
            Ok(None) => return Ok(Found::Presumed(Sign::End)),
            Err(_) => return Ok(Found::Presumed(Sign::Silence)),
        };
        let Ok(message) = Message::parse(line, settings.message_depth) else {
            continue;
        };
        if message.method().is_some() {
            continue;
        }
        match message.number() {
            Some(0) => match discover::judge(&message, true, settings.upstream.run_tasks) {
                Verdict::Modern(declared) => {
                    // One that was slow was told both, and may take itself for the session that it
                    // was offered: who wants none has a fresh one (SPEC D-08).
                    let fits = !started.greeted || settings.client == Era::Legacy;
                    return Ok(Found::Modern(declared, fits.then_some(started)));
                }
                Verdict::Legacy => return Ok(Found::Legacy(Some(started))),
                Verdict::Foreign(revisions) => return Err(foreign(&revisions)),
                Verdict::Again if asked < 2 => {
                    asked += 1;
                    if !tell(&started, discover::request(0, settings)).await {
                        return Ok(Found::Presumed(Sign::End));
                    }
                }
                Verdict::Again => return Err(refuses()),
            },
            // It skipped what it does not know, and shakes hands, or answers in another order. An
            // error there is no handshake: the answer to what it was asked first may still come.
            Some(1) if message.result().is_some() && started.answer.is_none() => {
                started.answer = Some(message);
                end = end.min(Instant::now() + BEHIND);
            }
            Some(1) if message.error().is_some() => started.refused = true,
            _ => {}
        }
    }
}

/// Shakes hands on the connection of a probe that was answered in the modern era, unless the probe
/// has; the connection, with the answer.
///
/// # Errors
/// The connection where it refuses the handshake and serves on in the modern era; nothing where it
/// is gone, or silent.
pub(super) async fn greet(
    mut started: Started,
    settings: &Settings,
) -> Result<Started, Option<Started>> {
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
    while let Ok(Some(line)) = tokio::time::timeout_at(end, started.lines.next()).await {
        let Ok(message) = Message::parse(line, settings.message_depth) else {
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

async fn tell(started: &Started, message: Bytes) -> bool {
    started.child.send(message).await.is_ok()
}

fn foreign(revisions: &str) -> LinkError {
    LinkError::Handshake(format!(
        "it speaks only revisions that we do not: {revisions}"
    ))
}

fn refuses() -> LinkError {
    LinkError::Handshake("it refuses the revision that it offers".to_owned())
}
