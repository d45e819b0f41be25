//! Per-thread cache of the layouts of recent `_meta` objects, so that a repeated one is not parsed again.
//!
//! A modern client repeats its client info and capabilities in every request, and a server its server
//! info in every result. Parsing these is most of the extra cost over a legacy message (docs/adr/0015).

use std::cell::RefCell;
use std::ops::Range;

use super::super::{json, meta};
use super::layout::{MemberExtent, MessageSection};
use super::name_filter::NameFilter;

/// Objects cached per thread.
const KNOWN: usize = 8;
/// Longer objects, in bytes, are not cached.
const MAX_BYTES: usize = 1024;
/// Members that are equal in all messages of a client or a server. An object with any other member is not
/// cached: it may hold a secret, or never occur again.
const DESCRIPTIONS: [&str; 7] = [
    meta::PROTOCOL_VERSION,
    meta::CLIENT_INFO,
    meta::CLIENT_CAPABILITIES,
    meta::LOG_LEVEL,
    meta::SERVER_INFO,
    meta::GATEWAY,
    meta::UPSTREAM,
];

thread_local! {
    static RECENT: RefCell<MetaCache> = const { RefCell::new(MetaCache::NEW) };
}

/// The cache of a thread. No `Debug`, as the texts are peers' own.
struct MetaCache {
    known: [Option<CachedMeta>; KNOWN],
    /// Index of the slot evicted next.
    next: usize,
}

/// An object that was parsed without a flaw.
struct CachedMeta {
    place: MetaPosition,
    /// The whole object with its brackets, so that a text with this prefix starts with this object.
    text: Box<str>,
    marks: NameFilter,
    /// The members, with spans relative to the object.
    members: Box<[MemberExtent]>,
}

/// The place of an object in a message.
#[derive(Clone, Copy)]
pub(super) struct MetaPosition {
    pub(super) section: MessageSection,
    /// Nesting levels left, the object itself included.
    pub(super) depth_left: usize,
}

impl MetaCache {
    const NEW: Self = Self {
        known: [const { None }; KNOWN],
        next: 0,
    };
}

/// Whether objects of this section are cached.
pub(super) fn may_come_again(section: MessageSection) -> bool {
    matches!(section, MessageSection::Meta | MessageSection::ResultMeta)
}

/// Looks up the object at `at`: on a hit, appends its members to `members` and returns its end and the
/// marks of its names.
pub(super) fn recognize(
    text: &str,
    at: usize,
    place: MetaPosition,
    members: &mut Vec<MemberExtent>,
) -> Option<(usize, NameFilter)> {
    let rest = text.as_bytes().get(at..)?;
    RECENT.with_borrow_mut(|recent| {
        let is_it = |known: &CachedMeta| {
            known.place.section == place.section
                && known.place.depth_left <= place.depth_left
                && rest.starts_with(known.text.as_bytes())
        };
        let mut all = recent.known.iter().enumerate();
        let (index, known) =
            all.find_map(|(i, known)| Some((i, known.as_ref().filter(|k| is_it(k))?)))?;
        // A hit is not evicted next, in favour of an object that may never be repeated.
        if index == recent.next {
            recent.next = (index + 1) % KNOWN;
        }
        members.extend(known.members.iter().map(|member| member.moved(0, at)));
        Some((at + known.text.len(), known.marks))
    })
}

