//! The only module that writes to the terminal. Errors of a closed pipe are ignored.

use std::io::Write;

/// Writes one line to standard output.
pub(super) fn say(text: &str) {
    drop(writeln!(std::io::stdout().lock(), "{text}"));
}

/// Writes one line about a failure to standard error.
pub(super) fn complain(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}
