use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use tokio::sync::Semaphore;

use super::fifo::{MAX_BYTES, MAX_COUNT};
use super::*;
use crate::call::{Call, Reply, ServerDeclaration};
use crate::fault::Fault;
use crate::protocol::Message;
use crate::session::registry::tests::fixture;

/// An upstream that takes as many notifications as it has permits.
#[derive(Debug)]
struct Slow {
    name: Arc<str>,
    permits: Semaphore,
    taken: Mutex<Vec<Bytes>>,
}

impl Slow {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            name: "up".into(),
            permits: Semaphore::new(permits),
            taken: Mutex::default(),
        })
    }

    fn taken(&self) -> Vec<u32> {
        let taken = lock(&self.taken);
        let numbers = taken
            .iter()
            .map(|bytes| bytes.iter().take_while(|byte| **byte == b'x').count());
        numbers.map(|number| number.try_into().unwrap()).collect()
    }
}

impl UpstreamLink for Slow {
    fn upstream(&self) -> &Arc<str> {
        &self.name
    }

    fn call<'a>(&'a self, _: &'a Message, _: &'a Call) -> BoxFuture<'a, Result<Reply, Fault>> {
        unreachable!("only notifications")
    }

    fn notify(&self, message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.permits.acquire().await.unwrap().forget();
            lock(&self.taken).push(message);
        })
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>> {
        unreachable!("only notifications")
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        None
    }

    fn listen(&self, _wanted: bool) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

fn session() -> Arc<Session> {
    fixture(9, 9).open("alice").unwrap()
}

const HOLD: Duration = Duration::from_secs(5);

/// Sends number `number`, padded to `bytes`.
fn send(session: &Arc<Session>, up: &Arc<Slow>, number: usize, bytes: usize) -> HeldNotifications {
    let text = "x".repeat(number) + &" ".repeat(bytes);
    HeldNotifications::send(
        session,
        vec![Arc::clone(up) as _],
        &text.into(),
        Instant::now() + HOLD,
    )
}

fn has_queue(session: &Session) -> bool {
    !lock(&session.notifications.0).is_empty()
}

async fn until_taken(up: &Slow, count: usize) {
    for _ in 0..1000 {
        if up.taken().len() >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("only {:?} were taken", up.taken());
}

#[tokio::test]
async fn upstream_that_takes_notifications_at_once_has_no_queue() {
    let (session, up) = (session(), Slow::new(9));
    for number in 1..=3 {
        assert!(send(&session, &up, number, 0).is_empty());
        assert!(!has_queue(&session));
    }
    assert_eq!(up.taken(), [1, 2, 3]);
}

// Spec: SPEC L-06.
#[tokio::test(start_paused = true)]
async fn waiting_notifications_leave_in_their_order() {
    let (session, up) = (session(), Slow::new(1));
    for number in 1..=20 {
        assert!(send(&session, &up, number, 0).is_empty());
    }
    assert_eq!(up.taken(), [1]);
    up.permits.add_permits(99);
    // A notification that could leave at once does not overtake queued ones.
    assert!(send(&session, &up, 21, 0).is_empty());
    until_taken(&up, 21).await;
    assert_eq!(up.taken(), (1..=21).collect::<Vec<_>>());
    tokio::time::sleep(HOLD).await;
    assert!(!has_queue(&session));
}

// Spec: SPEC O-01.
#[tokio::test(start_paused = true)]
async fn notification_over_the_bound_is_held_then_dropped() {
    for (each, queued) in [(0, MAX_COUNT), (MAX_BYTES / 4 - 100, 4), (3 * MAX_BYTES, 1)] {
        let (session, up) = (session(), Slow::new(0));
        // The first one is on its way.
        for number in 1..=queued + 1 {
            assert!(send(&session, &up, number, each).is_empty(), "{number}");
        }
        let began = Instant::now();
        let held = send(&session, &up, queued + 2, each);
        assert!(!held.is_empty());
        held.decided().await;
        assert_eq!(began.elapsed(), HOLD);
        up.permits.add_permits(1);
        until_taken(&up, 1).await;
        assert!(
            send(&session, &up, queued + 3, each).is_empty(),
            "there is room again"
        );
        up.permits.add_permits(999);
        until_taken(&up, queued + 2).await;
        let expected = (1..=queued + 1).chain([queued + 3]);
        let expected: Vec<u32> = expected.map(|number| number.try_into().unwrap()).collect();
        assert_eq!(up.taken(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn held_notification_takes_the_next_place() {
    let (session, up) = (session(), Slow::new(0));
    for number in 1..=2 {
        assert!(send(&session, &up, number, MAX_BYTES).is_empty());
    }
    let held = send(&session, &up, 3, MAX_BYTES / 2);
    // Small enough for the queue, and yet behind the one that is held.
    let behind = send(&session, &up, 4, 0);
    let began = Instant::now();
    up.permits.add_permits(2);
    held.decided().await;
    behind.decided().await;
    assert!(began.elapsed() < HOLD);
    up.permits.add_permits(9);
    until_taken(&up, 4).await;
    assert_eq!(up.taken(), [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn held_notifications_are_bounded_too() {
    let (session, up) = (session(), Slow::new(0));
    for number in 1..=3 {
        drop(send(&session, &up, number, 4 * MAX_BYTES));
    }
    let refused = send(&session, &up, 4, 4 * MAX_BYTES);
    assert!(refused.is_empty(), "nothing to wait for");
    up.permits.add_permits(9);
    until_taken(&up, 3).await;
    tokio::time::sleep(HOLD).await;
    assert_eq!(up.taken(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn end_of_the_session_ends_its_queues() {
    let fixture = fixture(9, 9);
    let (session, up) = (fixture.open("alice").unwrap(), Slow::new(0));
    for number in 1..=2 {
        drop(send(&session, &up, number, 2 * MAX_BYTES));
    }
    let held = send(&session, &up, 3, 2 * MAX_BYTES);
    let began = Instant::now();
    fixture.sessions.close(&session);
    held.decided().await;
    assert!(began.elapsed() < HOLD && !has_queue(&session));
    up.permits.add_permits(9);
    tokio::time::sleep(HOLD).await;
    assert!(up.taken().is_empty());
    assert!(send(&session, &up, 4, 0).is_empty());
    assert!(!has_queue(&session) && up.taken().is_empty());
    assert_eq!(Arc::strong_count(&up), 1, "nothing keeps the link");
}
