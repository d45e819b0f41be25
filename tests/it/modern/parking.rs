//! Legacy upstreams ask in mid-call, modern clients are asked between two requests.
//! Spec: SPEC M-60 to M-69; BRIDGING §3.1.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Modern, over_both};
use crate::harness::http::without_request_id;
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};

fn user(gw: &Gateway) -> Modern {
    Modern::new(gw.anonymous(), "/mcp/stub")
}

async fn stdio() -> Gateway {
    Setup::open().stub("stub", &[]).start().await
}

/// Calls a tool that asks; returns the `input_required` result.
async fn ask(user: &Modern, tool: &str, arguments: &Value) -> Value {
    let asked = user.call(tool, arguments.clone()).await.unwrap();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert!(asked["requestState"].is_string());
    assert_eq!(asked.get("ttlMs"), None);
    asked
}

fn retry(tool: &str, arguments: &Value, asked: &Value, answers: &Value) -> Value {
    json!({
        "name": tool, "arguments": arguments,
        "requestState": asked["requestState"], "inputResponses": answers,
    })
}

/// Comes back with answers.
async fn answer(user: &Modern, tool: &str, asked: &Value, answers: Value) -> Value {
    let params = retry(tool, &json!({}), asked, &answers);
    user.send("tools/call", params).await.unwrap()
}

fn accept(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

fn questions(asked: &Value) -> Vec<(&str, &Value)> {
    let entries = asked["inputRequests"].as_object().unwrap();
    entries
        .iter()
        .map(|(key, entry)| (key.as_str(), entry))
        .collect()
}

#[tokio::test]
async fn every_kind_of_question_is_answered_by_a_retry() {
    let (gw, _stub) = over_both().await;
    let sampled =
        json!({"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"});
    for (prefix, path) in [
        ("", "/mcp/stub"),
        ("", "/mcp/remote"),
        ("stub__", "/mcp"),
        ("remote__", "/mcp"),
    ] {
        let user = Modern::new(gw.anonymous(), path);
        for (tool, method, result) in [
            ("ask_form", "elicitation/create", accept("x")),
            ("ask_url", "elicitation/create", json!({"action": "accept"})),
            ("ask_sampling", "sampling/createMessage", sampled.clone()),
            (
                "ask_roots",
                "roots/list",
                json!({"roots": [{"uri": "file:///a"}]}),
            ),
        ] {
            let tool = format!("{prefix}{tool}");
            let asked = ask(&user, &tool, &json!({})).await;
            let (key, entry) = questions(&asked)[0];
            assert_eq!(entry["method"], method);
            // Spec: SPEC M-61.
            assert_eq!((entry.get("id"), entry.get("jsonrpc")), (None, None));
            assert_eq!(entry["params"].get("elicitationId"), None);
            let done = answer(&user, &tool, &asked, json!({key: result})).await;
            assert_eq!(done["resultType"], "complete", "{done}");
            let heard: Value = serde_json::from_str(text_of(&done)).unwrap();
            assert_eq!(heard["result"], result, "{heard}");
        }
    }
    gw.stop().await;
}

// Spec: BRIDGING §2.3: a server that does not relate its question to a call asks on its GET stream.
#[tokio::test]
async fn a_question_outside_the_call_reaches_a_client_that_listens_to_nothing() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = user(&gw);
    let arguments = json!({"via": "get"});
    let asked = ask(&user, "ask_form", &arguments).await;
    let answers = json!({questions(&asked)[0].0: accept("x")});
    let params = retry("ask_form", &arguments, &asked, &answers);
    let done = user.send("tools/call", params).await.unwrap();
    assert!(text_of(&done).contains("accept"), "{done}");
    gw.stop().await;
}

