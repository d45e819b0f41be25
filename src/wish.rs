//! What somebody wishes for and somebody else makes so, while others change their minds.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A wish that is made so before anybody else may change it: what stands at the end is what was
/// wished last, whoever was slow on the way.
#[derive(Default)]
pub struct Wish<T>(Mutex<T>);

impl<T> Wish<T> {
    /// Changes the wish and makes so what is wished then. `make_so` waits for nobody; of several
    /// wishes, one that stands lower may be changed in it.
    pub fn change(&self, change: impl FnOnce(&mut T), make_so: impl FnOnce(&T)) {
        let mut wished = self.wished();
        change(&mut wished);
        make_so(&wished);
    }

    /// Makes so what is wished already, for something that is new.
    pub fn make_so(&self, make_so: impl FnOnce(&T)) {
        make_so(&self.wished());
    }

    fn wished(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Copy> Wish<T> {
    /// What is wished now; it may be something else in a moment.
    #[must_use]
    pub fn get(&self) -> T {
        *self.wished()
    }
}

impl<T: fmt::Debug> fmt::Debug for Wish<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be looked at while it is made so.
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
                // Somebody else changes their mind while this is slow.
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
