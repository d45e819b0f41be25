//! The contract of every event store, run against memory.

use super::super::batch::BATCH_BYTES;
use super::*;

const SESSION: SessionKey = [7; 16];

fn store(per_session: usize, total: usize) -> MemoryEvents {
    MemoryEvents::new(LogBounds {
        max_age: Duration::from_mins(5),
        per_session,
        total,
    })
}

fn at(stream: u32) -> StreamKey {
    StreamKey {
        session: SESSION,
        stream,
    }
}

fn append(store: &MemoryEvents, at: StreamKey, text: &'static str) -> u64 {
    let mut events = [LoggedEvent::of(text.into())];
    store.append(at, &mut events);
    events[0].seq
}

fn payloads(replay: ReplayResult) -> Vec<String> {
    match replay {
        ReplayResult::Events(events) | ReplayResult::Evicted(events) => events
            .into_iter()
            .map(|event| String::from_utf8(event.payload.to_vec()).unwrap())
            .collect(),
        ReplayResult::Unknown => panic!("unknown"),
    }
}

// SPEC T-25: only that stream's later messages.
#[test]
fn replay_returns_only_later_events_of_that_stream() {
    let store = store(1 << 20, 1 << 20);
    append(&store, at(1), "a1");
    append(&store, at(2), "b1");
    let mut reply = LoggedEvent::of("a2".into());
    reply.last = true;
    store.append(at(1), &mut [reply]);
    assert_eq!(payloads(store.after(at(1), 1, 100)), ["a2"]);
    assert_eq!(payloads(store.after(at(1), 0, 100)), ["a1", "a2"]);
    assert_eq!(payloads(store.after(at(2), 0, 100)), ["b1"]);
}

#[test]
fn unknown_stream_and_future_position_are_unknown() {
    let store = store(1 << 20, 1 << 20);
    append(&store, at(1), "x");
    assert_eq!(store.after(at(9), 0, 10), ReplayResult::Unknown);
    assert_eq!(store.after(at(1), 2, 10), ReplayResult::Unknown);
    assert_eq!(store.after(at(1), 1, 10), ReplayResult::Events(Vec::new()));
}

#[test]
fn the_oldest_events_of_a_session_make_room() {
    let store = store(3 * (BATCH_BYTES + 1), 1 << 20);
    for text in ["1", "2", "3", "4"] {
        append(&store, at(1), text);
    }
    assert!(
        matches!(store.after(at(1), 0, 10), ReplayResult::Evicted(events) if events.len() == 3)
    );
    assert!(matches!(store.after(at(1), 1, 10), ReplayResult::Events(events) if events.len() == 3));
}

#[tokio::test(start_paused = true)]
async fn among_equals_the_total_bound_evicts_the_oldest_event() {
    let store = store(1 << 20, 2 * (BATCH_BYTES + 1));
    let other = |number: u8| StreamKey {
        session: [number; 16],
        stream: 1,
    };
    append(&store, at(1), "1");
    tokio::time::advance(Duration::from_mins(1)).await;
    append(&store, other(8), "2");
    append(&store, other(9), "3");
    assert!(
        matches!(store.after(at(1), 0, 10), ReplayResult::Evicted(events) if events.is_empty())
    );
    assert_eq!(payloads(store.after(other(8), 0, 10)), ["2"]);
    assert_eq!(payloads(store.after(other(9), 0, 10)), ["3"]);
    assert_eq!(store.size(), (2, 2 * (BATCH_BYTES + 1)));
}

