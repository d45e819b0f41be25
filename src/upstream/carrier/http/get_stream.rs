//! The GET stream of an upstream session: kept open, resumed, and whether it is open or being opened now.
//! Spec: SPEC U-10, T-27.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Response, StatusCode};
use tokio::time::Instant;

use super::body::UpstreamBody;
use super::http_session::{CallOrigin, HttpSession};
use super::opening_attempts::OpeningAttempts;
use super::response_head::{is_event_stream, is_gone, is_of_lost_session, retry_after};
use super::sink::MessageSink;
use super::stream_cursor::{LONGEST_RETRY, RESUME_DELAY, SHORTEST_RETRY, StreamCursor, may_pass};
use crate::cause::chain;
use crate::protocol::headers::LAST_EVENT_ID;
use crate::sync::backoff::Backoff;
use crate::sync::on_drop::OnDrop;
use crate::upstream::notice_feed::NoticeFeed;

/// A stream that lasted this long was no failure, even without messages.
const LASTING: Duration = Duration::from_secs(30);

/// A resumed stream that ended within this time, without any event, is of a position that the upstream does not know.
const AT_ONCE: Duration = Duration::from_secs(2);

/// The pause at which a stream that is still refused with 500 is no longer resumed: some servers cannot replay its events,
/// and say so each time.
const LONG_REFUSED: Duration = Duration::from_secs(2);

/// Why a GET stream is not opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoGetStream {
    /// The upstream has no such streams, or none for us.
    Stream,
    /// The upstream opens one in a session, ever, and that one has ended.
    Spent,
    /// The upstream had one, and no longer knows the session.
    Session,
}

/// Whether an upstream opens one GET stream in a session, ever (the C# SDK); shared by all its links.
#[derive(Debug, Clone, Default)]
pub(in crate::upstream) struct SingleStreamHabit(Arc<AtomicBool>);

