//! Refusals of modern requests: which, how, and in which order. Spec: SPEC M-01 to M-23.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Modern, VERSION};
use crate::harness::session::text_of;
use crate::harness::{Gateway, Setup};

async fn gateway() -> Gateway {
    Setup::open().stub("stub", &[]).start().await
}

fn user(gw: &Gateway) -> Modern {
    Modern::new(gw.anonymous(), "/mcp/stub")
}

const HEADER: (&str, &str) = ("mcp-protocol-version", VERSION);

/// Status and code of the answer to `message` under `headers`.
async fn refusal(user: &Modern, headers: &[(&str, &str)], message: &Value) -> (u16, Value) {
    let answer = user.post_as(headers, message).await;
    let status = answer.status();
    let body = answer.json().await;
    assert_eq!(body["id"], message["id"], "{body}");
    (status, body["error"]["code"].clone())
}

// Spec: SPEC M-04 to M-15.
#[tokio::test]
async fn headers_and_body_must_agree() {
    let gw = gateway().await;
    let user = user(&gw);
    let call = user.request(
        &json!("a"),
        "tools/call",
        json!({"name": "echo", "arguments": {}}),
    );
    let method = ("mcp-method", "tools/call");
    let name = ("mcp-name", "echo");
    let mismatch = (400, json!(-32020));
    for headers in [
        &[method, name][..],
        &[("mcp-protocol-version", "2025-11-25"), method, name],
        &[HEADER, HEADER, method, name],
        &[HEADER, name],
        &[HEADER, ("mcp-method", "tools/list"), name],
        &[HEADER, ("mcp-method", "Tools/Call"), name],
        &[HEADER, method],
        &[HEADER, method, ("mcp-name", "Echo")],
        &[HEADER, method, name, name],
        &[HEADER, method, ("mcp-name", "=?base64?ZWNobw?=")],
        &[HEADER, method, ("mcp-name", "é")],
    ] {
        assert_eq!(
            refusal(&user, headers, &call).await,
            mismatch,
            "{headers:?}"
        );
    }
    for headers in [
        &[HEADER, method, name][..],
        &[HEADER, method, ("mcp-name", "  echo\t")],
        &[HEADER, method, ("mcp-name", "=?base64?ZWNobw==?=")],
        &[
            HEADER,
            method,
            name,
            ("mcp-session-id", "whatever"),
            ("last-event-id", "1.2.3"),
        ],
    ] {
        let answer = user.post_as(headers, &call).await;
        let answer = answer.expect(StatusCode::OK).await;
        // Spec: SPEC M-02.
        assert_eq!(answer.header("mcp-session-id"), None);
        assert_eq!(answer.json().await["id"], "a");
    }
    gw.stop().await;
}

// Spec: SPEC M-05, M-06, M-19.
#[tokio::test]
async fn the_body_chooses_the_era_and_must_be_whole() {
    let gw = gateway().await;
    let user = user(&gw);
    let version = "io.modelcontextprotocol/protocolVersion";
    let headers = [HEADER, ("mcp-method", "tools/list")];
    let list = user.request(&json!(7), "tools/list", json!({}));
    for key in [version, "io.modelcontextprotocol/clientCapabilities"] {
        let mut without = list.clone();
        without["params"]["_meta"]
            .as_object_mut()
            .unwrap()
            .remove(key);
        let answer = user.post_as(&headers, &without).await;
        assert_eq!(answer.status(), 400);
        let error = answer.error().await;
        assert_eq!(error["code"], -32602);
        assert!(error["message"].as_str().unwrap().contains(key), "{error}");
    }
    let bare = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list"});
    assert_eq!(refusal(&user, &headers, &bare).await, (400, json!(-32602)));
    // Neither header nor body: a legacy request without its session.
    assert_eq!(refusal(&user, &[], &bare).await, (400, json!(-32600)));
    // Body without header.
    assert_eq!(refusal(&user, &[], &list).await, (400, json!(-32020)));
    user.post_as(&headers, &list)
        .await
        .expect(StatusCode::OK)
        .await;
    gw.stop().await;
}

