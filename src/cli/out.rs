//! The only module that writes to the terminal.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether standard output has refused text.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Writes one line to standard output. A line that is lost is told by [`exit_code`].
pub(super) fn say(text: &str) {
    note(writeln!(io::stdout().lock(), "{text}"));
}

/// Takes note of what became of text for standard output: the first failure is said on standard error. A reader that has
/// gone, as `head` has, wants no more.
pub(super) fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
        && !IS_INCOMPLETE.swap(true, Ordering::Relaxed)
    {
        complain(&format!(
            "error: standard output cannot be written, so its text is not complete: {error}"
        ));
    }
}

/// The exit code of the program: `code`, or a failure where it says success and standard output has refused text.
pub(super) fn exit_code(code: ExitCode) -> ExitCode {
    if code == ExitCode::SUCCESS && IS_INCOMPLETE.load(Ordering::Relaxed) {
        return ExitCode::FAILURE;
    }
    code
}

/// Writes one line about a failure to standard error.
pub(super) fn complain(text: &str) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}
