//! `make soak` runs all parts, counts what each did, and fails where one failed.
#![cfg(unix)]
#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test program that runs a script"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Runs these parts with a stand-in of `drill`: `network` breaks an invariant, `drain` ends without a report. Returns
/// the exit code and the lines of the output.
fn soak(parts: &[&str]) -> (Option<i32>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let (setup, release) = ("tests/setup/soak.py", "target/release/drill");
    for file in [setup, release].map(|file| folder.path().join(file)) {
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    }
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join(setup);
    fs::copy(shipped, folder.path().join(setup)).expect("a copy");
    let drill = folder.path().join(release);
    let report = |passed: bool, violations: u32| {
        format!(
            r#"echo '{{"check":"x","passed":{passed},"violations":{violations},"facts":{{"calls":12345}}}}'"#
        )
    };
    let text = format!(
        "#!/bin/sh\ncase $1 in\nnetwork) {}; exit 1;;\ndrain) exit 0;;\n*) {};;\nesac\n",
        report(false, 2),
        report(true, 0)
    );
    fs::write(&drill, text).expect("a script");
    fs::set_permissions(&drill, fs::Permissions::from_mode(0o755)).expect("a program");
    let mut command = Command::new("python3");
    command.arg(folder.path().join(setup)).args(parts);
    let output = command.output().expect("python3");
    let said = String::from_utf8(output.stdout).expect("text");
    (
        output.status.code(),
        said.lines().map(str::to_owned).collect(),
    )
}

#[test]
fn failed_part_fails_the_soak_and_ends_no_other() {
    let (code, lines) = soak(&["network", "drain", "parked"]);
    assert_eq!(code, Some(1), "{lines:#?}");
    let last = lines.last().map(String::as_str).unwrap_or_default();
    let counts = "3 parts: 1 passed, 2 failed (network, drain), 2 violations, in 0:0";
    assert!(last.starts_with(counts), "{lines:#?}");
}

#[test]
fn soak_passes_with_the_counts_of_its_parts() {
    let (code, lines) = soak(&["parked", "resumption"]);
    assert_eq!(code, Some(0), "{lines:#?}");
    let is_row = |line: &&String| line.contains("passed") && line.ends_with("calls 12,345");
    assert_eq!(lines.iter().filter(is_row).count(), 2, "{lines:#?}");
    let last = lines.last().map(String::as_str).unwrap_or_default();
    let counts = "2 parts: 2 passed, 0 failed, 0 violations, in 0:0";
    assert!(last.starts_with(counts), "{lines:#?}");
}
