//! Escapes untrusted text so that it cannot break or forge a log line.

use std::fmt::Write as _;

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
            control if control.is_control() => {
                let _ = write!(into, "\\u{:04x}", u32::from(control));
            }
            other => into.push(other),
        }
    }
}

/// Text for a terminal: nothing in it may begin a line or steer the terminal.
pub(super) fn terminal(into: &mut String, text: &str) {
    for character in text.chars() {
        if character.is_control() {
            into.extend(character.escape_default());
        } else {
            into.push(character);
        }
    }
}
