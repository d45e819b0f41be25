//! One pass over the bytes of a message.

use std::num::NonZeroU32;
use std::ops::Range;

use super::super::decode_error::{DecodeError, TOO_MANY_MEMBERS, TOO_MANY_VALUES};
use super::super::id::is_id;
use super::super::id_scan::IdScan;
use super::super::json::{
    self, JsonFlaw, JsonScanner, NameFolding, RawString, WalkStop, first_duplicate,
};
use super::bounds::MessageBounds;
use super::layout::{
    MemberExtent, MemberSpan, MessageLayout, MessageSection, MethodName, ObjectExtent, nth,
};
use super::meta_cache::MetaPosition;
use super::name_filter::{NameBit, NameFilter};
use super::{MessageKind, meta_cache};

/// Longer ids are refused: they become map keys and are echoed.
const MAX_ID_BYTES: usize = 4096;
/// Members read per message: top level, `params`, `result`, `error` and `_meta` together. Each takes
/// 24 bytes beside the text for the life of the message. A tool's `arguments` are not read and may have
/// any number of members.
pub(super) const MAX_MEMBERS: usize = 1024;

/// How long a message may be that is scanned for its id once it is refused, bytes: the scan holds its thread.
const MAX_SCANNED_BYTES: usize = 4 << 20;

/// Why a message is refused that could be of several kinds.
const SEVERAL_KINDS: &str = "only one of \"method\", \"result\" and \"error\" may be present";

/// The text of a response that was `refused` for a second outcome which is null, without that one: some serialisers
/// write every member, and clients that follow the schema refuse such a response.
#[cold]
pub(super) fn one_outcome(text: &str, refused: &DecodeError) -> Option<String> {
    if !matches!(refused, DecodeError::InvalidRequest { reason, .. } if *reason == SEVERAL_KINDS) {
        return None;
    }
    let members = json::members(text).ok()?;
    let is_void = |name: &str, value: &str| matches!(name, "result" | "error") && value == "null";
    let is_request = members.iter().any(|(name, _)| name == "method");
    let void = members.iter().filter(|(name, value)| is_void(name, value));
    if is_request || void.count() != 1 {
        return None;
    }
    let kept = members.iter().filter(|(name, value)| !is_void(name, value));
    Some(json::object(kept.map(|(name, value)| (&**name, *value))))
}

/// Finds the members that routing needs; refuses a text that is not a message.
pub(super) fn layout(text: &str, bounds: MessageBounds) -> Result<MessageLayout, DecodeError> {
    let mut scanner = bounds.scanner(text, 0);
    if scanner.peek() != Some(b'{') {
        let one_value = scanner.value().and_then(|_| scanner.finish());
        one_value.map_err(|flaw| DecodeError::from_flaw(flaw, scanner.offset()))?;
        return Err(DecodeError::invalid("a message is one JSON object"));
    }
    let mut reader = MessageParser {
        members: Vec::with_capacity(12),
        decoded: Vec::new(),
        objects: Default::default(),
        top: TopSpans::default(),
        has_too_many: false,
        is_cut_off: false,
    };
    let read = reader
        .object(&mut scanner, MessageSection::Top)
        .and_then(|()| Ok(scanner.finish()?));
    match read {
        Ok(()) => {}
        Err(WalkStop::Flaw(JsonFlaw::TooMany)) => reader.is_cut_off = true,
        Err(WalkStop::Flaw(JsonFlaw::TooDeep)) => {
            let id = request_id(text);
            return Err(DecodeError::TooDeep { id });
        }
        Err(WalkStop::Flaw(flaw)) => return Err(DecodeError::from_flaw(flaw, scanner.offset())),
        Err(WalkStop::Ambiguous(member)) => {
            let id = request_id(text);
            return Err(DecodeError::Ambiguous { member, id });
        }
    }
    reader.classify(text)
}

/// JSON text of the id of a request that is refused before all of it was read; `None` if the id is not clear, or the text
/// longer than [`MAX_SCANNED_BYTES`]. Many clients write the id last.
#[cold]
fn request_id(text: &str) -> Option<String> {
    if text.len() > MAX_SCANNED_BYTES {
        return None;
    }
    let mut scan = IdScan::default();
    scan.feed(text.as_bytes());
    scan.request()
}

struct MessageParser {
    members: Vec<MemberExtent>,
    decoded: Vec<Box<str>>,
    objects: [Option<ObjectExtent>; MessageSection::COUNT],
    top: TopSpans,
    /// Whether members were left out because there are more than [`MAX_MEMBERS`].
    has_too_many: bool,
    /// Whether the rest of the message was not looked at, since it is refused.
    is_cut_off: bool,
}

/// Spans of the values that determine the kind of a message.
#[derive(Default)]
struct TopSpans {
    jsonrpc: Option<MemberSpan>,
    id: Option<MemberSpan>,
    method: Option<MemberSpan>,
    params: Option<MemberSpan>,
    result: Option<MemberSpan>,
    error: Option<MemberSpan>,
}

