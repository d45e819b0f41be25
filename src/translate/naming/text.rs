//! Names as people see them: without hidden characters, and what looks alike.

/// Invisible and bidirectional control characters, never part of a name. Spec: SPEC G-05.
pub(super) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// `text` without hidden characters, at most `max_chars` long.
#[must_use]
pub fn clean(text: &str, max_chars: usize) -> String {
    text.chars()
        .filter(|c| !is_hidden(*c))
        .take(max_chars)
        .collect()
}

/// The characters of `name` folded so that what looks alike to people compares equal: case, full
/// width, and the Greek and Cyrillic letters that are drawn like Latin ones. For warnings only.
pub fn looks_like(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|c| !is_hidden(*c)).map(|c| {
        let c = match c {
            '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xfee0).unwrap_or(c),
            _ => c,
        };
        match c.to_lowercase().next().unwrap_or(c) {
            'а' | 'α' => 'a',
            'в' | 'β' => 'b',
            'с' | 'ϲ' => 'c',
            'ԁ' => 'd',
            'е' | 'ε' => 'e',
            'һ' | 'н' | 'η' => 'h',
            'і' | 'ι' | 'l' | '1' | '|' => 'i',
            'ј' => 'j',
            'к' | 'κ' => 'k',
            'м' | 'μ' => 'm',
            'о' | 'ο' | '0' => 'o',
            'р' | 'ρ' => 'p',
            'ѕ' => 's',
            'т' | 'τ' => 't',
            'υ' | 'ν' => 'v',
            'ԝ' => 'w',
            'х' | 'χ' => 'x',
            'у' | 'γ' => 'y',
            'ζ' => 'z',
            '-' | '‐' | '‑' | '–' | '—' => '_',
            other => other,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(a: &str, b: &str) -> bool {
        looks_like(a).eq(looks_like(b))
    }

    // SPEC G-05.
    #[test]
    fn hidden_characters_are_stripped_and_length_is_bounded() {
        assert_eq!(
            clean("a\nb\u{202e}c\u{200b}\u{1b}[0m\u{e0041}", 100),
            "abc[0m"
        );
        assert_eq!(clean("åäö", 2), "åä");
    }

    #[test]
    fn look_alikes_fold_together() {
        assert!(alike("read_file", "Read_File"));
        assert!(alike("read_file", "rеаd_file"));
        assert!(alike("list-all", "1ist_all"));
        assert!(alike("send", "ｓｅｎｄ"));
        assert!(!alike("read", "write"));
    }
}