// Spec: SPEC M-65.
#[tokio::test]
async fn what_is_not_answered_is_asked_again() {
    let gw = stdio().await;
    let user = user(&gw);
    let asked = ask(&user, "ask_two", &json!({})).await;
    let keys: Vec<&str> = questions(&asked).iter().map(|(key, _)| *key).collect();
    assert_eq!(keys.len(), 2);
    let first = json!({keys[0]: accept("one"), "unknown": {}});
    let again = answer(&user, "ask_two", &asked, first).await;
    assert_eq!(questions(&again).len(), 1, "{again}");
    assert_eq!(questions(&again)[0].0, keys[1]);
    // An answer against the schema is none.
    let bad = json!({keys[1]: {"action": "accept", "content": {"name": 7}}});
    let again = answer(&user, "ask_two", &again, bad).await;
    assert_eq!(questions(&again)[0].0, keys[1]);
    let done = answer(&user, "ask_two", &again, json!({keys[1]: accept("two")})).await;
    assert!(text_of(&done).contains("one") && text_of(&done).contains("two"));
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 8.
#[tokio::test]
async fn rounds_are_bounded() {
    let gw = stdio().await;
    let user = user(&gw);
    let mut asked = ask(&user, "ask_form", &json!({})).await;
    for _ in 1..10 {
        asked = answer(&user, "ask_form", &asked, json!({})).await;
        assert_eq!(asked["resultType"], "input_required");
    }
    let done = answer(&user, "ask_form", &asked, json!({})).await;
    assert!(text_of(&done).contains("cancel"), "{done}");
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 7.
#[tokio::test]
async fn a_retry_raises_the_level_of_its_upstream() {
    let gw = stdio().await;
    let quiet = user(&gw);
    let asked = ask(&quiet, "ask_form", &json!({})).await;
    let loud = user(&gw).meta(json!({"io.modelcontextprotocol/logLevel": "debug"}));
    let answers = json!({questions(&asked)[0].0: accept("x")});
    let done = answer(&loud, "ask_form", &asked, answers).await;
    assert!(text_of(&done).contains("accept"), "{done}");
    eventually("the upstream is told", async || {
        let stats = quiet.call("stats", json!({})).await.unwrap();
        let stats: Value = serde_json::from_str(text_of(&stats)).unwrap();
        (stats["counts"]["logging/setLevel"] == 1).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC C-98: with the trace id, an operator finds the call's spans for a slow or failed retry.
#[tokio::test]
async fn the_access_line_of_a_retry_names_the_trace_of_its_call() {
    let gw = stdio().await;
    let user = user(&gw);
    let asked = ask(&user, "ask_form", &json!({})).await;
    let answers = json!({questions(&asked)[0].0: accept("x")});
    answer(&user, "ask_form", &asked, answers).await;
    let traces = eventually("both lines are written", async || {
        let records = gw.log_records().into_iter();
        let lines = records.filter(|r| r["target"] == "access" && r["name"] == "ask_form");
        let traces: Vec<_> = lines.map(|line| line["trace_id"].clone()).collect();
        (traces.len() == 2).then_some(traces)
    })
    .await;
    assert!(traces[0].is_string(), "{traces:?}");
    assert_eq!(traces[0], traces[1]);
    gw.stop().await;
}

// Spec: SPEC M-64.
#[tokio::test]
async fn a_state_is_good_once_for_its_own_request_and_caller() {
    let gw = Setup::secured()
        .stub("stub", &[])
        .stub("other", &[])
        .start()
        .await;
    let alice = Modern::new(gw.principal("alice"), "/mcp/stub");
    let arguments = json!({"via": "call"});
    let asked = ask(&alice, "ask_form", &arguments).await;
    let answers = json!({questions(&asked)[0].0: accept("x")});
    let good = retry("ask_form", &arguments, &asked, &answers);
    let refused = async |user: &Modern, method: &str, params: &Value| {
        let mut error = user.send(method, params.clone()).await.unwrap_err();
        assert_eq!(error["code"], -32602, "{error}");
        without_request_id(&mut error);
        error
    };
    let mallory = Modern::new(gw.principal("mallory"), "/mcp/stub");
    let first = refused(&mallory, "tools/call", &good).await;
    let elsewhere = Modern::new(gw.principal("alice"), "/mcp/other");
    assert_eq!(refused(&elsewhere, "tools/call", &good).await, first);
    for (member, value) in [
        ("arguments", json!({"via": "get"})),
        ("name", json!("ask_url")),
    ] {
        let mut changed = good.clone();
        changed[member] = value;
        assert_eq!(refused(&alice, "tools/call", &changed).await, first);
    }
    let state = asked["requestState"].as_str().unwrap();
    for at in [0, 20, state.len() / 2, state.len() - 1] {
        let mut flipped = state.as_bytes().to_vec();
        flipped[at] = if flipped[at] == b'A' { b'B' } else { b'A' };
        let mut changed = good.clone();
        changed["requestState"] = String::from_utf8(flipped).unwrap().into();
        assert_eq!(refused(&alice, "tools/call", &changed).await, first);
    }
    let done = alice.send("tools/call", good.clone()).await.unwrap();
    assert!(text_of(&done).contains("accept"), "{done}");
    assert_eq!(refused(&alice, "tools/call", &good).await, first);
    gw.stop().await;
}

// Spec: SPEC M-16, M-62: the client is asked only kinds of questions that it declared.
#[tokio::test]
async fn a_client_is_asked_only_what_it_declared() {
    let gw = stdio().await;
    for (capabilities, tool, arguments) in [
        (json!({}), "ask_form", json!({})),
        (json!({"elicitation": {}}), "ask_url", json!({})),
        (json!({"elicitation": {}}), "ask_sampling", json!({})),
        (
            json!({"sampling": {}}),
            "ask_sampling",
            json!({"shape": "tools"}),
        ),
        (json!({"sampling": {}}), "ask_roots", json!({})),
    ] {
        let user = Modern::with(gw.anonymous(), "/mcp/stub", capabilities);
        let done = user.call(tool, arguments).await.unwrap();
        assert_ne!(done["resultType"], "input_required", "{tool}");
        assert!(text_of(&done).contains("-32601"), "{tool}: {done}");
    }
    let capabilities = json!({"sampling": {"tools": {}}});
    let user = Modern::with(gw.anonymous(), "/mcp/stub", capabilities);
    ask(&user, "ask_sampling", &json!({"shape": "tools"})).await;
    gw.stop().await;
}

// Spec: SPEC M-43; BRIDGING §3.1 step 9.
#[tokio::test]
async fn a_retry_that_goes_takes_the_call_with_it() {
    let gw = stdio().await;
    let user = user(&gw);
    let arguments = json!({"then_ms": 60_000});
    let asked = ask(&user, "ask_form", &arguments).await;
    let params = retry(
        "ask_form",
        &arguments,
        &asked,
        &json!({questions(&asked)[0].0: accept("x")}),
    );
    let message = user.request(&json!(9), "tools/call", params);
    let exchange = user.post(&message);
    let gone = tokio::time::timeout(Duration::from_millis(300), exchange);
    assert!(gone.await.is_err(), "the call still runs");
    eventually("the upstream hears of it", async || {
        let stats = user.call("stats", json!({})).await.unwrap();
        let stats: Value = serde_json::from_str(text_of(&stats)).unwrap();
        (stats["counts"]["calls_cancelled"] == 1).then_some(())
    })
    .await;
    assert!(gw.metric("drawbridge_calls_parked", "").await < 0.5);
    gw.stop().await;
}

// Spec: SPEC M-67, M-69; BRIDGING §3.1 step 10.
#[tokio::test]
async fn who_never_comes_back_is_not_waited_for() {
    let gw = Setup::open()
        .stub_with("stub", &[], "ask_timeout = \"1s\"")
        .start()
        .await;
    let user = user(&gw);
    let asked = ask(&user, "ask_sampling", &json!({})).await;
    assert!(gw.metric("drawbridge_calls_parked", "").await > 0.5);
    eventually("the call is released", async || {
        let parked = gw.metric("drawbridge_calls_parked", "").await;
        let running = gw.metric("drawbridge_calls_running", "").await;
        (parked + running < 0.5).then_some(())
    })
    .await;
    let stats = user.call("stats", json!({})).await.unwrap();
    let stats: Value = serde_json::from_str(text_of(&stats)).unwrap();
    // The upstream had its refusal and ended by itself.
    assert_eq!(stats["counts"]["answers"], 1, "{stats}");
    let params = retry("ask_sampling", &json!({}), &asked, &json!({}));
    let late = user.send("tools/call", params).await.unwrap_err();
    assert_eq!(late["code"], -32602);
    gw.stop().await;
}

// Spec: BRIDGING §3.1 steps 7 and 10.
#[tokio::test]
async fn who_is_asked_again_has_as_long_again() {
    let patience = Duration::from_secs(4);
    let settings = format!("ask_timeout = \"{}s\"", patience.as_secs());
    let gw = Setup::open()
        .stub_with("stub", &[], &settings)
        .start()
        .await;
    let user = user(&gw);
    let mut asked = ask(&user, "ask_form", &json!({})).await;
    let begun = Instant::now();
    // Back in time each time, and at last when the first question alone would be over.
    while begun.elapsed() < patience {
        tokio::time::sleep(patience * 2 / 3).await;
        asked = answer(&user, "ask_form", &asked, json!({})).await;
        assert_eq!(asked["resultType"], "input_required", "{asked}");
    }
    let answers = json!({questions(&asked)[0].0: accept("x")});
    let done = answer(&user, "ask_form", &asked, answers).await;
    assert!(text_of(&done).contains("accept"), "{done}");
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 12.
#[tokio::test]
async fn at_the_cap_a_client_is_not_asked() {
    let gw = Setup::open()
        .stub_with("stub", &[], "ask_wait = \"0s\"")
        .toml("[limits]\nparked_per_principal = 1")
        .start()
        .await;
    let user = user(&gw);
    let asked = ask(&user, "ask_form", &json!({})).await;
    let other = user.call("ask_form", json!({"via": "call"})).await.unwrap();
    assert!(text_of(&other).contains("error"), "{other}");
    let done = answer(
        &user,
        "ask_form",
        &asked,
        json!({questions(&asked)[0].0: accept("x")}),
    )
    .await;
    assert!(text_of(&done).contains("accept"));
    ask(&user, "ask_form", &json!({})).await;
    gw.stop().await;
}

/// A legacy upstream whose questions wait for one place, for as long as a test may take.
async fn one_place(ask_wait: &str) -> (Gateway, HttpStub) {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open()
        .http("stub", &stub, &format!("ask_wait = \"{ask_wait}\""))
        .toml("[limits]\nparked_per_principal = 1")
        .start()
        .await;
    (gw, stub)
}

/// Waits until so many questions have had to wait.
async fn waited(gw: &Gateway, questions: f64) {
    eventually("the questions wait", async || {
        let waited = gw.metric("drawbridge_calls_park_waited_total", "").await;
        (waited > questions - 0.5).then_some(())
    })
    .await;
}

// Spec: BRIDGING §3.1 step 12.
#[tokio::test]
async fn questions_above_the_cap_are_put_one_after_the_other() {
    let (gw, _stub) = one_place("1m").await;
    let user = user(&gw);
    let first = ask(&user, "ask_form", &json!({})).await;
    let then = async |earlier: f64| {
        waited(&gw, earlier).await;
        ask(&user, "ask_form", &json!({})).await
    };
    let order = std::sync::Mutex::new(Vec::new());
    let finish = async |name: &'static str, asked: Value| {
        order.lock().unwrap().push(name);
        let answers = json!({questions(&asked)[0].0: accept(name)});
        let done = answer(&user, "ask_form", &asked, answers).await;
        assert!(text_of(&done).contains(name), "{done}");
    };
    tokio::join!(
        async { finish("second", then(0.0).await).await },
        async { finish("third", then(1.0).await).await },
        async { finish("fourth", then(2.0).await).await },
        async {
            waited(&gw, 3.0).await;
            finish("first", first).await;
        },
    );
    let order = order.into_inner().unwrap();
    assert_eq!(order, ["first", "second", "third", "fourth"]);
    let refused = gw.metric("drawbridge_calls_park_refused_total", "").await;
    assert!(refused < 0.5, "{refused}");
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 12; SPEC M-43.
#[tokio::test]
async fn waiting_call_whose_client_goes_gives_its_turn_up() {
    let (gw, stub) = one_place("1m").await;
    let user = user(&gw);
    let first = ask(&user, "ask_form", &json!({})).await;
    let params = json!({"name": "ask_form", "arguments": {}});
    let message = user.request(&json!("gone"), "tools/call", params);
    {
        let mut exchange = std::pin::pin!(user.post(&message));
        tokio::select! {
            _ = &mut exchange => panic!("there is no place"),
            () = waited(&gw, 1.0) => {}
        }
    }
    eventually("the upstream hears of it", async || {
        (stub.stats().await["counts"]["calls_cancelled"] == 1).then_some(())
    })
    .await;
    let answers = json!({questions(&first)[0].0: accept("x")});
    let none = json!({});
    let (asked, done) = tokio::join!(ask(&user, "ask_form", &none), async {
        waited(&gw, 2.0).await;
        answer(&user, "ask_form", &first, answers).await
    });
    assert!(text_of(&done).contains("accept"), "{done}");
    let answers = json!({questions(&asked)[0].0: accept("y")});
    let done = answer(&user, "ask_form", &asked, answers).await;
    assert!(text_of(&done).contains("accept"), "{done}");
    assert!(gw.metric("drawbridge_calls_parked", "").await < 0.5);
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 12: both questions of a call have one place, and one end of their wait.
#[tokio::test]
async fn two_questions_of_a_waiting_call_take_one_place() {
    let (gw, _stub) = one_place("1m").await;
    let user = user(&gw);
    let first = ask(&user, "ask_form", &json!({})).await;
    let answers = json!({questions(&first)[0].0: accept("x")});
    let none = json!({});
    let (asked, done) = tokio::join!(ask(&user, "ask_two", &none), async {
        waited(&gw, 1.0).await;
        answer(&user, "ask_form", &first, answers).await
    });
    assert!(text_of(&done).contains("accept"), "{done}");
    let both = questions(&asked);
    assert_eq!(both.len(), 2, "{asked}");
    let answers = json!({both[0].0: accept("one"), both[1].0: accept("two")});
    let done = answer(&user, "ask_two", &asked, answers).await;
    assert!(text_of(&done).contains("two"), "{done}");
    assert!(gw.metric("drawbridge_calls_parked", "").await < 0.5);
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 12.
#[tokio::test]
async fn question_that_gets_no_place_in_time_is_cancelled() {
    let (gw, _stub) = one_place("300ms").await;
    let user = user(&gw);
    let first = ask(&user, "ask_form", &json!({})).await;
    let refused = user.call("ask_form", json!({})).await.unwrap();
    assert!(text_of(&refused).contains("cancel"), "{refused}");
    let refused = gw.metric("drawbridge_calls_park_refused_total", "").await;
    assert!((0.5..1.5).contains(&refused), "{refused}");
    eventually("a line", async || {
        let mut lines = gw.log().into_iter();
        lines.rfind(|line| line.contains("too many calls wait for answers"))
    })
    .await;
    let answers = json!({questions(&first)[0].0: accept("x")});
    let done = answer(&user, "ask_form", &first, answers).await;
    assert!(text_of(&done).contains("accept"), "{done}");
    gw.stop().await;
}

// Waiting calls leave exchanges to the retries that they wait for: half of what a caller may have open.
#[tokio::test]
async fn call_that_may_not_even_wait_is_of_a_client_that_cannot_be_asked() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open()
        .server("exchanges_per_principal = 2")
        .http("stub", &stub, "ask_wait = \"1m\"")
        .toml("[limits]\nparked_per_principal = 1")
        .start()
        .await;
    let user = user(&gw);
    let first = ask(&user, "ask_form", &json!({})).await;
    let answers = json!({questions(&first)[0].0: accept("x")});
    let none = json!({});
    let (asked, ()) = tokio::join!(ask(&user, "ask_form", &none), async {
        waited(&gw, 1.0).await;
        let third = user.call("ask_form", json!({})).await.unwrap();
        assert!(text_of(&third).contains("error"), "{third}");
        answer(&user, "ask_form", &first, answers).await;
    });
    let answers = json!({questions(&asked)[0].0: accept("y")});
    let done = answer(&user, "ask_form", &asked, answers).await;
    assert!(text_of(&done).contains("accept"), "{done}");
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 12; SPEC O-01.
#[tokio::test]
async fn calls_parked_at_one_upstream_leave_places_to_others() {
    let gw = Setup::open()
        .stub_with("stub", &[], "ask_wait = \"2s\"")
        .stub("other", &[])
        .toml("[limits]\nparked_per_upstream = 1")
        .start()
        .await;
    ask(&user(&gw), "ask_form", &json!({})).await;
    let declared = json!({"elicitation": {}});
    let at = |path| Modern::with(gw.anonymous(), path, declared.clone());
    let refused = at("/mcp/stub")
        .call("ask_form", json!({"via": "call"}))
        .await;
    assert!(text_of(&refused.unwrap()).contains("cancel"));
    ask(&at("/mcp/other"), "ask_form", &json!({})).await;
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 12; SPEC N-01: a client that is not asked because too many calls are parked keeps its
// other capabilities.
#[tokio::test]
async fn at_the_cap_a_client_keeps_its_extensions() {
    let gw = Setup::open()
        .stub("stub", &[])
        .stub_with("modern", &["--era", "modern"], "ask_wait = \"0s\"")
        .toml("[limits]\nparked_per_principal = 1")
        .start()
        .await;
    ask(&user(&gw), "ask_form", &json!({})).await;
    let extensions = json!({"com.example/vendor": {"level": 2}});
    let declared = json!({"elicitation": {}, "roots": {}, "extensions": extensions});
    let user = Modern::with(gw.anonymous(), "/mcp/modern", declared);
    let seen = user.call("seen_meta", json!({})).await.unwrap();
    let seen: Value = serde_json::from_str(text_of(&seen)).unwrap();
    let told = &seen["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(*told, json!({"extensions": extensions}));
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 12. Both calls begin while there is room, and one is parked.
#[tokio::test]
async fn questions_asked_together_are_refused_alike() {
    let gw = Setup::open()
        .stub_with("stub", &[], "ask_wait = \"2s\"")
        .toml("[limits]\nparked_per_principal = 1")
        .start()
        .await;
    let user = user(&gw);
    // Calls take turns from the first question of an upstream on.
    let first = user.call("ask_form", json!({})).await.unwrap();
    let key = first["inputRequests"].as_object().unwrap().keys().next();
    let params = json!({
        "name": "ask_form", "arguments": {}, "requestState": first["requestState"],
        "inputResponses": {key.unwrap(): {"action": "decline"}},
    });
    user.send("tools/call", params).await.unwrap();
    let arguments = json!({"shape": "sampling"});
    let (one, other) = tokio::join!(
        user.call("ask_two", arguments.clone()),
        user.call("ask_two", arguments),
    );
    let done: Vec<Value> = [one.unwrap(), other.unwrap()]
        .into_iter()
        .filter(|done| done["resultType"] == "complete")
        .collect();
    assert_eq!(done.len(), 1, "{done:?}");
    let heard: Value = serde_json::from_str(text_of(&done[0])).unwrap();
    let codes: Vec<_> = [0, 1].map(|at| &heard[at]["error"]["code"]).into();
    assert_eq!(codes, [-32601, -32601], "{heard}");
    gw.stop().await;
}

#[tokio::test]
async fn five_hundred_calls_that_nobody_answers_are_released() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::secured()
        .http("stub", &stub, "ask_timeout = \"5s\"")
        .toml("[limits]\nparked_per_principal = 50\nrate = \"10000/s\"")
        .start()
        .await;
    let users: Vec<Modern> = (0..10)
        .map(|number| Modern::new(gw.principal(&format!("user-{number}")), "/mcp/stub"))
        .collect();
    let none = json!({});
    let calls = (0..500).map(|number| ask(&users[number % 10], "ask_form", &none));
    let asked = futures_util::future::join_all(calls).await;
    assert_eq!(asked.len(), 500);
    eventually("all calls are released", async || {
        let parked = gw.metric("drawbridge_calls_parked", "").await;
        let running = gw.metric("drawbridge_calls_running", "").await;
        (parked + running < 0.5).then_some(())
    })
    .await;
    eventually("each question is refused and each call over", async || {
        let stats = stub.stats().await;
        (stats["running"] == 0 && stats["counts"]["answers"] == 500).then_some(())
    })
    .await;
    gw.stop().await;
}
