//! One JSON-RPC message: its bytes, and where the members lie that routing needs.
//!
//! Reads the message, `params`, `error`, the top of `result`, and `_meta` of both; everything below
//! stays unread and passes byte for byte (DESIGN §3.4).

mod batch;
mod bounds;
mod edit;
mod layout;
mod meta_cache;
mod name_filter;
mod parse;
mod progress;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;

pub use bounds::MessageBounds;
pub use edit::MessageEditor;
pub use progress::ProgressNotice;

use self::layout::{
    MemberExtent, MemberSpan, MessageLayout, MessageSection, MethodName, ObjectExtent,
};
use self::name_filter::NameBit;
use super::decode_error::DecodeError;
use super::json;
use super::names::is_same;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Has a result or an error.
    Response,
}

/// One JSON-RPC message. Cloning shares the bytes.
#[derive(Clone)]
pub struct Message {
    whole: ByteString,
    layout: Arc<MessageLayout>,
}

impl Message {
    /// Reads one message within `bounds`.
    ///
    /// # Errors
    /// See [`DecodeError`]; nothing of a refused message is used.
    pub fn parse(bytes: Bytes, bounds: impl Into<MessageBounds>) -> Result<Self, DecodeError> {
        if u32::try_from(bytes.len()).is_err() {
            return Err(DecodeError::invalid("a message is shorter than 4 GiB"));
        }
        let whole = ByteString::try_from(bytes).map_err(|_| DecodeError::NotUtf8)?;
        let bounds: MessageBounds = bounds.into();
        let (whole, layout) = match parse::layout(&whole, bounds) {
            Ok(layout) => (whole, layout),
            Err(refused) => {
                let outcome = parse::one_outcome(&whole, &refused).ok_or(refused)?;
                let whole = ByteString::from(outcome);
                let layout = parse::layout(&whole, bounds)?;
                (whole, layout)
            }
        };
        let layout = Arc::new(layout);
        Ok(Self { whole, layout })
    }

    /// Reads an array of messages; each keeps its own verdict and shares the bytes.
    ///
    /// # Errors
    /// When the whole is no JSON array, is empty, or holds more than `max_len` elements or more values than `bounds`
    /// allow.
    pub fn parse_batch(
        bytes: Bytes,
        bounds: impl Into<MessageBounds>,
        max_len: usize,
    ) -> Result<Vec<Result<Self, DecodeError>>, DecodeError> {
        let bounds = bounds.into();
        let spans = batch::spans(&bytes, bounds, max_len)?;
        let read = move |span| Self::parse(bytes.slice(span), bounds);
        Ok(spans.into_iter().map(read).collect())
    }

    /// Whether `bytes` begin like an array of messages.
    #[must_use]
    pub fn is_batch(bytes: &[u8]) -> bool {
        bytes
            .iter()
            .find(|b| !matches!(b, b' ' | b'\t' | b'\r' | b'\n'))
            == Some(&b'[')
    }

    /// The whole message.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        self.whole.as_bytes()
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> MessageKind {
        self.layout.kind
    }

