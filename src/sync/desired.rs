//! A desired value, and the callback that applies it under the same lock: the last value set is the last applied.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A desired value whose lock is held while the value is applied. A slow callback therefore cannot
/// overwrite a value set later by another thread.
#[derive(Default)]
pub struct Wish<T>(Mutex<T>);

impl<T> Wish<T> {
    /// Changes the value and applies it with `make_so` under the lock. `make_so` must not block; lock
    /// order: it may change only a `Wish` of a lower layer.
    pub fn change(&self, change: impl FnOnce(&mut T), make_so: impl FnOnce(&T)) {
        let mut wished = self.wished();
        change(&mut wished);
        make_so(&wished);
    }

    /// Applies the current value to a new target.
    pub fn make_so(&self, make_so: impl FnOnce(&T)) {
        make_so(&self.wished());
    }

    fn wished(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Copy> Wish<T> {
    /// The current value, a snapshot: another thread may change it right after.
    #[must_use]
    pub fn get(&self) -> T {
        *self.wished()
    }
}

impl<T: fmt::Debug> fmt::Debug for Wish<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `try_lock`: `make_so` may log this value while the lock is held.
        match self.0.try_lock() {
            Ok(wished) => f.debug_tuple("Wish").field(&*wished).finish(),
            Err(_) => f.write_str("Wish(..)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_wished_last_is_made_so_last() {
        let wish = Arc::new(Wish::default());
        let made = Arc::new(Mutex::new(Vec::new()));
        let mut other = None;
        wish.change(
            |wanted| *wanted = 1,
            |wanted| {
                // Another thread sets 2 while this callback is still applying 1.
                let (wish, theirs) = (Arc::clone(&wish), Arc::clone(&made));
                let (done, is_done) = mpsc::channel();
                other = Some(thread::spawn(move || {
                    wish.change(
                        |wanted| *wanted = 2,
                        |wanted| theirs.lock().unwrap().push(*wanted),
                    );
                    let _ = done.send(());
                }));
                let _ = is_done.recv_timeout(Duration::from_millis(200));
                made.lock().unwrap().push(*wanted);
            },
        );
        other.unwrap().join().unwrap();
        wish.make_so(|wanted| made.lock().unwrap().push(*wanted));
        assert_eq!(*made.lock().unwrap(), [1, 2, 2]);
        assert_eq!((wish.get(), format!("{wish:?}")), (2, "Wish(2)".to_owned()));
    }
}
