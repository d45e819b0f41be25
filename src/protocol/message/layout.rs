//! `MessageLayout`: spans of the members of a message that the gateway reads.

use std::num::NonZeroU32;
use std::ops::Range;

use super::MessageKind;
use super::name_filter::{NameBit, NameFilter};

/// Members of one message, by section and span.
#[derive(Debug)]
pub(super) struct MessageLayout {
    pub(super) kind: MessageKind,
    /// Where the id lies, when it is not null.
    pub(super) id: Option<MemberSpan>,
    pub(super) method: Option<MethodName>,
    pub(super) members: Vec<MemberExtent>,
    /// Names of members that are written with escapes.
    pub(super) decoded: Vec<Box<str>>,
    /// Each object that was read, by [`MessageSection`].
    pub(super) objects: [Option<ObjectExtent>; MessageSection::COUNT],
}

/// An object that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectExtent {
    pub(super) span: MemberSpan,
    /// The names of its members.
    pub(super) marks: NameFilter,
    /// Where its members lie among those of the message, with those of the objects in it before them.
    pub(super) members: MemberSpan,
}

/// A place in the bytes, or in the list of members; half as large as a range, as a message has many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemberSpan {
    pub(super) start: u32,
    pub(super) end: u32,
}

#[derive(Debug)]
pub(super) enum MethodName {
    /// As it stands in the bytes.
    Plain(MemberSpan),
    /// Written with escapes.
    Decoded(Box<str>),
}

/// One member of a parsed object. Small and without drop glue, as a message has many.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemberExtent {
    pub(super) section: MessageSection,
    /// Mark of the name.
    pub(super) mark: NameBit,
    /// The name between its quotes.
    pub(super) name: MemberSpan,
    /// Index into `MessageLayout::decoded`, from one, if the name is written with escapes.
    pub(super) decoded: Option<NonZeroU32>,
    pub(super) value: MemberSpan,
}

/// The objects that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageSection {
    Top,
    Params,
    Meta,
    Result,
    /// `_meta` of a result; with a possibly repeated name the whole object stays unread, rather than refused.
    ResultMeta,
    Error,
}

impl MessageLayout {
    /// The decoded name of a member, if written with escapes.
    #[cold]
    pub(super) fn decoded(&self, member: &MemberExtent) -> Option<&str> {
        nth(&self.decoded, member.decoded)
    }
}

impl MessageSection {
    pub(super) const COUNT: usize = 6;

    /// The section of the object in member `name` of this section, if read.
    pub(super) fn child(self, name: &[u8]) -> Option<Self> {
        Some(match (self, name) {
            (Self::Top, b"params") => Self::Params,
            (Self::Top, b"result") => Self::Result,
            (Self::Top, b"error") => Self::Error,
            (Self::Params, b"_meta") => Self::Meta,
            (Self::Result, b"_meta") => Self::ResultMeta,
            _ => return None,
        })
    }
}

impl MemberExtent {
    /// The member of an equal object elsewhere: spans relative to `from` become relative to `to`.
    pub(super) fn moved(self, from: usize, to: usize) -> Self {
        let MemberSpan { start, end } = MemberSpan::of(&(from..to));
        // Modulo 2^32, so that `to` may be less than `from`.
        let by = end.wrapping_sub(start);
        Self {
            name: self.name.shifted(by),
            value: self.value.shifted(by),
            ..self
        }
    }

    /// Span of the name with its quotes.
    pub(super) fn quoted_name(&self) -> Range<usize> {
        let name = self.name.range();
        name.start - 1..name.end + 1
    }
}

impl MemberSpan {
    /// A span within the first 4 GiB, which a message never exceeds.
    pub(super) fn of(range: &Range<usize>) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a message is shorter than 4 GiB"
        )]
        Self {
            start: range.start as u32,
            end: range.end as u32,
        }
    }

    fn shifted(self, by: u32) -> Self {
        Self {
            start: self.start.wrapping_add(by),
            end: self.end.wrapping_add(by),
        }
    }

    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// `names` at `place`, an index from one.
pub(super) fn nth(names: &[Box<str>], place: Option<NonZeroU32>) -> Option<&str> {
    let index = place?.get() as usize - 1;
    names.get(index).map(|name| &**name)
}