impl SingleStreamHabit {
    /// Whether a session of the upstream was refused a second stream.
    pub(in crate::upstream) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes a refused second stream. Returns whether the habit was unknown.
    pub(in crate::upstream) fn note(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Notes a second stream that was opened: the upstream was replaced since by one without the habit.
    pub(in crate::upstream) fn unlearn(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What became of an attempt to open the GET stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GetStreamChange {
    /// A stream is open that does not resume the one before.
    Opened,
    /// The upstream refused the stream with this status: it has none. Tried again if a stream was open before.
    Refused(u16),
}

/// An attempt under way; answered, or given up, when dropped.
struct OpeningAttempt {
    session: Arc<HttpSession>,
    number: u64,
}

impl OpeningAttempt {
    fn of(session: &Arc<HttpSession>) -> Self {
        let number = session.opening.last.fetch_add(1, Ordering::Relaxed) + 1;
        session.opening.running.store(number, Ordering::Release);
        Self {
            session: Arc::clone(session),
            number,
        }
    }
}

impl Drop for OpeningAttempt {
    fn drop(&mut self) {
        let OpeningAttempts { running, over, .. } = &self.session.opening;
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        // A later attempt is not over with this one.
        if running
            .compare_exchange(self.number, 0, order, failed)
            .is_ok()
        {
            over.notify_waiters();
        }
    }
}

/// How long to wait before the stream is opened again: twice as long each time that it was refused, or
/// ended at once without anything to tell.
#[derive(Debug)]
struct ReopenBackoff(Backoff);

impl Default for ReopenBackoff {
    fn default() -> Self {
        Self(Backoff::new(RESUME_DELAY, LONGEST_RETRY))
    }
}

impl ReopenBackoff {
    /// Pause after a stream; `is_good` if the stream lasted or had a message.
    fn ended(&mut self, is_good: bool, place: &StreamCursor) -> Duration {
        if !is_good {
            return self.failed(place.retry);
        }
        self.0.reset();
        match place.retry {
            // The next stream resumes there, as often as the upstream wants.
            Some(retry) if place.last_event.is_some() => retry.max(SHORTEST_RETRY),
            // Without resumption, everything has to be listed again.
            retry => self.0.length().max(retry.unwrap_or_default()),
        }
    }

    /// Pause after a failed GET; `wanted` is the upstream's `Retry-After`.
    fn failed(&mut self, wanted: Option<Duration>) -> Duration {
        // The length after this failure: twice the last one.
        self.0.next_pause();
        self.0
            .length()
            .max(wanted.unwrap_or_default().min(LONGEST_RETRY))
    }
}

impl HttpSession {
    /// Whether changes are heard of: a GET stream is open.
    pub(crate) fn notice_feed(&self) -> &NoticeFeed {
        &self.notice_feed
    }

    /// The number of the attempt to open the GET stream that has no answer yet, if one is under way. Numbers grow.
    pub(crate) fn opening(&self) -> Option<u64> {
        Some(self.opening.running.load(Ordering::Acquire)).filter(|number| *number != 0)
    }

    /// Whether the GET stream was ever open.
    pub(crate) fn was_open(&self) -> bool {
        self.was_open.load(Ordering::Relaxed)
    }

    /// Resolves when no attempt to open the GET stream is under way. One that pauses after a stream that had ended
    /// properly is made at once.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn answered(&self) {
        loop {
            let over = self.opening.over.notified();
            if self.opening().is_none() {
                return;
            }
            self.opening.hurry.notify_one();
            over.await;
        }
    }

    /// Keeps the GET stream open until the upstream turns out to have none, or to have forgotten the session;
    /// `on_change` is told of each stream that does not resume the one before, and of each refusal; `sink` awaits no
    /// reply. Where there was a stream in this session, a refused one is tried again, after 1 s to 1 min. Resets
    /// `notice_feed` first, so that `wait_until_live` waits for this stream instead of the outcome of an earlier one.
    ///
    /// # Cancel safety
    /// Dropping the future closes the stream.
    pub(crate) fn listen(
        self: Arc<Self>,
        on_change: impl FnMut(GetStreamChange) + Send,
        sink: impl MessageSink,
    ) -> impl Future<Output = NoGetStream> + Send {
        self.notice_feed.end();
        let attempt = OpeningAttempt::of(&self);
        self.keep_listening(attempt, on_change, sink)
    }

    async fn keep_listening(
        self: Arc<Self>,
        first: OpeningAttempt,
        mut on_change: impl FnMut(GetStreamChange) + Send,
        mut sink: impl MessageSink,
    ) -> NoGetStream {
        let mut place = StreamCursor::default();
        let mut backoff = ReopenBackoff::default();
        let mut attempt = Some(first);
        loop {
            let answering = attempt.take().unwrap_or_else(|| OpeningAttempt::of(&self));
            let last = place.last_event.clone();
            let headers = self.headers(CallOrigin::default());
            let headers = headers.with(LAST_EVENT_ID, last);
            self.client.credentials().caller_ready().await;
            let answer = self.client.listen(headers).await;
            drop(answering);
            let was_open = self.was_open.load(Ordering::Relaxed);
            let wait = match answer {
                Ok(response) if response.status().is_success() && is_event_stream(&response) => {
                    self.was_open.store(true, Ordering::Relaxed);
                    let (since, events) = (Instant::now(), place.events);
                    place.closed = false;
                    let mut body = response.into_body();
                    self.notice_feed.begin();
                    let _open = OnDrop::new(|| self.notice_feed.end());
                    if place.last_event.is_none() {
                        on_change(GetStreamChange::Opened);
                    }
                    let read = tokio::select! {
                        read = self.read_once(&mut body, &mut place, &mut sink) => read.map(drop),
                        () = self.client.credentials().caller_ended() => Ok(()),
                    };
                    if let Err(error) = read {
                        tracing::warn!(error = chain(&error), "upstream event stream is invalid");
                        // It would come again where the stream is resumed: go on from now.
                        place.last_event = None;
                    }
                    let is_good = place.events > events || since.elapsed() >= LASTING;
                    // The Python SDK says so that the position is no longer kept there: go on from now.
                    let ended_at_once = !is_good && place.closed && since.elapsed() < AT_ONCE;
                    if ended_at_once || place.is_of_java() {
                        place.last_event = None;
                    }
                    // What comes until the next stream is lost, and the upstream asks for no pause: a call ends it.
                    if is_good && place.last_event.is_none() && place.retry.is_none() {
                        attempt = Some(OpeningAttempt::of(&self));
                    }
                    backoff.ended(is_good, &place)
                }
                // The position is no longer kept there, which the TypeScript SDK says with 400: go on from now.
                Ok(response) if place.last_event.is_some() && is_unknown(response.status()) => {
                    place.last_event = None;
                    backoff.0.length()
                }
                Ok(response) if may_pass(response.status()) => {
                    let is_broken = response.status() == StatusCode::INTERNAL_SERVER_ERROR;
                    if is_broken && backoff.0.length() >= LONG_REFUSED {
                        place.last_event = None;
                    }
                    backoff.failed(retry_after(response.headers()).max(place.retry))
                }
                // Some answer a GET with a page for people. Where there was a stream in this session, the page is from
                // a stand-in for the upstream, which is temporary.
                Ok(response)
                    if response.status().is_client_error()
                        || response.status().is_success() && !was_open =>
                {
                    let (status, retry) = (response.status(), retry_after(response.headers()));
                    self.notice_feed.refused();
                    let end = self.end_after(response, was_open).await;
                    if end != Some(NoGetStream::Session) {
                        on_change(GetStreamChange::Refused(status.as_u16()));
                    }
                    if let Some(end) = end {
                        return end;
                    }
                    backoff.failed(retry.max(place.retry))
                }
                Ok(_) | Err(_) => backoff.failed(place.retry),
            };
            self.pause(wait, attempt.is_some()).await;
        }
    }

    /// Why a refused stream is not opened again; `None` where it is tried again, as one that was open before may be.
    async fn end_after(
        &self,
        response: Response<UpstreamBody>,
        was_open: bool,
    ) -> Option<NoGetStream> {
        let status = response.status();
        if !was_open && status != StatusCode::BAD_REQUEST {
            return Some(NoGetStream::Stream);
        }
        let said = self.said(response).await;
        // The C# SDK allows one stream in a session, ever, which another replica may have had. The session goes on.
        let allows_one = String::from_utf8_lossy(&said).contains("multiple GET requests");
        if allows_one && status == StatusCode::BAD_REQUEST {
            return Some(NoGetStream::Spent);
        }
        // An upstream without such streams may say 404 as well, or 400.
        if !was_open {
            return Some(NoGetStream::Stream);
        }
        let is_lost = is_unknown(status) || is_of_lost_session(status, &said, None);
        (is_lost && self.has_session()).then_some(NoGetStream::Session)
    }

    /// Waits before the next attempt; `may_hurry` where a call may end the wait.
    async fn pause(&self, wait: Duration, may_hurry: bool) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.opening.hurry.notified(), if may_hurry => {}
        }
    }
}

