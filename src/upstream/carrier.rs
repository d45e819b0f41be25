//! `Carrier`, `LinkSettings` and `StartedConnection`: the transport of a link, the parameters of the link, and its
//! first connection. `http` is Streamable HTTP; `duplex` carries whole messages in both directions (child, event
//! stream, socket).

pub(super) mod duplex;
#[cfg(test)]
pub(super) mod fixture;
pub mod http;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use self::duplex::{DuplexReceiver, DuplexSender, DuplexSource};
use self::http::client::HttpClient;
use self::http::get_stream::SingleStreamHabit;
use self::http::http_session::ResponseBounds;
use self::http::login::UpstreamLogin;
use super::account::Account;
use super::error::LinkError;
use super::health::UpstreamHealth;
use super::link_caller::LinkCaller;
use super::lock;
use super::not_reached::NotReached;
use super::salvage::salvage;
use crate::budget::ReplyShare;
use crate::call::{
    AdoptedLink, CallerAccess, ClientCapabilities, NoticeIntake, OwnerKey, UpstreamContinuation,
};
use crate::config;
use crate::ownership::Fence;
use crate::process::holders::SessionHolders;
use crate::process::{OpenError, WaitPolicy};
use crate::protocol::{Era, Message, Revision, rpc};
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::{LABELED, UpstreamLoad};

/// The transport of an upstream.
#[derive(Debug, Clone)]
pub(crate) enum Carrier {
    /// A single connection for whole messages in both directions.
    Duplex(DuplexSource),
    /// Streamable HTTP; with [`LegacySseOnly`] where the transport before it may be detected too.
    Http(Box<HttpClient>, ResponseBounds, Option<LegacySseOnly>),
}

impl Carrier {
    /// The account whose credential requests for `owner` carry. Decided here alone;
    /// [`Upstreams::account`](super::Upstreams::account) asks this.
    pub(super) fn account_of(&self, owner: OwnerKey) -> Account {
        match self {
            Self::Http(client, ..)
            | Self::Duplex(DuplexSource::Events(client, _) | DuplexSource::Sockets(client, _)) => {
                client.credentials().account_of(owner)
            }
            Self::Duplex(DuplexSource::Children(children)) => children.account_of(owner),
        }
    }

    /// This transport, for the requests of `owner`, whose tokens `caller` has where they are exchanged.
    pub(super) fn on_behalf_of(&self, owner: OwnerKey, caller: Option<&Arc<CallerAccess>>) -> Self {
        let mut own = self.clone();
        match &mut own {
            Self::Http(client, ..)
            | Self::Duplex(DuplexSource::Events(client, _) | DuplexSource::Sockets(client, _)) => {
                **client = client.on_behalf_of(owner, caller);
            }
            Self::Duplex(DuplexSource::Children(children)) => {
                *children = children.on_behalf_of(owner, caller);
            }
        }
        own
    }

    /// The caller of requests that belong to no call, where callers' tokens are exchanged.
    pub(super) fn caller(&self) -> Option<&Arc<LinkCaller>> {
        match self {
            Self::Http(client, ..)
            | Self::Duplex(DuplexSource::Events(client, _) | DuplexSource::Sockets(client, _)) => {
                client.credentials().caller()
            }
            Self::Duplex(DuplexSource::Children(children)) => children.caller(),
        }
    }

    /// The state of the login that the upstream asks for; `None` for children.
    pub(super) fn login(&self) -> Option<&Arc<UpstreamLogin>> {
        match self {
            Self::Http(client, ..)
            | Self::Duplex(DuplexSource::Events(client, _) | DuplexSource::Sockets(client, _)) => {
                Some(client.login())
            }
            Self::Duplex(DuplexSource::Children(_)) => None,
        }
    }
}

