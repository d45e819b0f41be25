//! Finding repeated member names.

use std::borrow::Cow;
use std::collections::HashSet;

/// When two names count as the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameFolding {
    /// Equal characters.
    Exact,
    /// Equal but for case. Some servers match members without regard to it (Go's `encoding/json`,
    /// which also takes `ſ` for `s` and `K` for `k`), so that `Name` could override `name`.
    Case,
}

/// Up to here comparing all pairs beats hashing.
const PAIRWISE: usize = 16;

/// The first duplicate in `names`, under `folding`.
pub(crate) fn first_duplicate<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
    folding: NameFolding,
) -> Option<String> {
    if names.clone().nth(PAIRWISE).is_some() {
        let mut seen = HashSet::new();
        return names
            .map(|name| {
                (
                    name,
                    if folding == NameFolding::Case {
                        fold(name)
                    } else {
                        name.into()
                    },
                )
            })
            .find_map(|(name, key)| (!seen.insert(key)).then(|| name.to_owned()));
    }
    let ascii = names.clone().all(str::is_ascii);
    let same = |a: &str, b: &str| match folding {
        NameFolding::Exact => a == b,
        NameFolding::Case if ascii => a.eq_ignore_ascii_case(b),
        NameFolding::Case => fold(a) == fold(b),
    };
    let mut rest = names;
    while let Some(name) = rest.next() {
        if rest.clone().any(|other| same(name, other)) {
            return Some(name.to_owned());
        }
    }
    None
}

/// Names of an object seen so far; without heap allocation for small objects.
#[derive(Debug, Default)]
pub(crate) struct SeenNames<'a> {
    few: [&'a str; PAIRWISE],
    len: usize,
    more: HashSet<Cow<'a, str>>,
}

impl<'a> SeenNames<'a> {
    /// Notes a decoded name; false when it was there before.
    pub(crate) fn is_new(&mut self, name: Cow<'a, str>) -> bool {
        if self.few.iter().take(self.len).any(|seen| *seen == name) {
            return false;
        }
        match (name, self.few.get_mut(self.len)) {
            (Cow::Borrowed(name), Some(place)) if self.more.is_empty() => {
                *place = name;
                self.len += 1;
                true
            }
            (name, _) => self.more.insert(name),
        }
    }
}

fn fold(name: &str) -> Cow<'_, str> {
    if !name
        .bytes()
        .any(|b| b.is_ascii_uppercase() || !b.is_ascii())
    {
        return Cow::Borrowed(name);
    }
    let lower = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        _ => c.to_ascii_lowercase(),
    };
    Cow::Owned(name.chars().map(lower).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_names_are_found_in_short_and_long_lists() {
        let many: Vec<String> = (0..40).map(|n| format!("member{n}")).collect();
        let names = || many.iter().map(String::as_str);
        assert_eq!(first_duplicate(names(), NameFolding::Case), None);
        let twice = names().chain(["MEMBER7"]);
        assert_eq!(
            first_duplicate(twice.clone(), NameFolding::Case),
            Some("MEMBER7".to_owned())
        );
        assert_eq!(first_duplicate(twice, NameFolding::Exact), None);
        assert_eq!(
            first_duplicate(["a", "b", "a"].into_iter(), NameFolding::Exact),
            Some("a".into())
        );
    }

    #[test]
    fn an_object_of_any_size_remembers_its_names() {
        let names: Vec<String> = (0..40).map(|n| format!("m{n}")).collect();
        let mut seen = SeenNames::default();
        assert!(seen.is_new(Cow::Owned("m39".to_owned())));
        for name in names.iter().take(39) {
            assert!(seen.is_new(Cow::Borrowed(name.as_str())));
        }
        for name in &names {
            assert!(!seen.is_new(Cow::Borrowed(name.as_str())));
        }
    }

    #[test]
    fn letters_that_lenient_parsers_confuse_count_as_equal() {
        let pair = ["param\u{17f}", "params"].into_iter();
        assert!(first_duplicate(pair, NameFolding::Case).is_some());
        let pair = ["to\u{212a}en", "token"].into_iter();
        assert!(first_duplicate(pair, NameFolding::Case).is_some());
    }
}
