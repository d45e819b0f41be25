mod durable;
mod logged;
mod readers;

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::poll_fn;

use super::*;
use crate::store::events::{LogBounds, MemoryEvents};

fn stream() -> Arc<EventStream> {
    let key = StreamKey {
        session: [1; 16],
        stream: 3,
    };
    EventStream::new(key, Arc::new(MemoryEvents::new(LogBounds::ROOMY)))
}

fn progress(token: &str, text: impl Into<Bytes>) -> Notice {
    let kind = NoticeKind::Progress {
        token: token.into(),
    };
    Notice {
        kind,
        bytes: text.into(),
    }
}

fn log(text: &'static str) -> Notice {
    Notice {
        kind: NoticeKind::Log,
        bytes: Bytes::from_static(text.as_bytes()),
    }
}

/// What the reader has to give right now.
fn read(reader: &mut StreamReader) -> Option<ReaderStep> {
    poll_fn(|cx| reader.poll_next(cx)).now_or_never()
}

fn texts(next: Option<ReaderStep>) -> Vec<String> {
    match next {
        Some(ReaderStep::Events(events)) => events
            .into_iter()
            .map(|event| String::from_utf8(event.payload.to_vec()).unwrap())
            .collect(),
        other => panic!("{other:?}"),
    }
}

