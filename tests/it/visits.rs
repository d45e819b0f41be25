//! An upstream of 2025-11-25 wants a page visited before it answers, and says when that is done.
//! Spec: BRIDGING §3.6; SPEC C-83, E-03.

use serde_json::json;

use crate::harness::session::text_of;
use crate::modern::{Modern, over_both};

/// Mark of the tools, and endpoint: each carrier on a pure endpoint and on the merged one.
const PLACES: [(&str, &str); 4] = [
    ("", "/mcp/stub"),
    ("", "/mcp/remote"),
    ("stub__", "/mcp"),
    ("remote__", "/mcp"),
];

// The retry would be held for longer than the harness waits if the upstream were not heard.
#[tokio::test]
async fn a_modern_client_is_sent_there_and_its_retry_waits_for_the_end() {
    let (gw, _stub) = over_both().await;
    for (mark, path) in PLACES {
        let user = Modern::new(gw.anonymous(), path);
        let tool = format!("{mark}needs_visit");
        let asked = user.call(&tool, json!({})).await.unwrap();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let all = asked["inputRequests"].as_object().unwrap();
        let (key, visit) = all.iter().next().unwrap();
        assert_eq!(
            (all.len(), &visit["method"]),
            (1, &json!("elicitation/create"))
        );
        assert_eq!(visit["params"]["url"], "https://consent.example/start");
        assert_eq!(visit["params"].get("elicitationId"), None, "{visit}");
        let retry = json!({
            "name": tool, "arguments": {}, "requestState": asked["requestState"],
            "inputResponses": {key: {"action": "accept"}},
        });
        let retry = user.send("tools/call", retry);
        let end = format!("{mark}end_visit");
        let (done, ended) = tokio::join!(retry, user.call(&end, json!({})));
        ended.unwrap();
        assert_eq!(text_of(&done.unwrap()), "visited", "{mark} on {path}");
    }
    gw.stop().await;
}

#[tokio::test]
async fn a_client_of_2025_11_25_gets_the_error_and_hears_of_the_end() {
    let (gw, _stub) = over_both().await;
    for (mark, path) in PLACES {
        let user = gw.anonymous().open(path).await;
        let mut stream = user.listen().await;
        let tool = format!("{mark}needs_visit");
        let error = user.call(&tool, json!({})).await.unwrap_err();
        assert_eq!(error["code"], -32042, "{error}");
        let visit = &error["data"]["elicitations"][0];
        assert_eq!(visit["url"], "https://consent.example/start", "{error}");
        assert!(visit["elicitationId"].is_string(), "{error}");
        user.text(&format!("{mark}end_visit"), json!({})).await;
        let told = stream.until("notifications/elicitation/complete").await;
        let id = json!({"elicitationId": visit["elicitationId"]});
        assert_eq!(told["params"], id, "{mark} on {path}");
        assert_eq!(user.text(&tool, json!({})).await, "visited");
    }
    gw.stop().await;
}
