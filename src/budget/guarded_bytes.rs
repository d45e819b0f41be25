//! Bytes that keep what they have taken until their last slice is dropped.

use bytes::Bytes;

/// Bytes that keep their guard for as long as any slice of them lives.
struct GuardedBytes<G> {
    bytes: Bytes,
    _guard: G,
}

impl<G> AsRef<[u8]> for GuardedBytes<G> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// `bytes`, which keep `guard` until the last slice of them is dropped.
pub(super) fn guarded<G: Send + 'static>(bytes: Bytes, guard: G) -> Bytes {
    Bytes::from_owner(GuardedBytes {
        bytes,
        _guard: guard,
    })
}
