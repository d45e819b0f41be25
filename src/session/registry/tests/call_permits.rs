//! Places for calls and the line of what waits for them. Spec: SPEC O-01, T-17.

use futures_util::FutureExt;

use super::*;
use crate::session::{
    CallCaps, CallEntry, CallPermit, QueueError, QueueLane, QueuedRequest, RateToll,
    RequestedService,
};

const PATIENCE: Duration = Duration::from_secs(5);

const CAPS: CallCaps = CallCaps {
    session: 1,
    principal: 2,
};

/// So many calls of a session, and of a principal.
fn caps(each: usize) -> CallCaps {
    CallCaps {
        session: each,
        principal: each,
    }
}

fn request(session: &Session) -> RequestedService {
    RequestedService {
        lane: QueueLane::requests(session.key()),
        toll: None,
        patience: PATIENCE,
    }
}

fn placed(session: &Arc<Session>, caps: CallCaps) -> CallPermit {
    match CallEntry::of(session, request(session), caps) {
        Ok(CallEntry::Permitted(place)) => place,
        other => panic!("{other:?}"),
    }
}

fn waits(session: &Arc<Session>, caps: CallCaps) -> QueuedRequest {
    match CallEntry::of(session, request(session), caps) {
        Ok(CallEntry::Waits(waiting)) => *waiting,
        other => panic!("{other:?}"),
    }
}

fn granted(waiting: QueuedRequest) -> Option<CallPermit> {
    waiting.turn().now_or_never()?.unwrap()
}

/// An allowance that is there after a time, counted from the beginning.
#[derive(Debug)]
struct After(Instant);

impl RateToll for After {
    fn pay(&self) -> Result<(), Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Ok(()) } else { Err(left) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_above_the_cap_waits_for_a_place() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let first = placed(&session, CAPS);
    let second = waits(&session, CAPS).turn();
    tokio::pin!(second);
    assert!(second.as_mut().now_or_never().is_none());
    tokio::time::advance(Duration::from_millis(4_999)).await;
    assert!(second.as_mut().now_or_never().is_none());
    drop(first);
    let second = second.await.unwrap();
    assert!(second.is_some());
    drop(second);
    assert!(session.call_permits().are_idle());
}

#[tokio::test(start_paused = true)]
async fn who_waited_too_long_is_refused_and_leaves() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let _first = placed(&session, CAPS);
    let refused = waits(&session, CAPS).turn().await;
    assert_eq!(refused.unwrap_err(), QueueError::NoPermit);
    let again = waits(&session, CAPS);
    let full = CallEntry::of(&session, request(&session), CAPS).unwrap_err();
    assert_eq!(full, QueueError::LineFull, "as many wait as may run");
    drop(again);
    let _again = waits(&session, CAPS);
}

