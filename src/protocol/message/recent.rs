//! The `_meta` objects that stood in the last messages, so that one that comes again is known and not
//! read again.
//!
//! A modern client says in every request who it is and what it can do, and its server who answers: the
//! same text each time, and most of what such a message adds to a legacy one (docs/adr/0015).

use std::cell::RefCell;
use std::ops::Range;

use super::super::{json, meta};
use super::layout::{Member, Section};
use super::marks::Marks;

/// Objects that each thread remembers.
const KNOWN: usize = 4;
/// What is another one each time.
const PASSING: [&str; 3] = [
    meta::PROGRESS_TOKEN,
    meta::TRACEPARENT,
    meta::SUBSCRIPTION_ID,
];
/// Longer texts are not remembered, nor those with more members.
const MAX_LEN: usize = 1024;
const MAX_MEMBERS: usize = 16;

thread_local! {
    static RECENT: RefCell<Recent> = const { RefCell::new(Recent::NEW) };
}

/// What a thread remembers.
#[derive(Debug)]
struct Recent {
    known: [Known; KNOWN],
    /// Which one makes room next.
    oldest: usize,
}

/// An object that was read without a flaw.
#[derive(Debug)]
struct Known {
    section: Section,
    /// All of it, brackets included: no other text that begins so is an object.
    text: String,
    /// How many containers could nest where it was read.
    room: usize,
    marks: Marks,
    /// Its members, as if it began at the start of a message.
    members: Vec<Member>,
}

impl Recent {
    const NEW: Self = Self {
        known: [const { Known::NONE }; KNOWN],
        oldest: 0,
    };
}

impl Known {
    const NONE: Self = Self {
        section: Section::Top,
        text: String::new(),
        room: 0,
        marks: Marks::NONE,
        members: Vec::new(),
    };
}

/// Whether objects of this section are remembered.
pub(super) fn is_kept(section: Section) -> bool {
    matches!(section, Section::Meta | Section::ResultMeta)
}

/// Recognizes the object that stands at `at`, where `room` containers may nest: adds its members to
/// `members`, and tells where it ends and how its names are marked.
pub(super) fn recognize(
    text: &str,
    at: usize,
    section: Section,
    room: usize,
    members: &mut Vec<Member>,
) -> Option<(usize, Marks)> {
    let rest = text.as_bytes().get(at..)?;
    RECENT.with_borrow(|recent| {
        let known = recent.known.iter().find(|known| {
            known.section == section
                && known.room <= room
                && rest.starts_with(known.text.as_bytes())
        })?;
        members.extend(known.members.iter().map(|member| member.moved(0, at)));
        Some((at + known.text.len(), known.marks))
    })
}

/// Remembers an object of `section`, which holds `members` and stands at `span` in `text`.
pub(super) fn remember(
    text: &str,
    span: Range<usize>,
    section: Section,
    room: usize,
    marks: Marks,
    members: &[Member],
) {
    let may_come_again = |member: &Member| {
        let name = json::slice(text, member.name.range());
        member.decoded.is_none() && !PASSING.contains(&name)
    };
    if span.len() > MAX_LEN || members.len() > MAX_MEMBERS || !members.iter().all(may_come_again) {
        return;
    }
    let Some(object) = text.get(span.clone()) else {
        return;
    };
    RECENT.with_borrow_mut(|recent| {
        let place = recent.oldest;
        recent.oldest = (place + 1) % KNOWN;
        if let Some(known) = recent.known.get_mut(place) {
            known.section = section;
            known.text.clear();
            known.text.push_str(object);
            (known.room, known.marks) = (room, marks);
            known.members.clear();
            let from_start = members.iter().map(|member| member.moved(span.start, 0));
            known.members.extend(from_start);
        }
    });
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::super::decode_error::DecodeError;
    use super::super::Message;
    use super::*;

    /// What a thread that remembers nothing makes of a message.
    fn read_anew(text: &str, max_depth: usize) -> Result<String, DecodeError> {
        let text = text.to_owned();
        let fresh = std::thread::spawn(move || read(&text, max_depth));
        fresh.join().unwrap()
    }

    fn read(text: &str, max_depth: usize) -> Result<String, DecodeError> {
        let message = Message::parse(Bytes::copy_from_slice(text.as_bytes()), max_depth)?;
        Ok(format!("{:?}", message.layout))
    }

    fn request(meta: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_meta":{meta},"n":1}}}}"#)
    }

    fn is_known(meta: &str) -> bool {
        RECENT.with_borrow(|recent| recent.known.iter().any(|known| known.text == meta))
    }

    #[test]
    fn what_comes_again_is_known_wherever_it_stands() {
        let meta = r#"{"a":{"b":[1]},"c":"d"}"#;
        assert!(!is_known(meta));
        let first = request(meta);
        assert_eq!(read(&first, 128), read_anew(&first, 128));
        assert!(is_known(meta));
        let again = format!(
            r#"{{"params":{{"x":[],"_meta":{meta}}},"id":"longer","method":"m","jsonrpc":"2.0"}}"#
        );
        assert_eq!(read(&again, 128), read_anew(&again, 128));
        let message = Message::parse(again.into(), 128).unwrap();
        assert_eq!(
            (message.meta("c"), message.meta("b")),
            (Some("\"d\""), None)
        );
    }

    #[test]
    fn nesting_is_bounded_for_what_is_known_too() {
        let deep = request(r#"{"a":[[[]]]}"#);
        assert!(read(&deep, 128).is_ok());
        assert_eq!(read(&deep, 5), Err(DecodeError::TooDeep));
        assert!(read(&deep, 6).is_ok());
    }

    #[test]
    fn nothing_is_remembered_that_is_long_or_odd_or_new_each_time() {
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(MAX_LEN));
        let many: Vec<String> = (0..=MAX_MEMBERS).map(|n| format!(r#""k{n}":0"#)).collect();
        let many = format!("{{{}}}", many.join(","));
        let odd = [
            r#"{"\u0061":1}"#,
            r#"{"é":1}"#,
            r#"{"a":1,"A":2}"#,
            r#"{"progressToken":1}"#,
        ];
        for meta in odd.into_iter().chain([&*long, &*many]) {
            assert!(read(&request(meta), 128).is_ok(), "{meta}");
            assert!(!is_known(meta), "{meta}");
        }
    }

    proptest! {
        /// Whatever was read before, a message is read as if it were the first.
        #[test]
        fn the_past_changes_nothing(
            metas in prop::collection::vec(
                "\\{(\"a\":(1|\\{\\}|\"x\")(,\"[ab]\":(2|\\[\\]))?)?\\}[ }x]?", 1..8
            ),
            in_results in prop::collection::vec(any::<bool>(), 8),
            max_depth in 2_usize..5,
        ) {
            for (meta, in_result) in metas.iter().zip(in_results) {
                let text = if in_result {
                    format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{meta}}}}}"#)
                } else {
                    request(meta)
                };
                prop_assert_eq!(read(&text, max_depth), read_anew(&text, max_depth), "{}", text);
            }
        }
    }
}
