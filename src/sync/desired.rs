//! A desired value, and the callback that applies it under the same lock: the last value set is the last applied.

use std::fmt;
use std::sync::Mutex;

use crate::lock::lock;

/// A desired value whose lock is held while the value is applied. A slow callback therefore cannot
/// overwrite a value set later by another thread.
#[derive(Default)]
pub struct Desired<T>(Mutex<T>);

impl<T> Desired<T> {
    /// Changes the value and applies it with `apply` under the lock. `apply` must not block; lock
    /// order: it may change only a `Desired` of a lower layer.
    pub fn set_and_apply(&self, change: impl FnOnce(&mut T), apply: impl FnOnce(&T)) {
        let mut desired = lock(&self.0);
        change(&mut desired);
        apply(&desired);
    }

    /// Applies the current value to a new target.
    pub fn apply(&self, apply: impl FnOnce(&T)) {
        apply(&lock(&self.0));
    }
}

impl<T: Copy> Desired<T> {
    /// The current value, a snapshot: another thread may change it right after.
    #[must_use]
    pub fn get(&self) -> T {
        *lock(&self.0)
    }
}

impl<T: fmt::Debug> fmt::Debug for Desired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `try_lock`: `apply` may log this value while the lock is held.
        match self.0.try_lock() {
            Ok(desired) => f.debug_tuple("Desired").field(&*desired).finish(),
            Err(_) => f.write_str("Desired(..)"),
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
        let desired = Arc::new(Desired::default());
        let made = Arc::new(Mutex::new(Vec::new()));
        let mut other = None;
        desired.set_and_apply(
            |wanted| *wanted = 1,
            |wanted| {
                // Another thread sets 2 while this callback is still applying 1.
                let (desired, theirs) = (Arc::clone(&desired), Arc::clone(&made));
                let (done, is_done) = mpsc::channel();
                other = Some(thread::spawn(move || {
                    desired.set_and_apply(
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
        desired.apply(|wanted| made.lock().unwrap().push(*wanted));
        assert_eq!(*made.lock().unwrap(), [1, 2, 2]);
        assert_eq!(
            (desired.get(), format!("{desired:?}")),
            (2, "Desired(2)".to_owned())
        );
    }
}
