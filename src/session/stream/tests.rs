use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::poll_fn;

use super::*;
use crate::store::events::{Bounds, MemoryEvents};

fn stream() -> Arc<EventStream> {
    let bounds = Bounds {
        max_age: Duration::from_mins(5),
        per_session: 1 << 20,
        total: 1 << 20,
    };
    let key = StreamKey {
        session: [1; 16],
        stream: 3,
    };
    EventStream::new(key, Arc::new(MemoryEvents::new(bounds)))
}

fn progress(token: &str, text: &'static str) -> Notice {
    let kind = NoticeKind::Progress {
        token: token.into(),
    };
    Notice {
        kind,
        bytes: Bytes::from_static(text.as_bytes()),
    }
}

fn log(text: &'static str) -> Notice {
    Notice {
        kind: NoticeKind::Log,
        bytes: Bytes::from_static(text.as_bytes()),
    }
}

/// What the reader has to give right now.
fn read(reader: &mut Reader) -> Option<Next> {
    poll_fn(|cx| reader.poll_next(cx)).now_or_never()
}

fn texts(next: Option<Next>) -> Vec<String> {
    match next {
        Some(Next::Events(events)) => events
            .into_iter()
            .map(|event| String::from_utf8(event.payload.to_vec()).unwrap())
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reader_sees_messages_in_order_and_then_the_end() {
    let stream = stream();
    let mut reader = stream.attach();
    assert_eq!(read(&mut reader), None);
    stream.notify(log("a"));
    stream.put(Bytes::from_static(b"q"));
    stream.finish(Some(Bytes::from_static(b"reply")));
    assert_eq!(texts(read(&mut reader)), ["a", "q", "reply"]);
    assert_eq!(read(&mut reader), Some(Next::Finished));
}

// SPEC T-25: what came after the id, once, and nothing else.
#[test]
fn resuming_replays_exactly_what_came_after() {
    let stream = stream();
    let mut first = stream.attach();
    for text in ["1", "2", "3"] {
        stream.notify(log(text));
    }
    assert_eq!(texts(read(&mut first)), ["1", "2", "3"]);
    drop(first);
    stream.notify(log("4"));
    let mut second = stream.resume(2).unwrap();
    assert_eq!(texts(read(&mut second)), ["3", "4"]);
    stream.finish(Some(Bytes::from_static(b"r")));
    assert_eq!(texts(read(&mut second)), ["r"]);
    assert_eq!(read(&mut second), Some(Next::Finished));
}

#[test]
fn a_resuming_reader_supersedes_the_older() {
    let stream = stream();
    stream.prime();
    let mut old = stream.attach();
    let mut new = stream.resume(1).unwrap();
    stream.notify(log("x"));
    assert_eq!(read(&mut old), Some(Next::Superseded));
    assert_eq!(texts(read(&mut new)), ["x"]);
    drop(old);
    assert!(stream.is_attached());
    drop(new);
    assert!(!stream.is_attached());
}

// SPEC T-21, T-29: the newest of two is served, the other stays open.
#[test]
fn a_second_reader_beside_the_first_is_served_alone() {
    let stream = stream();
    let mut old = stream.attach();
    let mut new = stream.attach();
    stream.notify(log("x"));
    assert_eq!(read(&mut old), Some(Next::Quiet));
    assert_eq!(texts(read(&mut new)), ["x"]);
}

#[test]
fn an_id_from_the_future_is_refused() {
    let stream = stream();
    stream.notify(log("1"));
    assert!(stream.resume(1).is_ok());
    assert_eq!(stream.resume(2).err(), Some(NotKept));
}

#[test]
fn a_crowded_stream_keeps_the_newest_progress_and_drops_logs() {
    let stream = stream();
    let mut reader = stream.attach();
    assert!(stream.notify(progress("1", "10%")));
    for _ in 1..UNREAD_FRAMES {
        assert!(stream.notify(log("l")));
    }
    assert!(!stream.notify(log("too many")));
    assert!(stream.notify(progress("1", "90%")));
    stream.finish(Some(Bytes::from_static(b"reply")));
    let first = texts(read(&mut reader));
    assert_eq!(first.first().unwrap(), "90%");
    assert_eq!(texts(read(&mut reader)), ["reply"]);
}

#[test]
fn change_notices_merge_while_nobody_reads() {
    let stream = stream();
    for _ in 0..3 {
        stream.notify(Notice::list_changed("tools"));
    }
    stream.notify(Notice::list_changed("prompts"));
    let mut reader = stream.attach();
    assert_eq!(texts(read(&mut reader)).len(), 2);
}

#[test]
fn progress_is_kept_while_there_is_room() {
    let stream = stream();
    let mut reader = stream.attach();
    stream.notify(progress("1", "1"));
    stream.notify(progress("1", "2"));
    assert_eq!(texts(read(&mut reader)), ["1", "2"]);
}
