//! The suite's scenarios of authorization: the gateway is the OAuth client of the suite's servers. A program calls through
//! it, and a browser by hand connects the account wherever the gateway asks (`tests/conformance/auth_client.mjs`).
//!
//! Every scenario that the suite lists is run or stands in [`NOT_APPLICABLE`].

use futures_util::{StreamExt as _, stream};

use super::LEGACY;
use super::callers::{self, Scenario};
use super::eras::MODERN;
use crate::harness::peers;

/// Scenarios that run at once: each is a gateway and two programs of Node, which wait for each other most of the time.
const AT_ONCE: usize = 3;

/// Scenarios that do not apply, each with its reason.
const NOT_APPLICABLE: &[(&str, &str)] = &[
    (
        "auth/2025-03-26-oauth-endpoint-fallback",
        "removed in 2025-06-18: a server without metadata does not say that it knows PKCE",
    ),
    (
        "auth/enterprise-managed-authorization",
        "the suite hands the ID token out by itself and has no login: the gateway takes ID tokens of its own login alone. \
         `accounts::login::real` has this flow with a real server",
    ),
    (
        "auth/dpop",
        "tokens bound to a key (RFC 9449) are not built",
    ),
    (
        "auth/dpop-nonce",
        "tokens bound to a key (RFC 9449) are not built",
    ),
    (
        "auth/wif-jwt-bearer",
        "workload identities (SEP-1933) are not final",
    ),
];

/// Scenarios in which no account may be connected, with the last page; in all others every call succeeds.
const REFUSED: &[(&str, &str)] = &[
    ("auth/resource-mismatch", "Connect suite"),
    ("auth/metadata-issuer-mismatch", "Connect suite"),
    ("auth/iss-supported-missing", "Not connected"),
    ("auth/iss-wrong-issuer", "Not connected"),
    ("auth/iss-unexpected", "Not connected"),
    ("auth/iss-normalized", "Not connected"),
];

/// What is wrong with the calls that the program made.
fn wrong_calls(scenario: &str, output: &str) -> Option<String> {
    let is_fine = match REFUSED.iter().find(|(known, _)| *known == scenario) {
        Some((_, page)) => {
            let began = format!("page: {page}\ncall 1: not connected\n");
            output.starts_with(&began) && !output.contains("page: Connected")
        }
        None if scenario == "auth/scope-retry-limit" => {
            output.contains("page: Connected") && output.contains("call 1: refused")
        }
        None => ["call 1: test", "call 2: test", "tools: test-tool"]
            .iter()
            .all(|line| output.lines().any(|found| found == *line)),
    };
    (!is_fine).then(|| format!("calls: {output}"))
}

/// Runs the scenarios; fails with all that is wrong.
async fn assert_pass(scenarios: &[String], revision: Option<&str>, caller: &str) {
    let run = |name: String| async move {
        let scenario = Scenario {
            script: "conformance/auth_client.mjs",
            name: &name,
            revision,
            caller,
        };
        let (mut problems, output) = scenario.run().await;
        problems.extend(wrong_calls(&name, &output));
        (!problems.is_empty()).then(|| format!("{name}: {}", problems.join("\n")))
    };
    let runs = stream::iter(scenarios.to_vec()).map(run);
    let failed = runs.buffered(AT_ONCE).filter_map(std::future::ready);
    let failed: Vec<String> = failed.collect().await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Scenarios of authorization that apply, of `revision` or of all.
async fn applicable(revision: Option<&str>) -> Vec<String> {
    let mut names = callers::listed(revision).await;
    names.retain(|name| name.starts_with("auth/"));
    names.retain(|name| NOT_APPLICABLE.iter().all(|(other, _)| other != name));
    names
}

#[tokio::test]
async fn legacy_program_has_an_account_where_the_suite_authorizes() {
    if !peers::are_installed() {
        return;
    }
    let scenarios = applicable(Some(LEGACY)).await;
    assert_eq!(scenarios.len(), 14, "{scenarios:?}");
    assert_pass(&scenarios, Some(LEGACY), "legacy").await;
}

#[tokio::test]
async fn modern_program_has_an_account_where_the_suite_authorizes() {
    if !peers::are_installed() {
        return;
    }
    let scenarios = applicable(Some(MODERN)).await;
    assert_eq!(scenarios.len(), 25, "{scenarios:?}");
    assert_pass(&scenarios, Some(MODERN), "modern").await;
}

/// Scenarios of extensions, and one of 2025-03-26, whose upstream has no metadata: `issuer` and `resource` are configured.
#[tokio::test]
async fn scenarios_of_no_present_revision_authorize_the_gateway() {
    if !peers::are_installed() {
        return;
    }
    let mut scenarios = applicable(None).await;
    let of_revisions = applicable(Some(MODERN)).await;
    scenarios.retain(|name| !of_revisions.contains(name));
    let expected = [
        "auth/2025-03-26-oauth-metadata-backcompat",
        "auth/client-credentials-jwt",
        "auth/client-credentials-basic",
    ];
    assert_eq!(scenarios, expected);
    assert_pass(&scenarios, None, "legacy").await;
}