// Spec: SPEC M-13, M-53.
#[tokio::test]
async fn an_unserved_revision_is_told_the_served_ones() {
    let gw = gateway().await;
    let user = user(&gw);
    let mut list = user.request(&json!(1), "tools/list", json!({}));
    list["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "1900-01-01".into();
    let headers = [
        ("mcp-protocol-version", "1900-01-01"),
        ("mcp-method", "tools/list"),
    ];
    let answer = user.post_as(&headers, &list).await;
    assert_eq!(answer.status(), 400);
    let error = answer.error().await;
    assert_eq!(error["code"], -32022);
    assert_eq!(error["data"]["requested"], "1900-01-01");
    assert_eq!(error["data"]["supported"][0], VERSION);
    assert_eq!(error["data"]["supported"][1], "2025-11-25");
    gw.stop().await;
}

// Spec: SPEC M-14, T-44.
#[tokio::test]
async fn removed_and_unknown_methods_are_not_found() {
    let gw = gateway().await;
    for path in ["/mcp", "/mcp/stub"] {
        let user = Modern::new(gw.anonymous(), path);
        for method in [
            "initialize",
            "ping",
            "logging/setLevel",
            "resources/subscribe",
            "resources/unsubscribe",
            "tasks/list",
            "tasks/result",
            "sampling/createMessage",
            "elicitation/create",
            "roots/list",
            "notifications/message",
            "notifications/cancelled",
            "no/such/method",
        ] {
            let request = user.request(&json!("n"), method, json!({}));
            let headers = [HEADER, ("mcp-method", method)];
            let answer = refusal(&user, &headers, &request).await;
            assert_eq!(answer, (404, json!(-32601)), "{method}");
        }
        // SPEC M-21
        let hello = user.request(&json!(1), "initialize", json!({}));
        let headers = [HEADER, ("mcp-method", "initialize")];
        let error = user.post_as(&headers, &hello).await.error().await;
        assert_eq!(error["data"]["supported"][0], VERSION, "{error}");
    }
    gw.stop().await;
}

// Spec: SPEC T-12: the id of a response is the gateway's, and the client may use the same.
#[tokio::test]
async fn refused_response_is_answered_without_its_id() {
    let gw = gateway().await;
    let user = user(&gw);
    let response = json!({"jsonrpc": "2.0", "id": 55, "result": {}});
    let unreadable = json!({"jsonrpc": "2.0", "id": 55, "result": {}, "error": {}});
    let unknown = ("mcp-session-id", "unknown");
    for (headers, message, status, code) in [
        (&[HEADER][..], &response, 400, -32600),
        (&[unknown], &response, 404, -32001),
        (&[], &response, 400, -32600),
        (&[unknown], &unreadable, 400, -32600),
    ] {
        let answer = user.post_as(headers, message).await;
        assert_eq!(answer.status(), status, "{headers:?}");
        let body = answer.json().await;
        assert_eq!(body["error"]["code"], code, "{body}");
        assert!(body["id"].is_null(), "{body}");
    }
    gw.stop().await;
}

// Spec: SPEC M-01, M-03, M-20, M-22.
#[tokio::test]
async fn only_requests_are_acted_upon_and_only_post_is_served() {
    let gw = gateway().await;
    let user = user(&gw);
    let response = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    let refused = user.post_as(&[HEADER], &response).await;
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.error().await["code"], -32600);
    for method in [Method::GET, Method::DELETE, Method::PUT, Method::PATCH] {
        let answer = user.actor.send(method, "/mcp/stub", &[HEADER], "").await;
        assert_eq!(answer.status(), 405);
        assert_eq!(answer.header("allow"), Some("POST"));
    }
    // Both eras at once, on one URL.
    let legacy = gw.anonymous().open("/mcp/stub").await;
    let watching = self::user(&gw).meta(json!({"progressToken": 1}));
    let mut running = watching
        .stream("notices", json!({"n": 2, "gap_ms": 500}))
        .await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "s"}});
    let answer = user.post_as(&[HEADER], &cancel).await;
    assert_eq!(
        answer
            .expect(StatusCode::ACCEPTED)
            .await
            .bytes()
            .await
            .len(),
        0
    );
    assert_eq!(legacy.text("echo", json!({"text": "x"})).await, "x");
    let reply = loop {
        let message = running.message().await.expect("the reply");
        if message.get("id").is_some() {
            break message;
        }
    };
    assert_eq!(text_of(&reply["result"]), "2 sent");
    gw.stop().await;
}

// Spec: SPEC M-17: nothing is inferred from an earlier request.
#[tokio::test]
async fn each_request_is_taken_at_its_own_word() {
    let gw = gateway().await;
    let seen = async |capabilities: Value| {
        let user = Modern::with(gw.anonymous(), "/mcp/stub", capabilities);
        let info = user.call("session_info", json!({})).await.unwrap();
        text_of(&info).to_owned()
    };
    assert!(seen(json!({"sampling": {}})).await.contains("sampling"));
    assert!(!seen(json!({})).await.contains("sampling"));
    gw.stop().await;
}