/// What the log holds of a stream.
fn logged(stream: &EventStream) -> Vec<Bytes> {
    match stream.store.after(stream.key, 0, usize::MAX) {
        ReplayResult::Events(events) => events.into_iter().map(|event| event.payload).collect(),
        ReplayResult::Unknown => Vec::new(),
        ReplayResult::Evicted(_) => panic!("evicted"),
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
    assert_eq!(read(&mut reader), Some(ReaderStep::Finished));
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
    assert_eq!(read(&mut second), Some(ReaderStep::Finished));
}

// SPEC T-26.
#[test]
fn a_stream_can_be_resumed_from_where_a_reader_began() {
    let stream = stream();
    let first = stream.attach();
    assert_eq!(first.place(), (0, 1));
    drop(first);
    let mut second = stream.resume(0).unwrap();
    assert_eq!(read(&mut second), None);
    drop(second);
    stream.notify(log("1"));
    let mut third = stream.attach();
    let (before, _) = third.place();
    assert_eq!(texts(read(&mut third)), ["1"]);
    let mut fourth = stream.resume(before).unwrap();
    assert_eq!(texts(read(&mut fourth)), ["1"]);
}

// SPEC T-25.
#[test]
fn stream_has_ended_where_no_message_is_left() {
    let [replied, cancelled, unread] = [stream(), stream(), stream()];
    replied.prime();
    assert!(!replied.has_ended_at(1), "it runs");
    replied.finish(Some(Bytes::from_static(b"r")));
    assert!(!replied.has_ended_at(1), "the reply is left");
    assert!(replied.has_ended_at(2));
    cancelled.prime();
    cancelled.finish(None);
    assert!(cancelled.has_ended_at(1), "an empty event is left");
    let _reader = unread.attach();
    unread.finish(Some(Bytes::from_static(b"r")));
    assert!(!unread.has_ended_at(0), "the reply is not logged yet");
}

// SPEC T-26: a client may know no other id than those that its newest connection has brought.
#[test]
fn a_resumed_reader_names_its_place_once_more() {
    let stream = stream();
    stream.notify(log("1"));
    let mut places = Vec::new();
    for _ in 0..3 {
        places.push(stream.resume(1).unwrap().place());
    }
    assert_eq!(places, [(1, 1), (1, 2), (1, 3)]);
}

#[test]
fn an_id_from_the_future_is_refused() {
    let stream = stream();
    stream.notify(log("1"));
    assert!(stream.resume(1).is_ok());
    assert_eq!(stream.resume(2).err(), Some(NotKept));
}

// SPEC T-25.
#[test]
fn stream_goes_on_with_what_is_left_behind_a_gap() {
    let bounds = LogBounds {
        per_session: 1,
        ..LogBounds::ROOMY
    };
    let stream = EventStream::new(stream().key, Arc::new(MemoryEvents::new(bounds)));
    for text in ["1", "2", "3"] {
        stream.notify(log(text));
    }
    assert_eq!(stream.resume(1).err(), Some(NotKept));
    let mut reader = stream.resume_past_gap(1).unwrap();
    assert_eq!(texts(read(&mut reader)), ["3"]);
    assert!(stream.resume_past_gap(3).is_none(), "there is no gap");
    assert!(stream.resume_past_gap(4).is_none(), "nor such an event");
}

#[test]
fn stream_without_events_of_its_former_owner_goes_on() {
    let stream = stream();
    stream.restore_without_events(9);
    assert_eq!(stream.resume(4).err(), Some(NotKept));
    assert_eq!(stream.resume_past_gap(4).unwrap().place().0, 9);
    assert!(stream.resume_past_gap(9).is_none(), "there is no gap");
    assert_eq!(stream.resume(9).unwrap().place().0, 9);
    assert!(stream.resume_past_gap(10).is_none(), "no such event");
    assert_eq!(stream.resume(10).err(), Some(NotKept));
}

#[test]
fn new_events_behind_those_of_a_former_owner_are_read() {
    let stream = stream();
    let mut former = ["1", "2", "3"].map(|text| LoggedEvent::of(text.into()));
    stream.store.append(stream.key, &mut former);
    stream.restore_without_events(3);
    stream.notify(log("4"));
    assert_eq!(stream.resume(1).err(), Some(NotKept));
    let mut reader = stream.resume_past_gap(1).unwrap();
    assert_eq!(texts(read(&mut reader)), ["4"]);
    assert_eq!(texts(read(&mut stream.resume(3).unwrap())), ["4"]);
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

// SPEC C-02: progress only grows. Both where a reader is behind and where there is none yet.
#[test]
fn progress_that_is_not_read_keeps_its_order() {
    for is_read in [true, false] {
        let stream = stream();
        let before = is_read.then(|| stream.attach());
        let last = UNREAD_FRAMES + 6;
        for step in 1..=last {
            assert!(stream.notify(progress("1", step.to_string())));
        }
        let mut reader = before.unwrap_or_else(|| stream.attach());
        let mut steps: Vec<usize> = Vec::new();
        while steps.last() != Some(&last) {
            let read = texts(read(&mut reader));
            assert!(!read.is_empty(), "the newest is lost: {steps:?}");
            steps.extend(read.iter().map(|step| step.parse::<usize>().unwrap()));
        }
        assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
        assert_eq!(steps.len(), UNREAD_FRAMES);
    }
}

#[test]
fn notices_that_come_at_once_are_taken_as_one_by_one() {
    let streams = [stream(), stream()];
    let mut readers = streams.each_ref().map(EventStream::attach);
    let notices = || {
        let many = (0..2 * UNREAD_FRAMES).map(|_| log("l"));
        [progress("1", "10%")]
            .into_iter()
            .chain(many)
            .chain([progress("1", "90%")])
    };
    for notice in notices() {
        streams[0].notify(notice);
    }
    streams[1].notify_all(notices());
    streams[1].notify_all(std::iter::empty());
    let [one_by_one, at_once] = readers.each_mut().map(|reader| texts(read(reader)));
    assert_eq!(at_once, one_by_one);
    assert_eq!((at_once.len(), &*at_once[0]), (UNREAD_FRAMES, "90%"));
}

#[tokio::test(start_paused = true)]
async fn notices_that_come_at_once_wake_the_reader() {
    let stream = stream();
    let mut reader = stream.attach();
    let both = async {
        let next = poll_fn(|cx| reader.poll_next(cx));
        let put = async { stream.notify_all([log("a"), log("b")].into_iter()) };
        tokio::join!(next, put).0
    };
    let started = tokio::time::Instant::now();
    let next = tokio::time::timeout(Duration::from_secs(1), both).await;
    assert_eq!(texts(next.ok()), ["a", "b"]);
    assert!(started.elapsed().is_zero(), "not woken");
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

#[test]
fn a_reader_at_rest_is_not_woken_and_misses_nothing() {
    struct Count(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(0.into()));
    let waker = Waker::from(Arc::clone(&count));
    let mut cx = std::task::Context::from_waker(&waker);
    let woken = || count.0.load(std::sync::atomic::Ordering::Relaxed);
    let stream = stream();
    let mut reader = stream.attach();
    assert!(reader.poll_next(&mut cx).is_pending());
    stream.notify(log("1"));
    assert_eq!(woken(), 1);
    assert_eq!(texts(read(&mut reader)), ["1"]);
    assert!(reader.poll_next(&mut cx).is_pending());
    reader.rest();
    stream.notify(log("2"));
    assert_eq!(woken(), 1);
    assert_eq!(texts(read(&mut reader)), ["2"]);
    // An older reader cannot silence the newest.
    let mut newest = stream.attach();
    assert!(newest.poll_next(&mut cx).is_pending());
    reader.rest();
    stream.notify(log("3"));
    assert_eq!(woken(), 2);
}

// SPEC T-27: what is on the stream comes first, and a client that is back is not sent away again.
#[test]
fn hung_up_readers_end_and_a_resumed_one_stays() {
    let stream = stream();
    stream.prime();
    let wait = Some(Duration::from_millis(70));
    // `hang_up` without a reader closes no connection.
    stream.hang_up(wait);
    let mut first = stream.attach();
    assert_eq!(texts(read(&mut first)), [""]);
    let mut second = stream.attach();
    stream.notify(log("1"));
    stream.hang_up(wait);
    assert_eq!(texts(read(&mut second)), ["1"]);
    assert_eq!(read(&mut second), Some(ReaderStep::HungUp(wait)));
    drop(second);
    assert_eq!(read(&mut first), Some(ReaderStep::HungUp(wait)));
    drop(first);
    let mut back = stream.resume(2).unwrap();
    assert_eq!(read(&mut back), None);
    stream.finish(Some(Bytes::from_static(b"r")));
    assert_eq!(texts(read(&mut back)), ["r"]);
    assert_eq!(read(&mut back), Some(ReaderStep::Finished));
}

#[test]
fn reply_is_given_in_spite_of_a_hang_up() {
    let bounds = stream();
    let stream = EventStream::awaited(bounds.key, Arc::clone(&bounds.store));
    stream.prime();
    stream.hang_up(None);
    // The first reader is still to come, and is the one that the close is for.
    let mut reader = stream.attach();
    assert_eq!(texts(read(&mut reader)), [""]);
    assert_eq!(read(&mut reader), Some(ReaderStep::HungUp(None)));
    reader.stay();
    assert_eq!(read(&mut reader), None);
    stream.hang_up(None);
    stream.finish(Some(Bytes::from_static(b"r")));
    assert_eq!(texts(read(&mut reader)), ["r"]);
    assert_eq!(read(&mut reader), Some(ReaderStep::Finished));
}
