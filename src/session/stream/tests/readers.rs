//! Several readers of one stream: which of them is served, and which is superseded.

use futures_util::future::poll_fn;

use super::super::*;
use super::{log, logged, read, stream, texts};

#[test]
fn a_resuming_reader_supersedes_the_older() {
    let stream = stream();
    stream.prime();
    let mut old = stream.attach();
    let mut new = stream.resume(1).unwrap();
    stream.notify(log("x"));
    assert_eq!(read(&mut old), Some(ReaderStep::Superseded));
    assert_eq!(texts(read(&mut new)), ["x"]);
    drop(old);
    assert!(stream.is_attached());
    drop(new);
    assert!(!stream.is_attached());
}

/// A client that comes back whenever its stream ends.
struct Returning {
    reader: StreamReader,
    last: u64,
    returns: usize,
}

impl Returning {
    fn new(stream: &Arc<EventStream>, last: u64) -> Self {
        Self {
            reader: stream.resume(last).unwrap(),
            last,
            returns: 0,
        }
    }

    fn go_on(&mut self, stream: &Arc<EventStream>) {
        while let Some(next) = read(&mut self.reader) {
            if let ReaderStep::Events(events) = next {
                self.last = events.last().unwrap().seq;
            } else {
                self.returns += 1;
                self.reader = stream.resume(self.last).unwrap();
            }
        }
    }
}

// SPEC T-25, T-29: each ends the other's stream once at most, from wherever they come back.
#[rstest::rstest]
fn two_clients_that_come_back_let_each_other_be(
    #[values(0, 1, 2)] first: u64,
    #[values(0, 1, 2)] second: u64,
) {
    let stream = stream();
    let mut reader = stream.attach();
    stream.notify(log("1"));
    stream.notify(log("2"));
    assert_eq!(texts(read(&mut reader)), ["1", "2"]);
    drop(reader);
    let mut clients = [first, second].map(|last| Returning::new(&stream, last));
    for _ in 0..10 {
        for client in &mut clients {
            client.go_on(&stream);
        }
    }
    let returns = clients.map(|client| client.returns);
    assert!(returns.iter().sum::<usize>() <= 2, "{returns:?}");
}

// SPEC T-25: on a quiet stream every break leaves a reader behind at the same place.
#[tokio::test(start_paused = true)]
async fn a_client_whose_connection_breaks_again_much_later_ends_the_dead_reader() {
    let stream = stream();
    stream.prime();
    let mut first = stream.attach();
    assert_eq!(texts(read(&mut first)), [""]);
    let mut second = stream.resume(1).unwrap();
    assert_eq!(read(&mut first), Some(ReaderStep::Superseded));
    tokio::time::advance(Duration::from_mins(10)).await;
    let third = stream.resume(1).unwrap();
    assert_eq!(read(&mut second), Some(ReaderStep::Superseded));
    drop([first, second, third]);
    assert!(!stream.is_attached());
}

// SPEC T-21, T-29: the newest of two is served, the other stays open.
#[test]
fn a_second_reader_beside_the_first_is_served_alone() {
    let stream = stream();
    let mut old = stream.attach();
    let mut new = stream.attach();
    stream.notify(log("x"));
    assert_eq!(read(&mut old), None);
    assert_eq!(texts(read(&mut new)), ["x"]);
}

// SPEC T-21, T-29: the next newest goes on where the newest ended.
#[tokio::test(start_paused = true)]
async fn when_the_newest_reader_goes_the_next_newest_is_served() {
    let stream = stream();
    let [mut first, mut second, mut third] = [stream.attach(), stream.attach(), stream.attach()];
    stream.notify(log("1"));
    assert_eq!(texts(read(&mut third)), ["1"]);
    stream.notify(log("2"));
    assert_eq!(read(&mut first), None);
    let next = poll_fn(|cx| second.poll_next(cx));
    let (next, ()) = tokio::join!(next, async { drop(third) });
    assert_eq!(texts(Some(next)), ["2"]);
    assert_eq!(logged(&stream), ["1", "2"]);
    drop(second);
    assert!(stream.is_attached());
    stream.notify(log("3"));
    assert_eq!(texts(read(&mut first)), ["3"]);
    drop(first);
    assert!(!stream.is_attached());
}

#[test]
fn an_older_reader_that_goes_leaves_the_newest_alone() {
    let stream = stream();
    let [first, second] = [stream.attach(), stream.attach()];
    drop(first);
    assert!(stream.is_attached());
    drop(second);
    assert!(!stream.is_attached());
    let mut later = stream.attach();
    stream.notify(log("1"));
    assert_eq!(texts(read(&mut later)), ["1"]);
}
