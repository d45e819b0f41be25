//! Questions of an upstream: asked of the client concerned, answered to the upstream concerned.

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::session::{Exchange, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually, within};
use crate::modern::Modern;

async fn behind(carrier: &str) -> (Gateway, Option<HttpStub>) {
    if carrier == "http" {
        let stub = HttpStub::start(&[]).await;
        (
            Setup::secured().http("stub", &stub, "").start().await,
            Some(stub),
        )
    } else {
        (Setup::secured().stub("stub", &[]).start().await, None)
    }
}

/// An accepted form.
fn named(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// Accepts the form that a call asks for with `name`, and gives the text of the call's result.
async fn answered(user: &Session, exchange: Exchange, question: &Value, name: &str) -> String {
    user.answer(question, named(name)).await;
    let (_, reply) = exchange.finish().await;
    text_of(&reply.expect("a result")).to_owned()
}

/// Calls a tool that asks one question, answers it, and gives question and result.
async fn asked(user: &Session, tool: &str, answer: Value) -> (Value, Value) {
    let (_, mut exchange) = user.start_call(tool, json!({})).await;
    let question = loop {
        let message = exchange.next().await.expect("a question");
        if message.get("id").is_some() {
            break message;
        }
    };
    user.answer(&question, answer).await;
    let (_, reply) = exchange.finish().await;
    (question, reply.expect("a result"))
}

#[rstest]
#[tokio::test]
async fn every_kind_of_question_is_asked_on_the_calls_own_stream(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let sampled = json!({"role": "assistant", "model": "m",
                         "content": {"type": "text", "text": "Hello"}});
    let roots = json!({"roots": [{"uri": "file:///home/ada", "name": "home"}]});
    for (tool, method, answer, expected) in [
        ("ask_form", "elicitation/create", named("Ada"), "Ada"),
        ("ask_sampling", "sampling/createMessage", sampled, "Hello"),
        ("ask_roots", "roots/list", roots, "file:///home/ada"),
        (
            "ask_url",
            "elicitation/create",
            json!({"action": "decline"}),
            "decline",
        ),
    ] {
        let (question, result) = asked(&user, tool, answer).await;
        assert_eq!(question["method"], method, "{tool}");
        assert!(text_of(&result).contains(expected), "{tool}: {result}");
    }
    gw.stop().await;
}

// Spec: SPEC C-85.
// Spec: SPEC T-07. Some clients make text of every id, and the user would have answered in vain.
#[tokio::test]
async fn an_answer_whose_id_became_text_is_an_answer() {
    let (gw, _stub) = behind("stdio").await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let (_, mut exchange) = user.start_call("ask_form", json!({})).await;
    let question = exchange.next().await.expect("a question");
    let id = question["id"].to_string();
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": named("Ada")});
    assert_eq!(user.post(&answer).await.status(), 202);
    let (_, reply) = within("the reply", exchange.finish()).await;
    assert!(text_of(&reply.expect("a result")).contains("Ada"));
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn refusals_reach_the_upstream_as_they_are(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    for action in ["decline", "cancel"] {
        let (_, result) = asked(&user, "ask_form", json!({ "action": action })).await;
        assert!(text_of(&result).contains(action), "{result}");
    }
    let (_, mut exchange) = user.start_call("ask_sampling", json!({})).await;
    let question = exchange.next().await.expect("a question");
    let refusal = json!({"jsonrpc": "2.0", "id": question["id"],
                         "error": {"code": -1, "message": "the user said no"}});
    assert_eq!(user.post(&refusal).await.status(), 202);
    let (_, reply) = exchange.finish().await;
    assert!(text_of(&reply.unwrap()).contains("the user said no"));
    gw.stop().await;
}

// Spec: SPEC C-71, C-81.
#[rstest]
#[tokio::test]
async fn what_no_client_may_be_asked_or_answer_is_an_error_upstream(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    // The client is not asked at all.
    let answer = user.text("ask_form", json!({"shape": "nested"})).await;
    assert!(answer.contains("-32602"), "{answer}");
    let roots = json!({"roots": [{"uri": "https://example.com/"}]});
    let (_, result) = asked(&user, "ask_roots", roots).await;
    assert!(text_of(&result).contains("no file: URIs"), "{result}");
    gw.stop().await;
}

// Spec: SPEC C-70.
#[tokio::test]
async fn a_completion_with_tools_is_asked_of_those_who_declared_them() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let arguments = json!({"shape": "tools"});
    let open = async |capabilities: Value| {
        let actor = gw.anonymous();
        actor.open_as("/mcp/stub", "2025-11-25", capabilities).await
    };
    let without = open(json!({"sampling": {}})).await;
    let answer = without.text("ask_sampling", arguments.clone()).await;
    assert!(answer.contains("-32601"), "{answer}");
    let with = open(json!({"sampling": {"tools": {}}})).await;
    let (_, mut exchange) = with.start_call("ask_sampling", arguments).await;
    let question = exchange.next().await.expect("a question");
    assert_eq!(question["params"]["tools"][0]["name"], "t", "{question}");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn two_questions_of_one_call_are_told_apart(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let (_, mut exchange) = user.start_call("ask_two", json!({})).await;
    let first = exchange.next().await.expect("a question");
    let second = exchange.next().await.expect("another");
    assert_ne!(first["id"], second["id"]);
    // In the other order, each with its own message.
    for question in [&second, &first] {
        let name = question["params"]["message"].as_str().unwrap();
        user.answer(question, named(name)).await;
    }
    let (_, reply) = exchange.finish().await;
    let answers: Value = serde_json::from_str(text_of(&reply.unwrap())).unwrap();
    assert!(answers[0].to_string().contains("first"), "{answers}");
    assert!(answers[1].to_string().contains("second"), "{answers}");
    gw.stop().await;
}

#[tokio::test]
async fn an_upstream_has_no_more_questions_open_than_it_may() {
    let setup = Setup::secured().stub_with("stub", &[], "open_questions = 1");
    let gw = setup.start().await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let (_, mut exchange) = user.start_call("ask_two", json!({})).await;
    let question = exchange.next().await.expect("a question");
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    eventually("the other one is refused", async || {
        let refused = gw.metric("drawbridge_upstream_questions_refused_total", "stub");
        (refused.await > 0.5).then_some(())
    })
    .await;
    user.answer(&question, answer).await;
    let (more, reply) = exchange.finish().await;
    assert!(more.is_empty(), "{more:?}");
    let answers: Value = serde_json::from_str(text_of(&reply.unwrap())).unwrap();
    assert_eq!(answers.to_string().matches("Ada").count(), 1, "{answers}");
    assert!(
        answers.to_string().contains("too many open questions"),
        "{answers}"
    );
    gw.stop().await;
}

// Spec: SPEC T-48, A-30.
#[rstest]
#[tokio::test]
async fn nobody_else_is_asked_and_nobody_else_can_answer(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier).await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let mallory = gw.principal("mallory").open("/mcp/stub").await;
    let mut overheard = mallory.listen().await;
    let (_, mut exchange) = alice.start_call("ask_form", json!({})).await;
    let question = exchange.next().await.expect("a question");
    mallory.answer(&question, named("Mallory")).await;
    // Send Mallory a notice: reading this notice first proves that no earlier message arrived.
    mallory.text("change_tools", json!({})).await;
    let heard = overheard.message().await.expect("a notice");
    assert_eq!(
        heard["method"], "notifications/tools/list_changed",
        "{heard}"
    );
    let text = answered(&alice, exchange, &question, "Alice").await;
    assert!(
        text.contains("Alice") && !text.contains("Mallory"),
        "{text}"
    );
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_question_on_no_calls_stream_still_finds_its_client(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let mut general = user.listen().await;
    let (_, mut exchange) = user.start_call("ask_form", json!({"via": "get"})).await;
    let question = tokio::select! {
        message = general.message() => message,
        message = exchange.next() => message,
    };
    let question = question.expect("a question");
    assert_eq!(question["method"], "elicitation/create");
    let text = answered(&user, exchange, &question, "Ada").await;
    assert!(text.contains("Ada"), "{text}");
    gw.stop().await;
}

#[tokio::test]
async fn an_unanswered_question_is_withdrawn_at_its_timeout() {
    let gw = Setup::open()
        .stub_with("stub", &[], "ask_timeout = \"1s\"")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, mut exchange) = user.start_call("ask_form", json!({})).await;
    let question = exchange.next().await.expect("a question");
    let (after, reply) = exchange.finish().await;
    let withdrawn = after
        .iter()
        .find(|message| message["method"] == "notifications/cancelled");
    let withdrawn = withdrawn.expect("a withdrawal");
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    // The call goes on without an answer.
    let reply = reply.expect("a result");
    assert!(text_of(&reply).contains("cancel"), "{reply}");
    gw.stop().await;
}

// Spec: SPEC C-10. The form would stay before the user, and count among the open questions.
#[rstest]
#[tokio::test]
async fn what_a_cancelled_call_has_asked_is_withdrawn(#[values("stdio", "http")] carrier: &str) {
    let bound = "open_questions = 1";
    let http = HttpStub::start(&[]).await;
    let setup = match carrier {
        "http" => Setup::open().http("stub", &http, bound),
        _ => Setup::open().stub_with("stub", &[], bound),
    };
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut general = user.listen().await;
    let (id, mut exchange) = user.start_call("ask_form", json!({})).await;
    // Questions that name no call are sent on the GET stream while one is open.
    let question = tokio::select! {
        Some(message) = exchange.next() => message,
        Some(message) = general.message() => message,
    };
    let cancelled = json!({"requestId": id});
    user.notify("notifications/cancelled", cancelled).await;
    let withdrawn = within("the withdrawal", async {
        tokio::select! {
            Some(message) = exchange.next() => message,
            Some(message) = general.message() => message,
        }
    });
    let withdrawn = withdrawn.await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    drop(general);
    eventually("the GET stream is closed", async || {
        (gw.metric("drawbridge_streams_open", "").await < 0.5).then_some(())
    })
    .await;
    let (_, result) = asked(&user, "ask_form", named("Ada")).await;
    assert!(text_of(&result).contains("Ada"), "{result}");
    gw.stop().await;
}

// An open question stops the idle clock. Spec: DESIGN §6, "stopped while a question is open".
#[tokio::test]
async fn thinking_about_a_question_is_not_idleness() {
    let gw = Setup::open()
        .stub_with("stub", &[], "idle_timeout = \"1s\"")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, mut exchange) = user.start_call("ask_form", json!({})).await;
    let question = exchange.next().await.expect("a question");
    // A later call without a question times out here, so the idle timeout of the first call has passed too.
    let other = gw.anonymous().open("/mcp/stub").await;
    let silent = within("the idle time", other.call("never", json!({}))).await;
    assert_eq!(silent.unwrap()["isError"], true);
    let text = answered(&user, exchange, &question, "Ada").await;
    assert!(text.contains("Ada"), "{text}");
    gw.stop().await;
}

