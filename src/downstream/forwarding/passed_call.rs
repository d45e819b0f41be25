//! `PassedCall`: a call that another replica answers by an event stream, and how the stream ends where that replica is
//! lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::timeout;

use super::seen_events::{NewestMessage, SeenEvents, answered};
use crate::cluster::ForwardFailure;
use crate::downstream::access_log::AccessRecord;
use crate::downstream::adoption::{NamedSession, SessionAdopter, SessionPlace};
use crate::fault::Fault;
use crate::fault::told::error_object;
use crate::ownership::Ownership;
use crate::protocol::sse::{self, NumberedEvents};
use crate::protocol::{Message, MessageKind, RequestId, json, rpc};
use crate::session::EventId;
use crate::store::events::{FetchedLog, LoggedEvent};
use crate::telemetry::metrics::COUNTERS;

/// For what is known of a stream whose connection broke. Later it breaks off, and its client resumes it.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// For the adoption of a session whose owner was given up.
const ADOPTED_WITHIN: Duration = Duration::from_secs(2);

/// The calls of one exchange that was passed on.
pub(super) struct PassedCall {
    pub(super) requests: PassedRequests,
    /// Where the stream begins, as its owner says: for the case that no event with an id comes.
    pub(super) begun: Option<EventId>,
    /// The session whose log may have more of the stream; `None` where there is no log, and nothing to resume.
    pub(super) session: Option<OwnedSession>,
    /// Where the end of the stream is noted.
    pub(super) record: AccessRecord,
}

/// The requests that a stream answers.
pub(super) enum PassedRequests {
    /// They were posted, and these are their ids.
    Posted {
        ids: Vec<RequestId>,
        /// Whether the replica that adopts the session makes the call again, whose stream is resumed then.
        is_made_again: bool,
    },
    /// Those that the log names: the stream was resumed, or what was posted was too long to be kept.
    Logged,
}

/// A session, and the replica to which its request was passed on.
pub(super) struct OwnedSession {
    pub(super) adopter: Arc<SessionAdopter>,
    pub(super) named: NamedSession,
    pub(super) owner: Ownership,
}

impl PassedCall {
    /// Whether the stream may answer a request.
    pub(super) fn has_requests(&self) -> bool {
        match &self.requests {
            PassedRequests::Posted { ids, .. } => !ids.is_empty(),
            PassedRequests::Logged => true,
        }
    }

    /// The end of the stream after what was `seen` of it: what the log has of it, and for each call without a reply the
    /// error that its outcome is unknown. `None` where the stream breaks off, as the call may get its reply yet, or as
    /// nothing is known in time: its client resumes the stream then, if it can.
    ///
    /// # Cancel safety
    /// Nothing is lost: a client that has gone finds the same by resuming.
    pub(super) async fn end(self, seen: SeenEvents, is_given_up: bool) -> Option<Bytes> {
        let limit = if is_given_up {
            ADOPTED_WITHIN
        } else {
            TOLD_WITHIN
        };
        let end = timeout(limit, Box::pin(self.find_end(seen, is_given_up)));
        end.await.ok().flatten()
    }

    async fn find_end(self, seen: SeenEvents, is_given_up: bool) -> Option<Bytes> {
        let newest = seen.newest();
        if newest == (NewestMessage::Unclear { has_id: false }) {
            return None;
        }
        if let Some(session) = &self.session
            && !session.is_lost(is_given_up).await
        {
            return None;
        }
        let (mut open, mut is_made_again) = match self.requests {
            PassedRequests::Posted { ids, is_made_again } => (Some(ids), is_made_again),
            PassedRequests::Logged => (None, false),
        };
        let mut rest = BytesMut::new();
        let place = seen.id().or(self.begun);
        if let Some((place, session)) = place.zip(self.session.as_ref()) {
            let log = session.read_log().await?;
            if open.is_none() {
                open = log.calls(place.stream);
                is_made_again = session.makes_again(&log, place.stream);
            }
            let events = log.events(place.stream);
            add_events(events, (place, &newest), &mut open, &mut rest)?;
        }
        let mut open = open?;
        if let NewestMessage::Reply(id) = newest {
            open.retain(|one| *one != id);
        }
        if is_made_again && seen.id().is_some() && !open.is_empty() {
            return None;
        }
        self.record.forwarded(false);
        if !open.is_empty() {
            self.record.outcome("owner_unreachable");
            COUNTERS.cluster_calls_lost.add(open.len() as u64);
            add_errors(&open, &Fault::outcome_unknown("call"), &mut rest);
        }
        Some(rest.freeze())
    }

