//! A `Channel` is one connection that carries a whole session: an HTTP+SSE stream with the messages posted beside it,
//! or a WebSocket. The session begins with the client's `initialize` and ends with the connection; nothing can be
//! resumed. Spec: SPEC H-01…H-03, H-07.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::access_log::{AccessLine, AccessRecord};
use super::unwritten::UnwrittenAnswers;
use crate::auth::Authenticator;
use crate::budget::ReplyShare;
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::lock::lock;
use crate::runtime::lifecycle::TaskSpawner;
use crate::session::Session;
use crate::store::events::SessionKey;
use crate::sync::wait_until::wait_until;
use crate::telemetry::metrics::{GAUGES, GaugeGuard};

/// How long a client may take to say `initialize`.
const INITIALIZE_WITHIN: Duration = Duration::from_mins(1);
/// Messages queued before the session exists, at most: refusals, and the answer to `initialize`.
const EARLY: usize = 16;

/// State shared by the reader and the writer of a connection.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) key: SessionKey,
    pub(super) endpoint: Arc<Endpoint>,
    /// The principal that opened the channel; later messages may come with newer tokens of the same binding.
    pub(super) principal: Arc<Principal>,
    state: Mutex<ChannelState>,
    /// The caller's share of the reply budget, from which this channel's replies are reserved.
    share: OnceLock<ReplyShare>,
    /// Answers of a socket that are not written yet.
    pub(super) unwritten: UnwrittenAnswers,
    /// Cancelled when the client leaves too much unread, and when the connection ends.
    pub(super) ended: CancellationToken,
    /// Requests whose reply is not sent yet.
    owed: AtomicUsize,
    /// Whether the client may work without a session, because its revision is modern.
    sessionless: AtomicBool,
    /// Notified when `owed` falls to zero, and when a newer token arrives.
    changed: Notify,
    _open: GaugeGuard,
}

#[derive(Debug)]
pub(super) struct ChannelState {
    pub(super) stage: HandshakeStage,
    pub(super) early: Vec<Bytes>,
    pub(super) waker: Option<Waker>,
    /// When the newest token expires, since the Unix epoch.
    expires: Option<Duration>,
}

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum HandshakeStage {
    Fresh,
    Opening,
    Open(Arc<Session>),
    Over,
}

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChannelEnd {
    /// The session is over.
    Session,
    /// The client leaves too much unread.
    Slow,
    /// The client said neither `initialize` nor a modern request.
    Silent,
    /// Its token has expired.
    Expired,
    /// The gateway stops.
    Draining,
}

/// The terms that end a connection besides its client: the expiry of tokens, and the stop of the gateway.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChannelTerms<'a> {
    pub(super) auth: &'a Authenticator,
    pub(super) tasks: &'a TaskSpawner,
    /// How long a connection outlives its token.
    pub(super) token_grace: Duration,
    /// How long messages are read after the stop has begun.
    pub(super) drain_linger: Duration,
}

/// A request whose reply is not on its way yet.
#[derive(Debug)]
pub(super) struct OwedReply(Arc<Channel>);

