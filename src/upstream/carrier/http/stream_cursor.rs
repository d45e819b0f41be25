//! `StreamCursor`: the position in an event stream of an upstream, and how long to wait before it is resumed there.
//! Spec: SPEC U-10, U-14

use std::time::Duration;

use http::{HeaderValue, StatusCode};

/// Before a stream is resumed when the upstream did not say how long to wait.
pub(super) const RESUME_DELAY: Duration = Duration::from_millis(500);
/// The shortest wait that an upstream may ask for.
pub(super) const SHORTEST_RETRY: Duration = Duration::from_millis(20);
/// The longest `retry` that we honour.
pub(super) const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Where we are in a stream.
#[derive(Debug, Default)]
pub(super) struct StreamCursor {
    /// The id of the last event that had one.
    pub(super) last_event: Option<HeaderValue>,
    /// How long the upstream wants us to wait before we come back.
    pub(super) retry: Option<Duration>,
    /// How many events were seen.
    pub(super) events: u64,
    /// How many events were seen up to the last one that had an id.
    pub(super) named: u64,
    /// Whether an event without data had an id: it may stand for all behind it.
    pub(super) is_primed: bool,
    /// Whether the last connection was closed properly, not broken.
    pub(super) closed: bool,
}

impl StreamCursor {
    pub(super) fn note(&mut self, id: Option<&str>, retry: Option<u64>) {
        self.events += 1;
        if let Some(id) = id {
            self.named = self.events;
            self.last_event = HeaderValue::from_str(id).ok().filter(|id| !id.is_empty());
        }
        if let Some(retry) = retry {
            self.retry = Some(Duration::from_millis(retry).min(LONGEST_RETRY));
        }
    }

    /// Whether the position in a GET stream is one of the Java SDK, whose event ids are two UUIDs: it stores no
    /// events, and a stream resumed there stays open without any. In POST streams stores for the TypeScript SDK have
    /// such ids too, and replay the events; there [`is_of_no_store`](Self::is_of_no_store) tells them apart.
    pub(super) fn is_of_java(&self) -> bool {
        let id = self.last_event.as_ref().and_then(|id| id.to_str().ok());
        let parts = id.and_then(|id| id.split_once('_'));
        parts.is_some_and(|(stream, event)| is_uuid(stream) && is_uuid(event))
    }

    /// Whether the event read last, the reply of a POST stream, shows that the upstream stores no events: it has the id
    /// of the session (the Java SDK over servlets), or none behind messages with ids of the Java SDK (over `WebFlux`). A
    /// store names the reply like the messages before, and gives no id twice. Spec: MCP 2025-11-25, Streamable HTTP,
    /// Resumability and Redelivery.
    pub(super) fn is_of_no_store(&self, session: Option<&HeaderValue>) -> bool {
        if self.last_event.is_none() {
            return false;
        }
        if self.named == self.events {
            return self.last_event.as_ref() == session;
        }
        !self.is_primed && self.is_of_java()
    }

    /// How long to wait before a stream that broke off here is resumed: as long as the upstream wants, and never zero,
    /// as an upstream may end its streams for as long as the call lasts.
    pub(super) fn pause(&self) -> Duration {
        self.retry
            .map_or(RESUME_DELAY, |retry| retry.max(SHORTEST_RETRY))
    }
}

fn is_uuid(text: &str) -> bool {
    let is_part = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_part)
}

/// Whether a refused stream may be available a moment later: the upstream restarts, is overloaded, or has not noticed
/// yet that the stream before is gone.
pub(super) fn may_pass(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT
                | StatusCode::CONFLICT
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_of_the_java_sdk_is_known_by_its_form() {
        const UUID: &str = "0a6e7c54-3f1d-4b1e-9d53-7d2a8f0c9b11";
        let is_of_java = |id: &str| {
            let mut place = StreamCursor::default();
            place.note(Some(id), None);
            place.is_of_java()
        };
        assert!(is_of_java(&format!("{UUID}_{UUID}")));
        for other in [UUID, "1", "", &format!("{UUID}_1790000000000_k3x9"), "_"] {
            assert!(!is_of_java(other), "{other}");
        }
    }

    #[test]
    fn reply_without_an_id_of_its_own_is_of_no_store() {
        const JAVA: &str =
            "0a6e7c54-3f1d-4b1e-9d53-7d2a8f0c9b11_5b0b3c1e-8a53-4c53-a0f4-1f6f0f6f3c22";
        const SESSION: &str = "a-session";
        let session = HeaderValue::from_static(SESSION);
        let is_of_no_store = |ids: &[Option<&str>], is_primed| {
            let mut place = StreamCursor::default();
            for id in ids {
                place.note(*id, None);
            }
            place.is_primed = is_primed;
            place.is_of_no_store(Some(&session))
        };
        assert!(is_of_no_store(&[Some(SESSION)], false));
        assert!(is_of_no_store(&[Some(JAVA), Some(SESSION)], false));
        assert!(is_of_no_store(&[Some(JAVA), None], false));
        assert!(!is_of_no_store(&[], false));
        assert!(!is_of_no_store(&[None], false));
        assert!(!is_of_no_store(&[Some(JAVA)], false), "a store named it");
        assert!(!is_of_no_store(&[Some("1"), None], false));
        assert!(!is_of_no_store(&[Some(JAVA), None], true), "it is replayed");
        assert!(!is_of_no_store(&[Some(SESSION), None], true));
    }

    // Spec: SPEC U-10.
    #[test]
    fn a_stream_is_resumed_when_the_upstream_wants_but_never_at_once() {
        let pause = |retry| {
            let mut place = StreamCursor::default();
            place.note(Some("1"), retry);
            place.pause()
        };
        assert_eq!(pause(None), RESUME_DELAY);
        assert_eq!(pause(Some(300)), Duration::from_millis(300));
        assert_eq!(pause(Some(0)), SHORTEST_RETRY);
        assert_eq!(pause(Some(u64::MAX)), LONGEST_RETRY);
    }
}
