//! Where figures come from: date, commit, machine.

use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

/// What a build is made of; documents may have changed since the commit.
const SOURCES: [&str; 7] = [
    "Cargo.toml",
    "Cargo.lock",
    "migrations",
    "src",
    "benches",
    "deploy/profile",
    "tests/stubs",
];

/// Date, commit and machine of a run.
#[derive(Debug, Default)]
pub(crate) struct Provenance {
    /// `YYYY-MM-DD`, UTC.
    pub(crate) date: String,
    /// The commit of the working directory, and whether its sources differ from it.
    pub(crate) commit: String,
    /// Processor, cores and kernel.
    pub(crate) machine: String,
}

impl Provenance {
    /// Of a run that starts now, with programs built from the working directory.
    pub(crate) fn now() -> Self {
        Self {
            date: today(),
            commit: commit(Path::new(".")),
            machine: machine(),
        }
    }
}

fn today() -> String {
    let since = std::time::SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| String::new(),
        |now| now.strftime("%Y-%m-%d").to_string(),
    )
}

fn commit(folder: &Path) -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(folder)
            .args(words)
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "an unknown commit".to_owned();
    };
    let changed = git(&[&["status", "--porcelain", "--"], SOURCES.as_slice()].concat());
    match changed.as_deref() {
        Some("") => commit,
        _ => format!("{commit} with changes"),
    }
}

fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| {
            line.strip_prefix("model name")?
                .split_once(": ")
                .map(|(_, name)| name)
        })
        .unwrap_or("an unknown processor");
    let cores = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_says_that_sources_were_changed() {
        let folder = tempfile::tempdir().unwrap();
        let git = |words: &[&str]| {
            let author = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
            let mut command = Command::new("git");
            command
                .arg("-C")
                .arg(folder.path())
                .args(author)
                .args(words);
            assert!(command.output().unwrap().status.success(), "{words:?}");
        };
        assert_eq!(commit(folder.path()), "an unknown commit");
        git(&["init", "--quiet"]);
        std::fs::write(folder.path().join("Cargo.toml"), "").unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", "a: b"]);
        std::fs::write(folder.path().join("README.md"), "").unwrap();
        let clean = commit(folder.path());
        assert_eq!(clean.len(), 12, "{clean}");
        std::fs::write(folder.path().join("Cargo.toml"), "#").unwrap();
        assert_eq!(commit(folder.path()), format!("{clean} with changes"));
    }
}