// Spec: SPEC C-80.
#[tokio::test]
async fn a_client_of_2025_06_18_gets_forms_without_a_mode_and_no_urls() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let capabilities = json!({"elicitation": {}});
    let user = gw
        .anonymous()
        .open_as("/mcp/stub", "2025-06-18", capabilities)
        .await;
    let (question, _) = asked(&user, "ask_form", named("Ada")).await;
    assert_eq!(question["params"].get("mode"), None, "{question}");
    let (_, exchange) = user.start_call("ask_url", json!({})).await;
    let (before, _) = exchange.finish().await;
    assert!(
        before
            .iter()
            .all(|message| message["method"] != "elicitation/create"),
        "{before:?}"
    );
    gw.stop().await;
}

// Spec: SPEC C-71, BRIDGING §2.4.
#[tokio::test]
async fn changed_roots_are_announced_upstream() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.text("echo", json!({})).await;
    user.notify("notifications/roots/list_changed", json!({}))
        .await;
    eventually("the upstream hears it", async || {
        let stats = user.text("stats", json!({})).await;
        stats
            .contains("notifications/roots/list_changed")
            .then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC C-83; BRIDGING §2.3: -32042 exists for 2025-11-25 only.
#[tokio::test]
async fn a_required_visit_is_an_error_for_new_clients_and_text_for_older_ones() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let arguments = json!({"code": -32042, "message": "sign in first"});
    let newer = gw.anonymous().open("/mcp/stub").await;
    let error = newer
        .call("fail", arguments.clone())
        .await
        .expect_err("an error");
    assert_eq!(error["code"], -32042, "{error}");
    let older = gw
        .anonymous()
        .open_as("/mcp/stub", "2025-06-18", json!({}))
        .await;
    let result = older.call("fail", arguments).await.expect("a result");
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(text_of(&result), "sign in first");
    gw.stop().await;
}

// Spec: SPEC E-01, E-04: errors about a single hop are not relayed. All others pass unchanged: before 2026-07-28 the
// range from -32020 on is the server's own.
#[tokio::test]
async fn errors_of_the_other_hop_are_turned_and_others_pass() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/stub");
    for (sent, legacy, newer) in [
        (-32020, -32603, -32603),
        (-32022, -32603, -32603),
        (-32050, -32050, -32603),
        (-32002, -32002, -32602),
        (17, 17, 17),
    ] {
        let arguments = json!({"code": sent, "message": "as asked"});
        let error = user.call("fail", arguments.clone()).await;
        let error = error.expect_err("an error");
        assert_eq!(error["code"], legacy, "{sent}: {error}");
        let error = modern.call("fail", arguments).await;
        let error = error.expect_err("an error");
        assert_eq!(error["code"], newer, "{sent}: {error}");
    }
    gw.stop().await;
}
