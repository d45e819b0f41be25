//! Events: however a stream is cut into chunks, the same events come out, within bounds.
#![no_main]

use bytes::Bytes;
use drawbridge::protocol::sse::{SseDecoder, SseEvent};
use libfuzzer_sys::fuzz_target;

const MAX: usize = 256;
/// What a line may spend on its field name besides.
const NAME: usize = 16;

fn events(chunks: impl Iterator<Item = Bytes>) -> (Vec<SseEvent>, bool) {
    let mut decoder = SseDecoder::new(MAX);
    let mut all = Vec::new();
    for chunk in chunks {
        decoder.feed(chunk);
        loop {
            match decoder.next() {
                Ok(Some(event)) => {
                    assert!(event.data.len() <= MAX + NAME);
                    all.push(event);
                }
                Ok(None) => break,
                Err(_) => return (all, true),
            }
        }
    }
    (all, false)
}

fuzz_target!(|data: (u8, &[u8])| {
    let (size, data) = (usize::from(data.0 % 16) + 1, data.1);
    let whole = events(std::iter::once(Bytes::copy_from_slice(data)));
    let parts = events(data.chunks(size).map(Bytes::copy_from_slice));
    assert_eq!(whole, parts);
});
