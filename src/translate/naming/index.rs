//! What a principal's own lists say about names that do not name their upstream.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::{NamePrefix, is_fetchable};
use crate::protocol::json;
use crate::protocol::methods::ListKind;

/// Most items that are remembered; what comes later is not found.
const MAX_ITEMS: usize = 20_000;
/// Owners of one bare name that are told apart, and named to the client.
const MAX_OWNERS: usize = 8;

/// What was listed under a name.
#[derive(Debug, PartialEq, Eq)]
pub enum FoundName<'a> {
    /// One owner.
    One {
        /// The upstream.
        upstream: &'a Arc<str>,
        /// As the upstream knows it.
        original: &'a str,
    },
    /// Several upstreams offer this bare name; the names that tell them apart.
    Several(Vec<String>),
    /// No upstream.
    Nobody,
}

/// Names listed to one principal, of one kind, by the spelling that clients see and by the bare one.
#[derive(Debug, Default)]
pub struct NameIndex {
    shown: HashMap<Box<str>, IndexEntry>,
    bare: HashMap<Box<str>, Vec<IndexEntry>>,
    /// What stands before the first expression of each template of `http` URLs, as listed.
    literals: Vec<(Box<str>, Arc<str>)>,
    /// Whether these are URIs.
    are_uris: bool,
    len: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct IndexEntry {
    upstream: Arc<str>,
    original: Arc<str>,
}

impl NameIndex {
    /// Adds the items of one upstream's list, the JSON text of an array, where `is_shown` says so.
    /// Items without a name are passed over.
    ///
    /// # Errors
    /// When the text is no array.
    pub fn add(
        &mut self,
        kind: ListKind,
        prefix: &NamePrefix,
        items: &str,
        mut is_shown: impl FnMut(&str) -> bool,
    ) -> Result<(), json::JsonError> {
        for item in json::elements(items)? {
            let Ok(members) = json::members(item) else {
                continue;
            };
            let named = members.iter().find(|(name, _)| name == kind.item_key());
            let Some(original) = named.and_then(|(_, value)| json::string(value)) else {
                continue;
            };
            if is_shown(&original) {
                self.insert(kind, prefix, &original);
            }
        }
        Ok(())
    }

    fn insert(&mut self, kind: ListKind, prefix: &NamePrefix, original: &str) {
        if self.len >= MAX_ITEMS {
            return;
        }
        self.len += 1;
        let entry = IndexEntry {
            upstream: prefix.upstream().clone(),
            original: original.into(),
        };
        self.are_uris = !matches!(kind, ListKind::Tools | ListKind::Prompts);
        if kind == ListKind::Templates
            && is_fetchable(original)
            && let Some((literal, _)) = original.split_once('{')
        {
            let owner = Arc::clone(prefix.upstream());
            self.literals.push((literal.into(), owner));
        }
        let shown = self.shown_as(prefix, original);
        // On a collision of shown names the first owner keeps the name.
        self.shown
            .entry(shown.into_owned().into())
            .or_insert_with(|| entry.clone());
        let owners = self.bare.entry(original.into()).or_default();
        if owners.len() < MAX_OWNERS && !owners.contains(&entry) {
            owners.push(entry);
        }
    }

