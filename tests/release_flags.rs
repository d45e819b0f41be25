//! Release builds are compiled with the profile of their compiler, and others without one; `make run` has no release build.
#![cfg(unix)]
#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test program that runs a script"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `deploy/profile/flags.sh` in a folder with this prefix, beside a profile for Rust 1.2.3 on some host, with a
/// fake compiler whose version text is `about`.
fn flags(prefix: &str, about: &str, own: &str) -> (String, PathBuf) {
    let folder = tempfile::Builder::new().prefix(prefix).tempdir();
    let folder = folder.expect("a folder");
    let script = folder.path().join("flags.sh");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/profile/flags.sh");
    fs::copy(shipped, &script).expect("a copy");
    let profile = folder.path().join("rustc-1.2.3-some-host.profdata");
    fs::write(&profile, "").expect("a profile");
    let rustc = folder.path().join("rustc");
    fs::write(&rustc, format!("#!/bin/sh\nprintf '{about}'\n")).expect("a compiler");
    fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755)).expect("a program");
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new("sh")
        .arg(&script)
        .env("PATH", path)
        .env("RUSTFLAGS", own)
        .output()
        .expect("a shell");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    let profile = profile.canonicalize().expect("a profile");
    (said.trim().to_owned(), profile)
}

#[test]
fn the_profile_of_this_very_compiler_is_used() {
    let about = "rustc 1.2.3\\nhost: some-host\\nrelease: 1.2.3\\n";
    let (said, profile) = flags("a", about, "-Cdebuginfo=0");
    let profile = format!("-Cprofile-use={}", profile.display());
    assert!(said.starts_with("-Cdebuginfo=0 "), "{said}");
    assert!(said.split(' ').any(|flag| flag == profile), "{said}");
}

#[test]
fn a_build_with_another_compiler_or_for_another_host_has_no_profile() {
    for (release, host) in [("1.2.4", "some-host"), ("1.2.3", "other-host")] {
        let about = format!("rustc\\nhost: {host}\\nrelease: {release}\\n");
        assert_eq!(flags("a", &about, "-Cdebuginfo=0").0, "-Cdebuginfo=0");
        assert_eq!(flags("a", &about, "").0, "");
    }
}

#[test]
fn a_folder_with_a_space_in_its_name_does_not_break_the_flags() {
    let about = "rustc 1.2.3\\nhost: some-host\\nrelease: 1.2.3\\n";
    assert_eq!(flags("a b", about, "-Cdebuginfo=0").0, "-Cdebuginfo=0");
}

/// What `make` would run for a target, where cargo builds in `target`.
fn recipe(target: &str) -> String {
    recipe_in("target", target)
}

/// The same with this directory in `CARGO_TARGET_DIR`.
fn recipe_in(built: &str, target: &str) -> String {
    let output = Command::new("make")
        .args(["--dry-run", "--no-print-directory", target])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", built)
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn make_run_builds_quickly_and_installs_nothing() {
    let run = recipe("run");
    assert!(run.contains("cargo build --profile quick "), "{run}");
    assert!(run.contains("exec target/quick/drawbridge "), "{run}");
    assert!(
        !run.contains("install -m") && !run.contains("--release"),
        "{run}"
    );
}

#[test]
fn make_install_builds_with_the_profile() {
    let install = recipe("install");
    assert!(install.contains("deploy/profile/flags.sh"), "{install}");
    assert!(install.contains("cargo build --release "), "{install}");
}

#[test]
fn what_is_measured_is_built_where_it_is_run_from() {
    let replicas = recipe_in("/elsewhere", "replicas");
    assert!(
        replicas.contains("target/release/drill replicas"),
        "{replicas}"
    );
    let builds: Vec<&str> = replicas
        .lines()
        .filter(|line| line.contains("cargo build"))
        .collect();
    assert!(
        builds.len() == 2
            && builds
                .iter()
                .all(|line| line.contains("--target-dir target")),
        "{builds:?}"
    );
}

#[test]
fn make_install_takes_the_program_from_where_cargo_has_built_it() {
    let install = recipe_in("/elsewhere", "install");
    assert!(
        install.contains("install -m 755 /elsewhere/release/drawbridge "),
        "{install}"
    );
}
