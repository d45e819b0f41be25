//! Sessions taken over from a replica that is lost.

use std::collections::HashMap;

use super::records::with_records;
use super::*;
use crate::call::LogLevel;
use crate::store::events::{LoggedEvent, RestoredLog, RestoredStream};
use crate::store::records::{RecordedCapabilities, SessionRecord};

const FORMER: Ownership = Ownership { node: 9, epoch: 0 };
const NEXT: Ownership = Ownership { node: 0, epoch: 1 };

fn record() -> SessionRecord {
    SessionRecord {
        binding: principal("alice").binding(),
        owner: principal("alice").owner(),
        tag: 7,
        opened: Duration::from_mins(16_665),
        used: Duration::from_secs(999_950),
        is_initialized: true,
        endpoint: "files".to_owned(),
        revision: Revision::V2025_11_25,
        level: Some(LogLevel::Error),
        capabilities: RecordedCapabilities::from(&ClientCapabilities::none()),
        client_info: Bytes::from_static(b"{}"),
        subscriptions: vec!["up/file:///a".to_owned()],
        upstreams: Vec::new(),
        unshared: Vec::new(),
        tasks: Vec::new(),
    }
}

/// A session that another replica has opened. The event store has a priming event of each stream of the log.
fn adopted(f: &Fixture, log: RestoredLog) -> (String, Arc<Session>) {
    let (alice, files) = (principal("alice"), endpoint("files"));
    let ids = &f.sessions.ids;
    let (_, own) = ids.mint(&alice.binding(), "files", Duration::from_mins(16_665));
    let id = ids.with_owner(FORMER, &own, "files");
    let handle = f.sessions.read_id(&id, &alice, &files).unwrap();
    assert!(!f.sessions.is_live(handle));
    assert!(f.sessions.bind(&id, &alice, &files).is_none());
    for restored in &log.streams {
        let at = StreamKey {
            session: handle.key,
            stream: restored.stream,
        };
        let mut priming = [LoggedEvent::of(Bytes::new())];
        f.sessions.events.append(at, &mut priming);
    }
    let session = rebuilt(f, &id, NEXT, log);
    (id, session)
}

fn rebuilt(f: &Fixture, id: &str, by: Ownership, log: RestoredLog) -> Arc<Session> {
    let (alice, files) = (principal("alice"), endpoint("files"));
    let adopted = AdoptedSession {
        id: id.to_owned(),
        handle: f.sessions.read_id(id, &alice, &files).unwrap(),
        by,
        principal: alice,
        endpoint: files,
        record: record(),
        highest_stream: 4,
        log,
        implicit: None,
    };
    adopted.rebuild(&f.sessions)
}

#[tokio::test(start_paused = true)]
async fn session_that_was_given_up_does_not_end_the_one_that_was_adopted_again() {
    let (f, store) = with_records();
    let (id, former) = adopted(&f, RestoredLog::default());
    f.sessions.give_up(former.key(), NEXT);
    let later = Ownership { node: 0, epoch: 3 };
    let again = rebuilt(&f, &id, later, RestoredLog::default());
    store.ran().await;
    f.sessions.close(&former);
    f.sessions.give_up_session(&former);
    f.sessions.give_up(former.key(), NEXT);
    assert!(!again.closed().is_cancelled());
    let bound = f.bind(&id, "alice", "files");
    assert!(bound.is_some_and(|bound| Arc::ptr_eq(&bound, &again)));
    assert!(store.ran().await.is_empty(), "its record stays");
}

