//! Suggestions for misspelt words.

/// The known word that `word` probably stands for.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let reach = (word.chars().count() / 3).max(2);
    let scored = known
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate));
    scored
        .filter(|(score, _)| *score <= reach)
        .min_by_key(|(score, _)| *score)
        .map(|(_, near)| near)
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for ((to, above), diagonal) in b.iter().zip(row.iter().skip(1)).zip(row.iter()) {
            let left = next.last().copied().unwrap_or_default();
            let replaced = diagonal + usize::from(from != *to);
            next.push(replaced.min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// Values used by other programs, and their equivalents here.
const MEANT: [(&str, &str); 8] = [
    ("oidc", "oauth"),
    ("jwt", "oauth"),
    ("user", "principal"),
    ("caller", "principal"),
    ("none", "shared"),
    ("http", "streamable"),
    ("streamable-http", "streamable"),
    ("ws", "websocket"),
];

/// Error text for `word` where only a value of `known` is valid.
pub(super) fn unknown_word(known: &[&str], word: &str) -> String {
    let meant = MEANT.iter().find(|(said, _)| *said == word);
    let meant = meant.map(|(_, meant)| *meant);
    match meant
        .filter(|meant| known.contains(meant))
        .or_else(|| nearest(word, known))
    {
        Some(near) => format!("not one of {}; did you mean \"{near}\"?", known.join(", ")),
        None => format!("not one of {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_only_when_it_is_near() {
        let known = ["listen", "public_url", "drain"];
        assert_eq!(nearest("listn", &known), Some("listen"));
        assert_eq!(nearest("publicurl", &known), Some("public_url"));
        assert_eq!(nearest("workers", &known), None);
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
