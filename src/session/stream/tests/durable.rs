//! A store outside this process: events are shown once it has them, and fetched before they are resumed.

use std::sync::atomic::Ordering;

use super::super::*;
use super::{log, read, stream as local_stream, texts};
use crate::store::events::RemoteEvents;

fn remote() -> (Arc<RemoteEvents>, Arc<EventStream>) {
    let store = RemoteEvents::new();
    let key = local_stream().key;
    (Arc::clone(&store), EventStream::new(key, store))
}

#[tokio::test]
async fn events_are_shown_once_their_store_has_them() {
    let (store, stream) = remote();
    let mut reader = stream.attach();
    stream.notify(log("1"));
    stream.notify(log("2"));
    assert_eq!(read(&mut reader), None);
    store.acknowledge(1);
    assert_eq!(read(&mut reader), None, "one write holds both");
    let shown = std::future::poll_fn(|cx| reader.poll_next(cx));
    let acknowledged = async { store.acknowledge(2) };
    let (first, ()) = tokio::join!(shown, acknowledged);
    assert_eq!(texts(Some(first)), ["1", "2"]);
    assert_eq!(read(&mut reader), None, "each is shown once");
}

#[tokio::test]
async fn what_was_logged_elsewhere_is_fetched_before_it_is_resumed() {
    let (store, stream) = remote();
    store.acknowledge(9);
    assert_eq!(stream.resume(1).unwrap_err(), NotKept);
    stream.recall(1).await;
    let mut reader = stream.resume(1).unwrap();
    assert_eq!(texts(read(&mut reader)), ["2"]);
}

#[tokio::test]
async fn unlogged_events_are_delivered_without_position() {
    let (store, stream) = remote();
    let mut reader = stream.attach();
    store.down.store(true, Ordering::SeqCst);
    stream.notify(log("1"));
    let Some(ReaderStep::Events(events)) = read(&mut reader) else {
        panic!("nothing is delivered");
    };
    assert_eq!((events[0].seq, &events[0].payload[..]), (0, &b"1"[..]));
    store.down.store(false, Ordering::SeqCst);
    store.acknowledge(2);
    stream.notify(log("2"));
    let Some(ReaderStep::Events(events)) = read(&mut reader) else {
        panic!("nothing is delivered");
    };
    assert_eq!((events[0].seq, &events[0].payload[..]), (2, &b"2"[..]));
}

#[tokio::test]
async fn events_of_a_dropped_reader_go_to_the_next_one() {
    let (store, stream) = remote();
    let mut older = stream.attach();
    let mut newer = stream.attach();
    stream.notify(log("1"));
    assert_eq!(read(&mut newer), None, "its store does not have it");
    drop(newer);
    assert_eq!(read(&mut older), None, "nor now");
    drop(older);
    store.acknowledge(1);
    let mut next = stream.attach();
    assert_eq!(texts(read(&mut next)), ["1"]);
    drop(next);
    let mut last = stream.attach();
    assert_eq!(read(&mut last), None, "each is shown once");
}

#[tokio::test]
async fn fenced_stream_ends_without_its_events() {
    let (store, stream) = remote();
    let mut reader = stream.attach();
    stream.notify(log("1"));
    assert_eq!(read(&mut reader), None);
    store.fenced.store(true, Ordering::SeqCst);
    assert_eq!(read(&mut reader), Some(ReaderStep::Finished));
    drop(reader);
    store.fenced.store(false, Ordering::SeqCst);
    store.acknowledge(1);
    let mut next = stream.attach();
    assert_eq!(texts(read(&mut next)), ["1"], "the session has stayed");
}
