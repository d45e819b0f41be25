use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn prefixes() -> NamePrefixes {
    NamePrefixes::new(["a", "b", "files", "a-b"].map(Arc::from))
}

fn prefix(name: &str) -> NamePrefix {
    NamePrefix::new(name.into())
}

fn meaning(resolved: &ResolvedName<'_>) -> String {
    match resolved {
        ResolvedName::Exact { upstream, original } => format!("{upstream} {original}"),
        ResolvedName::NeedsIndex => "index".to_owned(),
        ResolvedName::Unknown => "unknown".to_owned(),
    }
}

#[rstest]
#[case("read", "a__read")]
#[case("", "a__")]
#[case("_x", "a___x")]
#[case("__x", "a____x")]
#[case("b__read", "a__b__read")]
#[case("a.b/c d", "a__a.b/c d")]
#[case("läs", "a__läs")]
#[case("backup_20240101", "a__backup_20240101")]
fn names_carry_their_upstream_and_come_back(#[case] original: &str, #[case] shown: &str) {
    assert_eq!(prefix("a").name(original), shown);
    assert_eq!(
        meaning(&prefixes().resolve_name(shown)),
        format!("a {original}")
    );
}

// SPEC C-93, G-05.
#[rstest]
#[case::long(&"x".repeat(62))]
#[case::very_long(&"å".repeat(5000))]
#[case::line_break("rea\nd")]
#[case::turned_around("read\u{202e}")]
#[case::like_a_digest(&format!("{}_0123abcd", "x".repeat(52)))]
fn names_that_cannot_be_shown_are_shortened_and_need_the_index(#[case] original: &str) {
    let shown = prefix("a").name(original);
    assert!(shown.starts_with("a__"));
    assert_eq!(shown.chars().count(), MAX_NAME);
    assert!(!shown.chars().any(is_hidden));
    assert_eq!(prefixes().resolve_name(&shown), ResolvedName::NeedsIndex);
}

#[test]
fn shortening_keeps_a_readable_head_and_tells_names_apart() {
    let (one, two) = ("tool_".repeat(20) + "1", "tool_".repeat(20) + "2");
    assert!(prefix("files").name(&one).starts_with("files__tool_tool_"));
    assert_ne!(prefix("files").name(&one), prefix("files").name(&two));
    assert_ne!(prefix("a").name("x\n"), prefix("a").name("x"));
}

#[rstest]
#[case("read", "index")]
#[case("c__read", "index")]
#[case("A__read", "index")]
#[case("a_b__read", "index")]
#[case("", "unknown")]
#[case("a__re\nad", "unknown")]
#[case("\u{200b}a__read", "unknown")]
fn other_names_are_never_guessed(#[case] name: &str, #[case] expected: &str) {
    assert_eq!(meaning(&prefixes().resolve_name(name)), expected);
    let overlong = format!("a__{}", "x".repeat(100));
    assert_eq!(prefixes().resolve_name(&overlong), ResolvedName::Unknown);
}

#[rstest]
#[case("file:///etc/hosts", "a+file:///etc/hosts")]
#[case("urn:x:y", "a+urn:x:y")]
#[case("ui://app/view.html", "ui://a/app/view.html")]
#[case("UI://app", "UI://a/app")]
#[case("skill://deep/path/name", "skill://a/deep/path/name")]
#[case("ui://", "ui://a/")]
#[case("ui:opaque", "a+ui:opaque")]
#[case("b+file:///x", "a+b+file:///x")]
#[case("ui://b/x", "ui://a/b/x")]
#[case("relative/path", "a+relative/path")]
#[case("{scheme}://x", "a+{scheme}://x")]
#[case("{+uri}", "a+{+uri}")]
#[case("file:///{+path}", "a+file:///{+path}")]
#[case("ui://{view}", "ui://a/{view}")]
#[case("test://t/%2F?q=1#f", "a+test://t/%2F?q=1#f")]
#[case("git+ssh://h/r", "a+git+ssh://h/r")]
fn uris_carry_their_upstream_and_come_back(#[case] original: &str, #[case] shown: &str) {
    assert_eq!(prefix("a").uri(original), shown);
    assert_eq!(
        meaning(&prefixes().resolve_uri(shown)),
        format!("a {original}")
    );
}

