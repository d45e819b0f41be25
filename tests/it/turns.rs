//! Calls take turns on a connection whose questions name no call. Spec: DESIGN §6; BRIDGING §1.3.

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::session::{Exchange, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually, within};
use crate::modern::Modern;

/// Longer than any test waits: a call that is answered has not waited for this timeout.
const FOREVER: &str = "ask_wait = \"10m\"";

async fn stdio(keys: &str) -> Gateway {
    Setup::secured().stub_with("stub", &[], keys).start().await
}

fn accept(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

async fn children(gw: &Gateway) -> f64 {
    gw.metric("drawbridge_children_spawned_total", "").await
}

async fn refused(gw: &Gateway) -> f64 {
    gw.metric("drawbridge_calls_ask_refused_total", "stub")
        .await
}

fn is(count: f64, expected: u32) -> bool {
    (count - f64::from(expected)).abs() < f64::EPSILON
}

/// Starts a call that asks, and waits for its question.
async fn asking(user: &Session) -> (Exchange, Value) {
    let (_, mut exchange) = user.start_call("ask_form", json!({})).await;
    let question = within("a question", exchange.next()).await;
    (exchange, question.expect("a question"))
}

/// Parameters of the retry that answers the question of a modern call of `tool`.
fn answering(tool: &str, asked: &Value, name: &str) -> Value {
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let entries = asked["inputRequests"].as_object().unwrap();
    let key = entries.keys().next().unwrap();
    json!({
        "name": tool, "arguments": {},
        "requestState": asked["requestState"], "inputResponses": {key: accept(name)},
    })
}

/// Answers what a modern call of `ask_form` was asked, and looks at its result.
async fn answered(user: &Modern, asked: &Value, name: &str) {
    let params = answering("ask_form", asked, name);
    let done = user.send("tools/call", params).await.unwrap();
    assert!(text_of(&done).contains(name), "{done}");
}

fn assert_busy(result: &Value) {
    assert_eq!(result["isError"], true, "{result}");
    assert!(
        text_of(result).contains("waiting for an answer"),
        "{result}"
    );
}

#[rstest]
#[case("principal", ["alice", "alice"])]
#[case("principal", ["alice", "bob"])]
#[case("session", ["alice", "alice"])]
#[tokio::test]
async fn of_two_sessions_that_are_asked_at_once_each_gets_its_own_question(
    #[case] isolation: &str,
    #[case] names: [&str; 2],
) {
    let gw = stdio(&format!("isolation = \"{isolation}\"")).await;
    let first = gw.principal(names[0]).open("/mcp/stub").await;
    let second = gw.principal(names[1]).open("/mcp/stub").await;
    let (one, one_asked) = asking(&first).await;
    let (two, two_asked) = asking(&second).await;
    second.answer(&two_asked, accept("two")).await;
    first.answer(&one_asked, accept("one")).await;
    for (exchange, name) in [(one, "one"), (two, "two")] {
        let reply = exchange.finish().await.1.expect("a result");
        assert!(text_of(&reply).contains(name), "{reply}");
    }
    gw.stop().await;
}

#[rstest]
#[case("stdio")]
#[case("ws")]
#[case("sse")]
#[tokio::test]
async fn of_two_modern_calls_that_are_asked_at_once_each_gets_its_own_question(
    #[case] carrier: &str,
) {
    let (gw, _stub) = if carrier == "stdio" {
        (stdio("").await, None)
    } else {
        let stub = HttpStub::start_as(carrier, 0, &[]).await;
        let keys = if carrier == "sse" {
            "transport = \"sse\""
        } else {
            ""
        };
        let gw = Setup::secured().http("stub", &stub, keys).start().await;
        (gw, Some(stub))
    };
    let alice = Modern::new(gw.principal("alice"), "/mcp/stub");
    // Calls take turns from the first question of an upstream on.
    let asked = alice.call("ask_form", json!({})).await.unwrap();
    answered(&alice, &asked, "first").await;
    let (one, two) = tokio::join!(
        alice.call("ask_form", json!({})),
        alice.call("ask_form", json!({})),
    );
    for (asked, name) in [(two.unwrap(), "two"), (one.unwrap(), "one")] {
        answered(&alice, &asked, name).await;
    }
    assert!(is(refused(&gw).await, 0));
    gw.stop().await;
}

#[tokio::test]
async fn who_cannot_be_asked_takes_no_turn() {
    let gw = stdio("max_children = 1\nask_wait = \"0s\"").await;
    let alice = Modern::with(gw.principal("alice"), "/mcp/stub", json!({}));
    let never = alice.call("never", json!({}));
    tokio::pin!(never);
    let echo = async {
        eventually("the other call runs", async || {
            let running = gw.metric("drawbridge_calls_running", "").await;
            (running > 0.5).then_some(())
        })
        .await;
        alice.call("echo", json!({"text": "hi"})).await
    };
    tokio::select! {
        _ = &mut never => panic!("it never answers"),
        echoed = echo => assert_eq!(text_of(&echoed.unwrap()), "hi"),
    }
    assert!(is(children(&gw).await, 1));
    gw.stop().await;
}

#[tokio::test]
async fn where_no_other_child_may_be_had_a_call_waits_for_its_turn() {
    let gw = stdio(&format!(
        "isolation = \"principal\"\nmax_children = 1\n{FOREVER}"
    ))
    .await;
    let first = gw.principal("alice").open("/mcp/stub").await;
    let second = gw.principal("alice").open("/mcp/stub").await;
    let (_, running) = first.start_call("sleep", json!({"ms": 1000})).await;
    assert_eq!(second.text("echo", json!({"text": "hi"})).await, "hi");
    running.finish().await.1.expect("a result");
    assert!(is(children(&gw).await, 1) && is(refused(&gw).await, 0));
    gw.stop().await;
}

#[tokio::test]
async fn who_waited_long_enough_for_a_turn_hears_that_the_upstream_is_busy() {
    let gw = stdio("isolation = \"principal\"\nmax_children = 1\nask_wait = \"100ms\"").await;
    let first = gw.principal("alice").open("/mcp/stub").await;
    let second = gw.principal("alice").open("/mcp/stub").await;
    let (_, _running) = first.start_call("never", json!({})).await;
    assert_busy(&second.call("echo", json!({})).await.expect("a result"));
    assert!(is(refused(&gw).await, 1));
    // Methods that cannot ask the client need not wait for a turn.
    assert!(!second.tools().await.is_empty());
    gw.stop().await;
}

#[tokio::test]
async fn a_parked_call_is_never_waited_for() {
    let gw = stdio(&format!("max_children = 1\n{FOREVER}")).await;
    let alice = Modern::new(gw.principal("alice"), "/mcp/stub");
    let parked = alice.call("ask_form", json!({})).await.unwrap();
    assert_eq!(parked["resultType"], "input_required");
    let busy = within("an answer", alice.call("ask_form", json!({}))).await;
    assert_busy(&busy.unwrap());
    gw.stop().await;
}

#[tokio::test]
async fn a_cancelled_call_gives_its_turn_back() {
    let gw = stdio(&format!(
        "isolation = \"principal\"\nmax_children = 1\n{FOREVER}"
    ))
    .await;
    let first = gw.principal("alice").open("/mcp/stub").await;
    let second = gw.principal("alice").open("/mcp/stub").await;
    let (id, _running) = first.start_call("never", json!({})).await;
    let cancel = json!({"requestId": id});
    let (echoed, ()) = tokio::join!(
        within("an answer", second.call("echo", json!({"text": "hi"}))),
        first.notify("notifications/cancelled", cancel),
    );
    assert_ne!(echoed.expect("a result")["isError"], true);
    gw.stop().await;
}

// Spec: `docs/adr/0009`: a client's capabilities start no further child for a server that asks no question.
#[tokio::test]
async fn quiet_server_serves_parallel_calls_in_one_process() {
    let gw = stdio("").await;
    let alice = Modern::new(gw.principal("alice"), "/mcp/stub");
    let calls = (0..5).map(|_| alice.call("sleep", json!({"ms": 1000})));
    for done in futures_util::future::join_all(calls).await {
        assert_ne!(done.expect("a result")["isError"], true);
    }
    assert!(is(children(&gw).await, 1), "{}", children(&gw).await);
    gw.stop().await;
}

// Spec: `docs/adr/0009`: nothing says whose the first question is; the next calls take turns.
#[tokio::test]
async fn first_question_goes_to_the_oldest_running_call() {
    let gw = stdio("").await;
    let alice = Modern::new(gw.principal("alice"), "/mcp/stub");
    let mut oldest = Box::pin(alice.call("never", json!({})));
    let asks = async {
        let mut looks = 0;
        eventually("the upstream has the oldest call", async || {
            looks += 1;
            let stats = alice.call("stats", json!({})).await.expect("a result");
            let stats: Value = serde_json::from_str(text_of(&stats)).unwrap();
            (stats["counts"]["tools/call"] == looks + 1).then_some(())
        })
        .await;
        alice.call("ask_form", json!({})).await
    };
    let mut asks = Box::pin(asks);
    let asked = tokio::select! {
        asked = &mut oldest => asked.expect("a question"),
        done = &mut asks => panic!("it was asked itself: {done:?}"),
    };
    let params = answering("never", &asked, "oldest");
    let mut again = Box::pin(alice.send("tools/call", params));
    let done = tokio::select! {
        _ = &mut again => panic!("it never answers"),
        done = &mut asks => done.expect("a result"),
    };
    assert!(text_of(&done).contains("oldest"), "{done}");
    assert!(is(children(&gw).await, 1));
    // The oldest call of all still runs there: who may be asked now has a process of its own.
    let asked = alice.call("ask_form", json!({})).await.unwrap();
    answered(&alice, &asked, "own").await;
    assert!(is(children(&gw).await, 2), "{}", children(&gw).await);
    drop(asks);
    gw.stop().await;
}
