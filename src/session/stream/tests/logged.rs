//! Tests of `fresh` messages beside the log, and when they are logged.

use super::super::*;
use super::{log, logged, progress, read, stream, texts};

#[test]
fn what_a_reader_is_given_is_logged() {
    let stream = stream();
    let mut reader = stream.attach();
    stream.notify(log("1"));
    stream.finish(Some(Bytes::from_static(b"r")));
    assert_eq!(texts(read(&mut reader)), ["1", "r"]);
    assert_eq!(logged(&stream), ["1", "r"]);
    let mut again = stream.resume(1).unwrap();
    assert_eq!(texts(read(&mut again)), ["r"]);
    assert_eq!(read(&mut again), Some(ReaderStep::Finished));
}

#[test]
fn what_a_reader_leaves_behind_is_logged() {
    let stream = stream();
    let reader = stream.attach();
    stream.notify(log("1"));
    assert!(stream.is_kept());
    drop(reader);
    assert_eq!(logged(&stream), ["1"]);
    let mut next = stream.attach();
    assert_eq!(texts(read(&mut next)), ["1"]);
}

#[test]
fn a_reader_that_resumes_is_given_what_the_older_one_has_not_taken() {
    let stream = stream();
    let mut old = stream.attach();
    stream.notify(log("1"));
    assert_eq!(texts(read(&mut old)), ["1"]);
    stream.notify(log("2"));
    let mut new = stream.resume(1).unwrap();
    assert_eq!(texts(read(&mut new)), ["2"]);
    drop(old);
    assert_eq!(logged(&stream), ["1", "2"]);
}

#[test]
fn what_waits_for_a_first_reader_is_logged_when_none_comes() {
    let waiting = stream();
    waiting.lock().audience = StreamAudience::Awaited;
    waiting.notify(log("1"));
    assert_eq!(logged(&waiting), [""; 0]);
    waiting.settle();
    assert_eq!(logged(&waiting), ["1"]);
    waiting.notify(log("2"));
    assert_eq!(logged(&waiting), ["1", "2"]);
}

#[test]
fn little_waits_beside_the_log() {
    let stream = stream();
    let mut reader = stream.attach();
    let large: &str = Box::leak("x".repeat(FRESH_BYTES + 1).into_boxed_str());
    stream.notify(log(large));
    assert_eq!(logged(&stream), [large]);
    assert_eq!(texts(read(&mut reader)), [large]);
    for _ in 0..READ_AT_ONCE {
        stream.notify(log("n"));
    }
    assert_eq!(logged(&stream).len(), READ_AT_ONCE + 1);
    stream.put(Bytes::from_static(b"last"));
    assert_eq!(texts(read(&mut reader)).len(), READ_AT_ONCE);
    assert_eq!(texts(read(&mut reader)), ["last"]);
}

#[test]
fn replies_that_the_log_cannot_keep_together_reach_a_reader_that_is_there() {
    let stream = stream();
    stream.lock().holds_replies = true;
    let mut reader = stream.attach();
    let large = Bytes::from("x".repeat(600 * 1024));
    stream.put(large.clone());
    stream.put(large.clone());
    stream.notify(log("n"));
    stream.finish(Some(large.clone()));
    let text = String::from_utf8(large.to_vec()).unwrap();
    assert!(texts(read(&mut reader)) == [text.as_str(), &text, "n", &text]);
    assert_eq!(read(&mut reader), Some(ReaderStep::Finished));
}

#[test]
fn a_progress_that_waits_beside_the_log_gives_way_too() {
    let stream = stream();
    let mut reader = stream.attach();
    let large: &str = Box::leak("x".repeat(UNREAD_BYTES - 8).into_boxed_str());
    stream.notify(log(large));
    assert!(stream.notify(progress("1", "1000")));
    assert!(stream.notify(progress("2", "2000")));
    assert!(stream.notify(progress("1", "1001")));
    assert!(!stream.notify(log("full")));
    let all = texts(read(&mut reader));
    assert_eq!(all, [large]);
    assert_eq!(texts(read(&mut reader)), ["1001", "2000"]);
}

#[test]
fn the_end_of_a_session_leaves_nothing_to_log() {
    let stream = stream();
    let reader = stream.attach();
    stream.notify(log("1"));
    stream.close();
    drop(reader);
    assert_eq!(logged(&stream), [""; 0]);
}
