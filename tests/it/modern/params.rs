//! Arguments that are repeated in headers. Spec: SPEC M-18, M-31, M-33.

use serde_json::{Value, json};

use super::{Modern, VERSION};
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Setup, eventually};

#[tokio::test]
async fn annotated_arguments_must_be_repeated_in_headers() {
    let gw = Setup::open()
        .stub("stub", &[])
        .stub("other", &[])
        .start()
        .await;
    for (path, tool) in [("/mcp/stub", "regional"), ("/mcp", "stub__regional")] {
        let user = Modern::new(gw.anonymous(), path);
        let call = |arguments: &Value| {
            let params = json!({"name": tool, "arguments": arguments});
            user.request(&json!("p"), "tools/call", params)
        };
        let send = async |arguments: Value, given: &[(&str, &str)]| {
            let mut headers = vec![
                ("mcp-protocol-version", VERSION),
                ("mcp-method", "tools/call"),
                ("mcp-name", tool),
            ];
            headers.extend_from_slice(given);
            let answer = user.post_as(&headers, &call(&arguments)).await;
            let status = answer.status();
            let body = answer.json().await;
            assert_eq!(body["id"], "p");
            (status, body)
        };
        let region = json!({"region": "é"});
        let good = ("mcp-param-region", "=?base64?w6k=?=");
        for (arguments, given) in [
            (&region, &[][..]),
            (&region, &[("mcp-param-region", "e")]),
            (&region, &[("mcp-param-region", "=?base64?w6k?=")]),
            (&region, &[good, good]),
            (&json!({}), &[good]),
        ] {
            let (status, body) = send(arguments.clone(), given).await;
            assert_eq!(
                (status, &body["error"]["code"]),
                (400, &json!(-32020)),
                "{given:?}"
            );
        }
        for (arguments, given) in [
            (&region, &[good, ("mcp-param-unknown", "x")][..]),
            (&json!({"region": null}), &[]),
            (&json!({}), &[]),
        ] {
            let (status, body) = send(arguments.clone(), given).await;
            assert_eq!(status, 200, "{body}");
            assert!(text_of(&body["result"]).starts_with("region"), "{body}");
        }
    }
    gw.stop().await;
}

// Spec: SPEC M-33, M-63: a retry is an ordinary request.
#[tokio::test]
async fn the_headers_of_a_retry_must_repeat_its_arguments_too() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let send = async |ask: &str, region: &str, more: Value| {
        let arguments = json!({"region": "eu", "ask": ask});
        let mut params = json!({"name": "regional", "arguments": arguments});
        params
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let headers = [
            ("mcp-protocol-version", VERSION),
            ("mcp-method", "tools/call"),
            ("mcp-name", "regional"),
            ("mcp-param-region", region),
        ];
        let request = user.request(&json!("p"), "tools/call", params);
        user.post_as(&headers, &request).await.json().await
    };
    let asked = send("first", "eu", json!({})).await;
    let retry_of = |asked: &Value| {
        let answer = json!({"action": "accept", "content": {"name": "x"}});
        let state = &asked["result"]["requestState"];
        json!({"requestState": state, "inputResponses": {"i1": answer}})
    };
    let retry = retry_of(&asked);
    let refused = send("first", "us", retry.clone()).await;
    assert_eq!(refused["error"]["code"], -32020, "{refused}");
    // The call still waits for its answers.
    let done = send("first", "eu", retry).await;
    assert!(text_of(&done["result"]).contains("accept"), "{done}");
    let asked = send("in vain", "eu", json!({})).await;
    let failed = send("in vain", "eu", retry_of(&asked)).await;
    assert_eq!(failed["error"]["code"], -32603, "{failed}");
    let outcomes = || {
        let lines = gw.log_records().into_iter();
        let lines = lines.filter(|line| line["target"] == "access");
        lines
            .map(|line| line["outcome"].clone())
            .collect::<Vec<_>>()
    };
    eventually("every retry has its outcome in its line", async || {
        (outcomes() == ["ok", "bad_request", "ok", "ok", "-32603"]).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC M-31: a modern client would have to drop the tool itself.
#[tokio::test]
async fn a_tool_of_a_legacy_upstream_with_invalid_annotations_is_shown_to_legacy_clients_only() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open()
        .stub("child", &[])
        .http("remote", &stub, "")
        .start()
        .await;
    for (path, names) in [
        ("/mcp/child", &[("bad_headers", "regional")][..]),
        ("/mcp/remote", &[("bad_headers", "regional")]),
        (
            "/mcp",
            &[
                ("child__bad_headers", "child__regional"),
                ("remote__bad_headers", "remote__regional"),
            ],
        ),
    ] {
        // The legacy client lists first, so that the modern client is answered from the cache.
        let legacy = gw.anonymous().open(path).await.tools().await;
        let modern = Modern::new(gw.anonymous(), path);
        let listed = modern.send("tools/list", json!({})).await.unwrap();
        let listed: Vec<&str> = listed["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        for (bad, good) in names {
            assert!(legacy.contains(&(*bad).to_owned()), "{path}: {legacy:?}");
            assert!(!listed.contains(bad), "{path}: {listed:?}");
            assert!(listed.contains(good), "{path}: {listed:?}");
        }
    }
    let line = eventually("a line for the operator", async || {
        let mut lines = gw.log().into_iter();
        lines.find(|line| line.contains("is not shown to modern clients"))
    })
    .await;
    assert!(line.contains("bad_headers"), "{line}");
    gw.stop().await;
}

// SPEC M-34: also for a tool without annotations.
#[tokio::test]
async fn a_parameter_header_that_nobody_knows_is_passed_on() {
    let stub = HttpStub::start(&["--era", "modern"]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let unknown = ("mcp-param-unknown", "x");
    let requests = [
        ("tools/call", "name", "seen_meta"),
        ("prompts/get", "name", "greet"),
        ("resources/read", "uri", "stub://static/1"),
    ];
    for (method, member, name) in requests {
        let params = json!({member: name, "arguments": {"name": "x"}});
        let message = user.request(&json!(1), method, params);
        let headers = [
            ("mcp-protocol-version", VERSION),
            ("mcp-method", method),
            ("mcp-name", name),
            unknown,
        ];
        let answer = user.post_as(&headers, &message).await.json().await;
        assert!(answer["result"].is_object(), "{answer}");
        let seen = format!("{method} with {}", unknown.0);
        assert_eq!(stub.counted(&seen).await, 1, "{seen}");
    }
    // A request of ours is not the client's.
    assert_eq!(stub.counted("tools/list with mcp-param-unknown").await, 0);
    gw.stop().await;
    stub.stop().await;
}
