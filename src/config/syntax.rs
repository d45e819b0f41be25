//! Hints for syntax errors: the TOML parser only names the expected token.

/// Hint for a Windows path.
const BACKSLASH: &str = "in double quotes a backslash begins an escape: write '…' in single quotes, or \\\\ \
    for each one";

/// Hint for a duplicate table or key.
const TWICE: &str = "each table and each key stands once: put the keys of both into one table; only \
    [[…]] in double brackets may be repeated";

/// Hint for text without quotes, or with typographic quotes.
const UNQUOTED: &str = "text stands in straight double quotes, as in mode = \"none\"";

/// Hint for a key and value without `=`.
const NO_EQUALS: &str = "a key and its value have `=` between them, as in mode = \"none\"";

/// Hint for text without a closing quote.
const OPEN_QUOTE: &str =
    "close the quote on the same line; text of several lines stands between \"\"\" and \"\"\"";

/// Hint for text after a value, such as a comma.
const ONE_LINE: &str = "each key has a line of its own, with nothing behind its value";

/// The hint for the parser's error `message`.
pub(super) fn hint(message: &str) -> Option<&'static str> {
    let has = |word: &str| message.contains(word);
    if has("escape") || has("unicode") {
        Some(BACKSLASH)
    } else if has("duplicate key") {
        Some(TWICE)
    } else if has("quoted,") || has("invalid float") || has("invalid integer") {
        Some(UNQUOTED)
    } else if has("expected `=`") || has("invalid unquoted key") {
        Some(NO_EQUALS)
    } else if has("basic string") || has("literal string") {
        Some(OPEN_QUOTE)
    } else if has("expected newline") {
        Some(ONE_LINE)
    } else {
        None
    }
}