/// A rate that allows everything, and the number of requests that it has counted.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl RateToll for Counted {
    fn pay(&self) -> Result<(), Duration> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_is_refused_for_want_of_a_permit_is_not_counted_at_its_end() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let caps = caps(2);
    let _running = (placed(&session, caps), placed(&session, caps));
    let _first = waits(&session, caps);
    let counted = Arc::new(AtomicUsize::new(0));
    let request = RequestedService {
        toll: Some(Box::new(Counted(Arc::clone(&counted)))),
        ..request(&session)
    };
    let Ok(CallEntry::Waits(second)) = CallEntry::of(&session, request, caps) else {
        panic!("no permit is free");
    };
    assert_eq!(second.turn().await.unwrap_err(), QueueError::NoPermit);
    assert_eq!(counted.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn head_of_a_lane_pays_the_rate_with_its_permit() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let running = placed(&session, CAPS);
    let counted = Arc::new(AtomicUsize::new(0));
    let ask = || {
        let request = RequestedService {
            toll: Some(Box::new(Counted(Arc::clone(&counted)))),
            ..request(&session)
        };
        match CallEntry::of(&session, request, CAPS) {
            Ok(CallEntry::Waits(waiting)) => *waiting,
            other => panic!("{other:?}"),
        }
    };
    let late = ask().turn().await;
    assert_eq!(late.unwrap_err(), QueueError::NoPermit);
    drop(ask());
    assert_eq!(counted.load(Ordering::Relaxed), 0, "none was served");
    let served = ask();
    drop(running);
    assert!(granted(served).is_some());
    assert_eq!(counted.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn request_that_waits_for_the_rate_has_no_permit() {
    let f = fixture(10, 10);
    let (a, b) = (f.open("alice").unwrap(), f.open("alice").unwrap());
    let caps = caps(1);
    let unpaid = RequestedService {
        lane: QueueLane::notifications(a.key()),
        toll: Some(Box::new(After(Instant::now() + Duration::from_secs(1)))),
        patience: PATIENCE,
    };
    let Ok(CallEntry::Waits(first)) = CallEntry::of(&a, unpaid, caps) else {
        panic!("the rate is used up");
    };
    let second = granted(waits(&b, caps));
    assert!(second.is_some(), "the only permit is free");
    drop(second);
    assert!(first.turn().await.unwrap().is_some());
    assert!(a.call_permits().are_idle());
}

#[tokio::test]
async fn sessions_of_a_principal_take_turns() {
    let f = fixture(10, 10);
    let (a, b) = (f.open("alice").unwrap(), f.open("alice").unwrap());
    let caps = caps(4);
    let mut running: Vec<_> = (0..4).map(|_| placed(&a, caps)).collect();
    let mut waiting = Vec::new();
    for (name, session) in [("a1", &a), ("a2", &a), ("b1", &b), ("b2", &b)] {
        waiting.push((name, Box::pin(waits(session, caps).turn())));
    }
    let mut order = Vec::new();
    let mut places = Vec::new();
    while let Some(place) = running.pop() {
        drop(place);
        waiting.retain_mut(|(name, turn)| match turn.as_mut().now_or_never() {
            None => true,
            Some(served) => {
                places.push(served.unwrap());
                order.push(*name);
                false
            }
        });
    }
    assert_eq!(order, ["a1", "b1", "a2", "b2"]);
}

#[tokio::test]
async fn a_full_session_does_not_hold_up_another() {
    let f = fixture(10, 10);
    let (a, b) = (f.open("alice").unwrap(), f.open("alice").unwrap());
    let _running = placed(&a, CAPS);
    let _waiting = waits(&a, CAPS);
    let of_b = waits(&b, CAPS);
    assert!(granted(of_b).is_some(), "served at once");
}

#[tokio::test]
async fn one_that_left_the_line_takes_no_place() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let caps = caps(2);
    let running = (placed(&session, caps), placed(&session, caps));
    let gone = waits(&session, caps);
    let next = waits(&session, caps);
    drop(gone);
    drop(running.0);
    assert!(granted(next).is_some());
    drop(running.1);
    assert!(session.call_permits().are_idle());
}

#[tokio::test(start_paused = true)]
async fn requests_above_the_rate_are_served_in_time() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let caps = caps(9);
    let began = Instant::now();
    let ask = |after: u64| {
        let toll: Box<dyn RateToll> = Box::new(After(began + Duration::from_secs(after)));
        let request = RequestedService {
            toll: Some(toll),
            ..request(&session)
        };
        CallEntry::of(&session, request, caps)
    };
    let Ok(CallEntry::Waits(first)) = ask(1) else {
        panic!("the allowance is not there yet");
    };
    let Ok(CallEntry::Waits(second)) = ask(2) else {
        panic!("the first one waits");
    };
    let Ok(CallEntry::Waits(never)) = ask(60) else {
        panic!("others wait");
    };
    let (first, second, never) = tokio::join!(first.turn(), second.turn(), never.turn());
    assert!(first.unwrap().is_some() && second.unwrap().is_some());
    let left = Duration::from_secs(55);
    assert_eq!(never.unwrap_err(), QueueError::Rate(left));
    assert!(session.call_permits().are_idle());
    let at_once = ask(60).unwrap_err();
    assert_eq!(at_once, QueueError::Rate(left), "it would come too late");
}

#[tokio::test(start_paused = true)]
async fn a_notification_waits_for_no_request() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let _running = placed(&session, CAPS);
    let _waiting = waits(&session, CAPS);
    let notice = RequestedService {
        lane: QueueLane::notifications(session.key()),
        toll: Some(Box::new(After(Instant::now() + Duration::from_secs(1)))),
        patience: PATIENCE,
    };
    let notice = session.call_permits().pay(notice, CAPS).unwrap();
    let paid = notice.turn().await;
    assert!(paid.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn line_of_a_principal_is_bounded_over_its_sessions() {
    let f = fixture(10, 10);
    let [first, second, third] = [(); 3].map(|()| f.open("alice").unwrap());
    let _running = [placed(&first, CAPS), placed(&second, CAPS)];
    let waiting = [waits(&first, CAPS), waits(&second, CAPS)];
    let full = CallEntry::of(&third, request(&third), CAPS).unwrap_err();
    assert_eq!(full, QueueError::LineFull, "as many wait as may run");
    // Notifications have a bound of their own, and another principal has a line of its own.
    let notice = RequestedService {
        lane: QueueLane::notifications(third.key()),
        toll: Some(Box::new(After(Instant::now() + Duration::from_secs(1)))),
        patience: PATIENCE,
    };
    let notice = third.call_permits().pay(notice, CAPS).unwrap();
    let bob = f.open("bob").unwrap();
    let _running_too = placed(&bob, CAPS);
    let _waiting_too = waits(&bob, CAPS);
    drop(waiting);
    let _waiting = waits(&third, CAPS);
    assert!(notice.turn().await.unwrap().is_none());
}