// Else one principal could make the calls of all others unresumable.
#[tokio::test(start_paused = true)]
async fn who_has_more_than_an_equal_share_makes_room() {
    const TOTAL: usize = 100 * (BATCH_BYTES + 1);
    let store = store(20 * (BATCH_BYTES + 1), TOTAL);
    append(&store, at(1), "kept");
    tokio::time::advance(Duration::from_mins(1)).await;
    for number in 0..400_u32 {
        let mut session = [0; 16];
        session[..4].copy_from_slice(&(number % 20).to_be_bytes());
        append(&store, StreamKey { session, stream: 1 }, "x");
        tokio::time::advance(Duration::from_millis(10)).await;
        assert!(store.size().1 <= TOTAL);
    }
    assert_eq!(payloads(store.after(at(1), 0, 10)), ["kept"]);
    assert!(store.size().0 > 90, "{:?}", store.size());
}

#[tokio::test(start_paused = true)]
async fn total_bound_holds_over_all_sessions() {
    const TOTAL: usize = 10 * (BATCH_BYTES + 1);
    let store = store(1 << 20, TOTAL);
    for number in 0..100_u32 {
        let mut session = [0; 16];
        session[..4].copy_from_slice(&number.to_be_bytes());
        append(&store, StreamKey { session, stream: 1 }, "x");
        assert!(store.size().1 <= TOTAL);
    }
}

#[tokio::test(start_paused = true)]
async fn old_events_are_swept() {
    let store = store(1 << 20, 1 << 20);
    append(&store, at(1), "old");
    tokio::time::advance(Duration::from_secs(200)).await;
    append(&store, at(1), "new");
    tokio::time::advance(Duration::from_secs(150)).await;
    store.sweep();
    assert_eq!(payloads(store.after(at(1), 0, 10)), ["new"]);
}

#[test]
fn a_forgotten_session_frees_everything() {
    let store = store(1 << 20, 1 << 20);
    append(&store, at(1), "x");
    store.forget(SESSION);
    assert_eq!(store.size(), (0, 0));
    assert_eq!(store.after(at(1), 0, 10), ReplayResult::Unknown);
}

#[test]
fn an_unread_event_can_be_replaced_in_place() {
    let store = store(1 << 20, 1 << 20);
    let seq = append(&store, at(1), "10%");
    assert!(store.replace(at(1), seq, Bytes::from_static(b"90%")));
    assert_eq!(payloads(store.after(at(1), 0, 10)), ["90%"]);
    assert!(!store.replace(at(1), seq + 1, Bytes::new()));
}

#[tokio::test(start_paused = true)]
async fn a_busy_time_leaves_no_large_tables_behind() {
    let store = store(1 << 20, 1 << 20);
    for _ in 0..1_000 {
        append(&store, at(1), "x");
    }
    for number in 0..10_000_u32 {
        let mut session = [0; 16];
        session[..4].copy_from_slice(&number.to_be_bytes());
        append(&store, StreamKey { session, stream: 0 }, "y");
        store.forget(session);
    }
    tokio::time::advance(Duration::from_mins(6)).await;
    store.sweep();
    let log = store.log(SESSION).unwrap();
    assert!(lock(&log).batches.capacity() <= 4 * SMALL);
    assert!(store.sessions.capacity() <= 8 * SMALL);
    assert_eq!(store.size(), (0, 0));
    // Its stream is still known, and goes on where it was.
    assert_eq!(append(&store, at(1), "next"), 1_001);
}

#[test]
fn events_that_come_together_are_kept_and_evicted_together() {
    let store = store(1_000, 1 << 20);
    let mut together = ["a", "b", "c"].map(|text| LoggedEvent::of(text.into()));
    store.append(at(1), &mut together);
    assert_eq!(together.map(|event| event.seq), [1, 2, 3]);
    assert_eq!(payloads(store.after(at(1), 1, 10)), ["b", "c"]);
    assert_eq!(payloads(store.after(at(1), 0, 2)), ["a", "b"]);
    assert_eq!(store.size().0, 3);
    let large: &str = Box::leak("x".repeat(900).into_boxed_str());
    append(&store, at(2), large);
    assert_eq!(store.after(at(1), 3, 10), ReplayResult::Events(Vec::new()));
    assert!(
        matches!(store.after(at(1), 2, 10), ReplayResult::Evicted(events) if events.is_empty())
    );
}