    fn shown_as<'n>(&self, prefix: &NamePrefix, original: &'n str) -> Cow<'n, str> {
        if self.are_uris {
            prefix.uri(original)
        } else {
            prefix.name(original).into()
        }
    }

    /// Finds the owner of `name`: first as a shown name, then as a bare name of exactly one upstream.
    ///
    /// A second owner makes a bare name fail; it never switches. `http` URLs, which are shown bare,
    /// belong to the first upstream that lists them.
    #[must_use]
    pub fn find(&self, name: &str) -> FoundName<'_> {
        if let Some(entry) = self.shown.get(name) {
            return FoundName::One {
                upstream: &entry.upstream,
                original: &entry.original,
            };
        }
        match self.bare.get(name).map(Vec::as_slice) {
            Some([entry]) => FoundName::One {
                upstream: &entry.upstream,
                original: &entry.original,
            },
            None | Some([]) => FoundName::Nobody,
            Some(several) => {
                let shown = several.iter().map(|entry| {
                    let prefix = NamePrefix::new(entry.upstream.clone());
                    self.shown_as(&prefix, name).into_owned()
                });
                FoundName::Several(shown.collect())
            }
        }
    }

    /// The owner of the longest listed URL that `url` continues after a `/`, `?` or `#`. Only
    /// `http` URLs need this; they are never offered around. A listed URL without a host owns nothing.
    #[must_use]
    pub fn find_by_start(&self, url: &str) -> Option<&Arc<str>> {
        if !is_fetchable(url) {
            return None;
        }
        let continues = |known: &str| {
            let rest = url.strip_prefix(known)?;
            let at_border = known.ends_with('/') || rest.starts_with(ENDS_HOST);
            (at_border && names_host(known)).then_some(known.len())
        };
        let known = self
            .shown
            .iter()
            .filter_map(|(known, e)| Some((continues(known)?, e)));
        known
            .max_by_key(|(length, _)| *length)
            .map(|(_, entry)| &entry.upstream)
    }

    /// Whether an upstream lists `uri` itself, or a template whose literal start is a prefix of `uri`.
    #[must_use]
    pub fn may_name(&self, uri: &str) -> bool {
        let begins = |template: &str| {
            let literal = template.split_once('{').map(|(literal, _)| literal);
            literal.is_some_and(|literal| uri.starts_with(literal))
        };
        self.bare.contains_key(uri) || self.bare.keys().any(|listed| begins(listed))
    }

    /// The owner of the listed template with the longest literal prefix of `url` (text before its first
    /// expression); on a tie the first upstream. A template whose host is an expression owns no URL.
    #[must_use]
    pub fn find_by_template(&self, url: &str) -> Option<&Arc<str>> {
        let known = self.literals.iter().rev();
        known
            .filter(|(literal, _)| is_begun_by(literal, url))
            .max_by_key(|(literal, _)| literal.len())
            .map(|(_, upstream)| upstream)
    }
}

/// What ends the host of a URL.
const ENDS_HOST: [char; 3] = ['/', '?', '#'];

/// The host of a URL or of the beginning of one, with all that follows it; `None` where there is no host.
/// A backslash ends the host for browsers alone, so nothing is said of a host that has one.
fn host_and_rest(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let host = rest.split(ENDS_HOST).next()?;
    (!host.is_empty() && !host.contains('\\')).then_some(rest)
}

fn names_host(url: &str) -> bool {
    host_and_rest(url).is_some()
}

