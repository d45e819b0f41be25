//! Escapes untrusted text so that it cannot break or forge a log line.

use std::fmt::Write as _;

/// Whether a viewer of the log may end the line at `character`, obey it, or show what follows in another order.
fn misleads(character: char) -> bool {
    // Spec: Unicode UAX #9 §2, the characters that set the direction of text.
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}')
}

/// JSON string content.
pub(super) fn json(into: &mut String, text: &str) {
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        return into.push_str(text);
    }
    for character in text.chars() {
        match character {
            '"' => into.push_str("\\\""),
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            other if misleads(other) => {
                // All of them have four digits.
                let _ = write!(into, "\\u{:04x}", u32::from(other));
            }
            other => into.push(other),
        }
    }
}

/// Text for a terminal: nothing in it may begin a line, steer the terminal or change the order of what is shown.
pub(super) fn terminal(into: &mut String, text: &str) {
    for character in text.chars() {
        if misleads(character) {
            into.extend(character.escape_default());
        } else {
            into.push(character);
        }
    }
}

/// The value of a field, for a terminal. A value with a part that looks like another field stands in quotation marks, with
/// the escapes of JSON: parsers of logfmt know no others.
pub(super) fn value(into: &mut String, text: &str) {
    let divides = |c: char| c.is_whitespace() || c == '=' || c == '"';
    if !text.contains(divides) {
        return terminal(into, text);
    }
    into.push('"');
    json(into, text);
    into.push('"');
}
