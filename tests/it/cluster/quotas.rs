//! Quotas of callers hold over all replicas, but for a slice at each. Spec: DESIGN §8.1.

use drawbridge::redis_client::cmd;
use http::StatusCode;
use serde_json::{Value, json};

use super::adoption::ping;
use super::{SECRET, pair, tables};
use crate::harness::redis::{self, RedisServer};
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually};
use crate::modern::Modern;
use crate::tasks::hosted::{MODERN, begin, until};

fn setup(redis: &RedisServer, limits: &str) -> Setup {
    Setup::open().toml(&format!("{}\n{limits}", tables(redis, SECRET, "")))
}

/// Waits until Redis knows that replicas hold these shares of the only quota of `kind`.
async fn counted(redis: &RedisServer, kind: &str, shares: &[usize]) {
    let client = redis.client().await;
    let mut find = cmd("KEYS");
    find.arg(format!("drawbridge:quota:{kind}:*"));
    eventually("the shares are counted", async || {
        let keys: Vec<String> = client.command("keys", &find).await.ok()?;
        let mut values = cmd("HVALS");
        values.arg(keys.first()?);
        let told: Vec<String> = client.command("values", &values).await.ok()?;
        let count = |share: &String| share.split_once(' ')?.0.parse().ok();
        let mut told: Vec<usize> = told.iter().filter_map(count).collect();
        told.sort_unstable();
        (told == shares).then_some(())
    })
    .await;
}

async fn is_live(user: &Session) -> bool {
    user.post(&ping()).await.status() == StatusCode::OK
}

#[tokio::test]
async fn sessions_of_a_caller_count_over_all_replicas() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let make = || setup(&redis, "[sessions]\nmax_per_principal = 4").stub("stub", &[]);
    let [one, two] = pair(make).await;
    let mut here = Vec::new();
    for _ in 0..4 {
        here.push(one.anonymous().open("/mcp/stub").await);
    }
    counted(&redis, "sessions", &[4]).await;
    // One more is a slice.
    let first = two.anonymous().open("/mcp/stub").await;
    let second = two.anonymous().open("/mcp/stub").await;
    assert!(!is_live(&first).await, "it made room");
    assert!(is_live(&second).await);
    for session in &here {
        assert!(is_live(session).await, "never a session of another replica");
    }
    for session in here.iter().skip(1) {
        assert_eq!(session.delete().await, 204);
    }
    counted(&redis, "sessions", &[1, 1]).await;
    let mut more = Vec::new();
    for _ in 0..2 {
        more.push(two.anonymous().open("/mcp/stub").await);
    }
    for session in more.iter().chain([&second]) {
        assert!(is_live(session).await, "the others' share is free again");
    }
    one.stop().await;
    two.stop().await;
}

/// Two upstreams, so that each replica may own the implicit session at one upstream.
fn asking(redis: &RedisServer, wait: &str) -> Setup {
    let wait = format!("ask_wait = {wait:?}");
    let setup = setup(redis, "[limits]\nparked_per_principal = 2");
    let setup = setup.stub_with("stub", &[], &wait);
    setup.stub_with("other", &[], &wait)
}

fn modern(gateway: &Gateway, upstream: &str) -> Modern {
    Modern::new(gateway.anonymous(), &format!("/mcp/{upstream}"))
}

/// Calls a tool that asks; the `input_required` result, or `None` where the client could not be asked.
async fn asked(user: &Modern) -> Option<Value> {
    let result = user.call("ask_form", json!({})).await.unwrap();
    (result["resultType"] == "input_required").then_some(result)
}

/// Comes back with the answer.
async fn answer(user: &Modern, asked: &Value) {
    let questions = asked["inputRequests"].as_object().unwrap();
    let key = questions.keys().next().unwrap();
    let answers = json!({key: {"action": "accept", "content": {"name": "x"}}});
    let params = json!({
        "name": "ask_form", "arguments": {},
        "requestState": asked["requestState"], "inputResponses": answers,
    });
    let done = user.send("tools/call", params).await.unwrap();
    assert!(text_of(&done).contains("accept"), "{done}");
}

#[tokio::test]
async fn parked_calls_of_a_caller_count_over_all_replicas() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| asking(&redis, "0s")).await;
    let (here, there) = (modern(&one, "stub"), modern(&two, "other"));
    let parked = [asked(&here).await.unwrap(), asked(&here).await.unwrap()];
    counted(&redis, "parked", &[2]).await;
    let slice = asked(&there).await;
    assert!(slice.is_some(), "a slice");
    counted(&redis, "parked", &[1, 2]).await;
    assert_eq!(asked(&there).await, None);
    for asked in &parked {
        answer(&here, asked).await;
    }
    eventually("the others' share is free again", async || {
        asked(&there).await
    })
    .await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn question_waits_for_what_another_replica_leaves() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| asking(&redis, "1m")).await;
    let (here, there) = (modern(&one, "stub"), modern(&two, "other"));
    let parked = [asked(&here).await.unwrap(), asked(&here).await.unwrap()];
    counted(&redis, "parked", &[2]).await;
    asked(&there).await.expect("a slice");
    counted(&redis, "parked", &[1, 2]).await;
    let waiting = asked(&there);
    let leaving = async {
        eventually("the question waits", async || {
            let waited = two.metric("drawbridge_calls_park_waited_total", "").await;
            (waited > 0.5).then_some(())
        })
        .await;
        for asked in &parked {
            answer(&here, asked).await;
        }
    };
    let (found, ()) = tokio::join!(waiting, leaving);
    assert!(found.is_some());
    one.stop().await;
    two.stop().await;
}

/// Waits until one replica alone has kept results.
async fn kept_by_one(redis: &RedisServer) {
    let client = redis.client().await;
    let mut find = cmd("KEYS");
    find.arg("drawbridge:quota:results:*");
    eventually("the others' results are gone", async || {
        let keys: Vec<String> = client.command("keys", &find).await.ok()?;
        let mut length = cmd("HLEN");
        length.arg(keys.first()?);
        let replicas: usize = client.command("length", &length).await.ok()?;
        (replicas == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn kept_task_results_of_a_caller_count_over_all_replicas() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&MODERN).await;
    let make = || {
        let limits = "[limits]\ntask_results_per_principal = \"8KiB\"";
        setup(&redis, limits).http("newer", &stub, "")
    };
    let [one, two] = pair(make).await;
    let here = one.anonymous().open("/mcp/newer").await;
    for _ in 0..2 {
        let task = begin(&here, "big", json!({"bytes": 3000})).await;
        until(&here, &task, "completed").await;
    }
    let there = two.anonymous().open("/mcp/newer").await;
    let task = begin(&there, "big", json!({"bytes": 3000})).await;
    until(&there, &task, "failed").await;
    let task = begin(&there, "big", json!({"bytes": 1500})).await;
    until(&there, &task, "completed").await;
    assert_eq!(here.delete().await, 204);
    kept_by_one(&redis).await;
    let task = begin(&there, "big", json!({"bytes": 3000})).await;
    until(&there, &task, "completed").await;
    one.stop().await;
    two.stop().await;
}
