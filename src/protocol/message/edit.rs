//! `MessageEditor`: replaces single members of a message and copies all other bytes.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::json;
use super::Message;
use super::layout::{MemberExtent, MemberSpan, MessageSection};

/// Up to here exchanged values need no list on the heap.
const FEW: usize = 4;

/// Several replacements in one pass. Values are JSON text and are not checked.
///
/// The last word on a member counts. `params` and `params._meta` are created when absent; a
/// `result` that is no object stays as it is.
#[derive(Debug)]
#[must_use = "call finish()"]
pub struct MessageEditor<'a> {
    message: &'a Message,
    changes: Vec<MemberChange<'a>>,
}

#[derive(Debug)]
struct MemberChange<'a> {
    section: MessageSection,
    name: Cow<'a, str>,
    /// New JSON text; `None` removes the member.
    value: Option<Cow<'a, str>>,
}

impl<'a> MessageEditor<'a> {
    pub(super) fn new(message: &'a Message) -> Self {
        Self {
            message,
            changes: Vec::new(),
        }
    }

    /// Replaces or adds the id (JSON text).
    pub fn id(self, id: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Top, "id", Some(id.into()))
    }

    /// Replaces the method, given as plain text.
    pub fn method(self, method: &str) -> Self {
        self.change(
            MessageSection::Top,
            "method",
            Some(json::quote(method).into()),
        )
    }

    /// Replaces or adds a member of `params`.
    pub fn param(self, name: impl Into<Cow<'a, str>>, json: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Params, name, Some(json.into()))
    }

    /// Removes a member of `params`.
    pub fn remove_param(self, name: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Params, name, None)
    }

    /// Replaces or adds a member of `params._meta`.
    pub fn meta(self, key: impl Into<Cow<'a, str>>, json: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Meta, key, Some(json.into()))
    }

    /// Removes a member of `params._meta`.
    pub fn remove_meta(self, key: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Meta, key, None)
    }

    /// Replaces or adds a member at the top of `result`.
    pub fn result_member(
        self,
        name: impl Into<Cow<'a, str>>,
        json: impl Into<Cow<'a, str>>,
    ) -> Self {
        self.change(MessageSection::Result, name, Some(json.into()))
    }

    /// Removes a member at the top of `result`.
    pub fn remove_result_member(self, name: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Result, name, None)
    }

    /// Replaces the whole `result` of a response.
    pub fn result(self, json: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Top, "result", Some(json.into()))
    }

    /// Replaces the whole `error` of a response.
    pub fn error(self, json: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Top, "error", Some(json.into()))
    }

    /// Replaces or adds the whole `params`.
    pub fn params(self, json: impl Into<Cow<'a, str>>) -> Self {
        self.change(MessageSection::Top, "params", Some(json.into()))
    }

    /// The new message.
    #[must_use]
    pub fn finish(self) -> Bytes {
        if self.changes.is_empty() {
            return self.message.bytes().clone();
        }
        if let Some(exchanged) = self.exchange_values() {
            return exchanged;
        }
        let added: usize = self.changes.iter().map(MemberChange::size).sum();
        let mut out = BytesMut::with_capacity(self.message.bytes().len() + added);
        let whole = self.object_span(MessageSection::Top);
        out.put_slice(self.bytes(0, whole.start));
        self.write_object(&mut out, MessageSection::Top);
        out.put_slice(self.bytes(whole.end, self.message.bytes().len()));
        out.freeze()
    }

    fn change(
        mut self,
        section: MessageSection,
        name: impl Into<Cow<'a, str>>,
        value: Option<Cow<'a, str>>,
    ) -> Self {
        let name = name.into();
        match self
            .changes
            .iter_mut()
            .find(|c| c.section == section && c.name == name)
        {
            Some(earlier) => earlier.value = value,
            None => self.changes.push(MemberChange {
                section,
                name,
                value,
            }),
        }
        self
    }

    /// The message with the values of members that are there exchanged, when that is all there is
    /// to do.
    fn exchange_values(&self) -> Option<Bytes> {
        if let [change] = self.changes.as_slice() {
            let value = change.value.as_deref()?;
            let old = self.message.find(change.section, &change.name)?.value;
            return self.message.exchange(old, value);
        }
        let mut places: [(Range<usize>, &str); FEW] = Default::default();
        let exchanges = places.get_mut(..self.changes.len())?;
        for (place, change) in exchanges.iter_mut().zip(&self.changes) {
            let member = self.message.find(change.section, &change.name)?;
            *place = (member.value.range(), change.value.as_deref()?);
        }
        exchanges.sort_unstable_by_key(|(old, _)| old.start);
        let gained: usize = exchanges.iter().map(|(_, new)| new.len()).sum();
        let lost: usize = exchanges.iter().map(|(old, _)| old.len()).sum();
        let len = (self.message.bytes().len() + gained).checked_sub(lost)?;
        let mut out = Vec::with_capacity(len);
        let mut at = 0;
        for (old, new) in exchanges.iter() {
            // `None` if one of the old values contains another.
            out.extend_from_slice(self.message.bytes().get(at..old.start)?);
            out.extend_from_slice(new.as_bytes());
            at = old.end;
        }
        out.extend_from_slice(self.message.bytes().get(at..)?);
        Some(out.into())
    }

    fn object_span(&self, section: MessageSection) -> Range<usize> {
        let object = self.message.read(section);
        object.map(|object| object.span.range()).unwrap_or_default()
    }

    fn bytes(&self, start: usize, end: usize) -> &[u8] {
        self.message.bytes().get(start..end).unwrap_or_default()
    }

    /// Writes the object of `section` with its changes; the gaps between kept members stay.
    fn write_object(&self, out: &mut BytesMut, section: MessageSection) {
        let span = self.object_span(section);
        let mut kept_any = false;
        // Start of the gap that stands before the next member.
        let mut gap = span.start + 1;
        out.put_u8(b'{');
        let members = self
            .message
            .layout
            .members
            .iter()
            .filter(|m| m.section == section);
        for (index, member) in members.enumerate() {
            let change = self.change_of(section, member);
            let (name, value) = (member.quoted_name(), member.value.range());
            let before = std::mem::replace(&mut gap, value.end);
            if change.is_some_and(|c| c.value.is_none()) {
                continue;
            }
            // A gap opens with the comma, which the first kept member must not have.
            if kept_any || index == 0 {
                out.put_slice(self.bytes(before, name.start));
            }
            kept_any = true;
            out.put_slice(self.bytes(name.start, value.start));
            match change.and_then(|c| c.value.as_deref()) {
                Some(value) => out.put_slice(value.as_bytes()),
                None => self.write_value(out, section, member),
            }
        }
        for (name, value) in self.additions(section) {
            if std::mem::replace(&mut kept_any, true) {
                out.put_u8(b',');
            }
            out.put_slice(json::quote(name).as_bytes());
            out.put_u8(b':');
            out.put_slice(&value);
        }
        out.put_slice(self.bytes(gap, span.end));
    }

    fn write_value(&self, out: &mut BytesMut, section: MessageSection, member: &MemberExtent) {
        let value = member.value.range();
        let Some(child) = self.child_of(section, member).filter(|c| self.touches(*c)) else {
            out.put_slice(self.bytes(value.start, value.end));
            return;
        };
        if self.message.bytes().get(value.start) == Some(&b'{') {
            self.write_object(out, child);
        } else if child == MessageSection::Result || !self.gains(child) {
            out.put_slice(self.bytes(value.start, value.end));
        } else {
            out.put_slice(&self.fresh(child));
        }
    }

    /// Members that `section` gains: those named, and the objects that must be created.
    fn additions(&self, section: MessageSection) -> Vec<(&str, Bytes)> {
        let mut added: Vec<(&str, Bytes)> = self
            .changes
            .iter()
            .filter(|c| c.section == section && !self.has(section, &c.name))
            .filter_map(|c| {
                Some((
                    &*c.name,
                    Bytes::copy_from_slice(c.value.as_ref()?.as_bytes()),
                ))
            })
            .collect();
        let created = match section {
            MessageSection::Top => Some(("params", MessageSection::Params)),
            MessageSection::Params => Some(("_meta", MessageSection::Meta)),
            MessageSection::Meta
            | MessageSection::Result
            | MessageSection::ResultMeta
            | MessageSection::Error => None,
        };
        if let Some((name, child)) = created
            && self.gains(child)
            && !self.has(section, name)
            && !added.iter().any(|(n, _)| *n == name)
        {
            added.push((name, self.fresh(child)));
        }
        added
    }

    /// An object of `section` that holds the additions only.
    fn fresh(&self, section: MessageSection) -> Bytes {
        let mut out = BytesMut::from(&b"{"[..]);
        for (index, (name, value)) in self.additions(section).iter().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            out.put_slice(json::quote(name).as_bytes());
            out.put_u8(b':');
            out.put_slice(value);
        }
        out.put_u8(b'}');
        out.freeze()
    }

    fn change_of(
        &self,
        section: MessageSection,
        member: &MemberExtent,
    ) -> Option<&MemberChange<'a>> {
        let mut changes = self.changes.iter();
        changes.find(|c| c.section == section && self.message.is_named(member, &c.name))
    }

    fn has(&self, section: MessageSection, name: &str) -> bool {
        let mut members = self.message.layout.members.iter();
        members.any(|m| m.section == section && self.message.is_named(m, name))
    }

    fn child_of(&self, section: MessageSection, member: &MemberExtent) -> Option<MessageSection> {
        let names: &[&str] = match section {
            MessageSection::Top => &["params", "result"],
            MessageSection::Params => &["_meta"],
            MessageSection::Meta
            | MessageSection::Result
            | MessageSection::ResultMeta
            | MessageSection::Error => &[],
        };
        let name = names
            .iter()
            .find(|name| self.message.is_named(member, name))?;
        section.child(name.as_bytes())
    }

    /// Whether a change concerns `section` or a section below.
    fn touches(&self, section: MessageSection) -> bool {
        let below = section == MessageSection::Params;
        let concerned = |s| s == section || below && s == MessageSection::Meta;
        self.changes.iter().any(|c| concerned(c.section))
    }

    /// Whether `section` or a section below gains a member.
    fn gains(&self, section: MessageSection) -> bool {
        let below = section == MessageSection::Params;
        let concerned = |s| s == section || below && s == MessageSection::Meta;
        self.changes
            .iter()
            .any(|c| concerned(c.section) && c.value.is_some())
    }
}

