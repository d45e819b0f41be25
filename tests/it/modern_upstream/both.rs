//! A modern client before a modern upstream: nothing is kept between two requests, and the
//! upstream's state travels inside ours. Spec: BRIDGING §3.3; SPEC M-63, M-64.

use rstest::rstest;
use serde_json::{Value, json};

use super::behind;
use crate::harness::session::text_of;
use crate::modern::Modern;

fn call(tool: &str) -> Value {
    json!({"name": tool, "arguments": {}})
}

/// The same request with the answers and state that an interim result requires.
fn retry(tool: &str, interim: &Value, answers: Value) -> Value {
    let mut params = call(tool);
    params["inputResponses"] = answers;
    params["requestState"] = interim["requestState"].clone();
    params
}

fn named(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

// The stub goes on only when its own state comes back byte for byte.
#[rstest]
#[tokio::test]
async fn a_round_passes_through_with_the_state_sealed(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let interim = user.send("tools/call", call("ask_two")).await.unwrap();
    assert_eq!(interim["resultType"], "input_required", "{interim}");
    let first = &interim["inputRequests"]["first"];
    assert_eq!(first["method"], "elicitation/create", "{interim}");
    let state = interim["requestState"].as_str().unwrap();
    assert!(!state.contains("quoted"), "sealed: {state}");
    let answers = json!({"first": named("Ada"), "second": named("Bob")});
    let params = retry("ask_two", &interim, answers);
    let result = user.send("tools/call", params).await.unwrap();
    assert_eq!(result["resultType"], "complete", "{result}");
    let text = text_of(&result);
    assert!(text.contains("Ada") && text.contains("Bob"), "{text}");
    gw.stop().await;
}

#[tokio::test]
async fn rounds_follow_each_other_over_as_many_requests() {
    let (gw, _stub) = behind("http", "").await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let mut result = user.send("tools/call", call("ask_thrice")).await.unwrap();
    for round in 1..=3 {
        let key = format!("r{round}");
        let asked = &result["inputRequests"][&key]["params"]["message"];
        assert_eq!(*asked, format!("round {round}"), "{result}");
        let params = retry("ask_thrice", &result, json!({ key: named("x") }));
        result = user.send("tools/call", params).await.unwrap();
    }
    assert!(text_of(&result).contains("r3"), "{result}");
    gw.stop().await;
}

// Spec: SPEC M-64.
#[tokio::test]
async fn a_state_is_good_for_its_own_request_only() {
    let (gw, _stub) = behind("http", "").await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let interim = user.send("tools/call", call("ask_form")).await.unwrap();
    let answers = json!({"name": named("Ada")});
    let mut other = retry("ask_two", &interim, answers.clone());
    let refused = user.send("tools/call", other.take()).await;
    assert_eq!(refused.unwrap_err()["code"], -32602);
    let mut forged = interim.clone();
    let state = interim["requestState"].as_str().unwrap();
    forged["requestState"] = state.chars().rev().collect::<String>().into();
    let params = retry("ask_form", &forged, answers.clone());
    let refused = user.send("tools/call", params).await;
    assert_eq!(refused.unwrap_err()["code"], -32602);
    let params = retry("ask_form", &interim, answers);
    let result = user.send("tools/call", params).await.unwrap();
    assert!(text_of(&result).contains("Ada"), "{result}");
    gw.stop().await;
}

// Spec: SPEC M-16; BRIDGING §3.10: a capability that the client itself lacks is reported to the client.
#[tokio::test]
async fn a_capability_that_the_client_lacks_is_named() {
    let (gw, _stub) = behind("http", "").await;
    let user = Modern::with(gw.anonymous(), "/mcp/stub", json!({}));
    let error = user.send("tools/call", call("ask_form")).await.unwrap_err();
    assert_eq!(error["code"], -32021, "{error}");
    let needed = &error["data"]["requiredCapabilities"]["elicitation"];
    assert!(needed.is_object(), "{error}");
    gw.stop().await;
}
