//! The suite of both eras in front of one fixture on the TypeScript SDK 2.x that speaks both, only
//! the older or only the newer (`tests/conformance/dual.mjs`).

use std::collections::BTreeSet;

use super::{LEGACY, SCENARIOS, Scores, excuse_retry, run_suite};
use crate::harness::Setup;
use crate::harness::peers::{self, Service};

pub(super) const MODERN: &str = "2026-07-28";

/// Carriers of the fixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Http,
    Stdio,
}

pub(super) async fn fixture(era: &str) -> Service {
    let script = peers::script("conformance/dual.mjs");
    peers::serve(&peers::node(), &[&script, "http", era], &[]).await
}

/// Scenarios without a check that failed.
pub(super) fn passed(scores: &Scores) -> BTreeSet<&str> {
    let good = |checks: &std::collections::BTreeMap<String, String>| {
        !checks.is_empty() && checks.values().all(|status| status == "SUCCESS")
    };
    scores
        .iter()
        .filter(|(_, checks)| good(checks))
        .map(|(name, _)| name.as_str())
        .collect()
}

/// Runs the suite of `revision` through a gateway in front of the fixture in `era`.
async fn through(carrier: Carrier, era: &str, revision: &str) -> Scores {
    let upstream;
    let setup = match carrier {
        Carrier::Http => {
            upstream = fixture(era).await;
            Setup::open().url("fixture", &upstream.first_line, "")
        }
        Carrier::Stdio => {
            let script = peers::script("conformance/dual.mjs");
            // The suite gives a modern call 600 ms, in which a busy machine cannot start another Node: one child takes
            // all calls. Each call tells the child the client's capabilities.
            let keys = if revision == MODERN {
                "isolation = \"shared\""
            } else {
                ""
            };
            Setup::open().stdio("fixture", &peers::node(), &[&script, "stdio", era], keys)
        }
    };
    let gateway = setup.start().await;
    let url = format!("{}/mcp/fixture", gateway.url);
    let mut scores = run_suite(&url, revision, None).await;
    gateway.stop().await;
    if revision == LEGACY && (carrier == Carrier::Stdio || era == "modern") {
        excuse_retry(&mut scores);
    }
    scores
}

/// Every check that passes without the gateway passes through it, and the number of passed checks reaches the required
/// score.
async fn assert_nothing_is_lost(carrier: Carrier, revision: &str) {
    let upstream = fixture("dual").await;
    let direct = run_suite(&upstream.first_line, revision, None).await;
    let required = SCENARIOS
        .iter()
        .find(|(known, ..)| *known == revision)
        .unwrap()
        .1;
    let direct = passed(&direct);
    assert!(direct.len() >= required, "{direct:?}");
    let scores = through(carrier, "dual", revision).await;
    let lost: Vec<_> = direct
        .difference(&passed(&scores))
        .map(|name| (*name, &scores[*name]))
        .collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

/// All of `revision` but `unreachable` passes in front of a fixture of the other era only.
async fn assert_only_missing(carrier: Carrier, era: &str, revision: &str, unreachable: &[&str]) {
    let direct = fixture("dual").await;
    let direct = run_suite(&direct.first_line, revision, None).await;
    let scores = through(carrier, era, revision).await;
    let missing: BTreeSet<_> = passed(&direct)
        .difference(&passed(&scores))
        .copied()
        .collect();
    let known: BTreeSet<_> = unreachable.iter().copied().collect();
    let detail: Vec<_> = missing.iter().map(|name| (*name, &scores[*name])).collect();
    assert_eq!(missing, known, "{detail:#?}");
}

macro_rules! eras {
    ($($name:ident: $run:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            if peers::are_installed() {
                $run.await;
            }
        }
    )*};
}

eras! {
    legacy_scenarios_pass_through_to_a_dual_http_upstream: assert_nothing_is_lost(Carrier::Http, LEGACY);
    modern_scenarios_pass_through_to_a_dual_http_upstream: assert_nothing_is_lost(Carrier::Http, MODERN);
    legacy_scenarios_pass_through_to_a_dual_stdio_upstream: assert_nothing_is_lost(Carrier::Stdio, LEGACY);
    modern_scenarios_pass_through_to_a_dual_stdio_upstream: assert_nothing_is_lost(Carrier::Stdio, MODERN);
    modern_scenarios_reach_a_legacy_http_upstream:
        assert_only_missing(Carrier::Http, "legacy", MODERN, NOT_OF_A_LEGACY_UPSTREAM);
    legacy_scenarios_reach_a_modern_http_upstream:
        assert_only_missing(Carrier::Http, "modern", LEGACY, NOT_OF_A_MODERN_UPSTREAM);
}

/// Scenarios of 2026-07-28 that an upstream of 2025-11-25 cannot provide: see
/// `docs/revisions.md` for each reason.
pub(super) const NOT_OF_A_LEGACY_UPSTREAM: &[&str] = &[
    // Keys of questions are the gateway's: a legacy server's questions have none.
    "input-required-result-basic-elicitation",
    // The questions should follow the capabilities that a request declares; a legacy tool does not see those.
    "input-required-result-capability-check",
    // Answers without a question are dropped: no request waits for them.
    "input-required-result-ignore-extra-params",
    // A legacy server runs a tool whose capability the client lacks, and says so in its result.
    "server-stateless",
];

/// The same the other way round: nothing.
const NOT_OF_A_MODERN_UPSTREAM: &[&str] = &[];

/// Server scenarios of the tasks extension with at least one check.
const TASKS: &[&str] = &[
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
];

#[tokio::test]
async fn scenarios_of_the_tasks_extension_pass_through_to_the_rust_sdk() {
    if !peers::are_installed() {
        return;
    }
    let upstream = peers::serve(&peers::tasks_fixture(), &[], &[]).await;
    // The suite wants the refusal of a tool that needs a task, not its result.
    let setup = Setup::open().url("fixture", &upstream.first_line, "run_tasks = false");
    let gateway = setup.start().await;
    let url = format!("{}/mcp/fixture", gateway.url);
    let scores = run_suite(&url, MODERN, None).await;
    let failed: Vec<_> = TASKS
        .iter()
        .filter(|name| !passed(&scores).contains(**name))
        .map(|name| (*name, &scores[*name]))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    gateway.stop().await;
}
