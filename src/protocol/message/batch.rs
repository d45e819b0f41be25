//! Arrays of messages: where each message lies.

use std::ops::Range;

use super::super::decode_error::DecodeError;
use super::super::json::JsonFlaw;
use super::bounds::MessageBounds;

/// Spans of the elements of an array of messages.
pub(super) fn spans(
    bytes: &[u8],
    bounds: MessageBounds,
    max_len: usize,
) -> Result<Vec<Range<usize>>, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)?;
    // The array itself is not part of any message's depth.
    let mut scanner = bounds.scanner(text, 1);
    let mut spans = Vec::new();
    let mut too_many = false;
    let walked = scanner.array(|scanner| {
        let span = scanner.value()?;
        too_many = spans.len() >= max_len;
        if too_many {
            return Err(JsonFlaw::Syntax);
        }
        spans.push(span);
        Ok(())
    });
    if too_many {
        return Err(DecodeError::TooMany);
    }
    let whole = walked.and_then(|()| scanner.finish());
    whole.map_err(|flaw| DecodeError::from_flaw(flaw, scanner.offset()))?;
    if spans.is_empty() {
        return Err(DecodeError::invalid("an array of messages is not empty"));
    }
    Ok(spans)
}
