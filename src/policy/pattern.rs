//! Name patterns: `*` stands for any run of characters, everything else for itself.

/// Whether `pattern` matches all of `name`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, mut rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(head) else {
        return false;
    };
    // Taking each middle part where it first occurs leaves the most for those after it.
    while let Some((part, after)) = rest.split_once('*') {
        let Some((_, remaining)) = name.split_once(part) else {
            return false;
        };
        name = remaining;
        rest = after;
    }
    name.ends_with(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("read", "read", true)]
    #[case("read", "reader", false)]
    #[case("", "", true)]
    #[case("", "a", false)]
    #[case("*", "", true)]
    #[case("*", "anything", true)]
    #[case("read_*", "read_file", true)]
    #[case("read_*", "read_", true)]
    #[case("read_*", "read", false)]
    #[case("*_file", "read_file", true)]
    #[case("*_file", "read_files", false)]
    #[case("a*a", "a", false)]
    #[case("a*a", "aa", true)]
    #[case("a*b*c", "a.b.b.c", true)]
    #[case("a*b*c", "a.c.b", false)]
    #[case("**", "", true)]
    #[case("a**b", "ab", true)]
    #[case("ab*bc", "abc", false)]
    #[case("R*", "read", false)]
    #[case("[a-z]?", "ab", false)]
    #[case("é*", "éa", true)]
    fn a_pattern_matches_the_whole_name(
        #[case] pattern: &str,
        #[case] name: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(matches(pattern, name), expected);
    }

    /// The definition, slow and plain.
    fn by_definition(pattern: &[char], name: &[char]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some(('*', rest)) => (0..=name.len()).any(|at| by_definition(rest, &name[at..])),
            Some((c, rest)) => name
                .split_first()
                .is_some_and(|(first, after)| first == c && by_definition(rest, after)),
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_definition(pattern in "[ab*]{0,6}", name in "[ab]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = by_definition(&chars(&pattern), &chars(&name));
            prop_assert_eq!(matches(&pattern, &name), expected);
        }
    }
}
