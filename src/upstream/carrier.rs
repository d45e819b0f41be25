//! What links are made over, and what they are made with, in either era.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::duplex::{Duplex, Messages, Source};
use super::error::LinkError;
use super::health::Health;
use super::holders::Holders;
use super::http::client::HttpClient;
use super::http::login::Login;
use super::http::wire::Bounds;
use super::not_reached::NotReached;
use super::stdio::{OpenError, Patience};
use super::unread;
use crate::call::{ClientCapabilities, Intake, OwnerKey};
use crate::config;
use crate::lifecycle::Tasks;
use crate::protocol::{Era, Message, Revision};
use crate::telemetry::metrics::UpstreamLoad;

/// How connections of an upstream are made.
#[derive(Debug, Clone)]
pub(crate) enum Carrier {
    /// One connection that takes whole messages both ways.
    Duplex(Source),
    /// Streamable HTTP; where that may be found out, also the transport before it.
    Http(Box<HttpClient>, Bounds, Option<Older>),
}

impl Carrier {
    /// What is known of the login that the upstream asks for; none of children.
    pub(super) fn login(&self) -> Option<&Arc<Login>> {
        match self {
            Self::Http(client, ..)
            | Self::Duplex(Source::Events(client, _) | Source::Sockets(client, _)) => {
                Some(client.login())
            }
            Self::Duplex(Source::Children(_)) => None,
        }
    }
}

/// What a link is made with.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) upstream: Arc<config::Upstream>,
    pub(super) name: Arc<str>,
    pub(super) carrier: Carrier,
    pub(super) owner: OwnerKey,
    pub(super) capabilities: ClientCapabilities,
    pub(super) client_info: Bytes,
    /// The era of the clients behind the link.
    pub(super) client: Era,
    /// The legacy revision offered in a handshake.
    pub(super) offer: Revision,
    pub(super) intake: Arc<dyn Intake>,
    /// The sessions at the link.
    pub(super) holders: Holders,
    /// Whether all calls are one client's.
    pub(super) exclusive: bool,
    pub(super) unattributed: Unattributed,
    pub(super) asks: AskingHabit,
    pub(super) tasks: Tasks,
    pub(super) message_depth: usize,
    /// How the upstream does, over all its links.
    pub(super) health: Arc<Health>,
    /// What the upstream carries, over all its links.
    pub(super) load: Arc<UpstreamLoad>,
}

/// Whom a question is for that names no call, as those on a pipe or a GET stream do (DESIGN §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unattributed {
    /// The legacy session that has the link to itself: it knows which of its streams is best.
    Session,
    /// The one call of the connection whose client can be asked.
    Call,
    /// Nobody: everybody is at the link.
    Nobody,
}

/// What is known of an upstream that may speak the transport of 2024-11-05 only (SPEC U-05); shared by
/// all its links.
#[derive(Debug, Clone, Default)]
pub(crate) struct Older(Arc<AtomicBool>);

impl Older {
    /// Whether it turned out to speak it.
    pub(super) fn is_spoken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes what turned out.
    pub(super) fn note(&self, spoken: bool) {
        self.0.store(spoken, Ordering::Relaxed);
    }
}

/// Whether an upstream has ever asked something without naming its call; shared by all its links.
#[derive(Debug, Clone, Default)]
pub(super) struct AskingHabit(Arc<AtomicBool>);

impl AskingHabit {
    /// Whether it has.
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes a question.
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection on which nothing was said yet, or which was opened to find out what it speaks: a child,
/// say.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: Duplex,
    pub(super) lines: Messages,
    /// When it was opened: since then a process runs.
    since: Instant,
    /// Whether it was asked what it speaks.
    pub(super) asked: bool,
    /// Whether it was sent `initialize` already, under id 1.
    pub(super) greeted: bool,
    /// Its answer to that, if it came already.
    pub(super) answer: Option<Message>,
    /// Whether it came already, and was an error.
    pub(super) refused: bool,
}

