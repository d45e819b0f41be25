//! The only place that writes to the terminal. A closed pipe is nobody's fault and is ignored.

use std::io::Write;

/// Writes one line for whoever asked.
pub(super) fn say(text: &str) {
    drop(writeln!(std::io::stdout().lock(), "{text}"));
}

/// Writes one line about a failure.
pub(super) fn complain(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}
