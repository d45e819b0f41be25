//! `RecordHead`: the part of a record that scripts read and change.

use crate::ownership::Ownership;

/// Version of the head.
const VERSION: u8 = 1;
/// The state of a session that is over.
const OVER: u8 = 1;

/// The head of a record, and the sealed body behind it.
pub(super) struct RecordHead<'a> {
    pub(super) by: Ownership,
    pub(super) highest_stream: u32,
    pub(super) is_over: bool,
    pub(super) body: &'a [u8],
}

impl<'a> RecordHead<'a> {
    /// Reads the head of a stored record. `None` for another version.
    pub(super) fn read(value: &'a [u8]) -> Option<Self> {
        let (version, rest) = value.split_first()?;
        if *version != VERSION {
            return None;
        }
        let (by, rest) = Ownership::split_from(rest)?;
        let (highest_stream, rest) = rest.split_first_chunk()?;
        let (state, body) = rest.split_first()?;
        Some(Self {
            by,
            highest_stream: u32::from_be_bytes(*highest_stream),
            is_over: *state == OVER,
            body,
        })
    }
}
