//! Replacements, collected on a walk and applied in one go.

use std::borrow::Cow;
use std::ops::Range;

#[derive(Debug)]
struct SpliceEdit<'t> {
    span: Range<usize>,
    text: Cow<'t, str>,
}

/// Replacements in one text; they do not overlap.
#[derive(Debug, Default)]
pub(crate) struct SpliceSet<'t> {
    edits: Vec<SpliceEdit<'t>>,
}

impl<'t> SpliceSet<'t> {
    /// Puts `text` in place of `span`.
    pub(crate) fn replace(&mut self, span: Range<usize>, text: Cow<'t, str>) {
        self.edits.push(SpliceEdit { span, text });
    }

    /// Puts `text` before the byte at `at`.
    pub(crate) fn insert(&mut self, at: usize, text: Cow<'t, str>) {
        self.replace(at..at, text);
    }

    /// Forgets all replacements.
    pub(crate) fn clear(&mut self) {
        self.edits.clear();
    }

    /// The text with all replacements made.
    pub(crate) fn apply(mut self, text: &'t str) -> Cow<'t, str> {
        if self.edits.is_empty() {
            return Cow::Borrowed(text);
        }
        let added: usize = self.edits.iter().map(|edit| edit.text.len()).sum();
        let mut out = String::with_capacity(text.len() + added);
        self.append(&mut out, text, 0..text.len());
        Cow::Owned(out)
    }

    /// Appends the part of `text` at `span`, in which all replacements lie, and forgets them.
    pub(crate) fn append(&mut self, out: &mut String, text: &str, span: Range<usize>) {
        // A walk meets them nearly in order.
        self.edits.sort_by_key(|edit| edit.span.start);
        let mut at = span.start;
        for edit in self.edits.drain(..) {
            out.push_str(text.get(at..edit.span.start).unwrap_or_default());
            out.push_str(&edit.text);
            at = edit.span.end;
        }
        out.push_str(text.get(at..span.end).unwrap_or_default());
    }
}