impl TopSpans {
    fn note(&mut self, name: &[u8], value: MemberSpan) {
        let place = match name {
            b"jsonrpc" => &mut self.jsonrpc,
            b"id" => &mut self.id,
            b"method" => &mut self.method,
            b"params" => &mut self.params,
            b"result" => &mut self.result,
            b"error" => &mut self.error,
            _ => return,
        };
        *place = Some(value);
    }
}

impl MessageParser {
    fn object(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        section: MessageSection,
    ) -> Result<(), WalkStop> {
        let start = scanner.offset();
        let first = self.members.len();
        let place = MetaPosition {
            section,
            depth_left: scanner.depth_left(),
        };
        let may_come_again = meta_cache::may_come_again(section);
        if may_come_again
            && let Some((end, marks)) =
                meta_cache::recognize(scanner.text(), start, place, &mut self.members)
        {
            scanner.skip_to(end);
            self.note_object(section, start..end, marks, first);
            return Ok(());
        }
        let mut marks = NameFilter::NONE;
        let mut may_repeat = false;
        scanner.object(|scanner, key| {
            if self.is_full() {
                return self.pass_over(scanner, section, key);
            }
            let (mark, known) = marks.note(key);
            may_repeat |= known;
            self.member(scanner, (section, mark), key)
        })?;
        if section == MessageSection::ResultMeta && (may_repeat || self.is_full()) {
            self.members.truncate(first);
            return Ok(());
        }
        if self.has_too_many {
            // The message is refused; the scan goes on for its id.
            return Ok(());
        }
        let span = start..scanner.offset();
        if may_repeat {
            self.refuse_duplicates(scanner.text(), section, first)?;
        } else if may_come_again {
            let members = self.members.get(first..).unwrap_or_default();
            meta_cache::remember(scanner.text(), span.clone(), place, marks, members);
        }
        self.note_object(section, span, marks, first);
        Ok(())
    }

    /// Notes an object that was read, with the members from the one at `first` on.
    fn note_object(
        &mut self,
        section: MessageSection,
        span: Range<usize>,
        marks: NameFilter,
        first: usize,
    ) {
        if let Some(object) = self.objects.get_mut(section as usize) {
            *object = Some(ObjectExtent {
                span: MemberSpan::of(&span),
                marks,
                members: MemberSpan::of(&(first..self.members.len())),
            });
        }
    }

    fn member(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        (section, mark): (MessageSection, NameBit),
        key: RawString<'_>,
    ) -> Result<(), WalkStop> {
        let decoded = if key.is_escaped() {
            self.decode(section, key)?
        } else {
            None
        };
        let first = scanner.peek();
        let start = scanner.offset();
        let child = if first == Some(b'{') {
            section.child(name_of(&self.decoded, key, decoded))
        } else {
            None
        };
        match child {
            Some(child) => self.object(scanner, child)?,
            None => scanner.skip(first)?,
        }
        let value = MemberSpan::of(&(start..scanner.offset()));
        if section == MessageSection::Top {
            self.top.note(name_of(&self.decoded, key, decoded), value);
        }
        // Its child may have filled the list.
        if self.is_full() {
            self.has_too_many |= section != MessageSection::ResultMeta;
            return Ok(());
        }
        self.members.push(MemberExtent {
            section,
            mark,
            name: MemberSpan::of(&key.inner_span()),
            decoded,
            value,
        });
        Ok(())
    }

    /// Moves over a member beyond the bound. What decides about the message is still noted, for the id; once that is
    /// known, the walk ends.
    fn pass_over(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        section: MessageSection,
        key: RawString<'_>,
    ) -> Result<(), WalkStop> {
        if self.has_too_many && self.top.id.is_some() && self.top.method.is_some() {
            return Err(JsonFlaw::TooMany.into());
        }
        let first = scanner.peek();
        let start = scanner.offset();
        scanner.skip(first)?;
        if section == MessageSection::Top {
            let value = MemberSpan::of(&(start..scanner.offset()));
            self.top.note(key.bytes(), value);
        }
        self.has_too_many |= section != MessageSection::ResultMeta;
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.members.len() >= MAX_MEMBERS
    }

    /// Decodes a name written with escapes, if its object will be read.
    #[cold]
    fn decode(
        &mut self,
        section: MessageSection,
        key: RawString<'_>,
    ) -> Result<Option<NonZeroU32>, WalkStop> {
        // An escaped name is marked as possibly repeated, so that this object stays unread.
        if section == MessageSection::ResultMeta {
            return Ok(None);
        }
        self.decoded.push(key.decode()?.into());
        let count = u32::try_from(self.decoded.len()).map_err(|_| JsonFlaw::Syntax)?;
        Ok(NonZeroU32::new(count))
    }