/// Parameters of a link.
#[derive(Debug)]
pub(super) struct LinkSettings {
    pub(super) upstream: Arc<config::UpstreamConfig>,
    pub(super) name: Arc<str>,
    pub(super) carrier: Carrier,
    pub(super) owner: OwnerKey,
    pub(super) capabilities: ClientCapabilities,
    pub(super) client_info: Bytes,
    /// The era of the clients behind the link.
    pub(super) client: Era,
    /// The legacy revision offered in a handshake.
    pub(super) offer: Revision,
    pub(super) intake: Arc<dyn NoticeIntake>,
    /// The sessions at the link.
    pub(super) holders: SessionHolders,
    /// Whether all calls belong to one client.
    pub(super) exclusive: bool,
    pub(super) unattributed: AskedClient,
    pub(super) asks: AskingHabit,
    pub(super) single_streams: SingleStreamHabit,
    pub(super) tasks: TaskSpawner,
    pub(super) message_depth: usize,
    /// The share of the upstream's messages that belong to no one caller.
    pub(super) replies: ReplyShare,
    /// Health of the upstream, over all its links.
    pub(super) health: Arc<UpstreamHealth>,
    /// Load of the upstream, over all its links.
    pub(super) load: Arc<UpstreamLoad>,
    /// Closed while another replica may own the sessions at the link.
    pub(super) fence: Fence,
    /// The number of the connected account that the link is made for; `0` where callers have none.
    pub(super) connection: i64,
    /// What another replica had before, until a connection goes on with it.
    pub(super) adopted: Mutex<Option<AdoptedLink>>,
}

/// How long the end of a child may take, or a leave beside its request: more than the stop ladder of a child.
const LEAVING: Duration = Duration::from_secs(30);

impl LinkSettings {
    /// JSON text of `client_info`.
    pub(super) fn client_info_text(&self) -> &str {
        std::str::from_utf8(&self.client_info).unwrap_or("{}")
    }

    /// Whether an upstream with accounts of callers refuses what the gateway requests for itself, without one. Nothing is
    /// wrong then.
    pub(super) fn is_turned_away(&self, error: &LinkError) -> bool {
        let auth = self.upstream.auth.as_ref();
        let has_accounts = auth.is_some_and(config::UpstreamAuth::is_of_users);
        has_accounts && self.owner.is_gateway() && error.is_of_credential()
    }

    /// Counts a session that could not be opened.
    pub(super) fn count_unopened(&self, error: &LinkError) {
        if !self.is_turned_away(error) {
            LABELED.upstream_failed.add(&self.name, 1);
        }
    }

    /// Upper bound on closing one connection.
    pub(super) fn closing_limit(&self) -> Duration {
        self.upstream.connect_timeout.saturating_add(LEAVING)
    }

    /// Whether the link begins with a session that another replica had at the upstream.
    pub(super) fn continues_session(&self) -> bool {
        let adopted = lock(&self.adopted);
        adopted
            .as_ref()
            .is_some_and(|adopted| adopted.continuation.is_some())
    }

    /// Takes out the session that another replica had at the upstream, and where ids of requests begin.
    pub(super) fn take_continuation(&self) -> Option<(UpstreamContinuation, u64)> {
        let mut adopted = lock(&self.adopted);
        let adopted = adopted.as_mut()?;
        Some((adopted.continuation.take()?, adopted.first_id))
    }

    /// The share in which messages outside calls count while they come: of the link's one session, else of the upstream.
    pub(super) fn arriving_share(&self) -> ReplyShare {
        let of_session = self.intake.reply_share().filter(|_| self.exclusive);
        of_session.unwrap_or_else(|| self.replies.clone())
    }
}

/// The client to ask when a question names no call, as on a pipe or a GET stream (DESIGN §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AskedClient {
    /// The legacy session that has the link to itself, and knows the best of its streams.
    Session,
    /// The only call of the connection whose client can be asked.
    Call,
    /// None, as all principals share the link.
    Nobody,
}

/// Whether an upstream speaks only the transport of 2024-11-05 (SPEC U-05); shared by all its links.
#[derive(Debug, Clone, Default)]
pub(crate) struct LegacySseOnly(Arc<AtomicBool>);

impl LegacySseOnly {
    /// Whether the older transport was detected.
    pub(super) fn is_spoken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes whether the older transport was detected.
    pub(super) fn note(&self, spoken: bool) {
        self.0.store(spoken, Ordering::Relaxed);
    }
}

/// Whether an upstream has ever asked something without naming its call; shared by all its links.
#[derive(Debug, Clone, Default)]
pub(super) struct AskingHabit(Arc<AtomicBool>);

