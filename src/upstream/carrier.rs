//! What links are made over, and what they are made with, in either era.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::duplex::{Duplex, Messages, Source};
use super::error::LinkError;
use super::health::Health;
use super::http::client::HttpClient;
use super::http::wire::Bounds;
use super::stdio::{OpenError, Patience};
use crate::call::{ClientCapabilities, Intake, OwnerKey};
use crate::config;
use crate::lifecycle::Tasks;
use crate::protocol::{Era, Revision};

/// How connections of an upstream are made.
#[derive(Debug, Clone)]
pub(crate) enum Carrier {
    /// One connection that takes whole messages both ways.
    Duplex(Source),
    /// Streamable HTTP; where that may be found out, also the transport before it.
    Http(Box<HttpClient>, Bounds, Option<Older>),
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
    /// Whether all calls are one client's.
    pub(super) exclusive: bool,
    pub(super) unattributed: Unattributed,
    pub(super) tasks: Tasks,
    pub(super) message_depth: usize,
    /// How the upstream does, over all its links.
    pub(super) health: Arc<Health>,
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

/// A connection on which nothing was said yet, or which was opened to find out what it speaks: a child,
/// say.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: Duplex,
    pub(super) lines: Messages,
    /// Whether it was asked what it speaks.
    pub(super) asked: bool,
    /// Whether it was sent `initialize` already, under id 1.
    pub(super) greeted: bool,
    /// Its answer to that, if it came already.
    pub(super) answer: Option<crate::protocol::Message>,
    /// Whether it came already, and was an error.
    pub(super) refused: bool,
}

impl From<OpenError> for LinkError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::AtCapacity { retry_after } => Self::AtCapacity { retry_after },
            OpenError::Backoff {
                last_words: Some(words),
                ..
            } => Self::Unreachable(format!(
                "its process keeps crashing; its last words: {words}"
            )),
            other => Self::Unreachable(other.to_string()),
        }
    }
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

    fn silent((child, lines): (Duplex, Messages)) -> Self {
        Self {
            child,
            lines,
            asked: false,
            greeted: false,
            answer: None,
            refused: false,
        }
    }
}