impl Drop for OwedReply {
    fn drop(&mut self) {
        self.0.owed.fetch_sub(1, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl Channel {
    pub(super) fn new(
        key: SessionKey,
        endpoint: Arc<Endpoint>,
        principal: Arc<Principal>,
    ) -> Arc<Self> {
        let expires = principal.expires_at();
        Arc::new(Self {
            key,
            endpoint,
            principal,
            state: Mutex::new(ChannelState {
                stage: HandshakeStage::Fresh,
                early: Vec::new(),
                waker: None,
                expires,
            }),
            share: OnceLock::new(),
            unwritten: UnwrittenAnswers::default(),
            ended: CancellationToken::new(),
            owed: AtomicUsize::new(0),
            sessionless: AtomicBool::new(false),
            changed: Notify::new(),
            _open: GAUGES.channels_open.enter(),
        })
    }

    /// The session, once `initialize` has succeeded.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        match &self.state().stage {
            HandshakeStage::Open(session) => Some(Arc::clone(session)),
            _ => None,
        }
    }

    /// Sets the share of the reply budget, once.
    pub(super) fn share_replies(&self, share: ReplyShare) {
        self.share.get_or_init(|| share);
    }

    /// The caller's share of the reply budget; `None` until set.
    pub(super) fn reply_share(&self) -> Option<&ReplyShare> {
        self.share.get()
    }

    /// Sends a message after everything that was sent before.
    pub(super) fn send(&self, message: Bytes) {
        if let Some(session) = self.session() {
            return session.standalone().put(message);
        }
        let mut state = self.state();
        if state.early.len() >= EARLY {
            return self.ended.cancel();
        }
        state.early.push(message);
        wake(state);
    }

    /// Sends the answer to a request, whose access line says so once it is written.
    pub(super) fn answer(
        &self,
        answer: Bytes,
        record: &AccessRecord,
        line: Option<&Arc<AccessLine>>,
    ) {
        self.unwritten.expect(&answer, record, line);
        self.send(answer);
    }

    /// Notes that `initialize` runs; `false` on a second `initialize`.
    pub(super) fn begin_opening(&self) -> bool {
        let mut state = self.state();
        let fresh = matches!(state.stage, HandshakeStage::Fresh);
        if fresh {
            state.stage = HandshakeStage::Opening;
        }
        fresh
    }

    /// Stores the session and enqueues `hello`, its `initialize` result; `false` if the channel has ended.
    pub(super) fn opened(&self, session: &Arc<Session>, hello: Bytes) -> bool {
        let mut state = self.state();
        let in_time = matches!(state.stage, HandshakeStage::Opening);
        if in_time {
            state.early.push(hello);
            state.stage = HandshakeStage::Open(Arc::clone(session));
            wake(state);
        }
        in_time
    }

    /// `initialize` failed: the client may try again.
    pub(super) fn not_opened(&self, refusal: Bytes) {
        {
            let mut state = self.state();
            if matches!(state.stage, HandshakeStage::Opening) {
                state.stage = HandshakeStage::Fresh;
            }
        }
        self.send(refusal);
    }

    /// Notes that a modern request came: its client need not say `initialize`.
    pub(super) fn needs_no_session(&self) {
        self.sessionless.store(true, Ordering::Relaxed);
    }

    /// Counts a request in until its reply is on the way.
    pub(super) fn owe(self: &Arc<Self>) -> OwedReply {
        self.owed.fetch_add(1, Ordering::Acquire);
        OwedReply(Arc::clone(self))
    }

    /// Records a later token of the same binding: the channel may stay open until the new token expires.
    pub(super) fn renew(&self, principal: &Principal) {
        let mut state = self.state();
        let later = principal.expires_at();
        if state
            .expires
            .is_some_and(|known| later.is_none_or(|later| later > known))
        {
            state.expires = later;
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Ends the channel for good; returns the session to close.
    pub(super) fn finish(&self) -> Option<Arc<Session>> {
        self.ended.cancel();
        match std::mem::replace(&mut self.state().stage, HandshakeStage::Over) {
            HandshakeStage::Open(session) => Some(session),
            _ => None,
        }
    }

    fn expires(&self) -> Option<Duration> {
        self.state().expires
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ChannelState> {
        lock(&self.state)
    }

    /// Resolves when the client has had its time and said neither `initialize` nor a modern request. An `initialize` that
    /// still runs is waited for.
    async fn is_silent(&self) {
        loop {
            tokio::time::sleep(INITIALIZE_WITHIN).await;
            let sessionless = self.sessionless.load(Ordering::Relaxed);
            match self.state().stage {
                HandshakeStage::Open(_) => break,
                HandshakeStage::Opening => {}
                HandshakeStage::Fresh | HandshakeStage::Over if sessionless => break,
                HandshakeStage::Fresh | HandshakeStage::Over => return,
            }
        }
        std::future::pending::<()>().await;
    }

    /// Resolves when the connection has to end although both sides are still there.
    ///
    /// # Cancel safety
    /// Can be dropped and asked again.
    pub(super) async fn has_to_end(&self, terms: ChannelTerms<'_>) -> ChannelEnd {
        let expired = async {
            loop {
                let changed = self.changed.notified();
                let Some(at) = self.expires() else {
                    return std::future::pending().await;
                };
                // DESIGN §5.
                let end = at.saturating_add(terms.token_grace);
                let left = end.saturating_sub(terms.auth.now());
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    () = changed => {}
                }
            }
        };
        let drained = async {
            terms.tasks.draining().cancelled().await;
            // A message that was sent before its client could know is read and answered.
            tokio::time::sleep(terms.drain_linger).await;
            wait_until(&self.changed, || self.owed.load(Ordering::Acquire) == 0).await;
        };
        tokio::select! {
            () = self.ended.cancelled() => ChannelEnd::Slow,
            () = self.is_silent() => ChannelEnd::Silent,
            () = expired => ChannelEnd::Expired,
            () = drained => ChannelEnd::Draining,
        }
    }
}

fn wake(mut state: MutexGuard<'_, ChannelState>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_is_not_silent_while_its_initialize_runs() {
        let endpoint = Endpoint::unreachable(&"up".into());
        let principal = Arc::new(Principal::anonymous());
        let channel = Channel::new([1; 16], Arc::new(endpoint), principal);
        assert!(channel.begin_opening());
        let waited = timeout(2 * INITIALIZE_WITHIN, channel.is_silent()).await;
        assert!(waited.is_err(), "its initialize still runs");
        channel.not_opened("refused".into());
        let waited = timeout(2 * INITIALIZE_WITHIN, channel.is_silent()).await;
        assert!(
            waited.is_ok(),
            "its initialize has failed, and no other came"
        );
    }
}
