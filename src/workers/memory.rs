//! What a worker's allocator holds although nobody uses it.

use std::hint::black_box;
use std::time::Duration;

/// How often a worker looks for such memory.
const EVERY: Duration = Duration::from_secs(20);

/// More than any 64-bit address space has.
const TOO_MUCH: usize = isize::MAX.unsigned_abs() / 2;

/// Gives memory back, again and again.
///
/// A block that another thread frees goes back to the page of the thread that allocated it, and that
/// thread takes notice when it next allocates such blocks. What one worker opened and another one
/// ended would be held for as long as there is nothing to do: 31 of 57 MiB after 2,000 sessions.
pub(super) async fn tend() {
    loop {
        tokio::time::sleep(EVERY).await;
        collect();
    }
}

/// Makes the allocator look through all pages of this thread.
///
/// mimalloc does so before it refuses a request, and can be told to only by unsafe code. Any other
/// allocator just refuses.
fn collect() {
    let mut nothing: Vec<u8> = Vec::new();
    let refused = black_box(&mut nothing).try_reserve_exact(TOO_MUCH).is_err();
    black_box(refused);
}
