//! Tasks of 2025-11-25 in front of upstreams that know only those of the extension: the gateway runs
//! them. Spec: BRIDGING §3.8; SPEC K-01 to K-05.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::held::count;
use crate::harness::session::{Exchange, Session, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};

pub(super) const RELATED: &str = "io.modelcontextprotocol/related-task";
const EXTENSION: &str = r#"{"io.modelcontextprotocol/tasks":{}}"#;
pub(crate) const MODERN: [&str; 4] = ["--era", "modern", "--extensions", EXTENSION];

/// Paths where a task is begun, each with the prefix of its tool names.
const PLACES: [(&str, &str); 3] = [("/mcp/newer", ""), ("/mcp/piped", ""), ("/mcp", "newer__")];

pub(super) struct World {
    pub(super) gw: Gateway,
    pub(super) newer: HttpStub,
}

impl World {
    pub(super) async fn start() -> Self {
        Self::with("", "").await
    }

    /// With more of a configuration, and more keys of the upstreams.
    pub(super) async fn with(toml: &str, keys: &str) -> Self {
        let newer = HttpStub::start(&MODERN).await;
        let gw = Setup::secured()
            .toml(toml)
            .http("newer", &newer, keys)
            .stub_with("piped", &MODERN, keys)
            .stub("older", &["--tasks"])
            .start()
            .await;
        Self { gw, newer }
    }

    pub(super) async fn user(&self, name: &str, path: &str) -> Session {
        self.gw.principal(name).open(path).await
    }

    /// Waits until the upstream over HTTP was sent a method so often.
    pub(super) async fn sent(&self, method: &str, times: u64) {
        eventually(method, async || {
            (count(&self.newer, method).await >= times).then_some(())
        })
        .await;
    }
}

/// Begins a task; returns the task as the client gets it.
pub(crate) async fn begin(user: &Session, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments, "task": {"ttl": 60_000}});
    let begun = user.request("tools/call", params).await.unwrap();
    begun["task"].clone()
}

/// The parameters of a request about a task.
pub(crate) fn about(task: &Value) -> Value {
    json!({"taskId": task["taskId"]})
}

/// Polls until the task has this status.
pub(crate) async fn until(user: &Session, task: &Value, status: &str) -> Value {
    eventually(status, async || {
        let state = user.request("tasks/get", about(task)).await.unwrap();
        assert_eq!(state["taskId"], task["taskId"]);
        (state["status"] == status).then_some(state)
    })
    .await
}

pub(super) async fn result(user: &Session, task: &Value) -> Value {
    user.request("tasks/result", about(task)).await.unwrap()
}

#[tokio::test]
async fn a_task_is_begun_watched_and_its_result_fetched() {
    let world = World::start().await;
    for (path, prefix) in PLACES {
        let alice = world.user("alice", path).await;
        let told = &alice.hello["capabilities"]["tasks"];
        let whole = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
        assert_eq!(told, &whole, "{path}");
        let tools = alice.request("tools/list", json!({})).await.unwrap();
        for tool in tools["tools"].as_array().unwrap() {
            if !tool["name"].as_str().unwrap().starts_with("older__") {
                assert_eq!(tool["execution"], json!({"taskSupport": "optional"}));
            }
        }
        let task = begin(&alice, &format!("{prefix}errand"), json!({"looks": 2})).await;
        assert_eq!(task["status"], "working", "{path}");
        assert_eq!(task["ttl"], 60_000);
        let handle = task["taskId"].as_str().unwrap();
        assert!(!handle.contains("errand"), "{handle}");
        let done = until(&alice, &task, "completed").await;
        assert!(done["lastUpdatedAt"].as_str() > done["createdAt"].as_str());
        let list = alice.request("tasks/list", json!({})).await.unwrap();
        assert_eq!(list["tasks"], json!([done]));
        let fetched = result(&alice, &task).await;
        assert_eq!(text_of(&fetched), "errand done");
        assert_eq!(fetched["_meta"], json!({RELATED: about(&task)}));
        // A call that the upstream answers at once is a task all the same, and can be waited for.
        let echo = format!("{prefix}echo");
        let task = begin(&alice, &echo, json!({"text": "hi"})).await;
        assert_eq!(task["status"], "working");
        let mut fetched = result(&alice, &task).await;
        let mark = fetched.as_object_mut().unwrap().remove("_meta").unwrap();
        assert_eq!(mark, json!({RELATED: about(&task)}));
        let plain = alice.call(&echo, json!({"text": "hi"})).await.unwrap();
        assert_eq!(fetched, plain);
    }
    world.gw.stop().await;
}

