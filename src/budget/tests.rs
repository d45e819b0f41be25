use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::*;
use crate::call::Principal;

const MIB: usize = 1 << 20;

fn holder(name: &str) -> BudgetHolder {
    Principal::new("issuer", name, "", Vec::new(), None)
        .owner()
        .into()
}

/// A budget of 16 MiB, 2 of them in reserve, with a share of 8 MiB.
fn budget() -> Arc<ByteBudget> {
    ByteBudget::new(16 * MIB, 8 * MIB, MIB)
}

#[test]
fn share_of_one_caller_leaves_room_for_another() {
    let budget = budget();
    let alice = holder("alice");
    let kept: Vec<_> = (0..4).map(|_| budget.take(alice, MIB).unwrap()).collect();
    assert_eq!(budget.take(alice, MIB).unwrap_err(), BudgetExhausted::Share);
    let other = budget.take(holder("bob"), 2 * MIB);
    assert!(other.is_ok());
    drop(kept);
    assert!(budget.take(alice, MIB).is_ok());
}

#[test]
fn all_callers_together_stay_within_the_total() {
    let budget = budget();
    let take = |name: &str| budget.take(holder(name), 3 * MIB);
    let kept = [take("alice"), take("bob")];
    assert!(kept.iter().all(Result::is_ok));
    assert_eq!(take("carol").unwrap_err(), BudgetExhausted::Total);
    assert_eq!(budget.used(), 12 * MIB);
    drop(kept);
    assert_eq!(budget.used(), 0);
}

#[test]
fn message_gives_its_bytes_back_with_its_last_slice() {
    let budget = budget();
    let lease = budget.take(holder("alice"), 2 * MIB).unwrap();
    let message = lease.hold(Bytes::from(vec![0; MIB]));
    assert_eq!(budget.used(), 2 * MIB, "what it weighs, not what was taken");
    let slice = message.slice(5..9);
    drop(message);
    assert_eq!(budget.used(), 2 * MIB);
    drop(slice);
    assert_eq!(budget.used(), 0);
    assert!(lock(&budget.used).by_holder.is_empty());
}

#[test]
fn small_message_takes_nothing() {
    let budget = ByteBudget::new(MIB, 0, EXEMPT_BYTES);
    let lease = budget.take(holder("alice"), EXEMPT_BYTES).unwrap();
    assert_eq!(budget.used(), 0);
    drop(lease);
    let refused = budget.take(holder("alice"), EXEMPT_BYTES + 1);
    assert_eq!(refused.unwrap_err(), BudgetExhausted::Share);
}

#[test]
fn lease_that_cannot_grow_keeps_what_it_has() {
    let budget = budget();
    let mut lease = budget.take(holder("alice"), MIB).unwrap();
    assert_eq!(lease.grow_to(5 * MIB), Err(BudgetExhausted::Share));
    assert_eq!(budget.used(), 2 * MIB);
    assert_eq!(lease.grow_to(4 * MIB), Ok(()));
    drop(lease);
    assert_eq!(budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn reserve_holds_one_message_of_each_caller() {
    const SOON: Duration = Duration::from_secs(1);
    // Room for two messages of 512 KiB.
    let budget = ByteBudget::new(16 * MIB, 8 * MIB, MIB / 2);
    let enter = |name: &str| {
        let (budget, holder) = (Arc::clone(&budget), holder(name));
        async move { timeout(SOON, budget.reserve(holder)).await }
    };
    let first = enter("alice").await.unwrap();
    assert!(enter("alice").await.is_err(), "one at a time");
    let second = enter("bob").await.unwrap();
    assert!(enter("carol").await.is_err(), "the reserve is full");
    drop(second);
    assert!(enter("carol").await.is_ok());
    drop(first.hold(Bytes::from_static(b"{}")));
    assert!(enter("alice").await.is_ok());
}

/// A budget of replies like [`budget`], and the share of `name` in it.
fn replies(name: &str) -> (Arc<ByteBudget>, ReplyShare) {
    let budget = ByteBudget::of_replies(16 * MIB, 8 * MIB, MIB);
    let share = ReplyShare::new(&budget, holder(name));
    (budget, share)
}

/// A reply for which room was taken.
async fn grown(share: &ReplyShare, len: usize) -> ReplyLease {
    let mut lease = share.lease();
    lease.grow_to(len).await;
    lease
}

#[tokio::test(start_paused = true)]
async fn reply_waits_until_there_is_room_for_it() {
    const LONG: Duration = Duration::from_secs(100);
    let (budget, share) = replies("alice");
    let kept: Vec<_> = [grown(&share, MIB).await, grown(&share, 3 * MIB).await].into();
    // One goes to the reserve.
    let reserved = grown(&share, MIB).await;
    assert_eq!(budget.used(), 8 * MIB);
    let mut lease = share.lease();
    assert!(timeout(LONG, lease.grow_to(MIB)).await.is_err());
    let other = ReplyShare::new(&budget, holder("bob"));
    assert!(timeout(LONG, grown(&other, MIB)).await.is_ok());
    let (waited, ()) = tokio::join!(timeout(LONG, lease.grow_to(MIB)), async {
        tokio::time::sleep(LONG / 2).await;
        drop(kept);
    });
    assert!(waited.is_ok());
    assert_eq!(budget.used(), 2 * MIB);
    drop((lease, reserved));
    assert_eq!(budget.used(), 0);
}

// Each has a part of the share that the others wait for.
#[tokio::test(start_paused = true)]
async fn replies_that_grow_at_once_do_not_wait_for_each_other() {
    let (budget, share) = replies("alice");
    let growing = (0..16).map(|_| async {
        let mut lease = share.lease();
        for part in 1..=32 {
            lease.grow_to(part * MIB / 32).await;
            tokio::task::yield_now().await;
        }
    });
    let all = join_all(growing);
    assert!(timeout(Duration::from_mins(1), all).await.is_ok());
    assert_eq!(budget.used(), 0);
}

#[tokio::test]
async fn answer_keeps_what_its_replies_have_taken_until_it_is_written() {
    let (budget, share) = replies("alice");
    let kept = KeptLeases::default();
    kept.keep(grown(&share, MIB).await);
    let answer = kept.hold(Bytes::from(vec![0; MIB]));
    assert_eq!(budget.used(), 2 * MIB);
    // The frame, a copy of `answer`, keeps the lease alive.
    let frame = held_with(Bytes::from(vec![0; MIB]), vec![Bytes::new(), answer]);
    assert_eq!(budget.used(), 2 * MIB);
    drop(frame);
    assert_eq!(budget.used(), 0);
    kept.keep(grown(&share, MIB).await);
    let small = kept.hold(Bytes::from_static(b"{}"));
    assert_eq!(budget.used(), 0);
    drop(small);
}