impl Message {
    /// The message with another id (JSON text), and with the text appended by `put` (JSON text) in place of
    /// `params._meta`; `None` if the id or the `_meta` is absent, or `_meta` is no object. `added` is the
    /// approximate length of that text, used to reserve capacity.
    #[must_use]
    pub fn with_id_and_meta(
        &self,
        id: &str,
        added: usize,
        put: impl FnOnce(&mut String),
    ) -> Option<Bytes> {
        let old_id = self.layout.id?.range();
        let old_meta = self.read(MessageSection::Meta)?.span.range();
        let kept = self.whole.len() - old_id.len() - old_meta.len();
        let mut out = String::with_capacity(kept + id.len() + added);
        if old_id.end <= old_meta.start {
            out.push_str(self.whole.get(..old_id.start)?);
            out.push_str(id);
            out.push_str(self.whole.get(old_id.end..old_meta.start)?);
            put(&mut out);
            out.push_str(self.whole.get(old_meta.end..)?);
        } else {
            out.push_str(self.whole.get(..old_meta.start)?);
            put(&mut out);
            out.push_str(self.whole.get(old_meta.end..old_id.start)?);
            out.push_str(id);
            out.push_str(self.whole.get(old_id.end..)?);
        }
        Some(out.into())
    }

    /// The message with another value in place of the one that lies at `old`.
    pub(super) fn exchange(&self, old: MemberSpan, value: &str) -> Option<Bytes> {
        let old = old.range();
        let (before, after) = (self.bytes().get(..old.start)?, self.bytes().get(old.end..)?);
        Some([before, value.as_bytes(), after].concat().into())
    }
}

impl MemberChange<'_> {
    fn size(&self) -> usize {
        // Room for quotes, colon, comma, and an object around it.
        self.name.len() + self.value.as_ref().map_or(0, |value| value.len()) + 24
    }
}
