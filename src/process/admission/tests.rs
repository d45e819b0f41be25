//! Tests of `ChildSlots`: which waiter gets a place, and which child is evicted.

use futures_util::FutureExt as _;

use super::*;
use crate::call::samples::owner;
use crate::process::backoff::CrashBackoff;
use crate::process::start_limiter::StartLimiter;
use crate::process::state::ChildParams;
use crate::process::stderr::StderrLog;

fn slots(total: usize, per_owner: usize) -> Arc<ChildSlots> {
    ChildSlots::new(&StdioConfig {
        max_children: total,
        max_children_per_principal: per_owner,
        idle: std::time::Duration::MAX,
        spawn_wait: std::time::Duration::MAX,
        trust_children: false,
    })
}

fn request(who: &str, upstream: &str) -> SlotRequest {
    SlotRequest {
        owner: owner(who),
        upstream: upstream.into(),
        max_of_upstream: 3,
        patience: WaitPolicy::SpawnWait,
        holders: SessionHolders::default(),
    }
}

/// `request` for one session of `who`.
fn wish_of(who: &str, session: u8, upstream: &str) -> SlotRequest {
    SlotRequest {
        holders: SessionHolders::of([session; 16]),
        ..request(who, upstream)
    }
}

/// A child that has spoken, in its place.
fn child(slots: &Arc<ChildSlots>, slot: &ChildSlot, request: &SlotRequest) -> Arc<ChildState> {
    let starts = StartLimiter::new(1);
    let permit = starts.permit(request.owner, &request.upstream);
    let permit = permit.now_or_never().flatten();
    let child = Arc::new(ChildState::new(ChildParams {
        upstream: Arc::clone(&request.upstream),
        owner: request.owner,
        pid: 0,
        log: StderrLog::new([""; 0], [""; 0]),
        backoff: Arc::new(CrashBackoff::default()),
        credential: None,
        slots: Arc::clone(slots),
        start_permit: permit.unwrap(),
    }));
    slot.settle(Arc::clone(&child));
    child.spoke();
    child
}

fn at_once(slots: &Arc<ChildSlots>, request: SlotRequest) -> ChildSlot {
    match slots.take(request) {
        Admission::Taken(slot) => slot,
        other => panic!("{other:?}"),
    }
}

fn later(slots: &Arc<ChildSlots>, request: SlotRequest) -> oneshot::Receiver<ChildSlot> {
    match slots.take(request) {
        Admission::Later(later) => later,
        other => panic!("{other:?}"),
    }
}

#[test]
fn freed_place_goes_to_the_request_whose_child_was_evicted() {
    let slots = slots(2, 2);
    let alice = request("alice", "up");
    let first = at_once(&slots, alice.clone());
    let idle = child(&slots, &first, &alice);
    let _second = at_once(&slots, request("bob", "up"));
    let mut carol = later(&slots, request("carol", "up"));
    let mut mine = later(&slots, alice);
    assert!(idle.closed().is_cancelled(), "alice's own child makes room");
    drop(first);
    assert!(carol.try_recv().is_err(), "though carol came first");
    assert!(mine.try_recv().is_ok());
}

#[test]
fn each_waiter_costs_one_child_at_most() {
    let slots = slots(9, 2);
    let alice = request("alice", "up");
    let places = [0, 1].map(|_| at_once(&slots, alice.clone()));
    let children = [0, 1].map(|at: usize| child(&slots, &places[at], &alice));
    let closed = || {
        children
            .iter()
            .filter(|child| child.closed().is_cancelled())
            .count()
    };
    let _one = later(&slots, alice.clone());
    assert_eq!(closed(), 1);
    let _two = later(&slots, alice.clone());
    assert_eq!(closed(), 2);
    let _three = later(&slots, alice);
    assert_eq!(slots.counts(), (2, 3));
}

#[test]
fn a_child_that_is_ending_anyway_saves_another() {
    let slots = slots(9, 2);
    let alice = request("alice", "up");
    let places = [0, 1].map(|_| at_once(&slots, alice.clone()));
    let children = [0, 1].map(|at: usize| child(&slots, &places[at], &alice));
    children[1].stop(StopReason::Dropped);
    let _one = later(&slots, alice);
    assert!(!children[0].closed().is_cancelled());
}

#[test]
fn waiting_has_a_bound_and_leaves_nothing() {
    let slots = slots(1, 1);
    let place = at_once(&slots, request("alice", "up"));
    let waiting: Vec<_> = (0..4)
        .map(|_| later(&slots, request("bob", "up")))
        .collect();
    let refused = slots.take(request("bob", "up"));
    assert!(matches!(refused, Admission::Refused(full) if full.cap == ChildCap::Waiting(4)));
    drop(waiting);
    drop(place);
    assert_eq!(slots.counts(), (0, 0));
    assert_eq!(slots.entries(), 0);
}

#[test]
fn unclaimed_grant_goes_to_the_next_request() {
    let slots = slots(1, 1);
    let place = at_once(&slots, request("alice", "up"));
    let (gone, mut next) = (
        later(&slots, request("bob", "a")),
        later(&slots, request("carol", "b")),
    );
    drop(place);
    assert!(next.try_recv().is_err(), "first come, first served");
    drop(gone);
    assert!(next.try_recv().is_ok());
}

#[test]
fn session_evicts_no_child_of_its_own() {
    let slots = slots(9, 2);
    let own = wish_of("alice", 1, "up");
    let places = [0, 1].map(|_| at_once(&slots, own.clone()));
    let children = [0, 1].map(|at: usize| child(&slots, &places[at], &own));
    let Admission::Refused(full) = slots.take(wish_of("alice", 1, "more")) else {
        panic!("it would wait for itself");
    };
    assert_eq!(
        full.to_string(),
        "this session holds all 2 that stdio.max_children_per_principal allows"
    );
    assert!(children.iter().all(|child| !child.closed().is_cancelled()));
    // Another session of the same principal has its turn.
    let _waiting = later(&slots, wish_of("alice", 2, "more"));
    assert!(children.iter().any(|child| child.closed().is_cancelled()));
}

#[test]
fn refusal_names_the_cap_that_is_reached() {
    let slots = slots(4, 2);
    let mut held: Vec<_> = ["a", "b"]
        .map(|up| at_once(&slots, request("alice", up)))
        .into();
    let refused = |request: SlotRequest| {
        let patience = WaitPolicy::None;
        match slots.take(SlotRequest {
            patience,
            ..request
        }) {
            Admission::Refused(full) => full.cap,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(request("alice", "c")), ChildCap::Principal(2));
    held.push(at_once(&slots, request("bob", "b")));
    held.push(at_once(&slots, request("carol", "b")));
    assert_eq!(refused(request("dave", "b")), ChildCap::Upstream(3));
    assert_eq!(refused(request("dave", "c")), ChildCap::Total(4));
}