    /// JSON text of the id, exactly as it came; `None` for notifications and for error responses
    /// with `"id": null`.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.text(self.layout.id?)
    }

    /// The id as a number, plain or quoted: some servers return a number id as a string.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        json::number(self.id()?)
    }

    /// The method, decoded.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        match self.layout.method.as_ref()? {
            MethodName::Plain(span) => self.text(*span),
            MethodName::Decoded(text) => Some(text),
        }
    }

    /// JSON text of `params`; `None` also for `"params": null`.
    #[must_use]
    pub fn params(&self) -> Option<&str> {
        self.object(MessageSection::Params)
    }

    /// JSON text of one member of `params`.
    #[inline]
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.member(MessageSection::Params, name)
    }

    /// Whether `params` holds nothing but some of these members.
    #[must_use]
    pub fn has_only_params(&self, names: &[&str]) -> bool {
        let mut members = self.layout.members.iter();
        members.all(|m| {
            m.section != MessageSection::Params || names.iter().any(|name| self.is_named(m, name))
        })
    }

    /// One member of `params`, decoded, when it is a JSON string.
    #[inline]
    #[must_use]
    pub fn param_str(&self, name: &str) -> Option<Cow<'_, str>> {
        json::scanned_string(self.param(name)?)
    }

    /// The number that one member of `params` is, or spells.
    #[must_use]
    pub fn param_number(&self, name: &str) -> Option<u64> {
        json::number(self.param(name)?)
    }

    /// JSON text of one member of `params._meta`.
    #[inline]
    #[must_use]
    pub fn meta(&self, key: &str) -> Option<&str> {
        self.member(MessageSection::Meta, key)
    }

    /// The members of `params._meta` whose decoded keys `wanted` takes, in order: the JSON texts of key and
    /// value.
    pub fn metas(&self, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = (&str, &str)> {
        let object = self.read(MessageSection::Meta);
        let members = object.and_then(|object| self.layout.members.get(object.members.range()));
        members.unwrap_or_default().iter().filter_map(move |m| {
            let key = match m.decoded {
                None => self.text(m.name)?,
                Some(_) => self.layout.decoded(m)?,
            };
            if !wanted(key) {
                return None;
            }
            Some((self.whole.get(m.quoted_name())?, self.text(m.value)?))
        })
    }

    /// JSON text of `result`.
    #[must_use]
    pub fn result(&self) -> Option<&str> {
        self.member(MessageSection::Top, "result")
    }

    /// Whether it has a result or an error that is an object, as every response of MCP has.
    #[must_use]
    pub fn has_outcome(&self) -> bool {
        self.read(MessageSection::Result).is_some() || self.read(MessageSection::Error).is_some()
    }

    /// JSON text of one member at the top of `result`.
    #[inline]
    #[must_use]
    pub fn result_member(&self, name: &str) -> Option<&str> {
        self.member(MessageSection::Result, name)
    }

    /// Whether it is a tool result that says `isError`.
    #[must_use]
    pub fn is_tool_error(&self) -> bool {
        self.result_member("isError") == Some("true")
    }

    /// JSON text of one member of `result._meta`; `None` if names in `_meta` may be repeated.
    #[inline]
    #[must_use]
    pub fn result_meta(&self, key: &str) -> Option<&str> {
        self.member(MessageSection::ResultMeta, key)
    }

    /// JSON text of `error`, an object.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.object(MessageSection::Error)
    }

    /// JSON text of one member of `error`.
    #[inline]
    #[must_use]
    pub fn error_member(&self, name: &str) -> Option<&str> {
        self.member(MessageSection::Error, name)
    }

    /// `error.code`, when it is an integer of at most 64 bits. It may be spelled as `-32042.0`, which most parsers read as
    /// the same code.
    #[must_use]
    pub fn error_code(&self) -> Option<i64> {
        json::integer(self.error_member("code")?)
    }

    /// The same bytes under another id (JSON text).
    #[must_use]
    pub fn with_id(&self, id: &str) -> Bytes {
        let exchanged = self.layout.id.and_then(|old| self.exchange(old, id));
        exchanged.unwrap_or_else(|| self.edit().id(id).finish())
    }

    /// The same bytes with another value (JSON text) for a member of `params`.
    #[must_use]
    pub fn with_param(&self, name: &str, json: &str) -> Bytes {
        let old = self
            .find(MessageSection::Params, name)
            .map(|member| member.value);
        let exchanged = old.and_then(|old| self.exchange(old, json));
        exchanged.unwrap_or_else(|| self.edit().param(name, json).finish())
    }

    /// Begins replacing members; what is not named stays byte for byte.
    pub fn edit(&self) -> MessageEditor<'_> {
        MessageEditor::new(self)
    }

    fn text(&self, span: MemberSpan) -> Option<&str> {
        self.whole.get(span.range())
    }

    fn object(&self, section: MessageSection) -> Option<&str> {
        self.text(self.read(section)?.span)
    }

    fn read(&self, section: MessageSection) -> Option<&ObjectExtent> {
        self.layout.objects.get(section as usize)?.as_ref()
    }

    #[inline]
    fn member(&self, section: MessageSection, name: &str) -> Option<&str> {
        self.text(self.find(section, name)?.value)
    }

    /// In line, so that the mark of a name that stands in the code is known when it is compiled: most of
    /// what is looked for is not there.
    #[inline]
    fn find(&self, section: MessageSection, name: &str) -> Option<&MemberExtent> {
        let object = self.read(section)?;
        let mark = NameBit::of(name.as_bytes());
        if !object.marks.may_hold(mark) {
            return None;
        }
        self.search(object.members, (section, mark), name)
    }

    #[inline(never)]
    fn search(
        &self,
        among: MemberSpan,
        (section, mark): (MessageSection, NameBit),
        name: &str,
    ) -> Option<&MemberExtent> {
        let mut members = self.layout.members.get(among.range())?.iter();
        members.find(|m| m.section == section && m.mark.may_be(mark) && self.is_named(m, name))
    }

    #[inline]
    fn is_named(&self, member: &MemberExtent, name: &str) -> bool {
        if member.decoded.is_some() {
            return self.layout.decoded(member) == Some(name);
        }
        let own = self.bytes().get(member.name.range());
        own.is_some_and(|own| is_same(own, name.as_bytes()))
    }
}

impl std::fmt::Debug for Message {
    /// Shows what routing sees; never the payload, which may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("kind", &self.kind())
            .field("id", &self.id())
            .field("method", &self.method())
            .field("len", &self.whole.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