/// Whether a GET is refused as its session, or its position in the stream, is unknown.
fn is_unknown(status: StatusCode) -> bool {
    is_gone(status) || status == StatusCode::BAD_REQUEST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(retry_ms: Option<u64>, id: Option<&'static str>) -> StreamCursor {
        StreamCursor {
            retry: retry_ms.map(Duration::from_millis),
            last_event: id.map(http::HeaderValue::from_static),
            ..StreamCursor::default()
        }
    }

    // Spec: BRIDGING §3.4.
    #[test]
    fn a_stream_that_ends_at_once_is_opened_ever_less_often() {
        for place in [place(None, None), place(Some(1), Some("1"))] {
            let mut backoff = ReopenBackoff::default();
            let waits: Vec<_> = (0..10).map(|_| backoff.ended(false, &place)).collect();
            assert!(waits.first() > Some(&RESUME_DELAY), "{waits:?}");
            assert!(waits.is_sorted(), "{waits:?}");
            assert_eq!(waits.last(), Some(&LONGEST_RETRY));
            assert_eq!(backoff.failed(place.retry), LONGEST_RETRY);
            backoff.ended(true, &place);
            assert_eq!(backoff.0.length(), RESUME_DELAY, "it has recovered");
        }
    }

    #[test]
    fn only_a_stream_that_goes_on_where_it_was_is_opened_as_soon_as_the_upstream_wants() {
        let mut backoff = ReopenBackoff::default();
        let ms = Duration::from_millis;
        assert_eq!(backoff.ended(true, &place(Some(50), Some("1"))), ms(50));
        assert_eq!(
            backoff.ended(true, &place(Some(0), Some("1"))),
            SHORTEST_RETRY
        );
        assert_eq!(backoff.ended(true, &place(Some(50), None)), RESUME_DELAY);
        assert_eq!(backoff.ended(true, &place(Some(9000), None)), ms(9000));
        assert_eq!(backoff.failed(Some(ms(9000))), ms(9000));
        assert_eq!(backoff.failed(Some(Duration::MAX)), LONGEST_RETRY);
    }
}
