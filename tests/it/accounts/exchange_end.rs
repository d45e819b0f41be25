//! Exchanged tokens end with the caller's; what goes on uses what the next call brings, or closes.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use super::personal::{PersonalUpstream, exchanges, exchanging};
use super::world::{AuthServer, GuardedUpstream};
use crate::harness::Gateway;
use crate::harness::eventually;
use crate::harness::http::Actor;
use crate::harness::session::{Session, text_of};
use crate::tasks::hosted::{MODERN, about, begin, until};

/// A token of alice that ends in `seconds`.
fn ending(gw: &Gateway, seconds: u64) -> Actor {
    let audience = format!("{}/mcp/up", gw.url);
    let mut claims = gw.issuer().claims("alice", &[audience], "mcp:tools");
    claims["exp"] = (claims["iat"].as_u64().unwrap() + seconds).into();
    gw.bearer(&gw.issuer().sign_own(&claims))
}

#[tokio::test]
async fn exchanged_token_is_not_used_after_the_callers_end() {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let upstream = PersonalUpstream::start(&server, true).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    let (short, long) = (ending(&gw, 3), ending(&gw, 600));
    let session = short.open("/mcp/up").await;
    session.call("greet_alice", json!({})).await.unwrap();
    // The caller's token's whole life; the exchanged one would last longer.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let call = json!({
        "jsonrpc": "2.0", "id": 99, "method": "tools/call",
        "params": {"name": "greet_alice", "arguments": {}},
    });
    let answer = long.post("/mcp/up", &session.headers(), &call).await;
    let answer = answer.expect(StatusCode::OK).await.message().await;
    assert_eq!(text_of(&answer["result"]), "I am alice");
    let seen = upstream.seen();
    let last = seen.iter().rev().find(|(_, method)| method == "tools/call");
    assert_eq!(
        last.unwrap().0.as_deref(),
        Some("Bearer for-alice-1"),
        "{seen:?}"
    );
    let subjects: Vec<String> = server
        .forms()
        .iter()
        .map(|form| form["subject_token"].clone())
        .collect();
    let tokens = [&short, &long].map(|actor| actor.token().unwrap().to_owned());
    assert_eq!(subjects, tokens);
    gw.stop().await;
}

// The stream is one of the upstream, which the gateway keeps open for the subscription.
#[tokio::test]
async fn stream_closes_with_the_token_and_comes_back_with_the_next() {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    let (short, long) = (ending(&gw, 4), ending(&gw, 600));
    let session = short.open("/mcp/up").await;
    let subscribe = json!({"uri": "stub://static/1"});
    session
        .request("resources/subscribe", subscribe)
        .await
        .unwrap();
    let streams = || {
        let seen = upstream.seen();
        let gets = seen.into_iter().filter(|(_, body)| body.is_empty());
        gets.filter_map(|(header, _)| header).collect::<Vec<_>>()
    };
    eventually("a stream", async || (!streams().is_empty()).then_some(())).await;
    assert_eq!(streams(), ["Bearer for-alice-0"]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        streams(),
        ["Bearer for-alice-0"],
        "there is no token to open another one with"
    );
    let call = json!({
        "jsonrpc": "2.0", "id": 99, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "x"}},
    });
    let answer = long.post("/mcp/up", &session.headers(), &call).await;
    answer.expect(StatusCode::OK).await.message().await;
    eventually("another stream", async || {
        streams()
            .iter()
            .any(|header| header == "Bearer for-alice-1")
            .then_some(())
    })
    .await;
    gw.stop().await;
}

/// A caller with an exchanged token that ends in three seconds, and with one that lasts.
struct Caller {
    gw: Gateway,
    upstream: GuardedUpstream,
    short: Session,
    long: Session,
}

impl Caller {
    /// Before a stub with these arguments.
    async fn start(args: &[&str]) -> Self {
        let server = AuthServer::start().await;
        exchanges(&server, 600);
        let upstream = GuardedUpstream::start(&server, args).await;
        let gw = exchanging(&server, &upstream.url(), "").await;
        let short = ending(&gw, 3).open("/mcp/up").await;
        let long = short.at(ending(&gw, 600));
        Self {
            gw,
            upstream,
            short,
            long,
        }
    }

    /// The tokens with which the upstream was asked for tasks.
    fn tokens(&self) -> Vec<String> {
        let seen = self.upstream.seen();
        let of_tasks = seen
            .into_iter()
            .filter(|(_, body)| body.contains("\"tasks/get\""));
        of_tasks.filter_map(|(token, _)| token).collect()
    }
}

#[tokio::test]
async fn task_of_an_upstream_outlives_the_token_that_began_it() {
    let caller = Caller::start(&["--tasks"]).await;
    let task = begin(&caller.short, "errand", json!({"looks": 2})).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    until(&caller.long, &task, "completed").await;
    let fetched = caller.long.request("tasks/result", about(&task)).await;
    assert_eq!(text_of(&fetched.unwrap()), "errand done");
    let tokens = caller.tokens();
    assert!(tokens.len() > 1, "{tokens:?}");
    assert!(tokens.iter().all(|token| token == "Bearer for-alice-1"));
    caller.gw.stop().await;
}

#[tokio::test]
async fn task_that_runs_here_goes_on_with_the_next_token() {
    let caller = Caller::start(&MODERN).await;
    let task = begin(&caller.short, "errand", json!({"ms": 5000})).await;
    caller.long.text("echo", json!({"text": "x"})).await;
    until(&caller.long, &task, "completed").await;
    let tokens = caller.tokens();
    assert_eq!(tokens.last().unwrap(), "Bearer for-alice-1", "{tokens:?}");
    caller.gw.stop().await;
}

// No request brings a new token, so the gateway cannot ask the upstream for the outcome of the task.
#[tokio::test]
async fn task_that_runs_here_fails_without_a_next_token() {
    let caller = Caller::start(&MODERN).await;
    let task = begin(&caller.short, "errand", json!({"ms": 600_000})).await;
    eventually("the task is given up", async || {
        let hosted = caller.gw.metric("drawbridge_tasks_hosted", "").await;
        (hosted < 0.5).then_some(())
    })
    .await;
    let state = caller
        .long
        .request("tasks/get", about(&task))
        .await
        .unwrap();
    assert_eq!(state["status"], "failed", "{state}");
    let why = state["statusMessage"].as_str().unwrap();
    assert!(why.contains("the caller's token has ended"), "{why}");
    caller.gw.stop().await;
}