    /// Refuses duplicate names, so that every other parser reads the same value as the gateway: compared
    /// without regard to case at the top and in `params`, exactly elsewhere.
    fn refuse_duplicates(
        &self,
        text: &str,
        section: MessageSection,
        first: usize,
    ) -> Result<(), WalkStop> {
        let folding = match section {
            MessageSection::Top | MessageSection::Params => NameFolding::Case,
            MessageSection::Meta
            | MessageSection::Result
            | MessageSection::ResultMeta
            | MessageSection::Error => NameFolding::Exact,
        };
        let read = self.members.get(first..).unwrap_or_default();
        let names = read.iter().filter(|m| m.section == section).map(|m| {
            nth(&self.decoded, m.decoded).unwrap_or_else(|| json::slice(text, m.name.range()))
        });
        match first_duplicate(names, folding) {
            Some(member) => Err(WalkStop::Ambiguous(member)),
            None => Ok(()),
        }
    }

    /// Applies the rules of JSON-RPC 2.0 and MCP to what was found. Spec: SPEC T-06, T-07.
    fn classify(self, text: &str) -> Result<MessageLayout, DecodeError> {
        let value = |span: Option<MemberSpan>| span.map(|span| json::slice(text, span.range()));
        let id_text = value(self.top.id);
        // Who asked reads the number in the id of a response, however it is spelled.
        let is_read =
            |id: &str| is_id(id) || self.top.method.is_none() && json::number(id).is_some();
        let id = id_text.filter(|id| id.len() <= MAX_ID_BYTES && is_read(id));
        let invalid = |reason| {
            // The id of a response is its receiver's. Spec: SPEC T-12.
            let answers = self.top.method.is_none()
                && (self.is_cut_off || self.top.result.is_some() || self.top.error.is_some());
            let id = id.filter(|_| !answers).map(ToOwned::to_owned);
            Err(DecodeError::InvalidRequest { reason, id })
        };
        if self.has_too_many {
            return invalid(TOO_MANY_MEMBERS);
        }
        if self.is_cut_off {
            return Err(DecodeError::InvalidRequest {
                reason: TOO_MANY_VALUES,
                id: request_id(text),
            });
        }
        let is_known =
            |version| version == "\"2.0\"" || json::string(version).as_deref() == Some("2.0");
        if !value(self.top.jsonrpc).is_some_and(is_known) {
            return invalid("\"jsonrpc\" must be \"2.0\"");
        }
        let null_id = id_text == Some("null");
        if id_text.is_some() && id.is_none() && !null_id {
            return invalid("\"id\" must be a string or an integer");
        }
        let (method_text, params) = (value(self.top.method), value(self.top.params));
        let (result, error) = (self.top.result, value(self.top.error));
        let kind = match (method_text, result, error) {
            (Some(_), None, None) if null_id => return invalid("\"id\" must not be null"),
            (Some(_), None, None) if id.is_some() => MessageKind::Request,
            (Some(_), None, None) => MessageKind::Notification,
            (None, Some(_), None) if id.is_some() => MessageKind::Response,
            (None, Some(_), None) => return invalid("a result needs an \"id\""),
            (None, None, Some(error)) if error.starts_with('{') => MessageKind::Response,
            (None, None, Some(_)) => return invalid("\"error\" must be an object"),
            (None, None, None) => return invalid("\"method\" is missing"),
            _ => return invalid(SEVERAL_KINDS),
        };
        let method = match (self.top.method, method_text) {
            (Some(span), Some(text)) => match method(span, text) {
                None => return invalid("\"method\" must be a string"),
                found => found,
            },
            _ => None,
        };
        if kind != MessageKind::Response
            && params.is_some_and(|params| !params.starts_with('{') && params != "null")
        {
            return invalid("\"params\" must be an object");
        }
        Ok(MessageLayout {
            kind,
            id: self.top.id.filter(|_| id.is_some()),
            method,
            members: self.members,
            decoded: self.decoded,
            objects: self.objects,
        })
    }
}

/// The bytes of a name, which is one of `names` where it is written with escapes.
fn name_of<'a>(names: &'a [Box<str>], key: RawString<'a>, place: Option<NonZeroU32>) -> &'a [u8] {
    nth(names, place).map_or(key.bytes(), str::as_bytes)
}

/// The method that the JSON text `value` at `span` holds.
fn method(span: MemberSpan, value: &str) -> Option<MethodName> {
    // The scanner has checked `value`: a leading quote means a complete string.
    let is_string = value.starts_with('"');
    if is_string && memchr::memchr(b'\\', value.as_bytes()).is_none() {
        return Some(MethodName::Plain(MemberSpan {
            start: span.start + 1,
            end: span.end - 1,
        }));
    }
    Some(MethodName::Decoded(
        json::string(value)?.into_owned().into(),
    ))
}