    /// The end of the stream where this replica stops before the call is over.
    pub(super) fn cut_off(&self) -> Bytes {
        let mut rest = BytesMut::new();
        if let PassedRequests::Posted { ids, .. } = &self.requests {
            add_errors(ids, &Fault::cut_off(), &mut rest);
        }
        rest.freeze()
    }
}

impl OwnedSession {
    /// Whether the owner can write nothing of the session any more: its process has ended, or the session is another
    /// replica's by now. A silent owner that was given up may come back, so its session is adopted first.
    async fn is_lost(&self, is_given_up: bool) -> bool {
        if !is_given_up {
            return self.adopter.cluster.has_ended(self.owner.node).await;
        }
        match self.adopter.find(&self.named).await {
            SessionPlace::Here => true,
            SessionPlace::At(by) => by.node != self.owner.node,
            SessionPlace::Own(_) | SessionPlace::Ended | SessionPlace::Unknown => false,
        }
    }

    async fn read_log(&self) -> Option<Arc<FetchedLog>> {
        self.adopter.read_log(self.named.handle.key).await
    }

    /// Whether the replica that adopts the session makes the call of a stream again.
    fn makes_again(&self, log: &FetchedLog, stream: u32) -> bool {
        let (relay, endpoint) = (&self.adopter.relay, &self.named.endpoint);
        let request = log.request(stream, self.owner);
        request.is_some_and(|request| relay.may_repeat(endpoint, request))
    }
}

/// Adds the events of a stream that are later than the event `id`, and have not passed, to its `rest`. Takes the calls
/// whose reply is among all of the `events` out of `open`; none is open where the stream has ended. `None` where it is not
/// known whether the newest message that has passed is a reply.
fn add_events<'a>(
    events: impl Iterator<Item = &'a LoggedEvent>,
    (id, newest): (EventId, &NewestMessage),
    open: &mut Option<Vec<RequestId>>,
    rest: &mut BytesMut,
) -> Option<()> {
    let numbered = NumberedEvents::new(&EventId::stem(id.tag, id.stream));
    let mut has_newest = false;
    for event in events {
        has_newest |= event.seq == id.seq;
        if event.last {
            *open = Some(Vec::new());
        }
        if event.payload.is_empty() {
            continue;
        }
        let answers = answered(event.payload.clone());
        // Without its id, which the log had later.
        let has_passed = matches!(newest, NewestMessage::Reply(id) if answers.as_ref() == Some(id));
        if event.seq > id.seq && !has_passed {
            numbered.encode(rest, event.seq, &event.payload);
        }
        if let Some(open) = open {
            open.retain(|one| Some(one) != answers.as_ref());
        }
    }
    let is_known = has_newest || !matches!(newest, NewestMessage::Unclear { .. });
    is_known.then_some(())
}

/// Ids of the requests in a posted body.
pub(super) fn requests_in(body: Bytes) -> Vec<RequestId> {
    let id = |message: &Message| {
        let is_request = message.kind() == MessageKind::Request;
        message
            .id()
            .filter(|_| is_request)
            .and_then(RequestId::parse)
    };
    if Message::is_batch(&body) {
        let most = body.len();
        let each = Message::parse_batch(body, json::MAX_DEPTH, most).unwrap_or_default();
        return each.iter().flatten().filter_map(id).collect();
    }
    let message = Message::parse(body, json::MAX_DEPTH).ok();
    message.iter().filter_map(id).collect()
}

/// Whether an answer breaks off as its replica was given up. Each body around another one wraps its error.
pub(super) fn is_given_up(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut errors = std::iter::successors(Some(error), |error| error.source());
    errors.any(|error| matches!(error.downcast_ref(), Some(ForwardFailure::Gone)))
}

