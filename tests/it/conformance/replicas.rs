//! The suite through three replicas behind nginx, which gives each request to the next one: exactly as with one.
//! Spec: DESIGN §8.1.

use std::collections::BTreeSet;

use super::eras::{self, MODERN, NOT_OF_A_LEGACY_UPSTREAM, passed};
use super::{
    LEGACY, Scores, assert_all_pass, excuse_retry, fixture, run_suite, with_stdio_fixture,
};
use crate::harness::replicas::Replicas;
use crate::harness::{Setup, peers};

/// Runs the suite of `revision` through replicas; `None` if a required program is not installed. `has_owners` says whether
/// its requests have an owner, to which other replicas pass them on.
async fn through(make: impl Fn() -> Setup, revision: &str, has_owners: bool) -> Option<Scores> {
    let replicas = Replicas::start(make).await?;
    let url = format!("{}/mcp/fixture", replicas.url);
    let scores = run_suite(&url, revision, None).await;
    let mut forwarded = 0.0;
    for gateway in replicas.gateways() {
        // One replica serves all callers of a declaration. It passes no request on, and the other replicas serve none.
        let mut served = gateway.log_records();
        served.retain(|line| line["target"] == "access");
        let passed_on = gateway
            .metric("drawbridge_cluster_forward_duration_seconds_count", "")
            .await;
        let served = f64::from(u32::try_from(served.len()).unwrap());
        assert!(served + passed_on > 10.0, "it was not asked");
        forwarded += passed_on;
    }
    assert!(!has_owners || forwarded > 10.0, "{forwarded} passed on");
    replicas.stop().await;
    Some(scores)
}

#[tokio::test]
async fn legacy_scenarios_pass_through_replicas_to_an_http_upstream() {
    if !peers::are_installed() {
        return;
    }
    let upstream = fixture().await;
    let make = || Setup::open().url("fixture", &upstream.first_line, "");
    if let Some(scores) = through(make, LEGACY, true).await {
        assert_all_pass(&scores);
    }
}

#[tokio::test]
async fn legacy_scenarios_pass_through_replicas_to_a_stdio_upstream() {
    if !peers::are_installed() {
        return;
    }
    if let Some(mut scores) = through(|| with_stdio_fixture(Setup::open()), LEGACY, true).await {
        excuse_retry(&mut scores);
        assert_all_pass(&scores);
    }
}

/// What passes without a gateway passes in front of a fixture of `era`, but for what one gateway does not pass either.
async fn assert_modern_passes(era: &str, unreachable: &[&str]) {
    if !peers::are_installed() {
        return;
    }
    let upstream = eras::fixture(era).await;
    let make = || Setup::open().url("fixture", &upstream.first_line, "");
    let Some(scores) = through(make, MODERN, era == "legacy").await else {
        return;
    };
    let direct = eras::fixture("dual").await;
    let direct = run_suite(&direct.first_line, MODERN, None).await;
    let missing: BTreeSet<_> = passed(&direct)
        .difference(&passed(&scores))
        .copied()
        .collect();
    let known: BTreeSet<_> = unreachable.iter().copied().collect();
    let detail: Vec<_> = missing.iter().map(|name| (*name, &scores[*name])).collect();
    assert_eq!(missing, known, "{detail:#?}");
}

#[tokio::test]
async fn modern_scenarios_pass_through_replicas_to_a_dual_upstream() {
    assert_modern_passes("dual", &[]).await;
}

#[tokio::test]
async fn modern_scenarios_pass_through_replicas_to_a_legacy_upstream() {
    assert_modern_passes("legacy", NOT_OF_A_LEGACY_UPSTREAM).await;
}