impl From<OpenError> for LinkError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::AtCapacity { full, retry_after } => Self::AtCapacity { full, retry_after },
            OpenError::Backoff { last_words, .. } => {
                let reached = NotReached::new("its process keeps crashing").remedied(
                    "look into what the program wrote at its end, and run `command` by hand",
                );
                Self::Unreachable(match last_words {
                    Some(words) => reached.with_words(&words),
                    None => reached,
                })
            }
            other => {
                let reached = NotReached::new(other.to_string()).caused_by(&other);
                Self::Unreachable(match remedy(&other) {
                    Some(remedy) => reached.remedied(remedy),
                    None => reached,
                })
            }
        }
    }
}

/// What an operator can do about a child that cannot be started.
fn remedy(error: &OpenError) -> Option<&'static str> {
    Some(match error {
        OpenError::NoProgram { .. } => {
            "install the program, correct `command`, or write its whole path there"
        }
        OpenError::NotExecutable { .. } => {
            "make the file of `command` executable (chmod +x) for the user that the gateway runs as"
        }
        OpenError::NoDirectory(_) => {
            "create the directory that `cwd` names, or leave `cwd` out: each child then has one of its own"
        }
        OpenError::Spawn(_) => {
            "look at the limits of processes and memory of the user that the gateway runs as"
        }
        _ => return None,
    })
}

impl Started {
    /// Opens an event stream of 2024-11-05 where Streamable HTTP was refused.
    pub(super) async fn over_events(
        client: &HttpClient,
        bounds: Bounds,
        settings: &Settings,
    ) -> Result<Self, LinkError> {
        let opened = Source::open_events(client, bounds, &settings.tasks).await?;
        Ok(Self::silent(opened))
    }

    /// Starts a child and says nothing to it; nothing where connections are no children. The wait for
    /// its place is bounded by `stdio.spawn_wait`, and is none of connecting: others cause it.
    ///
    /// # Errors
    /// [`LinkError`] when it cannot be started, or has no place.
    ///
    /// # Cancel safety
    /// A child that was started meanwhile is stopped.
    pub(super) async fn child(
        settings: &Settings,
        patience: Patience,
    ) -> Result<Option<Self>, LinkError> {
        let Carrier::Duplex(source @ Source::Children(_)) = &settings.carrier else {
            return Ok(None);
        };
        Ok(Some(Self::silent(source.open(settings, patience).await?)))
    }

    /// Opens a connection and says nothing on it. A child waits for its place with this patience.
    pub(super) async fn new(
        source: &Source,
        settings: &Settings,
        patience: Patience,
    ) -> Result<Self, LinkError> {
        Ok(Self::silent(source.open(settings, patience).await?))
    }

    /// Until when its first answer is waited for: `limit` from its opening. A child that was held back
    /// by the probe of another one has half of that from now on in any case.
    pub(super) fn until(&self, limit: Duration) -> Instant {
        (self.since + limit).max(Instant::now() + limit / 2)
    }

    /// The error of a connection whose first answer did not come in time.
    pub(super) fn timed_out(&self, settings: &Settings) -> LinkError {
        self.child.timed_out(self.since, settings)
    }

    /// The message in `line`, or the reply to one of the first requests behind other text.
    pub(super) fn read(&self, line: &Bytes, settings: &Settings) -> Option<Message> {
        read_first(&self.child, line, settings)
    }

    fn silent((child, lines): (Duplex, Messages)) -> Self {
        Self {
            child,
            lines,
            since: Instant::now(),
            asked: false,
            greeted: false,
            answer: None,
            refused: false,
        }
    }
}

/// The message in a line that came before the end of the handshake, or the reply behind other text in it.
pub(super) fn read_first(child: &Duplex, line: &Bytes, settings: &Settings) -> Option<Message> {
    let depth = settings.message_depth;
    if let Ok(message) = Message::parse(line.clone(), depth) {
        return Some(message);
    }
    let reply = unread::salvage(&settings.name, line, depth, |id| id <= 1);
    if reply.is_none() {
        child.keep_stray(line);
    }
    reply
}