/// Whether `url` begins with `literal`, its whole host included.
fn is_begun_by(literal: &str, url: &str) -> bool {
    let Some(host) = host_and_rest(literal) else {
        return false;
    };
    let ends_host = |rest: &str| host.contains(ENDS_HOST) || rest.starts_with(ENDS_HOST);
    url.strip_prefix(literal).is_some_and(ends_host)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn index(kind: ListKind, lists: &[(&str, &str)]) -> NameIndex {
        let mut index = NameIndex::default();
        for (upstream, items) in lists {
            index
                .add(kind, &NamePrefix::new((*upstream).into()), items, |_| true)
                .unwrap();
        }
        index
    }

    fn owner(found: &FoundName<'_>) -> String {
        match found {
            FoundName::One { upstream, original } => format!("{upstream} {original}"),
            FoundName::Several(names) => names.join(" "),
            FoundName::Nobody => "nobody".to_owned(),
        }
    }

    #[test]
    fn a_bare_name_belongs_to_its_only_owner() {
        let two = index(
            ListKind::Tools,
            &[
                ("a", r#"[{"name":"x"},{"name":"b__x"}]"#),
                ("b", r#"[{"name":"x"},{"name":"y"}]"#),
            ],
        );
        assert_eq!(owner(&two.find("y")), "b y");
        assert_eq!(owner(&two.find("x")), "a__x b__x");
        assert_eq!(owner(&two.find("z")), "nobody");
        // What `b` is shown under is not for `a` to claim by a bare name.
        assert_eq!(owner(&two.find("b__x")), "b x");
    }

    #[test]
    fn a_bare_uri_of_several_is_told_apart_as_uris_are() {
        let items = r#"[{"uri":"x:1"}]"#;
        let two = index(ListKind::Resources, &[("na", items), ("nb", items)]);
        assert_eq!(owner(&two.find("x:1")), "na+x:1 nb+x:1");
    }

    // BRIDGING §4.1: a URL can contain secrets, so only an upstream that lists its host gets it.
    #[test]
    fn a_url_belongs_to_the_template_that_names_most_of_it() {
        let two = index(
            ListKind::Templates,
            &[
                (
                    "a",
                    r#"[{"uriTemplate":"https://h/i/{id}"},{"uriTemplate":"https://h/both/{x}"}]"#,
                ),
                (
                    "b",
                    r#"[{"uriTemplate":"https://h/i/b/{id}"},{"uriTemplate":"https://h/both/{y}"},
                        {"uriTemplate":"https://{host}/x"},{"uriTemplate":"https://open{/path}"},
                        {"uriTemplate":"x:{id}"}]"#,
                ),
            ],
        );
        let of = |url| two.find_by_template(url).map(|upstream| &**upstream);
        assert_eq!(of("https://h/i/7"), Some("a"));
        assert_eq!(of("https://h/i/b/7"), Some("b"));
        assert_eq!(of("https://h/both/7"), Some("a"));
        assert_eq!(of("https://open/p"), Some("b"));
        assert_eq!(of("https://open.evil/p"), None);
        assert_eq!(of("https://other/x"), None);
        assert_eq!(of("https:///x"), None);
        assert_eq!(of("x:1"), None);
    }

    #[test]
    fn shortened_names_are_found_again() {
        let long = "n".repeat(200);
        let one = index(
            ListKind::Prompts,
            &[("up", &format!(r#"[{{"name":"{long}"}}]"#))],
        );
        let shown = NamePrefix::new("up".into()).name(&long);
        assert_eq!(owner(&one.find(&shown)), format!("up {long}"));
    }

    #[test]
    fn what_policy_hides_is_not_found_and_gives_no_hint() {
        let mut index = NameIndex::default();
        let items = r#"[{"name":"open"},{"name":"secret"},5,{"title":"no name"}]"#;
        index
            .add(ListKind::Tools, &NamePrefix::new("a".into()), items, |n| {
                n != "secret"
            })
            .unwrap();
        assert_eq!(index.find("secret"), FoundName::Nobody);
        assert_eq!(index.find("a__secret"), FoundName::Nobody);
        assert_eq!(owner(&index.find("open")), "a open");
    }

    #[test]
    fn a_url_belongs_to_the_first_upstream_and_the_longest_start() {
        let two = index(
            ListKind::Resources,
            &[
                (
                    "a",
                    r#"[{"uri":"https://h/docs"},{"uri":"https://h/both"},{"uri":"a:b"}]"#,
                ),
                (
                    "b",
                    r#"[{"uri":"https://h/docs/api/"},{"uri":"https://h/both"}]"#,
                ),
            ],
        );
        assert_eq!(owner(&two.find("https://h/both")), "a https://h/both");
        assert_eq!(&**two.find_by_start("https://h/docs/x").unwrap(), "a");
        assert_eq!(&**two.find_by_start("https://h/docs/api/x").unwrap(), "b");
        assert_eq!(two.find_by_start("https://h/docsother"), None);
        assert_eq!(two.find_by_start("https://h.evil/docs"), None);
        assert_eq!(two.find_by_start("a+a:b/c"), None);
    }

    // SPEC C-53.
    #[test]
    fn listed_uris_and_beginnings_of_templates_are_named() {
        let listed = index(ListKind::Resources, &[("a", r#"[{"uri":"odd one"}]"#)]);
        assert!(listed.may_name("odd one") && !listed.may_name("odd"));
        let items = r#"[{"uriTemplate":"notes/{id}"},{"uriTemplate":"x:{id}"}]"#;
        let templates = index(ListKind::Templates, &[("a", items)]);
        assert!(templates.may_name("notes/7") && !templates.may_name("other/7"));
        let any = index(
            ListKind::Templates,
            &[("a", r#"[{"uriTemplate":"{path}"}]"#)],
        );
        assert!(any.may_name("anything"));
    }

    // SPEC G-05; BRIDGING §4.1.
    #[rstest]
    #[case("https://")]
    #[case("https:")]
    #[case("https:///")]
    #[case("https://?/")]
    #[case("https://#/")]
    #[case("https:/")]
    #[case("https://\\/")]
    fn url_without_host_owns_no_url(#[case] listed: &str) {
        let items = format!(r#"[{{"uri":{}}}]"#, json::quote(listed));
        let one = index(ListKind::Resources, &[("evil", &items)]);
        for rest in [
            "bank.example/x?token=s",
            "/bank.example/x",
            "x/y",
            "/?a",
            "/#b",
        ] {
            let url = format!("{listed}{rest}");
            assert_eq!(one.find_by_start(&url), None, "{url}");
        }
    }
}