/// Caches the object at `span` in `text` with its `members`, if all are [`DESCRIPTIONS`].
pub(super) fn remember(
    text: &str,
    span: Range<usize>,
    place: MetaPosition,
    marks: NameFilter,
    members: &[MemberExtent],
) {
    let describes = |member: &MemberExtent| {
        let name = json::slice(text, member.name.range());
        member.decoded.is_none() && DESCRIPTIONS.contains(&name)
    };
    if span.len() > MAX_BYTES || members.is_empty() || !members.iter().all(describes) {
        return;
    }
    let start = span.start;
    let known = CachedMeta {
        place,
        text: json::slice(text, span).into(),
        marks,
        members: members.iter().map(|m| m.moved(start, 0)).collect(),
    };
    RECENT.with_borrow_mut(|recent| {
        if let Some(slot) = recent.known.get_mut(recent.next) {
            *slot = Some(known);
        }
        recent.next = (recent.next + 1) % KNOWN;
    });
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::super::decode_error::DecodeError;
    use super::super::Message;
    use super::*;

    const VERSION: &str = "\"io.modelcontextprotocol/protocolVersion\"";
    const CAPABILITIES: &str = "\"io.modelcontextprotocol/clientCapabilities\"";

    type Read = Result<String, DecodeError>;

    fn read(text: &str, max_depth: usize) -> Read {
        let message = Message::parse(Bytes::copy_from_slice(text.as_bytes()), max_depth)?;
        Ok(format!("{:?}", message.layout))
    }

    /// Reads `texts` on a new thread, whose cache is empty.
    fn read_uncached(texts: &[String], max_depth: usize) -> Vec<Read> {
        let texts = texts.to_owned();
        let all = move || texts.iter().map(|text| read(text, max_depth)).collect();
        std::thread::spawn(all).join().unwrap()
    }

    fn request(meta: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_meta":{meta},"n":1}}}}"#)
    }

    fn response(meta: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{meta}}}}}"#)
    }

    fn is_known(meta: &str) -> bool {
        let is_it = |known: &Option<CachedMeta>| known.as_ref().is_some_and(|k| *k.text == *meta);
        RECENT.with_borrow(|recent| recent.known.iter().any(is_it))
    }

    #[test]
    fn what_comes_again_is_known_wherever_it_stands() {
        let meta = format!(r#"{{{CAPABILITIES}:{{"b":[1]}},{VERSION}:"d"}}"#);
        assert!(!is_known(&meta));
        read(&request(&meta), 128).unwrap();
        assert!(is_known(&meta));
        let again = format!(
            r#"{{"params":{{"x":[],"_meta":{meta}}},"id":"longer","method":"m","jsonrpc":"2.0"}}"#
        );
        assert_eq!(
            [read(&again, 128)],
            *read_uncached(std::slice::from_ref(&again), 128)
        );
        let message = Message::parse(again.into(), 128).unwrap();
        assert_eq!(message.meta(meta::PROTOCOL_VERSION), Some("\"d\""));
        assert_eq!(message.meta("b"), None);
    }

    #[test]
    fn what_stood_in_a_request_is_another_thing_in_a_result() {
        let meta = format!(r#"{{{VERSION}:"both"}}"#);
        read(&request(&meta), 128).unwrap();
        let message = Message::parse(response(&meta).into(), 128).unwrap();
        let version = message.result_meta(meta::PROTOCOL_VERSION);
        assert_eq!(
            (version, message.meta(meta::PROTOCOL_VERSION)),
            (Some("\"both\""), None)
        );
    }

    #[test]
    fn what_keeps_coming_stays_known() {
        let lasting = format!(r#"{{{VERSION}:"lasting"}}"#);
        read(&request(&lasting), 128).unwrap();
        for n in 0..3 * KNOWN {
            read(&request(&format!("{{{VERSION}:{n}}}")), 128).unwrap();
            assert!(is_known(&lasting), "{n}");
            read(&request(&lasting), 128).unwrap();
        }
    }

    #[test]
    fn nesting_is_bounded_for_what_is_known_too() {
        let deep = request(&format!("{{{CAPABILITIES}:[[[]]]}}"));
        assert!(read(&deep, 128).is_ok());
        assert!(matches!(read(&deep, 5), Err(DecodeError::TooDeep { .. })));
        assert!(read(&deep, 6).is_ok());
    }

    #[test]
    fn only_descriptions_are_remembered() {
        let long = format!(r#"{{{VERSION}:"{}"}}"#, "x".repeat(MAX_BYTES));
        let with_more = format!(r#"{{{VERSION}:"v","com.example/key":"secret"}}"#);
        let escaped = format!("{{{}:1}}", VERSION.replace("io", "\\u0069o"));
        let odd = ["{}", r#"{"progressToken":1}"#, &escaped, &long, &with_more];
        for meta in odd {
            assert!(read(&request(meta), 128).is_ok(), "{meta}");
            assert!(read(&response(meta), 128).is_ok(), "{meta}");
            assert!(!is_known(meta), "{meta}");
        }
    }

    /// Text like a `_meta`: often cacheable, sometimes malformed.
    fn meta_like() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec![VERSION, CAPABILITIES, "\"a\""]);
        let value = prop::sample::select(vec!["1", "{}", "[[]]", "\"x\"", "{"]);
        let member = (name, value).prop_map(|(name, value)| format!("{name}:{value}"));
        let members = prop::collection::vec(member, 0..3);
        let rest = prop::sample::select(vec!["", "", "", " ", "}", "x"]);
        (members, rest).prop_map(|(members, rest)| format!("{{{}}}{rest}", members.join(",")))
    }

    proptest! {
        /// Whatever was read before, a message is read as if it were the first.
        #[test]
        fn the_past_changes_nothing(
            metas in prop::collection::vec((meta_like(), any::<bool>()), 1..8),
            max_depth in 2_usize..6,
        ) {
            let texts: Vec<_> = metas
                .iter()
                .map(|(meta, in_result)| if *in_result { response(meta) } else { request(meta) })
                .collect();
            let one_by_one = texts.iter().flat_map(|text| {
                read_uncached(std::slice::from_ref(text), max_depth)
            });
            let one_by_one: Vec<Read> = one_by_one.collect();
            prop_assert_eq!(read_uncached(&texts, max_depth), one_by_one, "{:?}", texts);
        }
    }
}
