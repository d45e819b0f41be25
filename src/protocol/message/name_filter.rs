//! Telling quickly what an object does not hold.

use super::super::json::RawString;

/// Marks of the names in an object: equal names, whatever their case, have equal marks, and few others have.
#[derive(Debug, Clone, Copy)]
pub(super) struct NameFilter(u64);

impl NameFilter {
    /// Of no names.
    pub(super) const NONE: Self = Self(0);

    /// Adds a name; returns its mark and whether an earlier name may be equal, so that names must be compared.
    pub(super) fn note(&mut self, key: RawString<'_>) -> (NameBit, bool) {
        let name = key.bytes();
        if key.is_escaped() || !is_ascii(name) {
            self.0 = u64::MAX;
            return (NameBit::ANY, true);
        }
        let mark = NameBit::of(name);
        let known = self.may_hold(mark);
        self.0 |= 1 << mark.0;
        (mark, known)
    }

    /// Whether a name of this mark may be among those that were noted.
    #[inline]
    pub(super) fn may_hold(self, mark: NameBit) -> bool {
        self.0 & 1 << mark.0 != 0
    }
}

/// The mark of one name, below 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NameBit(u8);

impl NameBit {
    /// Of what may be any name.
    const ANY: Self = Self(u8::MAX);

    /// Mark of a decoded name. The weights are chosen so that no two MCP names of the same object collide.
    #[inline]
    pub(super) fn of(name: &[u8]) -> Self {
        let folded = |byte: Option<&u8>| byte.map_or(0, |byte| usize::from(byte | 0x20));
        let middle = folded(name.get(name.len() / 2));
        let weight = name.len() * 3 + folded(name.first()) + middle * 7 + folded(name.last());
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        Self((weight & 63) as u8)
    }

    /// Whether a member of this mark may have a name of that one.
    #[inline]
    pub(super) fn may_be(self, other: Self) -> bool {
        self == other || self == Self::ANY
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

#[cfg(test)]
mod tests {
    use super::super::super::json::JsonScanner;
    use super::*;

    fn noted(names: &[&str]) -> (NameFilter, bool) {
        let mut marks = NameFilter::NONE;
        let mut repeats = false;
        for name in names {
            let text = format!("\"{name}\"");
            let key = JsonScanner::new(&text, 1).string().unwrap();
            repeats |= marks.note(key).1;
        }
        (marks, repeats)
    }

    #[test]
    fn names_that_were_noted_may_be_there() {
        let (marks, repeats) = noted(&["name", "arguments", "_meta"]);
        assert!(!repeats);
        let may_hold = |name: &str| marks.may_hold(NameBit::of(name.as_bytes()));
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
    fn an_escaped_or_foreign_name_may_be_any() {
        for unclear in ["\\u006eame", "\u{e9}"] {
            let (marks, repeats) = noted(&[unclear]);
            let may_hold = |name: &str| marks.may_hold(NameBit::of(name.as_bytes()));
            assert!(repeats && may_hold("name") && may_hold("task"), "{unclear}");
        }
    }
}