// Spec: SPEC K-04; BRIDGING §3.2.
#[tokio::test]
async fn what_a_task_asks_comes_with_its_result_and_names_it() {
    let world = World::start().await;
    for (path, prefix) in PLACES {
        let alice = world.user("alice", path).await;
        let asking = [("errand", json!({"ask": 1})), ("ask_form", json!({}))];
        for (tool, arguments) in asking {
            let task = begin(&alice, &format!("{prefix}{tool}"), arguments).await;
            until(&alice, &task, "input_required").await;
            let (_, exchange) = alice.start("tasks/result", about(&task)).await;
            let mut stream = exchange.stream();
            let question = stream.until("elicitation/create").await;
            let mark = &question["params"]["_meta"][RELATED];
            assert_eq!(mark, &about(&task), "{question}");
            let answer = json!({"action": "accept", "content": {"name": "Ann"}});
            alice.answer(&question, answer).await;
            let (_, reply) = Exchange::Stream(stream).finish().await;
            let reply = reply.unwrap();
            assert!(text_of(&reply).contains("Ann"), "{reply}");
            until(&alice, &task, "completed").await;
        }
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn a_question_outlives_the_request_that_it_was_put_on() {
    let world = World::start().await;
    let alice = world.user("alice", "/mcp/newer").await;
    let task = begin(&alice, "errand", json!({"ask": 1})).await;
    let (id, exchange) = alice.start("tasks/result", about(&task)).await;
    let mut stream = exchange.stream();
    let first = stream.until("elicitation/create").await;
    let gone = json!({"requestId": id});
    alice.notify("notifications/cancelled", gone).await;
    let withdrawn = stream.until("notifications/cancelled").await;
    assert_eq!(withdrawn["params"]["requestId"], first["id"]);
    until(&alice, &task, "input_required").await;
    let (_, exchange) = alice.start("tasks/result", about(&task)).await;
    let mut stream = exchange.stream();
    let question = stream.until("elicitation/create").await;
    alice.answer(&question, json!({"action": "decline"})).await;
    let (_, reply) = Exchange::Stream(stream).finish().await;
    assert!(text_of(&reply.unwrap()).contains("decline"));
    world.gw.stop().await;
}

// Spec: SPEC K-03, K-04; BRIDGING §3.8.
#[tokio::test]
async fn a_tools_error_and_an_error_of_the_protocol_are_failures() {
    let world = World::start().await;
    for (path, prefix) in PLACES {
        let alice = world.user("alice", path).await;
        let errand = format!("{prefix}errand");
        let task = begin(&alice, &errand, json!({"fail": 1})).await;
        until(&alice, &task, "failed").await;
        assert_eq!(result(&alice, &task).await["isError"], true);
        let task = begin(&alice, &errand, json!({"code": -32603})).await;
        let failed = until(&alice, &task, "failed").await;
        assert_eq!(failed["statusMessage"], "the errand failed");
        let error = alice.request("tasks/result", about(&task)).await;
        assert_eq!(error.unwrap_err()["message"], "the errand failed");
        // A finished task cannot be cancelled, whatever its outcome.
        let late = alice.request("tasks/cancel", about(&task)).await;
        assert_eq!(late.unwrap_err()["code"], -32602);
    }
    world.gw.stop().await;
}

// Spec: SPEC K-03; BRIDGING §6.
#[tokio::test]
async fn a_cancelled_task_is_cancelled_at_once_and_for_good() {
    let world = World::start().await;
    let alice = world.user("alice", "/mcp/newer").await;
    let task = begin(&alice, "errand", json!({"ms": 600_000})).await;
    world.sent("tasks/get", 1).await;
    let (_, waiting) = alice.start("tasks/result", about(&task)).await;
    let over = alice.request("tasks/cancel", about(&task)).await.unwrap();
    assert_eq!(
        (&over["taskId"], &over["status"]),
        (&task["taskId"], &json!("cancelled"))
    );
    let (_, reply) = waiting.finish().await;
    assert_eq!(reply.unwrap_err()["message"], "the task was cancelled");
    world.sent("tasks/cancel", 1).await;
    let again = alice.request("tasks/cancel", about(&task)).await;
    assert_eq!(again.unwrap_err()["code"], -32602);
    until(&alice, &task, "cancelled").await;
    world.gw.stop().await;
}

// Spec: SPEC K-05, A-30.
#[tokio::test]
async fn a_task_is_known_in_the_session_that_began_it_alone() {
    let world = World::start().await;
    for (path, prefix) in PLACES {
        let alice = world.user("alice", path).await;
        let task = begin(&alice, &format!("{prefix}echo"), json!({"text": "hi"})).await;
        for stranger in ["bob", "alice"] {
            let stranger = world.user(stranger, path).await;
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                let refused = stranger.request(method, about(&task)).await;
                assert_eq!(refused.unwrap_err()["code"], -32602);
            }
            let none = stranger.request("tasks/list", json!({})).await.unwrap();
            assert_eq!(none, json!({"tasks": []}));
        }
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn a_task_is_known_for_as_long_as_was_granted() {
    let world = World::with("[limits]\ntask_ttl = \"3s\"", "").await;
    let alice = world.user("alice", "/mcp/newer").await;
    let task = begin(&alice, "errand", json!({"ms": 600_000})).await;
    assert_eq!(task["ttl"], 3000);
    world.sent("tasks/get", 1).await;
    let (_, waiting) = alice.start("tasks/result", about(&task)).await;
    assert!(waiting.finish().await.1.is_err());
    let unknown = alice.request("tasks/get", about(&task)).await;
    assert_eq!(unknown.unwrap_err()["code"], -32602);
    world.sent("tasks/cancel", 1).await;
    world.gw.stop().await;
}

#[tokio::test]
async fn a_task_that_is_forgotten_for_another_does_not_run_on() {
    let world = World::with("[limits]\ntasks_per_session = 1", "").await;
    let alice = world.user("alice", "/mcp/newer").await;
    let first = begin(&alice, "errand", json!({"ms": 600_000})).await;
    world.sent("tasks/get", 1).await;
    begin(&alice, "errand", json!({"ms": 600_000})).await;
    let unknown = alice.request("tasks/get", about(&first)).await;
    assert_eq!(unknown.unwrap_err()["code"], -32602);
    world.sent("tasks/cancel", 1).await;
    let forgotten = world.gw.metric("drawbridge_tasks_forgotten_total", "");
    assert!((forgotten.await - 1.0).abs() < 0.5);
    world.gw.stop().await;
}

#[tokio::test]
async fn tasks_leave_their_client_room_to_ask_for_them() {
    let world = World::with("[limits]\ncalls_per_principal = 4", "").await;
    let alice = world.user("alice", "/mcp/newer").await;
    let first = begin(&alice, "errand", json!({"ms": 600_000})).await;
    begin(&alice, "errand", json!({"ms": 600_000})).await;
    let params = json!({"name": "errand", "arguments": {}, "task": {}});
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let refused = alice.post(&message).await.json().await;
    assert_eq!(refused["error"]["data"]["retryAfterMs"], 1000, "{refused}");
    alice.request("tasks/cancel", about(&first)).await.unwrap();
    eventually("a place", async || {
        let answer = alice.post(&message).await.json().await;
        answer.get("result").is_some().then_some(())
    })
    .await;
    world.gw.stop().await;
}

#[tokio::test]
async fn a_task_ends_with_its_session() {
    let world = World::start().await;
    let alice = world.user("alice", "/mcp/newer").await;
    begin(&alice, "errand", json!({"ms": 600_000})).await;
    world.sent("tasks/get", 1).await;
    let running = world.gw.metric("drawbridge_tasks_hosted", "").await;
    assert!((running - 1.0).abs() < 0.5, "{running}");
    alice.delete().await;
    world.sent("tasks/cancel", 1).await;
    eventually("nothing runs", async || {
        let running = world.gw.metric("drawbridge_tasks_hosted", "").await;
        (running < 0.5).then_some(())
    })
    .await;
    world.gw.stop().await;
}

/// The upstream of a gateway that was told to stop while `errand` ran as a task, and did.
pub(super) async fn stopped(drain: &str, errand: Value) -> HttpStub {
    let newer = HttpStub::start(&MODERN).await;
    let setup = Setup::open().server(&format!("drain = {drain:?}"));
    let mut gw = setup.http("newer", &newer, "").start().await;
    let user = gw.anonymous().open("/mcp/newer").await;
    begin(&user, "errand", errand).await;
    eventually("the task", async || {
        (count(&newer, "tasks/get").await > 0).then_some(())
    })
    .await;
    gw.signal(Signal::TERM);
    assert_eq!(gw.exit().await, Some(0));
    newer
}

#[tokio::test]
async fn a_stop_of_the_gateway_cancels_what_it_runs() {
    let newer = stopped("0s", json!({"ms": 600_000})).await;
    assert_eq!(count(&newer, "tasks/cancel").await, 1);
}

#[tokio::test]
async fn a_result_that_finds_no_room_makes_its_task_fail() {
    let world = World::with("[limits]\ntask_results_per_principal = \"4KiB\"", "").await;
    let alice = world.user("alice", "/mcp/newer").await;
    let small = begin(&alice, "big", json!({"bytes": 3000})).await;
    until(&alice, &small, "completed").await;
    // The quota held by a finished result is evicted for the next task.
    let next = begin(&alice, "big", json!({"bytes": 3000})).await;
    until(&alice, &next, "completed").await;
    let forgotten = alice.request("tasks/get", about(&small)).await;
    assert_eq!(forgotten.unwrap_err()["code"], -32602);
    let large = begin(&alice, "big", json!({"bytes": 5000})).await;
    let failed = until(&alice, &large, "failed").await;
    assert_eq!(
        failed["statusMessage"],
        "there is no room to keep the result of the task: call the tool without one"
    );
    let error = alice.request("tasks/result", about(&large)).await;
    assert_eq!(error.unwrap_err()["code"], -32603);
    let unkept = world.gw.metric("drawbridge_tasks_unkept_total", "").await;
    assert!((unkept - 1.0).abs() < 0.5, "{unkept}");
    world.gw.stop().await;
}

#[tokio::test]
async fn a_client_hears_how_its_task_stands() {
    let world = World::start().await;
    for (path, prefix) in PLACES {
        let alice = world.user("alice", path).await;
        let mut stream = alice.listen().await;
        let task = begin(&alice, &format!("{prefix}errand"), json!({"ask": 1})).await;
        let told = stream.until("notifications/tasks/status").await;
        assert_eq!(told["params"]["taskId"], task["taskId"], "{told}");
        assert_eq!(told["params"]["status"], "input_required");
        alice.request("tasks/cancel", about(&task)).await.unwrap();
        let told = stream.until("notifications/tasks/status").await;
        assert_eq!(told["params"]["status"], "cancelled");
        assert!(told["params"]["lastUpdatedAt"].is_string(), "{told}");
    }
    world.gw.stop().await;
}

// Spec: SPEC K-04, C-01.
#[tokio::test]
async fn what_an_upstream_says_of_a_task_is_its_status_message_and_progress_where_wanted() {
    let world = World::start().await;
    for (path, prefix) in PLACES {
        let alice = world.user("alice", path).await;
        let mut stream = alice.listen().await;
        let errand = format!("{prefix}errand");
        let silent = begin(&alice, &errand, json!({"ms": 600_000})).await;
        eventually("a status message", async || {
            let state = alice.request("tasks/get", about(&silent)).await.unwrap();
            let said = state["statusMessage"].as_str()?;
            said.starts_with("look ").then_some(())
        })
        .await;
        let params = json!({"name": errand, "arguments": {"ms": 600_000}, "task": {},
            "_meta": {"progressToken": "mine"}});
        let begun = alice.request("tools/call", params).await.unwrap();
        let told = stream.until("notifications/progress").await;
        assert_eq!(told["params"]["progressToken"], "mine", "{told}");
        let mark = &told["params"]["_meta"][RELATED];
        assert_eq!(mark, &about(&begun["task"]), "{told}");
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn tasks_of_both_kinds_stand_in_one_list() {
    let world = World::start().await;
    let alice = world.user("alice", "/mcp").await;
    let mut begun = Vec::new();
    for tool in ["newer__errand", "older__errand", "piped__errand"] {
        let task = begin(&alice, tool, json!({"ms": 600_000})).await;
        begun.push(task["taskId"].clone());
    }
    let list = alice.request("tasks/list", json!({})).await.unwrap();
    let listed = list["tasks"].as_array().unwrap().iter();
    let listed: Vec<&Value> = listed.map(|task| &task["taskId"]).collect();
    assert_eq!(json!(listed), json!(begun));
    world.gw.stop().await;
}

// Spec: SPEC K-02, K-15.
#[tokio::test]
async fn who_cannot_have_tasks_is_told_of_none() {
    let world = World::start().await;
    let unrun = World::with("", "run_tasks = false").await;
    for (path, prefix) in PLACES {
        let older = world.gw.principal("alice");
        let older = older.open_as(path, "2025-06-18", json!({})).await;
        let alice = unrun.user("alice", path).await;
        // On the merged endpoint another upstream offers tasks.
        let others = if prefix.is_empty() {
            vec![alice]
        } else {
            vec![]
        };
        for user in others.into_iter().chain([older]) {
            assert_eq!(user.hello["capabilities"].get("tasks"), None);
            let tools = user.request("tools/list", json!({})).await.unwrap();
            let echo = format!("{prefix}echo");
            let mut tools = tools["tools"].as_array().unwrap().iter();
            let shown = tools.find(|tool| tool["name"] == echo).unwrap();
            assert_eq!(shown.get("execution"), None);
            for method in ["tasks/get", "tasks/list", "tasks/result", "tasks/cancel"] {
                let refused = user.request(method, json!({"taskId": "x"})).await;
                assert_eq!(refused.unwrap_err()["code"], -32601);
            }
            let params = json!({"name": echo, "arguments": {"text": "hi"}, "task": {}});
            let plain = user.request("tools/call", params).await.unwrap();
            assert_eq!(text_of(&plain), "hi");
        }
    }
    world.gw.stop().await;
    unrun.gw.stop().await;
}

// Spec: SPEC A-11, A-14, O-04.
#[tokio::test]
async fn a_task_is_decided_about_like_the_call_that_it_is() {
    let rule = "[[auth.tool_scopes]]\ntools = [\"errand\"]\nscopes = [\"mcp:admin\"]";
    let world = World::with(rule, "").await;
    let alice = world.user("alice", "/mcp/newer").await;
    let params = json!({"name": "errand", "arguments": {}, "task": {}});
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let refused = alice.post(&message).await;
    assert_eq!(refused.status(), 403);
    assert_eq!(count(&world.newer, "tools/call").await, 0);
    let none = alice.request("tasks/list", json!({})).await.unwrap();
    assert_eq!(none, json!({"tasks": []}));
    let task = begin(&alice, "echo", json!({"text": "hi"})).await;
    result(&alice, &task).await;
    let told = ["outcome", "method", "name", "subject", "upstream"];
    let audited = eventually("audit records", async || {
        let records = world.gw.log_records().into_iter();
        let calls = records.filter(|r| r["target"] == "audit" && r["method"] == "tools/call");
        let calls: Vec<Value> = calls
            .map(|record| told.map(|name| record[name].clone()).into())
            .collect();
        (calls.len() >= 2).then_some(calls)
    })
    .await;
    let expected = [
        json!(["denied", "tools/call", "errand", "alice", "newer"]),
        json!(["ok", "tools/call", "echo", "alice", "newer"]),
    ];
    assert_eq!(audited, expected);
    world.gw.stop().await;
}