impl AskingHabit {
    /// Whether a question without a call was ever noted.
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes a question without a call.
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A fresh connection (a child, for example), or the connection of an era probe.
#[derive(Debug)]
pub(super) struct StartedConnection {
    pub(super) child: DuplexSender,
    pub(super) lines: DuplexReceiver,
    /// When the connection was opened: a child has run since then.
    since: Instant,
    pub(super) stage: ProbeStage,
}

/// What an era probe has sent on a connection, and the answer to `initialize`. A second answer is ignored.
#[derive(Debug)]
pub(super) enum ProbeStage {
    /// Nothing was sent.
    Fresh,
    /// `server/discover` was sent, under id 0.
    Asked,
    /// `initialize` was sent after it, under id 1.
    Greeted,
    /// `initialize` was answered with this result.
    Answered(Message),
    /// `initialize` was answered with an error.
    Refused,
}

impl From<OpenError> for LinkError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::AtCapacity { full, retry_after } => Self::AtCapacity { full, retry_after },
            OpenError::Backoff { last_words, .. } => {
                let reached = NotReached::new("its process keeps crashing").remedied(
                    "look into what the program wrote at its end, and run `command` by hand",
                );
                Self::Unreachable(reached.with_words(last_words.as_deref()))
            }
            other => {
                let reached = NotReached::new(other.to_string()).caused_by(&other);
                Self::Unreachable(reached.remedied(remedy(&other)))
            }
        }
    }
}

/// The remedy for a child that cannot be started, for the operator.
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
            "look at the limits of processes, memory and file descriptors of the user that the gateway runs as"
        }
        _ => return None,
    })
}

impl StartedConnection {
    /// Opens an event stream of 2024-11-05 where Streamable HTTP was refused.
    pub(super) async fn over_events(
        client: &HttpClient,
        bounds: ResponseBounds,
        settings: &LinkSettings,
    ) -> Result<Self, LinkError> {
        let opened = DuplexSource::open_events(client, bounds, &settings.tasks).await?;
        Ok(Self::silent(opened))
    }

    /// Starts a child without sending a message; `None` where connections are no children. The wait for a place is
    /// bounded by `stdio.spawn_wait` and does not count as connecting, as other children cause it.
    ///
    /// # Errors
    /// [`LinkError`] when the child cannot be started, or has no place.
    ///
    /// # Cancel safety
    /// A child that was started meanwhile is stopped.
    pub(super) async fn child(
        settings: &LinkSettings,
        patience: WaitPolicy,
    ) -> Result<Option<Self>, LinkError> {
        let Carrier::Duplex(source @ DuplexSource::Children(_)) = &settings.carrier else {
            return Ok(None);
        };
        Ok(Some(Self::silent(source.open(settings, patience).await?)))
    }

    /// Opens a connection without sending a message. A child waits for a place with this patience.
    pub(super) async fn new(
        source: &DuplexSource,
        settings: &LinkSettings,
        patience: WaitPolicy,
    ) -> Result<Self, LinkError> {
        Ok(Self::silent(source.open(settings, patience).await?))
    }

    /// Deadline of the first reply: `limit` after the connection was opened. A child held back by the probe of another
    /// child has at least half of `limit` from now on.
    pub(super) fn until(&self, limit: Duration) -> Instant {
        (self.since + limit).max(Instant::now() + limit / 2)
    }

    /// The error of a connection whose first reply did not arrive in time.
    pub(super) fn timed_out(&self, settings: &LinkSettings) -> LinkError {
        self.child
            .timed_out(self.since, settings.upstream.isolation)
    }

    /// The message in `line`, or the reply to one of the first requests behind other text.
    ///
    /// # Cancel safety
    /// Not cancel safe: the message is lost.
    pub(super) async fn read(&self, line: &Bytes, settings: &LinkSettings) -> Option<Message> {
        read_first(&self.child, line, settings).await
    }

    fn silent((child, lines): (DuplexSender, DuplexReceiver)) -> Self {
        Self {
            child,
            lines,
            since: Instant::now(),
            stage: ProbeStage::Fresh,
        }
    }
}

/// How long a peer may take to read the answer to its `ping` before the end of the handshake.
const PONG: Duration = Duration::from_secs(1);

/// The message in a line before the end of the handshake, or the reply behind other text on that line. A `ping` is
/// answered: a server may send it, and wait for the answer, before it answers `initialize`. Spec: SPEC L-03, D-09.
///
/// # Cancel safety
/// Not cancel safe: the message is lost.
pub(super) async fn read_first(
    child: &DuplexSender,
    line: &Bytes,
    settings: &LinkSettings,
) -> Option<Message> {
    let depth = settings.message_depth;
    if let Ok(message) = Message::parse(line.clone(), depth) {
        if let (Some("ping"), Some(id)) = (message.method(), message.id()) {
            let pong = rpc::response(id, "result", "{}");
            // A peer that does not read is not waiting for this.
            drop(timeout(PONG, child.send(pong.into())).await);
        }
        return Some(message);
    }
    let reply = salvage(&settings.name, line, depth, |id| id <= 1);
    if reply.is_none() {
        child.keep_stray(line);
    }
    reply
}
