//! Official clients of the older era in front of servers of 2026-07-28 alone: one on the TypeScript
//! SDK, one on the Rust SDK. Spec: BRIDGING §3.2.

use serde_json::json;

use crate::harness::{Setup, peers};

/// Steps of every tour of rounds.
const STEPS: &[&str] = &[
    "form",
    "sampling",
    "roots",
    "three_at_once",
    "one_after_the_other",
    "state",
    "prompt",
    "refusal",
    "plain_job",
    "job_that_needs_tasks",
    "job_that_asks_twice_at_once",
    "job_that_asks_before_it_is_a_task",
    "job_that_fails",
];

/// Further steps of a client with tasks of 2025-11-25.
const TASK_STEPS: &[&str] = &[
    "task_that_asks",
    "task_that_is_answered_at_once",
    "task_that_fails",
    "task_that_is_called_off",
];

async fn tour(program: &str, script: &str, generation: Option<&str>) {
    tour_of(program, script, generation, STEPS).await;
}

async fn tour_of(program: &str, script: &str, generation: Option<&str>, steps: &[&str]) {
    if !peers::are_installed() {
        return;
    }
    let fixture = peers::script("conformance/dual.mjs");
    let fixture = peers::serve(&peers::node(), &[&fixture, "http", "modern"], &[]).await;
    let jobs = peers::root().join(".cache/bin/tasks-fixture");
    let jobs = peers::serve(jobs.to_str().unwrap(), &[], &[]).await;
    let gw = Setup::secured()
        .url("rounds", &fixture.first_line, "")
        .url("jobs", &jobs.first_line, "era = \"modern\"")
        .start()
        .await;
    let user = gw.principal("user");
    let options = json!({
        "url": format!("{}/mcp/rounds", gw.url), "tasks": format!("{}/mcp/jobs", gw.url),
        "token": user.token(),
    });
    let (script, options) = (peers::script(script), options.to_string());
    let mut args = vec![script.as_str()];
    args.extend(generation);
    args.push(&options);
    peers::tour(program, &args, steps).await;
    gw.stop().await;
}

#[tokio::test]
async fn typescript_1_is_asked_in_rounds_and_has_tasks_run() {
    let steps = [STEPS, TASK_STEPS].concat();
    let script = "clients/rounds.mjs";
    tour_of(&peers::node(), script, Some("1"), &steps).await;
}

#[tokio::test]
async fn typescript_2_of_the_older_era_is_asked_in_rounds() {
    tour(&peers::node(), "clients/rounds.mjs", Some("2")).await;
}

#[tokio::test]
async fn python_1_is_asked_in_rounds() {
    tour(&peers::python(1), "clients/rounds.py", None).await;
}

#[tokio::test]
async fn python_2_of_the_older_era_is_asked_in_rounds() {
    tour(&peers::python(2), "clients/rounds.py", None).await;
}
