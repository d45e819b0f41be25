//! Reading the event stream that answers a request, and resuming it where it broke off.
//! Spec: SPEC U-10, U-14, T-27.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;

use super::body::UpstreamBody;
use super::http_session::{CallOrigin, HttpSession};
use super::response_head::{
    is_about_message, is_event_stream, is_gone, is_of_lost_session, is_reply_of_lost_session,
};
use super::sink::MessageSink;
use super::stream_cursor::{StreamCursor, may_pass};
use super::whole::refusal_body;
use crate::budget::EXEMPT_BYTES;
use crate::call::CallerAccess;
use crate::protocol::headers::LAST_EVENT_ID;
use crate::protocol::salvage;
use crate::protocol::sse::{SseDecoder, SseEvent};
use crate::protocol::{Message, ProgressNotice};
use crate::upstream::breach_log;
use crate::upstream::error::LinkError;

/// How often a broken stream is resumed without any event in between.
const RESUME_ATTEMPTS: u32 = 5;
impl HttpSession {
    /// Reads a stream until the reply, resuming it where the upstream gave event ids, and has not shown that it stores no
    /// events. The request was taken: no error may look like that of a request that has not run (SPEC M-44), unless the
    /// first event is a reply that says so.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when it cannot be resumed, [`LinkError::SessionGone`] for a reply that names a lost session.
    pub(super) async fn read_stream(
        &self,
        response: Response<UpstreamBody>,
        caller: Option<&Arc<CallerAccess>>,
        sink: &mut dyn MessageSink,
    ) -> Result<Message, LinkError> {
        let mut place = StreamCursor::default();
        let mut body = response.into_body();
        let mut attempts = 0;
        loop {
            let seen = place.events;
            if let Some(reply) = self.read_once(&mut body, &mut place, sink).await? {
                if place.is_of_no_store(self.session.get()) {
                    self.stores_no_events.store(true, Ordering::Relaxed);
                }
                body.finish();
                if place.events == 1 && self.has_session() && is_reply_of_lost_session(&reply) {
                    return Err(LinkError::SessionGone);
                }
                return Ok(reply);
            }
            attempts = if place.events > seen { 0 } else { attempts + 1 };
            let may_resume =
                attempts < RESUME_ATTEMPTS && !self.stores_no_events.load(Ordering::Relaxed);
            let Some(last) = place.last_event.clone().filter(|_| may_resume) else {
                return Err(LinkError::Lost { last_words: None });
            };
            if place.closed {
                sink.closed(place.retry);
            }
            tokio::time::sleep(place.pause()).await;
            let origin = CallOrigin {
                trace: None,
                caller,
            };
            let headers = self.headers(origin).with(LAST_EVENT_ID, Some(last));
            match self.client.listen(headers).await {
                Ok(response) if response.status().is_success() && is_event_stream(&response) => {
                    body = response.into_body();
                }
                Ok(response) if may_pass(response.status()) => {}
                Ok(response) => {
                    self.note_refused_resumption(response).await;
                    return Err(LinkError::Lost { last_words: None });
                }
                Err(_) => {}
            }
        }
    }

