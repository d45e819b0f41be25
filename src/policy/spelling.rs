//! Spellings of a tool name that an upstream may treat as equal.

use std::borrow::Cow;

/// `name` without regard to case, and without what stands around it and shows nothing. Upper case first:
/// some letters are the same only there (`ſ` and `S`, `ı` and `I`).
pub(super) fn folded(name: &str) -> Cow<'_, str> {
    let trimmed = name.trim_matches(is_blank);
    if trimmed
        .bytes()
        .all(|b| b.is_ascii() && !b.is_ascii_uppercase())
    {
        return Cow::Borrowed(trimmed);
    }
    let upper = trimmed.chars().flat_map(char::to_uppercase);
    Cow::Owned(upper.flat_map(char::to_lowercase).collect())
}

/// Whether the `trim` of any common language removes `c`.
fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("admin_wipe")]
    #[case("ADMIN_wipe")]
    #[case(" admin_wipe")]
    #[case("admin_wipe\n")]
    #[case("\u{0}\u{feff}Admin_Wipe\u{a0}\t")]
    #[case("adm\u{131}n_wipe")]
    fn spellings_of_one_name_fold_together(#[case] name: &str) {
        assert_eq!(folded(name), "admin_wipe");
    }

    #[rstest]
    #[case("admin wipe", "admin wipe")]
    #[case("Straße", "strasse")]
    #[case("", "")]
    #[case(" ", "")]
    fn what_stands_inside_a_name_stays(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(folded(name), expected);
    }
}