// SPEC C-52.
#[rstest]
#[case("https://host/x")]
#[case("HTTP://host/x")]
#[case("https://host/{path}")]
fn urls_that_clients_may_fetch_stay_and_need_the_index(#[case] url: &str) {
    assert_eq!(prefix("a").uri(url), url);
    assert_eq!(prefixes().resolve_uri(url), ResolvedName::NeedsIndex);
}

#[rstest]
#[case("file:///x", "index")]
#[case("c+file:///x", "index")]
#[case("git+ssh://h/r", "index")]
#[case("ui://c/x", "index")]
#[case("ui://a", "index")]
#[case("", "unknown")]
#[case("a+file:///x\ny", "unknown")]
fn other_uris_are_never_guessed(#[case] uri: &str, #[case] expected: &str) {
    assert_eq!(meaning(&prefixes().resolve_uri(uri)), expected);
}

#[test]
fn an_expanded_template_still_names_its_upstream() {
    let shown = prefix("a")
        .uri("{scheme}://host/{id}")
        .replace("{scheme}", "https");
    let expanded = shown.replace("{id}", "7");
    assert_eq!(
        meaning(&prefixes().resolve_uri(&expanded)),
        "a https://host/7"
    );
}

#[test]
fn loggers_say_whose_they_are() {
    assert_eq!(prefix("a").logger("db\n.pool"), "a/db.pool");
}

fn upstream() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,19}"
}

/// Names crafted to imitate prefixes, hashes and schemes.
fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,80}",
        "(a|b|ab)(__|_|\\+|://)(a|b|x){0,3}(__|_[0-9a-f]{8})?",
        "(a|b){0,1}__x{50,60}_[0-9a-f]{8}",
        "(ui|skill|http|file|a|b|a\\+ui|\\{s\\})(:|://|\\+)(a|b|/|\\+|:){0,6}",
    ]
}

proptest! {
    #[test]
    fn exact_names_are_reversible(up in upstream(), other in upstream(), name in hostile()) {
        let all = NamePrefixes::new([up.as_str().into(), Arc::from(other.as_str())]);
        let shown = all.of(&up).unwrap().name(&name);
        prop_assert!(shown.chars().count() <= MAX_NAME);
        match all.resolve_name(&shown) {
            ResolvedName::Exact { upstream, original } => {
                prop_assert_eq!(&*upstream, up.as_str());
                prop_assert_eq!(original, name);
            }
            ResolvedName::NeedsIndex => prop_assert_eq!(shown.chars().count(), MAX_NAME),
            ResolvedName::Unknown => prop_assert!(false, "{:?}", shown),
        }
    }

    #[test]
    fn no_two_names_of_any_upstreams_collide(
        names in prop::collection::hash_set((prop_oneof![Just("a"), Just("b"), Just("a-b")], hostile()), 2..20)
    ) {
        let shown: std::collections::HashSet<String> =
            names.iter().map(|(up, name)| prefix(up).name(name)).collect();
        prop_assert_eq!(shown.len(), names.len());
    }

    #[test]
    fn uris_are_reversible_and_collide_only_where_clients_may_fetch(
        uris in prop::collection::hash_set((prop_oneof![Just("a"), Just("b"), Just("a-b")], hostile()), 2..20)
    ) {
        let mut shown = std::collections::HashSet::new();
        for (up, uri) in &uris {
            let mapped = prefix(up).uri(uri).into_owned();
            if mapped.chars().any(char::is_control) || mapped == *uri {
                continue;
            }
            prop_assert_eq!(meaning(&prefixes().resolve_uri(&mapped)), format!("{up} {uri}"));
            prop_assert!(shown.insert(mapped));
        }
    }
}