#[tokio::test(start_paused = true)]
async fn adopted_session_goes_on_under_its_id() {
    let (f, store) = with_records();
    let (id, session) = adopted(&f, RestoredLog::default());
    let bound = f.bind(&id, "alice", "files");
    assert!(Arc::ptr_eq(&bound.unwrap(), &session));
    assert!(f.bind(&id, "mallory", "files").is_none());
    assert_eq!((session.tag(), session.age().as_secs()), (7, 100));
    assert_eq!(session.levels().wanted(), Some(LogLevel::Error));
    assert!(session.subscriptions().covers("up", "file:///a"));
    assert_eq!(session.new_stream(&[RequestId::from(1)], None).number(), 5);
    let link = session.adopted_link("up").unwrap();
    assert_eq!(link.followed, ["file:///a"]);
    assert_eq!(link.first_id, NEXT.first_number());
    assert_eq!(store.ran().await, ["record_put"]);
    assert!(f.open("alice").unwrap().adopted_link("up").is_none());
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_reply_end_with_an_unknown_outcome() {
    let (f, _store) = with_records();
    let log = RestoredLog {
        streams: vec![RestoredStream {
            stream: 3,
            newest: 1,
            is_finished: false,
        }],
        floor: 0,
        calls: [(3, Bytes::from_static(br#"["a",7]"#))].into(),
        requests: HashMap::new(),
    };
    let (_, session) = adopted(&f, log);
    let at = StreamKey {
        session: session.key(),
        stream: 3,
    };
    let ReplayResult::Events(events) = f.sessions.events.after(at, 1, 9) else {
        panic!("the stream is unknown");
    };
    let texts: Vec<_> = events
        .iter()
        .map(|LoggedEvent { payload, .. }| String::from_utf8(payload.to_vec()).unwrap())
        .collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    for (text, id) in texts.iter().zip([r#""id":"a""#, r#""id":7"#]) {
        assert!(
            text.contains(id) && text.contains("outcome is unknown"),
            "{text}"
        );
    }
    assert!(events[1].last && session.stream(3).unwrap().is_finished());
}

// Spec: SPEC T-25.
#[tokio::test(start_paused = true)]
async fn get_stream_without_events_is_resumed_past_its_gap() {
    let (f, _store) = with_records();
    let log = RestoredLog {
        floor: NEXT.first_number(),
        ..RestoredLog::default()
    };
    let (_, session) = adopted(&f, log);
    let stream = session.standalone();
    assert!(stream.resume(17).is_err(), "events may have been missed");
    assert!(stream.resume_past_gap(17).is_some());
    assert!(stream.resume_past_gap(NEXT.first_number() + 1).is_none());
}

const REQUEST: &[u8] = br#"{"jsonrpc":"2.0","id":"a","method":"tools/call"}"#;

/// Streams 3 and 4 of the call "a", whose request is known for the first one.
fn with_one_request() -> RestoredLog {
    let stream = |stream| RestoredStream {
        stream,
        newest: 1,
        is_finished: false,
    };
    RestoredLog {
        streams: vec![stream(3), stream(4)],
        floor: 0,
        calls: [3, 4]
            .map(|at| (at, Bytes::from_static(br#"["a"]"#)))
            .into(),
        requests: [(3, Bytes::from_static(REQUEST))].into(),
    }
}

#[tokio::test(start_paused = true)]
async fn call_whose_request_is_known_waits_to_be_made_again() {
    let (f, _store) = with_records();
    let (_, session) = adopted(&f, with_one_request());
    assert!(session.take_lost_call(4).is_none());
    let lost = session.take_lost_call(3).unwrap();
    assert_eq!(lost.request.bytes(), REQUEST);
    assert_eq!(lost.stream.number(), 3);
    assert!(!lost.stream.is_finished(), "it waits for its reply");
    assert!(session.stream(4).unwrap().is_finished());
    assert!(session.take_lost_call(3).is_none(), "made again once");
}

#[tokio::test(start_paused = true)]
async fn call_of_a_session_that_has_ended_is_not_made_again() {
    let (f, _store) = with_records();
    let (_, session) = adopted(&f, with_one_request());
    f.sessions.close(&session);
    assert!(session.take_lost_call(3).is_none());
}

#[tokio::test(start_paused = true)]
async fn implicit_session_is_rebuilt_under_its_record() {
    let (f, store) = with_records();
    let (alice, files) = (principal("alice"), endpoint("files"));
    let key = f.sessions.implicit_key(&alice, &files, "{}");
    let adopted = AdoptedSession {
        id: String::new(),
        handle: SessionId {
            key: [5; 16],
            owner: FORMER,
            issued: Duration::ZERO,
        },
        by: NEXT,
        principal: alice,
        endpoint: files,
        record: record(),
        highest_stream: 0,
        log: RestoredLog::default(),
        implicit: Some(key.clone()),
    };
    let session = adopted.rebuild(&f.sessions);
    assert_eq!(store.ran().await, ["record_put"]);
    assert_ne!(session.key(), [5; 16]);
    assert!(session.subscriptions().granted().is_empty());
    let home = f.sessions.home(&key).unwrap();
    assert_eq!(home.by, NEXT);
    assert!(Arc::ptr_eq(&f.implicit(Some(home)), &session));
    let link = session.adopted_link("up").unwrap();
    assert_eq!(link.first_id, NEXT.first_number());
}
