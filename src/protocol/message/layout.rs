//! Where the members of a message lie, as far as they are read.

use std::num::NonZeroU32;
use std::ops::Range;

use super::Kind;
use super::marks::{Mark, Marks};

/// Where the members that we read lie.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    /// Where the id lies, when it is not null.
    pub(super) id: Option<Span>,
    pub(super) method: Option<Method>,
    pub(super) members: Vec<Member>,
    /// Names of members that are written with escapes.
    pub(super) decoded: Vec<Box<str>>,
    /// Each object that was read, by [`Section`].
    pub(super) objects: [Option<Object>; Section::COUNT],
}

/// An object that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    pub(super) span: Span,
    /// The names of its members.
    pub(super) marks: Marks,
    /// Where its members lie among those of the message, with those of the objects in it before them.
    pub(super) members: Span,
}

/// A place in the bytes, or in the list of members; half as large as a range, as a message has many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

#[derive(Debug)]
pub(super) enum Method {
    /// As it stands in the bytes.
    Plain(Span),
    /// Written with escapes.
    Decoded(Box<str>),
}

/// One member of an object that was read; small, and nothing to let go of: a message has many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) section: Section,
    /// That of its name.
    pub(super) mark: Mark,
    /// The name between its quotes.
    pub(super) name: Span,
    /// Which of the decoded names is its own, counted from one, where it is written with escapes.
    pub(super) decoded: Option<NonZeroU32>,
    pub(super) value: Span,
}

/// The objects that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Top,
    Params,
    Meta,
    Result,
    /// `_meta` of a result; one in which a name may be repeated stays unread, as nothing in it is refused.
    ResultMeta,
    Error,
}

impl Layout {
    /// The name of a member that is written with escapes.
    #[cold]
    pub(super) fn decoded(&self, member: &Member) -> Option<&str> {
        nth(&self.decoded, member.decoded)
    }
}

impl Section {
    pub(super) const COUNT: usize = 6;

    /// The section that member `name` of this one holds, if that is read too.
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

impl Member {
    /// The same member of an object that stands elsewhere: what lay at `from` lies at `to`.
    pub(super) fn moved(self, from: usize, to: usize) -> Self {
        let Span { start, end } = Span::of(&(from..to));
        // Modulo 2^32, so that it may as well lie before.
        let by = end.wrapping_sub(start);
        Self {
            name: self.name.shifted(by),
            value: self.value.shifted(by),
            ..self
        }
    }

    /// Where the name stands, quotes included.
    pub(super) fn quoted_name(&self) -> Range<usize> {
        let name = self.name.range();
        name.start - 1..name.end + 1
    }
}

impl Span {
    /// Of what lies within the first 4 GiB, as all of a message does.
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

/// One of several names, counted from one.
pub(super) fn nth(names: &[Box<str>], place: Option<NonZeroU32>) -> Option<&str> {
    let index = place?.get() as usize - 1;
    names.get(index).map(|name| &**name)
}
