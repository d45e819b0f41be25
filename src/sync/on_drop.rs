//! `OnDrop`: undoes something when a future or a scope is left, however it is left.

/// Runs a function when it is dropped, unless it was [disarmed](Self::disarm).
#[derive(Debug)]
#[must_use = "the function runs as soon as this is dropped"]
pub struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnDrop<F> {
    /// Runs `undo` on drop.
    pub fn new(undo: F) -> Self {
        Self(Some(undo))
    }

    /// There is nothing left to undo.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn guard_undoes_once_unless_disarmed() {
        let undone = Cell::new(0);
        let count = || undone.set(undone.get() + 1);
        OnDrop::new(count).disarm();
        assert_eq!(undone.get(), 0);
        drop(OnDrop::new(count));
        assert_eq!(undone.get(), 1);
    }

    #[test]
    fn future_that_is_dropped_at_an_await_is_undone() {
        let undone = Cell::new(false);
        let future = async {
            let _undo = OnDrop::new(|| undone.set(true));
            std::future::pending::<()>().await;
        };
        let polled = futures_util::FutureExt::now_or_never(future);
        assert!(polled.is_none() && undone.get());
    }
}