    /// Notes a session that is lost together with the stream.
    async fn note_refused_resumption(&self, response: Response<UpstreamBody>) {
        let status = response.status();
        if !self.has_session() {
            return;
        }
        let is_gone = match status {
            status if is_gone(status) => true,
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED => {
                let body = self.said(response).await;
                let parsed = Message::parse(body.clone(), self.bounds.depth).ok();
                is_of_lost_session(status, &body, parsed.as_ref())
            }
            _ => false,
        };
        if is_gone {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }

    /// The body of a refusal, empty where it does not arrive whole and in time.
    pub(super) async fn said(&self, response: Response<UpstreamBody>) -> Bytes {
        let (body, limit) = (response.into_body(), self.bounds.message);
        let body = refusal_body(body, limit, &mut |_: Message| None).await;
        body.unwrap_or_default()
    }

    /// The error of a notification or response refused with 404 or 410 in a session, which is lost unless the body says
    /// that the upstream does not know the message.
    pub(super) async fn gone(&self, response: Response<UpstreamBody>) -> LinkError {
        let status = response.status();
        let body = self.said(response).await;
        let parsed = Message::parse(body.clone(), self.bounds.depth).ok();
        if parsed.is_some_and(|message| is_about_message(&body, &message)) {
            return LinkError::Status(status.as_u16());
        }
        LinkError::SessionGone
    }

    /// Notes an event that is no message; later events may be messages (SPEC U-14).
    pub(super) fn suspect(&self, error: &impl std::fmt::Display) {
        breach_log::note(
            &self.upstream,
            &format!("an event is no JSON-RPC message: {error}"),
        );
    }

    /// Reads one connection's worth of a stream; the reply if it came.
    ///
    /// # Errors
    /// [`LinkError::TooLarge`] for an event over its bound, [`LinkError::Invalid`] for a reply that is
    /// no message.
    pub(super) async fn read_once(
        &self,
        body: &mut UpstreamBody,
        place: &mut StreamCursor,
        sink: &mut dyn MessageSink,
    ) -> Result<Option<Message>, LinkError> {
        let mut decoder = SseDecoder::new(self.bounds.event);
        let mut room = None;
        loop {
            let frame = match body.frame().await {
                Some(Ok(frame)) => frame,
                end => {
                    place.closed = end.is_none();
                    return Ok(None);
                }
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let held = decoder.held() + data.len();
            if held > EXEMPT_BYTES {
                room = room.or_else(|| sink.growing());
                if let Some(room) = &mut room {
                    room.grow_to(held).await;
                }
            }
            // Given back whole: the reserve has a permit, which no shrinking frees.
            room = room.filter(|_| !sink.takes_room());
            decoder.feed(data);
            let read = self.read_fed(&mut decoder, place, sink);
            sink.taken();
            if let Some(reply) = read? {
                if let Some(room) = room {
                    sink.keep(room.whole(reply.bytes().len()));
                }
                return Ok(Some(reply));
            }
            let held = decoder.held();
            room = room.filter(|_| held > EXEMPT_BYTES);
            if held > EXEMPT_BYTES {
                room = room.or_else(|| sink.growing());
            }
            if let Some(room) = &mut room {
                room.shrink_to(held);
                room.grow_to(held).await;
            }
        }
    }

    /// Reads the events in `decoder`.
    fn read_fed(
        &self,
        decoder: &mut SseDecoder,
        place: &mut StreamCursor,
        sink: &mut dyn MessageSink,
    ) -> Result<Option<Message>, LinkError> {
        loop {
            let mut take =
                |data: &[u8]| ProgressNotice::read(data).is_some_and(|it| sink.progress(&it));
            while decoder.take_usual(&mut take) {
                place.note(None, None);
            }
            let too_large = |_| LinkError::TooLarge {
                limit: self.bounds.event,
            };
            let Some(event) = decoder.next().map_err(too_large)? else {
                return Ok(None);
            };
            place.note(event.id.as_deref(), event.retry);
            if !event.has_data || event.data.is_empty() {
                place.is_primed |= event.id.is_some();
                continue;
            }
            if take(&event.data) {
                continue;
            }
            match self.hand_over(event.data.clone(), sink) {
                Ok(None) => {}
                Ok(reply) => return Ok(reply),
                // A later stream may announce the older transport beside its messages.
                Err(_) if is_endpoint(&event) && self.version.get().is_none() => {
                    return Err(LinkError::older_stream());
                }
                Err(error) => {
                    // Under a name of its own it may be a sign of life.
                    if event.event.is_none_or(|name| name == b"message"[..]) {
                        self.suspect(&error);
                    }
                    // It was meant as the reply: nothing else comes.
                    if salvage::answered(&event.data).is_some_and(|id| sink.awaits(id)) {
                        return Err(LinkError::Invalid(error.to_string()));
                    }
                }
            }
        }
    }
}

/// Whether an event is the first one of HTTP+SSE. Spec: SPEC H-01.
fn is_endpoint(event: &SseEvent) -> bool {
    event.event.as_deref() == Some(b"endpoint")
}
