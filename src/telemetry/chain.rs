//! `chain`: an error and its sources, as one line.

use std::error::Error;

use super::redact::cut;

/// Errors read per chain.
const MAX_PARTS: usize = 16;
/// The longest text, in bytes.
const MAX_BYTES: usize = 2048;

/// The text of `error` and of its sources, `a: b: c`; 2 KiB at most. A source already quoted in the text is
/// skipped: many errors quote their source. Neither masked nor escaped: the log does both.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    for _ in 1..MAX_PARTS {
        let Some(cause) = source else { break };
        let part = cause.to_string();
        if !part.is_empty() && !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        if text.len() > MAX_BYTES {
            break;
        }
        source = cause.source();
    }
    text.truncate(cut(&text, MAX_BYTES).len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Part {
        text: String,
        source: Option<Box<Part>>,
    }

    fn parts(texts: &[&str]) -> Part {
        let (first, rest) = texts.split_first().expect("a text");
        Part {
            text: (*first).to_owned(),
            source: (!rest.is_empty()).then(|| Box::new(parts(rest))),
        }
    }

    #[test]
    fn each_source_stands_in_the_text_once() {
        let error = parts(&["no keys", "no answer: refused", "refused", "os error 111"]);
        assert_eq!(chain(&error), "no keys: no answer: refused: os error 111");
    }

    #[test]
    fn long_chains_are_cut() {
        let texts: Vec<String> = (0..100).map(|n| format!("part {n:03}.")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let text = chain(&parts(&texts));
        assert!(text.ends_with("part 015."), "{text}");
        let wide = "é".repeat(MAX_BYTES);
        assert_eq!(chain(&parts(&["x", &wide])).len(), MAX_BYTES - 1);
    }
}
