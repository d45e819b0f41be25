//! The suite as the upstream, which judges the gateway as a client. A client of either era makes the calls of the
//! scenario through the gateway (`tests/conformance/client.mjs`).
//!
//! Every client scenario that the suite lists for a revision is run: those of authorization by [`super::authorization`].

use std::fs;

use serde_json::Value;

use super::LEGACY;
use super::eras::MODERN;
use crate::harness::peers;

/// Checks that do not apply to a scenario's revision; every other check must run.
const NOT_APPLICABLE: &[&str] = &[
    // There is no handshake in 2026-07-28.
    "ClientMcpMethodHeader_initialize",
    "ClientMcpMethodHeader_notifications_initialized",
    // Keywords that 2025-11-25 does not promise to keep.
    "JsonSchema2020_12ClientCompositionKeywordsPreserved",
    "JsonSchema2020_12ClientConditionalKeywordsPreserved",
    "JsonSchema2020_12ClientAnchorKeywordPreserved",
];

fn suite() -> String {
    peers::module("@modelcontextprotocol/conformance/dist/index.js")
}

/// The suite's client scenarios, of `revision` or of all.
pub(super) async fn listed(revision: Option<&str>) -> Vec<String> {
    let suite = suite();
    let mut args = vec![&*suite, "list", "--client"];
    if let Some(revision) = revision {
        args.extend(["--spec-version", revision]);
    }
    let listed = peers::run(&peers::node(), &args).await;
    assert!(listed.is_success, "{}", listed.stderr);
    let names = listed.stdout.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("- ")?.split(' ').next()?;
        Some(name.to_owned())
    });
    names.collect()
}

/// A scenario that the suite judges.
pub(super) struct Scenario<'a> {
    /// The program that calls through the gateway.
    pub(super) script: &'a str,
    pub(super) name: &'a str,
    /// `None`: the one that the suite chooses.
    pub(super) revision: Option<&'a str>,
    /// The era of the client: `legacy` or `modern`.
    pub(super) caller: &'a str,
}

impl Scenario<'_> {
    /// Runs it; the failed checks, and the output of the program.
    pub(super) async fn run(&self) -> (Vec<String>, String) {
        let results = tempfile::tempdir().unwrap();
        let command = [peers::node(), peers::script(self.script)].join(" ");
        let suite = suite();
        let output = results.path().to_str().unwrap();
        let mut args = vec![&*suite, "client", "--command", &command];
        args.extend(["--scenario", self.name, "-o", output]);
        if let Some(revision) = self.revision {
            args.extend(["--spec-version", revision]);
        }
        // The suite judges every request as one of the revision, and `initialize` is none of 2026-07-28:
        // with "auto" it goes first over HTTP.
        let is_modern = self.revision == Some(MODERN);
        let env = [
            ("DRAWBRIDGE_ERA", if is_modern { "modern" } else { "auto" }),
            ("DRAWBRIDGE", env!("CARGO_BIN_EXE_drawbridge")),
            ("DRAWBRIDGE_CALLER", self.caller),
        ];
        let finished = peers::run_with(&peers::node(), &args, &env).await;
        // The name of a scenario may have a slash.
        let mut folder = results.path().to_owned();
        while let Some(Ok(entry)) = fs::read_dir(&folder).unwrap().next() {
            if entry.path().is_file() {
                break;
            }
            folder = entry.path();
        }
        let checks = folder.join("checks.json");
        if !finished.is_success || !checks.exists() {
            return (vec![finished.stdout + &finished.stderr], String::new());
        }
        let checks = fs::read_to_string(checks).unwrap();
        let output = fs::read_to_string(folder.join("stdout.txt")).unwrap();
        (
            failures(&serde_json::from_str::<Vec<Value>>(&checks).unwrap()),
            output,
        )
    }
}

/// The checks that have failed.
fn failures(checks: &[Value]) -> Vec<String> {
    let is_good = |check: &Value| match check["status"].as_str() {
        Some("SUCCESS" | "INFO") => true,
        Some("SKIPPED") => NOT_APPLICABLE.contains(&check["name"].as_str().unwrap_or_default()),
        _ => false,
    };
    if !checks.iter().any(|check| check["status"] == "SUCCESS") {
        return vec!["nothing was checked".to_owned()];
    }
    let bad = checks.iter().filter(|check| !is_good(check));
    bad.map(ToString::to_string).collect()
}

/// Every scenario of `revision`, called by a client of era `caller`.
async fn assert_every_scenario_passes(revision: &str, caller: &str) {
    if !peers::are_installed() {
        return;
    }
    let mut scenarios = listed(Some(revision)).await;
    scenarios.retain(|name| !name.starts_with("auth/"));
    assert!(scenarios.len() >= 5, "{scenarios:?}");
    let mut failed = Vec::new();
    for name in &scenarios {
        let scenario = Scenario {
            script: "conformance/client.mjs",
            name,
            revision: Some(revision),
            caller,
        };
        let (problems, _) = scenario.run().await;
        if !problems.is_empty() {
            failed.push(format!("{name}: {}", problems.join("\n")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test]
async fn a_legacy_caller_reaches_a_legacy_upstream_as_the_suite_wants_it() {
    assert_every_scenario_passes(LEGACY, "legacy").await;
}

#[tokio::test]
async fn a_modern_caller_reaches_a_legacy_upstream_as_the_suite_wants_it() {
    assert_every_scenario_passes(LEGACY, "modern").await;
}

#[tokio::test]
async fn a_legacy_caller_reaches_a_modern_upstream_as_the_suite_wants_it() {
    assert_every_scenario_passes(MODERN, "legacy").await;
}

#[tokio::test]
async fn a_modern_caller_reaches_a_modern_upstream_as_the_suite_wants_it() {
    assert_every_scenario_passes(MODERN, "modern").await;
}
