//! Icons of upstreams and items, restricted to URLs that are safe to load: no icon may make a client
//! run or open anything. Spec: SPEC C-96; MCP 2025-11-25, "Icons".

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::json::{self, JsonScanner, ObjectMembers, ObjectWriter};

/// Schemes of the sources that are passed on.
const SCHEMES: [&str; 3] = ["https", "http", "data"];

/// What holds them.
const ICONS: &str = "icons";

/// A text with icons left out of it.
#[derive(Debug, PartialEq, Eq)]
pub struct PurgedText {
    /// The JSON text without them.
    pub text: String,
    /// How many there were.
    pub icons: usize,
}

impl PurgedText {
    /// An object that lost every member, as two parsers could read it differently.
    fn emptied() -> Self {
        Self {
            text: "{}".to_owned(),
            icons: 1,
        }
    }
}

/// The object `text` (JSON text of an item or of an `Implementation`) without icons that a client must
/// not load; `None` if `text` has no unsafe icon. An array of icons left empty is removed, too, and
/// an object whose icons two parsers could read differently loses every member. Names are compared
/// without regard to case, as some parsers do.
#[must_use]
pub fn purged(text: &str) -> Option<PurgedText> {
    if !may_have(text) || !text.starts_with('{') {
        return None;
    }
    if let Ok(members) = json::members(text) {
        return without_unsafe(&members);
    }
    has_icons(text).then(PurgedText::emptied)
}

/// The same for each element of the array `text` (JSON text); an object that would lose every member
/// is left out.
#[must_use]
pub fn purged_items(text: &str) -> Option<PurgedText> {
    if !may_have(text) {
        return None;
    }
    in_elements(text, purged)
}

/// The same for the links to resources among `content` (JSON text): a block, or an array of them.
#[must_use]
pub fn purged_content(content: &str) -> Option<PurgedText> {
    if !may_have_links(content) {
        return None;
    }
    if content.starts_with('[') {
        purged_items(content)
    } else {
        purged(content)
    }
}

/// The same for messages of a prompt (JSON text of an array), each with content; one that would lose every member is
/// left out.
#[must_use]
pub fn purged_messages(messages: &str) -> Option<PurgedText> {
    if !may_have_links(messages) {
        return None;
    }
    in_elements(messages, purged_holder)
}

/// The same for an object with such content: a message of a prompt, or the result of a tool. One whose content two
/// parsers could read differently loses every member.
#[must_use]
pub fn purged_holder(holder: &str) -> Option<PurgedText> {
    in_members(holder, |name| is_named(name, "content"), purged_content)
}

/// The same for the parameters of a sampling request (JSON text): its messages may hold results of tools.
#[must_use]
pub fn purged_sampling(params: &str) -> Option<PurgedText> {
    if !may_have_links(params) || !may_have(params) {
        return None;
    }
    let in_message = |message: &str| {
        in_members(
            message,
            |name| is_named(name, "content"),
            |content| {
                if content.starts_with('[') {
                    in_elements(content, purged_holder)
                } else {
                    purged_holder(content)
                }
            },
        )
    };
    let in_messages = |messages: &str| in_elements(messages, in_message);
    in_members(params, |name| is_named(name, "messages"), in_messages)
}

/// The same for the sampling requests among `inputRequests` (JSON text of an object).
#[must_use]
pub fn purged_requests(requests: &str) -> Option<PurgedText> {
    if !may_have_links(requests) || !may_have(requests) {
        return None;
    }
    let in_request =
        |request: &str| in_members(request, |name| is_named(name, "params"), purged_sampling);
    in_members(requests, |_| true, in_request)
}

/// The array `text` (JSON text) with each element `purge`d; an object that would lose every member is left out.
fn in_elements(text: &str, purge: impl Fn(&str) -> Option<PurgedText>) -> Option<PurgedText> {
    let mut icons = 0;
    let mut kept = Vec::new();
    for element in json::elements(text).ok()? {
        let Some(purged) = purge(element) else {
            kept.push(Cow::Borrowed(element));
            continue;
        };
        icons += purged.icons;
        if purged.text != "{}" {
            kept.push(purged.text.into());
        }
    }
    (icons > 0).then(|| PurgedText {
        text: json::array(kept),
        icons,
    })
}

