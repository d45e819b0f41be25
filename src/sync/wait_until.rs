//! Waiting for a condition that changes with a notification.

use tokio::sync::Notify;

/// Waits until `is_met`, which is looked at first and after each [`Notify::notify_waiters`] of `changed`.
///
/// # Cancel safety
/// Nothing is lost.
pub async fn wait_until(changed: &Notify, is_met: impl Fn() -> bool) {
    loop {
        // Made before the look: a notification in between is not lost.
        let notified = changed.notified();
        if is_met() {
            return;
        }
        notified.await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn met_condition_needs_no_notification() {
        let changed = Notify::new();
        assert!(wait_until(&changed, || true).now_or_never().is_some());
        assert!(wait_until(&changed, || false).now_or_never().is_none());
    }

    #[test]
    fn notification_during_the_look_is_not_lost() {
        let (changed, looks) = (Notify::new(), Cell::new(0));
        let third = || {
            looks.set(looks.get() + 1);
            changed.notify_waiters();
            looks.get() == 3
        };
        assert!(wait_until(&changed, third).now_or_never().is_some());
        assert_eq!(looks.get(), 3);
    }
}
