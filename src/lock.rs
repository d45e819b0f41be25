//! Taking a mutex whatever became of its last holder: no critical section of ours leaves behind what
//! the next one could not go on with.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a mutex holds. Waits for its holder; never across an `await`.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