/// The object `text` (JSON text) with the members of a `concerned` name `purge`d. One that repeats a member loses every
/// member where it may have icons of links.
fn in_members(
    text: &str,
    concerned: impl Fn(&str) -> bool,
    purge: impl Fn(&str) -> Option<PurgedText>,
) -> Option<PurgedText> {
    if !text.starts_with('{') {
        return None;
    }
    let Ok(members) = json::members(text) else {
        let may_be_unsafe = may_have_links(text) && may_have(text);
        return may_be_unsafe.then(PurgedText::emptied);
    };
    let mut out = ObjectWriter::default();
    let mut icons = 0;
    for (name, value) in &members {
        let purged = concerned(name).then(|| purge(value)).flatten();
        match purged {
            Some(purged) => {
                out.member(name, &purged.text);
                icons += purged.icons;
            }
            None => out.member(name, value),
        }
    }
    (icons > 0).then(|| PurgedText {
        text: out.finish(),
        icons,
    })
}

/// Whether a link to a resource may stand in this JSON text. Every byte of every result is looked at: one quick search
/// for the bytes that a link or an escape cannot be without, and where it finds some, one for links and one for letters
/// that are written as escapes.
fn may_have_links(text: &str) -> bool {
    static LINK: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"resource_link"));
    static ESCAPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\\u00"));
    let bytes = text.as_bytes();
    if memchr::memchr2(b'_', b'\\', bytes).is_none() {
        return false;
    }
    let is_letter = |at: usize| bytes.get(at + 4).is_some_and(|b| (b'4'..=b'7').contains(b));
    LINK.find(bytes).is_some() || ESCAPE.find_iter(bytes).any(is_letter)
}

/// Whether an object in this JSON text may have icons; cheap, to leave most texts unread.
fn may_have(text: &str) -> bool {
    const QUOTED: &[u8] = b"\"icons\"";
    let bytes = text.as_bytes();
    let stands_before = |at: usize| {
        let name = bytes.get(at..at + QUOTED.len());
        name.is_some_and(|name| name.eq_ignore_ascii_case(QUOTED))
    };
    let mut initials = memchr::memchr2_iter(b'i', b'I', bytes);
    // An escape could spell the name, too.
    initials.any(|at| at.checked_sub(1).is_some_and(stands_before))
        || memchr::memmem::find(bytes, b"\\u00").is_some()
}

/// Whether one of the members of an object is named so, whatever else is the matter with it.
fn has_icons(text: &str) -> bool {
    let mut scanner = JsonScanner::new(text, json::MAX_DEPTH);
    let mut found = false;
    let walked = scanner.object(|scanner, key| {
        found |= key.decode().is_ok_and(|name| is_named(&name, ICONS));
        scanner.value().map(drop)
    });
    walked.is_err() || found
}

