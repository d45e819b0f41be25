//! The suite as the upstream, which judges the gateway as a client. A client of either era makes the calls of the
//! scenario through the gateway (`tests/conformance/client.mjs`).
//!
//! Every client scenario that the suite lists for a revision is run, but those of authorization.

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

/// The suite's client scenarios of `revision` that are not about authorization.
async fn scenarios(revision: &str) -> Vec<String> {
    let suite = suite();
    let args = [&suite, "list", "--client", "--spec-version", revision];
    let listed = peers::run(&peers::node(), &args).await;
    assert!(listed.is_success, "{}", listed.stderr);
    let names = listed.stdout.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("- ")?.split(' ').next()?;
        (!name.starts_with("auth/")).then(|| name.to_owned())
    });
    names.collect()
}

/// Runs one scenario; returns the failed checks.
async fn problems(scenario: &str, revision: &str, caller: &str) -> Vec<String> {
    let results = tempfile::tempdir().unwrap();
    let command = [peers::node(), peers::script("conformance/client.mjs")].join(" ");
    let suite = suite();
    let args = [
        &suite,
        "client",
        "--command",
        &command,
        "--scenario",
        scenario,
        "--spec-version",
        revision,
        "-o",
        results.path().to_str().unwrap(),
    ];
    // The suite judges every request as one of the revision, and `initialize` is none of 2026-07-28:
    // with "auto" it goes first over HTTP.
    let era = if revision == MODERN { "modern" } else { "auto" };
    let env = [
        ("DRAWBRIDGE_ERA", era),
        ("DRAWBRIDGE", env!("CARGO_BIN_EXE_drawbridge")),
        ("DRAWBRIDGE_CALLER", caller),
    ];
    let finished = peers::run_with(&peers::node(), &args, &env).await;
    let folder = fs::read_dir(results.path()).unwrap().next();
    let Some(folder) = folder.filter(|_| finished.is_success) else {
        return vec![finished.stdout + &finished.stderr];
    };
    let checks = folder.unwrap().path().join("checks.json");
    let checks = fs::read_to_string(checks).unwrap();
    let checks: Vec<Value> = serde_json::from_str(&checks).unwrap();
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
    let scenarios = scenarios(revision).await;
    assert!(scenarios.len() >= 5, "{scenarios:?}");
    let mut failed = Vec::new();
    for scenario in &scenarios {
        let problems = problems(scenario, revision, caller).await;
        if !problems.is_empty() {
            failed.push(format!("{scenario}: {}", problems.join("\n")));
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
