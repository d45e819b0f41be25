//! A tool that asks first and then runs as a task: there is no task before the answer.
//! Spec: SPEC K-17; BRIDGING §3.8.

use rstest::rstest;
use serde_json::json;

use super::hosted::MODERN;
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// Path and tool name of each call.
const PLACES: [(&str, &str); 2] = [
    ("/mcp/up", "asks_then_errand"),
    ("/mcp", "up__asks_then_errand"),
];

/// A gateway before a modern server with tasks, and another one.
async fn gateway() -> (Gateway, HttpStub) {
    let stub = HttpStub::start(&MODERN).await;
    let setup = Setup::open().http("up", &stub, "");
    let gw = setup.stub("other", &["--tools", "1"]).start().await;
    (gw, stub)
}

// Spec: SPEC K-17.
#[tokio::test]
async fn modern_client_answers_before_there_is_a_task() {
    let (gw, stub) = gateway().await;
    for (path, tool) in PLACES {
        let capabilities = json!({"elicitation": {}, "extensions": {EXTENSION: {}}});
        let user = Modern::with(gw.anonymous(), path, capabilities);
        let mut call = json!({"name": tool, "arguments": {"ms": 50, "looks": 1}});
        let asked = user.send("tools/call", call.clone()).await.unwrap();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        assert_eq!(asked.get("taskId"), None, "{asked}");
        let answer = json!({"action": "accept", "content": {"name": "Ada"}});
        call["inputResponses"] = json!({"who": answer});
        call["requestState"] = asked["requestState"].clone();
        let task = user.send("tools/call", call).await.unwrap();
        assert_eq!(task["resultType"], "task", "{task}");
        assert_eq!(task["status"], "working", "{task}");
        let about = json!({"taskId": task["taskId"]});
        let done = eventually("the end of the task", async || {
            let state = user.send("tasks/get", about.clone()).await.unwrap();
            assert_ne!(state["status"], "input_required", "{state}");
            (state["status"] == "completed").then_some(state)
        });
        assert_eq!(text_of(&done.await["result"]), "errand done");
    }
    gw.stop().await;
    stub.stop().await;
}

// Spec: BRIDGING §4.3: the user of a merged endpoint learns who asks, also where the client polls.
#[rstest]
#[case("/mcp/up", "errand", "Whose errand?")]
#[case("/mcp", "up__errand", "[up] Whose errand?")]
#[tokio::test]
async fn question_of_a_polled_task_says_who_asks(
    #[case] path: &str,
    #[case] tool: &str,
    #[case] expected: &str,
) {
    let (gw, stub) = gateway().await;
    let capabilities = json!({"elicitation": {}, "extensions": {EXTENSION: {}}});
    let user = Modern::with(gw.anonymous(), path, capabilities);
    let call = json!({"name": tool, "arguments": {"ms": 50, "looks": 1, "ask": 1}});
    let task = user.send("tools/call", call).await.unwrap();
    let about = json!({"taskId": task["taskId"]});
    let asked = eventually("a question", async || {
        let state = user.send("tasks/get", about.clone()).await.unwrap();
        (state["status"] == "input_required").then(|| state["inputRequests"].clone())
    });
    let asked = asked.await;
    let question = asked.as_object().unwrap().values().next().unwrap();
    assert_eq!(question["params"]["message"], expected);
    gw.stop().await;
    stub.stop().await;
}

// Spec: SPEC K-17: a client without tasks is asked on the stream of its call, which then waits.
#[rstest]
#[tokio::test]
async fn legacy_client_is_asked_once_and_gets_the_result(#[values("/mcp/up", "/mcp")] path: &str) {
    let (gw, stub) = gateway().await;
    let tool = PLACES.iter().find(|place| place.0 == path).unwrap().1;
    let user = gw.anonymous().open(path).await;
    let (_, mut exchange) = user.start_call(tool, json!({"ms": 50})).await;
    let question = loop {
        let message = exchange.next().await.expect("a question");
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    assert_eq!(stub.counted("tasks/get").await, 0);
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    user.answer(&question, answer).await;
    let (more, reply) = exchange.finish().await;
    let asked = |message: &&serde_json::Value| message["method"] == "elicitation/create";
    assert_eq!(more.iter().filter(asked).count(), 0, "{more:?}");
    assert_eq!(text_of(&reply.expect("a result")), "errand done");
    assert!(stub.counted("tasks/get").await > 0);
    gw.stop().await;
    stub.stop().await;
}
