//! Handles: only what was sealed opens, for its own purpose and context.
#![no_main]

use std::sync::LazyLock;

use drawbridge::seal::{SealPurpose, Sealer};
use libfuzzer_sys::fuzz_target;

static SEALER: LazyLock<Sealer> = LazyLock::new(|| Sealer::new(&[]).expect("a random key"));

fuzz_target!(|data: (&[u8], &[u8], &str, u16)| {
    let (context, plain, foreign, at) = data;
    assert_eq!(SEALER.open(SealPurpose::Session, context, foreign), None);
    let sealed = SEALER.seal(SealPurpose::Cursor, context, plain);
    if sealed.len() > SealPurpose::Cursor.max_len() {
        return;
    }
    assert_eq!(
        SEALER.open(SealPurpose::Cursor, context, &sealed).as_deref(),
        Some(plain)
    );
    assert_eq!(SEALER.open(SealPurpose::RequestState, context, &sealed), None);
    let mut changed = sealed.clone().into_bytes();
    let at = usize::from(at) % changed.len();
    changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).expect("ASCII");
    assert_eq!(SEALER.open(SealPurpose::Cursor, context, &changed), None);
});