fn is_named(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

fn without_unsafe(members: &ObjectMembers<'_>) -> Option<PurgedText> {
    let mut left_out = 0;
    let mut out = ObjectWriter::default();
    for (name, value) in members {
        if !is_named(name, ICONS) || *value == "null" {
            out.member(name, value);
            continue;
        }
        // A value other than an array counts as one unsafe icon.
        let given = json::elements(value).unwrap_or_else(|_| vec!["null"]);
        let mut kept = given.clone();
        kept.retain(|icon| may_be_loaded(icon));
        left_out += given.len() - kept.len();
        if kept.len() == given.len() {
            out.member(name, value);
        } else if !kept.is_empty() {
            out.member(name, &json::array(&kept));
        }
    }
    (left_out > 0).then(|| PurgedText {
        text: out.finish(),
        icons: left_out,
    })
}

/// Whether a client may load the icon, JSON text: where it lies is said once, in so many words.
fn may_be_loaded(icon: &str) -> bool {
    let members = json::members(icon).unwrap_or_default();
    let mut sources = members.iter().filter(|(name, _)| is_named(name, "src"));
    let (Some((_, source)), None) = (sources.next(), sources.next()) else {
        return false;
    };
    json::string(source).is_some_and(|source| has_safe_scheme(&source))
}

/// Whether a source has one of the schemes that are passed on, as browsers read it: without what
/// stands before it that is no visible character, and in any case. What has no scheme at all would be
/// looked for at the client's own place.
fn has_safe_scheme(source: &str) -> bool {
    let source = source.trim_start_matches(|c: char| c <= ' ');
    let Some((scheme, _)) = source.split_once(':') else {
        return false;
    };
    SCHEMES
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn text_of(purged: Option<PurgedText>) -> Option<String> {
        purged.map(|purged| purged.text)
    }

    // SPEC C-96.
    #[rstest]
    #[case("https://a.example/i.png", true)]
    #[case("HTTP://a.example/i.png", true)]
    #[case("Data:image/png;base64,AA==", true)]
    #[case("\\n https://a.example/i.png", true)]
    #[case("javascript:alert(1)", false)]
    #[case("JavaScript:alert(1)", false)]
    #[case("\\u0001 \\tjavascript:alert(1)", false)]
    #[case("java\\nscript:alert(1)", false)]
    #[case("\\u006aavascript:alert(1)", false)]
    #[case("file:///etc/passwd", false)]
    #[case("ftp://a.example/i.png", false)]
    #[case("ws://a.example/", false)]
    #[case("vscode://a", false)]
    #[case("blob:https://a.example/x", false)]
    #[case("/i.png", false)]
    #[case("//a.example/i.png?https:", false)]
    #[case("https", false)]
    #[case("", false)]
    fn only_sources_of_the_web_are_loaded(#[case] source: &str, #[case] expected: bool) {
        let item = format!(r#"{{"name":"t","icons":[{{"src":"{source}"}}],"x":[1, 2]}}"#);
        let bare = r#"{"name":"t","x":[1, 2]}"#;
        assert_eq!(
            text_of(purged(&item)).as_deref(),
            (!expected).then_some(bare)
        );
    }

    // SPEC C-96, C-97.
    #[test]
    fn the_item_stays_and_so_do_its_other_icons() {
        let items =
            r#"[{"name":"a"},{"icons":[{"src":"ftp:x"},{"src":"https:y","theme":"dark"},7]},5]"#;
        let purged = purged_items(items).unwrap();
        assert_eq!(
            purged.text,
            r#"[{"name":"a"},{"icons":[{"src":"https:y","theme":"dark"}]},5]"#
        );
        assert_eq!(purged.icons, 2);
        let safe = r#"[{"icons":[{"src":"data:x"}]},{"icons":null},{"icons":[]}]"#;
        assert_eq!(purged_items(safe), None);
    }

    #[rstest]
    #[case(r#"{"a":1,"icons":{"src":"javascript:x"}}"#)]
    #[case(r#"{"a":1,"icons":"javascript:x"}"#)]
    #[case(r#"{"a":1,"icons":[{"sizes":["any"]}]}"#)]
    #[case(r#"{"a":1,"icons":[{"src":"https:x","src":"javascript:x"}]}"#)]
    #[case(r#"{"a":1,"\u0069cons":[{"src":"javascript:x"}]}"#)]
    #[case(r#"{"a":1,"Icons":[{"SRC":"javascript:x"}]}"#)]
    #[case(r#"{"a":1,"icons":[{"src":"https:x","Src":"javascript:x"}]}"#)]
    fn what_does_not_say_where_it_lies_is_no_icon(#[case] item: &str) {
        assert_eq!(text_of(purged(item)).as_deref(), Some(r#"{"a":1}"#));
    }

    #[test]
    fn what_two_parsers_read_differently_is_not_shown() {
        let twice = r#"{"icons":[],"icons":[{"src":"javascript:x"}]}"#;
        assert_eq!(text_of(purged(twice)).as_deref(), Some("{}"));
        assert_eq!(
            text_of(purged_items(&format!("[{twice},1]"))).as_deref(),
            Some("[1]")
        );
    }

    // SPEC C-96.
    #[rstest]
    #[case("resource_link")]
    #[case("resource\\u005flink")]
    fn links_to_resources_lose_their_icons(#[case] kind: &str) {
        let link = |icons: &str| format!(r#"{{"type":"{kind}","uri":"a:b"{icons}}}"#);
        let bad = link(r#","icons":[{"src":"javascript:x"}]"#);
        let text = r#"{"type":"text","text":"\"icons\""}"#;
        let content = purged_content(&format!("[{text},{bad}]")).unwrap();
        assert_eq!(content.text, format!("[{text},{}]", link("")));
        assert_eq!(content.icons, 1);
        assert_eq!(text_of(purged_content(&bad)), Some(link("")));
        let good = link(r#","icons":[{"src":"https:x"}]"#);
        assert_eq!(purged_content(&format!("[{good}]")), None);
        let message = |content: &str| format!(r#"[{{"role":"user","content":{content}}}]"#);
        let messages = purged_messages(&message(&bad)).unwrap();
        assert_eq!(messages.text, message(&link("")));
        assert_eq!(purged_messages(&message(text)), None);
        let result = |link: &str| format!(r#"{{"content":[{link}],"isError":false}}"#);
        assert_eq!(
            text_of(purged_holder(&result(&bad))),
            Some(result(&link("")))
        );
    }

    // SPEC C-96.
    #[test]
    fn results_of_tools_in_sampling_requests_lose_their_icons() {
        let link = |icons: &str| format!(r#"{{"type":"resource_link","uri":"a:b"{icons}}}"#);
        let (bad, bare) = (link(r#","icons":[{"src":"javascript:x"}]"#), link(""));
        let result =
            |link: &str| format!(r#"{{"type":"tool_result","toolUseId":"1","content":[{link}]}}"#);
        let params = |content: &str| {
            format!(r#"{{"maxTokens":1,"messages":[{{"role":"user","content":{content}}}]}}"#)
        };
        let many = |link: &str| params(&format!("[{},{}]", result(link), result(&bare)));
        assert_eq!(text_of(purged_sampling(&many(&bad))), Some(many(&bare)));
        let one = |link: &str| params(&result(link));
        assert_eq!(text_of(purged_sampling(&one(&bad))), Some(one(&bare)));
        assert_eq!(purged_sampling(&many(&bare)), None);
        let asked = |link: &str| {
            format!(
                r#"{{"k":{{"method":"sampling/createMessage","params":{}}}}}"#,
                many(link)
            )
        };
        assert_eq!(text_of(purged_requests(&asked(&bad))), Some(asked(&bare)));
        assert_eq!(purged_requests(&asked(&bare)), None);
    }

    // SPEC C-96.
    #[test]
    fn holder_whose_content_two_parsers_read_differently_is_not_shown() {
        let icons = r#""icons":[{"src":"javascript:x"}]"#;
        let link = format!(r#"{{"type":"resource_link","uri":"a:b",{icons}}}"#);
        let text = r#"{"type":"text","text":"x"}"#;
        let twice = |first: &str, last: &str| format!(r#"{{"content":{first},"content":{last}}}"#);
        for twice in [twice(text, &link), twice(&link, text)] {
            let messages = format!(r#"[{{"role":"user"}},{twice},"{{"]"#);
            let kept = r#"[{"role":"user"},"{"]"#;
            assert_eq!(text_of(purged_messages(&messages)).as_deref(), Some(kept));
            assert_eq!(text_of(purged_holder(&twice)).as_deref(), Some("{}"));
        }
        assert_eq!(purged_holder(&twice(text, text)), None);
        assert_eq!(purged_holder(r#""resource_link "icons"""#), None);
    }

    #[test]
    fn what_has_no_icons_is_not_read() {
        let repeated = r#"{"a":"\u00e9","a":{"icons":[]}}"#;
        assert_eq!(purged(repeated), None);
        assert_eq!(purged(r#"{"a":1,"a":2}"#), None);
        assert_eq!(purged_items(r#"[{"a":1,"a":2}]"#), None);
        assert_eq!(purged_items("{"), None);
    }
}
