//! One pass over the bytes of a message.

use std::ops::Range;

use super::super::decode_error::DecodeError;
use super::super::id::is_id;
use super::super::json::{self, Flaw, Folding, RawString, Scanner, Stop, first_duplicate};
use super::{Kind, Layout, Member, Method, Section};

/// Longer ids are refused: they become map keys and are echoed.
const MAX_ID_BYTES: usize = 4096;

/// Finds what routing needs, and refuses what is no message.
pub(super) fn layout(text: &str, max_depth: usize) -> Result<Layout, DecodeError> {
    let mut scanner = Scanner::new(text, max_depth.min(json::MAX_DEPTH));
    if scanner.peek() != Some(b'{') {
        let one_value = scanner.value().and_then(|_| scanner.finish());
        one_value.map_err(|flaw| DecodeError::from_flaw(flaw, scanner.offset()))?;
        return Err(DecodeError::invalid("a message is one JSON object"));
    }
    let mut reader = Reader {
        members: Vec::with_capacity(12),
        objects: Default::default(),
    };
    let read = reader
        .object(&mut scanner, Section::Top)
        .and_then(|()| Ok(scanner.finish()?));
    read.map_err(|stop| match stop {
        Stop::Flaw(flaw) => DecodeError::from_flaw(flaw, scanner.offset()),
        Stop::Ambiguous(member) => DecodeError::Ambiguous { member },
    })?;
    reader.classify(text)
}

