//! Comparing names.

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