/// Adds the error of `fault` for each of the requests `ids`, as events without an id.
fn add_errors(ids: &[RequestId], fault: &Fault, out: &mut BytesMut) {
    let error = error_object(fault);
    let error = std::str::from_utf8(&error).unwrap_or_default();
    for id in ids {
        sse::encode_event(out, rpc::response(id, "error", error).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY: &str = r#"{"jsonrpc":"2.0","id":5,"result":{}}"#;

    fn event(seq: u64, payload: &'static str, last: bool) -> LoggedEvent {
        LoggedEvent {
            seq,
            payload: payload.into(),
            last,
        }
    }

    /// What follows the event 2 of a stream by its log, and whether its call is open still; `None` where it breaks off.
    fn rest_of(events: &[LoggedEvent], newest: &NewestMessage) -> Option<(String, bool)> {
        let (rest, open) = rest_after(2, events, newest, Some(vec![RequestId::from(5)]))?;
        Some((rest, !open?.is_empty()))
    }

    fn rest_after(
        seq: u64,
        events: &[LoggedEvent],
        newest: &NewestMessage,
        mut open: Option<Vec<RequestId>>,
    ) -> Option<(String, Option<Vec<RequestId>>)> {
        let id = EventId {
            tag: 1,
            stream: 3,
            seq,
        };
        let mut rest = BytesMut::new();
        add_events(events.iter(), (id, newest), &mut open, &mut rest)?;
        Some((String::from_utf8(rest.to_vec()).unwrap(), open))
    }

    #[test]
    fn logged_events_that_have_not_passed_are_sent_with_their_ids() {
        let notice = r#"{"jsonrpc":"2.0","method":"n"}"#;
        let mut events = vec![event(1, "", false), event(2, notice, false)];
        let none = NewestMessage::NoReply;
        assert_eq!(rest_of(&events, &none), Some((String::new(), true)));
        events.push(event(3, notice, false));
        let sent = format!("event: message\nid: 0000000000000001.3.3\ndata: {notice}\n\n");
        assert_eq!(rest_of(&events, &none), Some((sent.clone(), true)));
        events.push(event(4, REPLY, true));
        let reply = format!("event: message\nid: 0000000000000001.3.4\ndata: {REPLY}\n\n");
        let both = (sent + &reply, false);
        assert_eq!(rest_of(&events, &none), Some(both), "no error follows");
    }

    #[test]
    fn logged_reply_that_has_passed_is_neither_sent_again_nor_followed_by_an_error() {
        let unclear = NewestMessage::Unclear { has_id: true };
        let events = [event(2, REPLY, false)];
        assert_eq!(rest_of(&events, &unclear), Some((String::new(), false)));
        // It may be the reply, and was evicted.
        assert_eq!(rest_of(&[], &unclear), None);
        // It went out without its id, as it was logged later.
        let reply = NewestMessage::Reply(RequestId::from(5));
        let events = [event(3, REPLY, true)];
        assert_eq!(rest_of(&events, &reply), Some((String::new(), false)));
    }

    #[test]
    fn whole_stream_is_sent_from_where_it_begins() {
        let none = NewestMessage::NoReply;
        let (rest, open) = rest_after(0, &[event(1, REPLY, true)], &none, None).unwrap();
        let reply = format!("event: message\nid: 0000000000000001.3.1\ndata: {REPLY}\n\n");
        assert_eq!((rest, open), (reply, Some(Vec::new())));
    }

    #[test]
    fn calls_that_are_not_known_stay_so_unless_their_stream_has_ended() {
        let none = NewestMessage::NoReply;
        let open = |events: &[LoggedEvent]| rest_after(2, events, &none, None).unwrap().1;
        assert_eq!(open(&[event(2, "", false)]), None);
        assert_eq!(open(&[event(2, "", true)]), Some(Vec::new()));
    }

    #[test]
    fn replica_that_was_given_up_is_known_behind_each_body() {
        let gone = || axum::Error::new(ForwardFailure::Gone);
        assert!(is_given_up(&gone()));
        assert!(is_given_up(&axum::Error::new(gone())));
        let other = axum::Error::new(ForwardFailure::NoReplica);
        assert!(!is_given_up(&axum::Error::new(other)));
    }

    #[test]
    fn ids_of_requests_alone_are_read() {
        let one = |text: &'static str| requests_in(Bytes::from_static(text.as_bytes()));
        let call = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call"}"#;
        let id = RequestId::parse("\"a\"").unwrap();
        assert_eq!(one(call), [id]);
        assert_eq!(one(r#"{"jsonrpc":"2.0","method":"n"}"#), []);
        assert_eq!(one(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#), []);
        assert_eq!(one("no message"), []);
        let both = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":2,"method":"ping"}]"#;
        assert_eq!(one(both), [RequestId::from(1), RequestId::from(2)]);
    }
}