/// Where the elements of an array of messages lie.
pub(super) fn batch(
    bytes: &[u8],
    max_depth: usize,
    max_len: usize,
) -> Result<Vec<Range<usize>>, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)?;
    // The array itself is not part of any message's depth.
    let mut scanner = Scanner::new(text, max_depth.min(json::MAX_DEPTH) + 1);
    let mut spans = Vec::new();
    let mut too_many = false;
    let walked = scanner.array(|scanner| {
        let span = scanner.value()?;
        too_many = spans.len() >= max_len;
        if too_many {
            return Err(Flaw::Syntax);
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

struct Reader {
    members: Vec<Member>,
    objects: [Option<Range<usize>>; Section::COUNT],
}

impl Reader {
    fn object(&mut self, scanner: &mut Scanner<'_>, section: Section) -> Result<(), Stop> {
        let start = scanner.offset();
        let first = self.members.len();
        let mut marks = Marks::default();
        let mut may_repeat = false;
        scanner.object(|scanner, key| {
            may_repeat |= marks.may_repeat(key);
            self.member(scanner, section, key)
        })?;
        if let Some(span) = self.objects.get_mut(section as usize) {
            *span = Some(start..scanner.offset());
        }
        if may_repeat {
            self.refuse_duplicates(scanner.text(), section, first)
        } else {
            Ok(())
        }
    }

    fn member(
        &mut self,
        scanner: &mut Scanner<'_>,
        section: Section,
        key: RawString<'_>,
    ) -> Result<(), Stop> {
        let decoded: Option<Box<str>> = if key.is_escaped() {
            Some(key.decode()?.into())
        } else {
            None
        };
        let opens = scanner.peek() == Some(b'{');
        let name = decoded.as_deref().unwrap_or(key.inner);
        let value = match section.child(name).filter(|_| opens) {
            Some(child) => {
                let start = scanner.offset();
                self.object(scanner, child)?;
                start..scanner.offset()
            }
            None => scanner.value()?,
        };
        self.members.push(Member {
            section,
            name: key.span(),
            decoded,
            value,
        });
        Ok(())
    }

    /// Names that steer us must also steer every other parser the same way: compared without
    /// regard to case in the message and in `params`, exactly elsewhere.
    fn refuse_duplicates(&self, text: &str, section: Section, first: usize) -> Result<(), Stop> {
        let folding = match section {
            Section::Top | Section::Params => Folding::Case,
            Section::Meta | Section::Result | Section::Error => Folding::Exact,
        };
        let read = self.members.get(first..).unwrap_or_default();
        let names = read
            .iter()
            .filter(|m| m.section == section)
            .map(|m| name_of(text, m));
        match first_duplicate(names, folding) {
            Some(member) => Err(Stop::Ambiguous(member)),
            None => Ok(()),
        }
    }

    /// The members of the message that decide what it is, each with its index.
    fn top<'a>(&self, text: &'a str) -> Top<'a> {
        let mut top = Top::default();
        for (index, member) in self.members.iter().enumerate() {
            if member.section != Section::Top {
                continue;
            }
            let place = match name_of(text, member) {
                "jsonrpc" => &mut top.jsonrpc,
                "id" => &mut top.id,
                "method" => &mut top.method,
                "params" => &mut top.params,
                "result" => &mut top.result,
                "error" => &mut top.error,
                _ => continue,
            };
            *place = Some((index, json::slice(text, member.value.clone())));
        }
        top
    }

    /// Applies the rules of JSON-RPC 2.0 and MCP to what was found. Spec: SPEC T-06, T-07.
    fn classify(self, text: &str) -> Result<Layout, DecodeError> {
        let Top {
            jsonrpc,
            id: id_member,
            method: method_member,
            params,
            result,
            error,
        } = self.top(text);
        let id = id_member.filter(|(_, id)| id.len() <= MAX_ID_BYTES && is_id(id));
        let invalid = |reason| {
            let id = id.map(|(_, id)| id.to_owned());
            Err(DecodeError::InvalidRequest { reason, id })
        };
        let is_known = |(_, version): (usize, &str)| {
            version == "\"2.0\"" || json::string(version).as_deref() == Some("2.0")
        };
        if !jsonrpc.is_some_and(is_known) {
            return invalid("\"jsonrpc\" must be \"2.0\"");
        }
        let null_id = id_member.is_some_and(|(_, id)| id == "null");
        if id_member.is_some() && id.is_none() && !null_id {
            return invalid("\"id\" must be a string or an integer");
        }
        let kind = match (method_member, result, error) {
            (Some(_), None, None) if null_id => return invalid("\"id\" must not be null"),
            (Some(_), None, None) if id.is_some() => Kind::Request,
            (Some(_), None, None) => Kind::Notification,
            (None, Some(_), None) if id.is_some() => Kind::Response,
            (None, Some(_), None) => return invalid("a result needs an \"id\""),
            (None, None, Some((_, error))) if error.starts_with('{') => Kind::Response,
            (None, None, Some(_)) => return invalid("\"error\" must be an object"),
            (None, None, None) => return invalid("\"method\" is missing"),
            _ => return invalid("only one of \"method\", \"result\" and \"error\" may be present"),
        };
        let method = match method_member {
            None => None,
            Some((_, value)) => match method(text, value) {
                None => return invalid("\"method\" must be a string"),
                found => found,
            },
        };
        if kind != Kind::Response
            && params.is_some_and(|(_, params)| !params.starts_with('{') && params != "null")
        {
            return invalid("\"params\" must be an object");
        }
        let id = id.map(|(index, _)| index);
        Ok(Layout {
            kind,
            id,
            method,
            members: self.members,
            objects: self.objects,
        })
    }
}

/// Members of a message: index and JSON text.
#[derive(Default)]
struct Top<'a> {
    jsonrpc: Option<(usize, &'a str)>,
    id: Option<(usize, &'a str)>,
    method: Option<(usize, &'a str)>,
    params: Option<(usize, &'a str)>,
    result: Option<(usize, &'a str)>,
    error: Option<(usize, &'a str)>,
}

/// Tells quickly that no two names of an object can be the same, so that most objects need no
/// comparing: equal names, whatever their case, have equal marks.
#[derive(Default)]
struct Marks(u64);

impl Marks {
    fn may_repeat(&mut self, key: RawString<'_>) -> bool {
        if key.is_escaped() || !key.inner.is_ascii() {
            return true;
        }
        let name = key.inner.as_bytes();
        let folded = |at: usize| name.get(at).map_or(0, |byte| usize::from(byte | 0x20));
        let last = name.len().saturating_sub(1);
        let mark = name.len() + folded(0) * 3 + folded(last / 2) * 5 + folded(last) * 7;
        let bit = 1 << (mark & 63);
        let known = self.0 & bit != 0;
        self.0 |= bit;
        known
    }
}

fn name_of<'a>(text: &'a str, member: &'a Member) -> &'a str {
    let inner = member.name.start + 1..member.name.end.saturating_sub(1);
    member
        .decoded
        .as_deref()
        .unwrap_or_else(|| json::slice(text, inner))
}

fn method(text: &str, value: &str) -> Option<Method> {
    let span = json::span_of(text, value)?;
    // The scanner has seen that it is a whole string, if it is one.
    let is_string = value.starts_with('"');
    if is_string && memchr::memchr(b'\\', value.as_bytes()).is_none() {
        return Some(Method::Plain(span.start + 1..span.end - 1));
    }
    Some(Method::Decoded(json::string(value)?.into_owned().into()))
}
