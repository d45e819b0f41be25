//! Tools that run only as tasks, called by clients that know none: the gateway runs the task, and
//! the call waits for it. Spec: BRIDGING §3.7, §3.8; SPEC K-01, K-10.

use serde_json::{Value, json};

use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Actor, Gateway, Session, Setup, eventually};
use crate::modern::Modern;

/// A gateway in front of the stub as each kind of upstream that runs tools as tasks: `child` and
/// `remote` of 2025-11-25, `newer` with the extension.
struct World {
    gw: Gateway,
    remote: HttpStub,
    newer: HttpStub,
}

impl World {
    async fn start(keys: &str) -> Self {
        let remote = HttpStub::start(&["--tasks"]).await;
        let newer = HttpStub::start(&["--era", "modern"]).await;
        let gw = Setup::open()
            .stub_with("child", &["--tasks"], keys)
            .http("remote", &remote, keys)
            .http("newer", &newer, keys)
            .start()
            .await;
        Self { gw, remote, newer }
    }

    /// A session of an older client, which can be asked for forms.
    async fn session(&self, path: &str) -> Session {
        self.gw.anonymous().open(path).await
    }

    fn modern(&self, path: &str) -> Modern {
        Modern::new(self.gw.anonymous(), path)
    }

    async fn stop(self) {
        self.gw.stop().await;
    }
}

/// How often an upstream over HTTP was sent a method.
pub(super) async fn count(stub: &HttpStub, method: &str) -> u64 {
    let base = stub.url.strip_suffix("/mcp").unwrap();
    let answer = Actor::new(base, None).get("/stats", &[]).await;
    answer.json().await["counts"][method].as_u64().unwrap_or(0)
}

async fn cancelled(stub: &HttpStub) {
    eventually("the task is cancelled", async || {
        (count(stub, "tasks/cancel").await > 0).then_some(())
    })
    .await;
}

const PATHS: [&str; 3] = ["/mcp/child", "/mcp/remote", "/mcp/newer"];

#[tokio::test]
async fn a_tool_that_needs_a_task_is_called_plainly() {
    let world = World::start("").await;
    for path in PATHS {
        let session = world.session(path).await;
        let result = session.call("errand", json!({"ms": 60})).await.unwrap();
        assert_eq!(text_of(&result), "errand done", "{path}");
        assert_eq!(result.get("_meta"), None);
        let result = world.modern(path).call("errand", json!({"ms": 60})).await;
        let result = result.unwrap();
        assert_eq!(text_of(&result), "errand done", "{path}");
        assert_eq!(result["resultType"], "complete");
        assert!(!result.to_string().contains("related-task"), "{result}");
    }
    let merged = world.session("/mcp").await;
    for tool in ["child__errand", "remote__errand", "newer__errand"] {
        assert_eq!(merged.text(tool, json!({})).await, "errand done");
    }
    world.stop().await;
}

// Spec: SPEC K-13.
#[tokio::test]
async fn what_a_task_comes_to_is_what_the_call_comes_to() {
    let world = World::start("").await;
    for path in PATHS {
        let session = world.session(path).await;
        let failed = session.call("errand", json!({"fail": 1})).await.unwrap();
        assert_eq!(failed["isError"], true, "{path}");
        let error = session.call("errand", json!({"code": -32603})).await;
        assert_eq!(error.unwrap_err()["message"], "the errand failed", "{path}");
    }
    world.stop().await;
}

// Spec: SPEC K-10: an unrequested task is a fault of the upstream; its result is not lost.
#[tokio::test]
async fn a_task_that_nobody_asked_for_is_waited_for() {
    let world = World::start("").await;
    let session = world.session("/mcp/newer").await;
    assert_eq!(
        session.text("unasked_errand", json!({})).await,
        "errand done"
    );
    world.stop().await;
}

