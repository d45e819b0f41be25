//! `input_required` is unrolled on the call's own stream. Spec: BRIDGING §3.2; SPEC M-60 to M-66.

use rstest::rstest;
use serde_json::{Value, json};

use super::{behind, user};
use crate::harness::http::everything;
use crate::harness::session::{Exchange, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup};
use crate::modern::Modern;

/// The next question of a call.
async fn question(exchange: &mut Exchange) -> Value {
    loop {
        let message = exchange.next().await.expect("a question");
        if message.get("id").is_some() && message.get("method").is_some() {
            return message;
        }
    }
}

/// A gateway before a modern stub, `stub`, and another one.
async fn beside_another() -> Gateway {
    let setup = Setup::open().stub("stub", &["--era", "modern"]);
    setup.stub("other", &[]).start().await
}

/// Calls a tool that asks once, answers, and gives question and text of the result.
async fn asked(user: &Session, tool: &str, answer: Value) -> (Value, String) {
    let (_, mut exchange) = user.start_call(tool, json!({})).await;
    let question = question(&mut exchange).await;
    user.answer(&question, answer).await;
    let (_, reply) = exchange.finish().await;
    (question, text_of(&reply.expect("a result")).to_owned())
}

fn named(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

// The stub goes on only when its state comes back byte for byte.
#[rstest]
#[tokio::test]
async fn each_kind_of_input_is_asked_for_with_a_request(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let sampled = json!({"role": "assistant", "model": "m",
                         "content": {"type": "text", "text": "Hello"}});
    let roots = json!({"roots": [{"uri": "file:///home/ada"}]});
    for (tool, method, answer, expected) in [
        ("ask_form", "elicitation/create", named("Ada"), "Ada"),
        (
            "ask_form",
            "elicitation/create",
            json!({"action": "decline"}),
            "decline",
        ),
        ("ask_sampling", "sampling/createMessage", sampled, "Hello"),
        ("ask_roots", "roots/list", roots, "file:///home/ada"),
    ] {
        let (question, text) = asked(&user, tool, answer).await;
        assert_eq!(question["method"], method, "{tool}");
        assert!(text.contains(expected), "{tool}: {text}");
    }
    // Spec: SPEC C-71.
    let elsewhere = json!({"roots": [{"uri": "https://example.com/"}]});
    let (_, text) = asked(&user, "ask_roots", elsewhere).await;
    assert!(text.contains("no file: URIs"), "{text}");
    // Spec: SPEC C-82: 2025-11-25 wants an id, 2026-07-28 has none.
    let (question, _) = asked(&user, "ask_url", json!({"action": "accept"})).await;
    assert!(
        question["params"]["elicitationId"].is_string(),
        "{question}"
    );
    gw.stop().await;
}

// Spec: BRIDGING §3.6; SPEC C-83.
#[rstest]
#[case("/mcp/stub", "ask_url")]
#[case("/mcp", "stub__ask_url")]
#[tokio::test]
async fn a_client_hears_that_its_visit_is_over(#[case] path: &str, #[case] tool: &str) {
    let stub = HttpStub::start(&["--era", "modern"]).await;
    let setup = Setup::open().http("stub", &stub, "").stub("other", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open(path).await;
    let (_, mut exchange) = user.start_call(tool, json!({})).await;
    let visit = question(&mut exchange).await;
    user.answer(&visit, json!({"action": "accept"})).await;
    let (told, reply) = exchange.finish().await;
    reply.expect("a result");
    let [told] = &*told else {
        panic!("{told:?}");
    };
    assert_eq!(told["method"], "notifications/elicitation/complete");
    let id = &visit["params"]["elicitationId"];
    assert_eq!(told["params"], json!({"elicitationId": id}));
    gw.stop().await;
}

// Spec: BRIDGING §3.6; SPEC C-83: while a URL elicitation is open, the user is not sent to its page again.
#[rstest]
#[case("/mcp/stub", "ask_url_still")]
#[case("/mcp", "stub__ask_url_still")]
#[tokio::test]
async fn a_visit_that_is_not_over_is_not_asked_for_again(#[case] path: &str, #[case] tool: &str) {
    let gw = beside_another().await;
    let user = gw.anonymous().open(path).await;
    let (_, mut exchange) = user.start_call(tool, json!({})).await;
    let visit = question(&mut exchange).await;
    user.answer(&visit, json!({"action": "accept"})).await;
    let (more, reply) = exchange.finish().await;
    assert!(more.is_empty(), "{more:?}");
    let error = reply.unwrap_err();
    assert_eq!(error["code"], -32042, "{error}");
    let open = &error["data"]["elicitations"][0];
    for member in ["mode", "url", "message", "elicitationId"] {
        assert_eq!(open[member], visit["params"][member], "{error}");
    }
    gw.stop().await;
}

// Spec: BRIDGING §1.2, §6: URL elicitation exists since 2025-11-25, form elicitation since 2025-06-18. Whatever a
// client of an older revision declares, the upstream sees only capabilities of that revision, and reports the missing
// one.
#[rstest]
#[case("2025-06-18", "ask_url", "visit")]
#[case("2025-03-26", "ask_form", "does not offer: {\"elicitation\":{}}")]
#[tokio::test]
async fn what_a_revision_cannot_show_is_not_asked_for(
    #[case] revision: &str,
    #[case] tool: &str,
    #[case] missing: &str,
) {
    let (gw, _stub) = behind("http", "").await;
    let user = gw.anonymous();
    let user = user.open_as("/mcp/stub", revision, everything()).await;
    let (_, exchange) = user.start_call(tool, json!({})).await;
    let (before, reply) = exchange.finish().await;
    assert!(before.is_empty(), "{before:?}");
    let result = reply.unwrap();
    assert_eq!(result["isError"], true, "{result}");
    assert!(text_of(&result).contains(missing), "{result}");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn two_questions_of_a_round_are_asked_at_once(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let (_, mut exchange) = user.start_call("ask_two", json!({})).await;
    let first = question(&mut exchange).await;
    let second = question(&mut exchange).await;
    for question in [&second, &first] {
        let name = question["params"]["message"].as_str().unwrap();
        user.answer(question, named(name)).await;
    }
    let (_, reply) = exchange.finish().await;
    let answers: Value = serde_json::from_str(text_of(&reply.unwrap())).unwrap();
    assert_eq!(answers["first"]["content"]["name"], "first", "{answers}");
    assert_eq!(answers["second"]["content"]["name"], "second", "{answers}");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn rounds_follow_each_other_each_with_its_own_answers(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let (_, mut exchange) = user.start_call("ask_thrice", json!({})).await;
    for round in 1..=3 {
        let question = question(&mut exchange).await;
        assert_eq!(question["params"]["message"], format!("round {round}"));
        user.answer(&question, named(&format!("answer {round}")))
            .await;
    }
    let (_, reply) = exchange.finish().await;
    let answers: Value = serde_json::from_str(text_of(&reply.unwrap())).unwrap();
    assert_eq!(answers, json!({"r3": named("answer 3")}));
    gw.stop().await;
}

// Spec: SPEC C-01.
#[rstest]
#[tokio::test]
async fn progress_only_grows_over_all_rounds(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let params = json!({"name": "ask_thrice", "_meta": {"progressToken": "p"}});
    let (_, mut exchange) = user.start("tools/call", params).await;
    let mut told = Vec::new();
    let mut rounds = 0;
    loop {
        let message = exchange.next().await.expect("a message");
        match message["method"].as_str() {
            Some("notifications/progress") => told.push(message["params"]["progress"].clone()),
            Some(_) => {
                rounds += 1;
                user.answer(&message, named("Ada")).await;
            }
            None => break,
        }
    }
    assert_eq!((rounds, told), (3, vec![json!(1), json!(2)]));
    gw.stop().await;
}

#[tokio::test]
async fn a_resource_may_need_an_answer_too() {
    let (gw, _stub) = behind("http", "").await;
    let user = user(&gw).await;
    let (_, mut exchange) = user
        .start("resources/read", json!({"uri": "stub://asks"}))
        .await;
    let question = question(&mut exchange).await;
    user.answer(&question, named("Ada")).await;
    let (_, reply) = exchange.finish().await;
    assert!(reply.unwrap().to_string().contains("Ada"));
    gw.stop().await;
}

// BRIDGING §3.2, 3: only results can be sent as input.
#[tokio::test]
async fn a_refused_form_counts_as_cancelled_and_a_refused_completion_fails_the_call() {
    let (gw, _stub) = behind("http", "").await;
    let user = user(&gw).await;
    for (tool, expected, is_error) in [
        ("ask_form", "cancel", false),
        ("ask_sampling", "the user said no", true),
    ] {
        let (_, mut exchange) = user.start_call(tool, json!({})).await;
        let question = question(&mut exchange).await;
        let refusal = json!({"jsonrpc": "2.0", "id": question["id"],
                             "error": {"code": -1, "message": "the user said no"}});
        assert_eq!(user.post(&refusal).await.status(), 202);
        let (_, reply) = exchange.finish().await;
        let result = reply.expect("a result");
        assert!(text_of(&result).contains(expected), "{tool}: {result}");
        assert_eq!(result["isError"] == true, is_error, "{tool}: {result}");
    }
    gw.stop().await;
}

// Spec: SPEC M-66.
#[tokio::test]
async fn a_state_alone_is_sent_back_a_bounded_number_of_times() {
    let (gw, _stub) = behind("http", "").await;
    let user = user(&gw).await;
    assert_eq!(user.text("ask_state", json!({})).await, "waited twice");
    let result = user.call("ask_forever", json!({})).await.unwrap();
    assert_eq!(result["isError"], true, "{result}");
    gw.stop().await;
}

// Spec: BRIDGING §3.2, 5 and 7.
#[rstest]
#[case("/mcp/stub", "ask_form_forever")]
#[case("/mcp", "stub__ask_form_forever")]
#[tokio::test]
async fn nobody_is_asked_for_an_answer_that_would_not_be_sent(
    #[case] path: &str,
    #[case] tool: &str,
) {
    let stub = HttpStub::start(&["--era", "modern"]).await;
    let setup = Setup::open().http("stub", &stub, "").stub("other", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open(path).await;
    let (_, mut exchange) = user.start_call(tool, json!({})).await;
    let mut asked = 0;
    let reply = loop {
        let message = exchange.next().await.expect("a message");
        if message.get("method").is_none() {
            break message;
        }
        asked += 1;
        user.answer(&message, named("Ada")).await;
    };
    assert_eq!(asked, 10);
    let result = &reply["result"];
    assert_eq!(result["isError"], true, "{reply}");
    assert!(text_of(result).contains("keeps asking"), "{reply}");
    gw.stop().await;
}

// Spec: SPEC M-62; BRIDGING §3.2, 7 and 8.
#[tokio::test]
async fn what_the_client_cannot_give_becomes_text_for_the_model() {
    let (gw, _stub) = behind("http", "").await;
    let user = user(&gw).await;
    let result = user.call("ask_unasked", json!({})).await.unwrap();
    assert_eq!(result["isError"], true, "{result}");
    let mute = gw
        .anonymous()
        .open_as("/mcp/stub", "2025-11-25", json!({}))
        .await;
    let result = mute.call("ask_form", json!({})).await.unwrap();
    assert_eq!(result["isError"], true, "{result}");
    assert!(text_of(&result).contains("elicitation"), "{result}");
    gw.stop().await;
}

// Spec: SPEC M-40, M-41.
#[rstest]
#[case("/mcp/stub", "")]
#[case("/mcp", "stub__")]
#[tokio::test]
async fn a_modern_client_is_told_in_a_whole_result(#[case] path: &str, #[case] mark: &str) {
    let gw = beside_another().await;
    let user = Modern::new(gw.anonymous(), path);
    for tool in ["ask_unasked", "ask_forever"] {
        let result = user.call(&format!("{mark}{tool}"), json!({})).await;
        let result = result.unwrap();
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(result["resultType"], "complete", "{result}");
        let server = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
        assert!(server["name"].is_string(), "{result}");
        assert!(text_of(&result).contains("needs an answer"), "{result}");
    }
    gw.stop().await;
}

// Spec: SPEC C-80.
#[tokio::test]
async fn a_client_of_2025_06_18_gets_forms_without_a_mode() {
    let (gw, _stub) = behind("http", "").await;
    let user = gw
        .anonymous()
        .open_as("/mcp/stub", "2025-06-18", json!({"elicitation": {}}))
        .await;
    let (question, text) = asked(&user, "ask_form", named("Ada")).await;
    assert_eq!(question["params"].get("mode"), None, "{question}");
    assert!(text.contains("Ada"), "{text}");
    gw.stop().await;
}

#[tokio::test]
async fn an_unanswered_round_ends_at_its_timeout() {
    let (gw, _stub) = behind("http", "ask_timeout = \"1s\"").await;
    let user = user(&gw).await;
    let (_, mut exchange) = user.start_call("ask_form", json!({})).await;
    question(&mut exchange).await;
    let (_, reply) = exchange.finish().await;
    assert!(text_of(&reply.unwrap()).contains("cancel"));
    gw.stop().await;
}

// Spec: BRIDGING §3.2, 3.
#[tokio::test]
async fn what_was_answered_before_the_timeout_counts() {
    let (gw, _stub) = behind("http", "ask_timeout = \"1s\"").await;
    let user = user(&gw).await;
    let (_, mut exchange) = user.start_call("ask_two", json!({})).await;
    let first = question(&mut exchange).await;
    let second = question(&mut exchange).await;
    let (answered, left) = match first["params"]["message"].as_str() {
        Some("second") => (&first, &second),
        _ => (&second, &first),
    };
    user.answer(answered, named("Ada")).await;
    let (after, reply) = exchange.finish().await;
    let answers: Value = serde_json::from_str(text_of(&reply.unwrap())).unwrap();
    let expected = json!({"first": {"action": "cancel"}, "second": named("Ada")});
    assert_eq!(answers, expected);
    let withdrawn: Vec<&Value> = after
        .iter()
        .map(|said| &said["params"]["requestId"])
        .collect();
    assert_eq!(withdrawn, [&left["id"]]);
    gw.stop().await;
}

// Spec: SPEC C-71.
#[tokio::test]
async fn a_modern_client_cannot_name_roots_that_are_no_files() {
    let (gw, _stub) = behind("http", "").await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let asked = user.call("ask_roots", json!({})).await.unwrap();
    let retry = |uri: &str| {
        let roots = json!({"roots": {"roots": [{"uri": uri}]}});
        let state = &asked["requestState"];
        json!({
            "name": "ask_roots", "arguments": {}, "inputResponses": roots, "requestState": state,
        })
    };
    let refused = user.send("tools/call", retry("https://example.com/")).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused["code"], -32602, "{refused}");
    let why = refused["message"].as_str().unwrap();
    assert!(why.contains("file: URIs"), "{why}");
    let done = user.send("tools/call", retry("file:///a")).await.unwrap();
    assert!(text_of(&done).contains("file:///a"), "{done}");
    gw.stop().await;
}
