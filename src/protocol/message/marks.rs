//! Telling quickly what an object does not hold, and whether a name is the one that is looked for.

use super::super::json::RawString;

/// Marks of the names in an object: equal names, whatever their case, have equal marks, and few others have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks(u64);

impl Marks {
    /// Of no names.
    pub(super) const NONE: Self = Self(0);

    /// Notes a name; whether it may repeat an earlier one, so that they have to be compared.
    pub(super) fn note(&mut self, key: RawString<'_>) -> bool {
        let name = key.bytes();
        if key.is_escaped() || !is_ascii(name) {
            // It may be any name.
            self.0 = u64::MAX;
            return true;
        }
        let mark = mark(name);
        let known = self.0 & mark != 0;
        self.0 |= mark;
        known
    }

    /// Whether a name, given as decoded, may be among those that were noted.
    #[inline]
    pub(super) fn may_hold(self, name: &str) -> bool {
        self.0 & mark(name.as_bytes()) != 0
    }
}

/// Whether a name is, looked at in words that may overlap: most are too short for the standard library's way.
fn is_ascii(name: &[u8]) -> bool {
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let (words, tail) = name.as_chunks::<8>();
    let all = words
        .iter()
        .fold(0, |all, word| all | u64::from_le_bytes(*word));
    let rest = match (
        name.last_chunk::<8>(),
        tail.first_chunk::<4>(),
        tail.last_chunk::<4>(),
    ) {
        (Some(last), _, _) => u64::from_le_bytes(*last),
        (None, Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first) | u32::from_le_bytes(*last))
        }
        _ => tail.iter().fold(0, |all, byte| all | u64::from(*byte)),
    };
    (all | rest) & HIGHS == 0
}

/// Whether two names are one, looked at in words that may overlap: a call is dearer than most of them.
#[inline]
pub(super) fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let word = |word: &[u8; 8]| u64::from_le_bytes(*word);
    let half = |half: &[u8; 4]| u32::from_le_bytes(*half);
    if let (Some(last), Some(other)) = (a.last_chunk(), b.last_chunk()) {
        let ends = word(last) == word(other);
        let (words, others) = (a.as_chunks().0, b.as_chunks().0);
        return ends && words.iter().zip(others).all(|(a, b)| word(a) == word(b));
    }
    let [starts, ends] = [
        a.first_chunk().zip(b.first_chunk()),
        a.last_chunk().zip(b.last_chunk()),
    ];
    match (starts, ends) {
        (Some(starts), Some(ends)) => {
            half(starts.0) == half(starts.1) && half(ends.0) == half(ends.1)
        }
        _ => a.iter().eq(b),
    }
}

/// Weighed so that no two names that MCP has for one object meet.
#[inline]
fn mark(name: &[u8]) -> u64 {
    let folded = |byte: Option<&u8>| byte.map_or(0, |byte| usize::from(byte | 0x20));
    let middle = folded(name.get(name.len() / 2));
    let weight = name.len() * 3 + folded(name.first()) + middle * 7 + folded(name.last());
    1 << (weight & 63)
}

#[cfg(test)]
mod tests {
    use super::super::super::json::Scanner;
    use super::*;

    fn noted(names: &[&str]) -> (Marks, bool) {
        let mut marks = Marks::NONE;
        let mut repeats = false;
        for name in names {
            let text = format!("\"{name}\"");
            let key = Scanner::new(&text, 1).string().unwrap();
            repeats |= marks.note(key);
        }
        (marks, repeats)
    }

    #[test]
    fn names_that_were_noted_may_be_there() {
        let (marks, repeats) = noted(&["name", "arguments", "_meta"]);
        assert!(!repeats);
        let may_hold = |name| marks.may_hold(name);
        assert!(
            ["name", "arguments", "_meta", "NAME"]
                .into_iter()
                .all(may_hold)
        );
        assert!(
            !["task", "inputResponses", "requestState"]
                .into_iter()
                .any(may_hold)
        );
    }

    #[test]
    fn what_is_not_ascii_is_found_at_any_place() {
        for len in 0..40 {
            let mut name = vec![b'a'; len];
            assert!(is_ascii(&name), "{len}");
            for at in 0..len {
                name[at] = 0x80;
                assert!(!is_ascii(&name), "{at} of {len}");
                name[at] = b'a';
            }
        }
    }

    #[test]
    fn names_are_one_only_when_every_byte_is() {
        let text: Vec<u8> = (b'a'..=b'z').cycle().take(40).collect();
        for len in 0..text.len() {
            let name = &text[..len];
            assert!(is_same(name, name), "{len}");
            assert!(!is_same(name, &text[..=len]), "{len}");
            for at in 0..len {
                let mut other = name.to_vec();
                other[at] ^= 1;
                assert!(!is_same(name, &other), "{at} of {len}");
            }
        }
    }

    #[test]
    fn an_escaped_or_foreign_name_may_be_any() {
        for unclear in ["\\u006eame", "\u{e9}"] {
            let (marks, repeats) = noted(&[unclear]);
            assert!(
                repeats && marks.may_hold("name") && marks.may_hold("task"),
                "{unclear}"
            );
        }
    }
}
