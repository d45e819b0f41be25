use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::*;
use crate::call::Principal;

const MIB: usize = 1 << 20;

fn holder(name: &str) -> Holder {
    Holder::Owner(Principal::new("issuer", name, "", Vec::new(), None).owner())
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
    assert_eq!(budget.take(alice, MIB).unwrap_err(), Exhausted::Share);
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
    assert_eq!(take("carol").unwrap_err(), Exhausted::Total);
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
    assert_eq!(refused.unwrap_err(), Exhausted::Share);
}

#[test]
fn lease_that_cannot_grow_keeps_what_it_has() {
    let budget = budget();
    let mut lease = budget.take(holder("alice"), MIB).unwrap();
    assert_eq!(lease.grow_to(5 * MIB), Err(Exhausted::Share));
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