// Spec: SPEC K-01; BRIDGING §3.9.
#[tokio::test]
async fn no_client_is_told_that_a_tool_needs_a_task() {
    let world = World::start("").await;
    for path in ["/mcp/child", "/mcp"] {
        let session = world.session(path).await;
        let tools = session.request("tools/list", json!({})).await.unwrap();
        assert!(tools.to_string().contains("errand"));
        assert!(!tools.to_string().contains(r#""taskSupport":"required""#));
        // Before 2025-11-25 a task that is asked for is ignored, and there are no methods for tasks.
        let older = world.gw.anonymous();
        let session = older.open_as(path, "2025-06-18", json!({})).await;
        let params = json!({"name": "echo", "arguments": {"text": "x"}, "task": {}});
        let params = match path {
            "/mcp" => json!({"name": "child__chore", "arguments": {}, "task": {}}),
            _ => params,
        };
        let result = session.request("tools/call", params).await.unwrap();
        assert!(result["content"].is_array(), "{result}");
        for method in ["tasks/get", "tasks/list", "tasks/result", "tasks/cancel"] {
            let refused = session.request(method, json!({"taskId": "errand-1"})).await;
            assert_eq!(refused.unwrap_err()["code"], -32601);
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn what_a_task_asks_is_asked_in_the_call() {
    let world = World::start("").await;
    let accept = json!({"action": "accept", "content": {"name": "ada"}});
    for path in PATHS {
        let session = world.session(path).await;
        let (_, call) = session.start_call("errand", json!({"ask": 1})).await;
        let mut stream = call.stream();
        let question = stream.until("elicitation/create").await;
        assert_eq!(question["params"]["message"], "Whose errand?");
        assert!(!question.to_string().contains("related-task"));
        session.answer(&question, accept.clone()).await;
        let reply = stream.message().await.unwrap();
        assert!(text_of(&reply["result"]).contains("ada"), "{reply}");
        // Spec: SPEC K-03: answers name the task that asked.
        let named = text_of(&reply["result"]).contains("related-task");
        assert_eq!(named, path != "/mcp/newer", "{reply}");

        let user = world.modern(path);
        let asked = user.call("errand", json!({"ask": 1})).await.unwrap();
        assert_eq!(asked["resultType"], "input_required", "{path}: {asked}");
        let (key, _) = asked["inputRequests"]
            .as_object()
            .unwrap()
            .iter()
            .next()
            .unwrap();
        let retry = json!({
            "name": "errand", "arguments": {"ask": 1},
            "requestState": asked["requestState"], "inputResponses": {key: accept},
        });
        let done = user.send("tools/call", retry).await.unwrap();
        assert!(text_of(&done).contains("ada"), "{done}");
    }
    world.stop().await;
}

// Two sessions share the child: only the mark of the task says whose the question is.
#[tokio::test]
async fn a_question_finds_its_call_by_its_task() {
    let world = World::start("isolation = \"principal\"").await;
    let (one, two) = (
        world.session("/mcp/child").await,
        world.session("/mcp/child").await,
    );
    let (_, busy) = two.start_call("never", json!({})).await;
    let (_, call) = one
        .start_call("errand", json!({"ask": 1, "via": "get"}))
        .await;
    let mut stream = call.stream();
    let question = stream.until("elicitation/create").await;
    one.answer(&question, json!({"action": "decline"})).await;
    let reply = stream.message().await.unwrap();
    assert!(text_of(&reply["result"]).contains("decline"), "{reply}");
    drop(busy);
    world.stop().await;
}

#[tokio::test]
async fn what_a_task_says_of_itself_is_progress() {
    let world = World::start("").await;
    for path in PATHS {
        let session = world.session(path).await;
        let params = json!({
            "name": "errand", "arguments": {"looks": 3, "ms": 1}, "_meta": {"progressToken": "p"},
        });
        let (_, call) = session.start("tools/call", params).await;
        let (before, reply) = call.finish().await;
        assert_eq!(text_of(&reply.unwrap()), "errand done");
        let said: Vec<(&Value, &Value)> = before
            .iter()
            .map(|notice| (&notice["params"]["progress"], &notice["params"]["message"]))
            .collect();
        assert!(before.iter().all(|n| n["params"]["progressToken"] == "p"));
        let (number, look) = (json!(2), json!("look 1"));
        assert_eq!(said.get(1), Some(&(&number, &look)), "{path}: {before:?}");
    }
    world.stop().await;
}

// Spec: SPEC C-11; BRIDGING §3.7.
#[tokio::test]
async fn a_call_that_is_cancelled_cancels_its_task() {
    for (path, legacy) in [("/mcp/remote", true), ("/mcp/newer", false)] {
        let world = World::start("").await;
        let stub = if legacy { &world.remote } else { &world.newer };
        let session = world.session(path).await;
        let arguments = json!({"ms": 600_000, "looks": 1});
        let params = json!({
            "name": "errand", "arguments": arguments, "_meta": {"progressToken": 1},
        });
        let (id, call) = session.start("tools/call", params).await;
        let mut stream = call.stream();
        stream.until("notifications/progress").await;
        let reason = json!({"requestId": id, "reason": "enough"});
        session.notify("notifications/cancelled", reason).await;
        cancelled(stub).await;
        world.stop().await;

        // A modern client cancels by going away.
        let world = World::start("").await;
        let stub = if legacy { &world.remote } else { &world.newer };
        let user = world.modern(path).meta(json!({"progressToken": 1}));
        let mut stream = user.stream("errand", arguments).await;
        stream.until("notifications/progress").await;
        drop(stream);
        cancelled(stub).await;
        world.stop().await;
    }
}

#[tokio::test]
async fn a_task_that_takes_too_long_is_cancelled() {
    let world = World::start("total_timeout = \"1s\"").await;
    for (path, stub) in [("/mcp/remote", &world.remote), ("/mcp/newer", &world.newer)] {
        let session = world.session(path).await;
        let late = session
            .call("errand", json!({"ms": 600_000}))
            .await
            .unwrap();
        assert_eq!(late["isError"], true, "{late}");
        assert!(text_of(&late).contains("in time"), "{late}");
        cancelled(stub).await;
    }
    world.stop().await;
}

// A request that waits for a result may be silent for longer than calls may.
#[tokio::test]
async fn a_quiet_task_outlasts_the_idle_timeout() {
    let world = World::start("idle_timeout = \"1s\"").await;
    let session = world.session("/mcp/remote").await;
    let result = session.text("errand", json!({"ms": 1500})).await;
    assert_eq!(result, "errand done");
    assert!(count(&world.remote, "tasks/result").await >= 2);
    world.stop().await;
}

#[tokio::test]
async fn tasks_are_not_run_for_anybody_where_that_is_switched_off() {
    let world = World::start("run_tasks = false").await;
    let session = world.session("/mcp/newer").await;
    let refused = session.call("errand", json!({})).await.unwrap();
    assert_eq!(refused["isError"], true);
    assert!(text_of(&refused).contains("does not offer"), "{refused}");
    let unasked = session.call("unasked_errand", json!({})).await.unwrap_err();
    assert_eq!(unasked["code"], -32603, "{unasked}");
    let refused = world.modern("/mcp/newer").call("errand", json!({})).await;
    assert_eq!(refused.unwrap_err()["code"], -32021);
    let session = world.session("/mcp/remote").await;
    let refused = session.call("errand", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], -32601);
    world.stop().await;
}
