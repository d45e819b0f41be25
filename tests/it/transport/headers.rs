//! Methods, paths, `Accept`, `Content-Type` and `MCP-Protocol-Version`.

use http::Method;
use serde_json::{Value, json};

use crate::harness::connection::EventSession;
use crate::harness::http::initialize;
use crate::harness::{Gateway, Setup};
use crate::modern::Modern;

async fn gateway() -> Gateway {
    Setup::open().stub("stub", &[]).start().await
}

fn ping() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})
}

// Spec: SPEC T-11.
#[tokio::test]
async fn only_json_is_a_message() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for (kind, status) in [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonp", 415),
        ("", 415),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
    ] {
        let mut headers = user.headers();
        headers.push(("content-type", kind));
        let answer = gw.anonymous().post("/mcp/stub", &headers, &ping()).await;
        assert_eq!(answer.status(), status, "{kind:?}");
    }
    gw.stop().await;
}

// Spec: RFC 9110 §15.5.16; RFC 7694 §3.
#[tokio::test]
async fn a_compressed_body_is_415_and_told_to_come_as_it_is() {
    let setup = Setup::open().server("[server.sse]\nenabled = true");
    let gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/stub");
    let events = EventSession::open(&gw.anonymous(), "/sse/stub").await;
    let list = modern.request(&json!(1), "tools/list", json!({}));
    let modern_headers = [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/list"),
    ];
    for (path, headers, message, good) in [
        ("/mcp/stub", &user.headers()[..], ping(), 200),
        ("/mcp/stub", &modern_headers[..], list, 200),
        (&*events.post_to, &[][..], ping(), 202),
    ] {
        for (coding, status) in [
            ("gzip", 415),
            ("identity, br", 415),
            ("Identity", good),
            // Meant as a character set.
            ("UTF-8", good),
            (" ", good),
        ] {
            let headers = [headers, &[("content-encoding", coding)]].concat();
            let answer = gw.anonymous().post(path, &headers, &message).await;
            assert_eq!(answer.status(), status, "{path}: {coding:?}");
            let hint = (status == 415).then_some("identity");
            assert_eq!(answer.header("accept-encoding"), hint, "{path}: {coding:?}");
        }
    }
    gw.stop().await;
}

// Spec: SPEC T-25; HTML, "Server-sent events".
#[tokio::test]
async fn an_event_id_that_is_empty_is_none() {
    let setup = Setup::open().server("[server.sse]\nenabled = true");
    let gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut headers = user.headers();
    headers.push(("last-event-id", " "));
    let answer = gw.anonymous().get("/mcp/stub", &headers).await;
    assert_eq!(answer.status(), 200);
    // Without a session it is a client of the older transport.
    let headers = [("last-event-id", " ")];
    let answer = gw.anonymous().get("/mcp/stub", &headers).await;
    assert_eq!(answer.status(), 200);
    let headers = [("last-event-id", "1.2.3")];
    let answer = gw.anonymous().get("/mcp/stub", &headers).await;
    assert_eq!(answer.status(), 400);
    gw.stop().await;
}

// Spec: SPEC T-10.
#[tokio::test]
async fn a_post_must_accept_both_answers() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for (accept, status) in [
        ("application/json", 406),
        ("text/event-stream", 406),
        ("text/html", 406),
        ("", 200),
        ("*/*", 200),
        ("application/*, text/*", 200),
        ("text/event-stream;q=0.5, application/json", 200),
        ("TEXT/EVENT-STREAM,APPLICATION/JSON", 200),
    ] {
        let mut headers = user.headers();
        headers.push(("accept", accept));
        let answer = gw.anonymous().post("/mcp/stub", &headers, &ping()).await;
        assert_eq!(answer.status(), status, "{accept:?}");
    }
    gw.stop().await;
}

// Spec: SPEC T-20.
#[tokio::test]
async fn a_get_must_accept_an_event_stream() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for (accept, status) in [("application/json", 406), ("*/*", 200), ("", 200)] {
        let mut headers = user.headers();
        headers.push(("accept", accept));
        assert_eq!(
            gw.anonymous().get("/mcp/stub", &headers).await.status(),
            status,
            "{accept:?}"
        );
    }
    gw.stop().await;
}

// Spec: SPEC T-01.
#[tokio::test]
async fn other_methods_are_405_and_say_what_is_allowed() {
    let gw = gateway().await;
    for method in [Method::PUT, Method::PATCH, Method::HEAD] {
        let answer = gw
            .anonymous()
            .send(method.clone(), "/mcp/stub", &[], "")
            .await;
        assert_eq!(answer.status(), 405, "{method}");
        let allow = answer.header("allow").expect("Allow");
        for allowed in ["POST", "GET", "DELETE"] {
            assert!(allow.contains(allowed), "{method}: {allow}");
        }
    }
    gw.stop().await;
}

#[tokio::test]
async fn unknown_paths_are_404_and_a_trailing_slash_is_routed() {
    let gw = gateway().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    for path in ["/", "/mcp/nobody", "/mcp/stub/more", "/MCP", "/mcpx"] {
        assert_eq!(
            gw.anonymous().post(path, &[], &hello).await.status(),
            404,
            "{path}"
        );
    }
    for path in ["/mcp/", "/mcp/stub/"] {
        assert_eq!(
            gw.anonymous().post(path, &[], &hello).await.status(),
            200,
            "{path}"
        );
    }
    gw.stop().await;
}

// Spec: SPEC T-42, T-43.
#[tokio::test]
async fn requests_need_a_session_and_an_unknown_one_is_404() {
    let gw = gateway().await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let missing = gw.anonymous().post("/mcp/stub", &[], &list).await;
    assert_eq!(missing.status(), 400);
    let code = missing.error().await["code"].as_i64().unwrap();
    assert!(
        !(-32022..=-32020).contains(&code),
        "{code} would look like the modern era"
    );
    assert_eq!(gw.anonymous().get("/mcp/stub", &[]).await.status(), 400);
    for id in ["nonsense", "../../etc", "AAAA"] {
        let headers = [("mcp-session-id", id)];
        let posted = gw.anonymous().post("/mcp/stub", &headers, &list).await;
        assert_eq!(posted.status(), 404, "{id}");
        // With the id of its request, the Go SDK would take it for an error of this request alone.
        let body = posted.json().await;
        assert_eq!(body.get("id"), None, "{body}");
        assert_eq!(body["error"]["code"], -32001, "{body}");
        assert_eq!(
            gw.anonymous().get("/mcp/stub", &headers).await.status(),
            404,
            "{id}"
        );
        let deleted = gw
            .anonymous()
            .send(Method::DELETE, "/mcp/stub", &headers, "")
            .await;
        assert_eq!(deleted.status(), 404, "{id}");
    }
    // Spec: SPEC T-60.
    let user = gw.anonymous().open("/mcp/stub").await;
    let headers = [
        ("mcp-session-id", user.id.as_str()),
        ("mcp-protocol-version", "1999-01-01"),
    ];
    let deleted = gw
        .anonymous()
        .send(Method::DELETE, "/mcp/stub", &headers, "")
        .await;
    assert_eq!(deleted.status(), 400);
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

// Spec: SPEC T-60, T-62, T-63.
#[tokio::test]
async fn the_version_header_must_name_a_served_revision() {
    let gw = gateway().await;
    let user = gw
        .anonymous()
        .open_as("/mcp/stub", "2025-06-18", json!({}))
        .await;
    let post = async |versions: &[&str]| {
        let mut headers = vec![("mcp-session-id", user.id.as_str())];
        headers.extend(
            versions
                .iter()
                .map(|version| ("mcp-protocol-version", *version)),
        );
        gw.anonymous().post("/mcp/stub", &headers, &ping()).await
    };
    let unknown = post(&["1999-01-01"]).await;
    assert_eq!(unknown.status(), 400);
    let error = unknown.error().await;
    assert_eq!(error["code"], -32022, "{error}");
    assert!(error["data"]["supported"].is_array(), "{error}");
    for malformed in ["2025-06-18 x", "2025-06-18, 2025-11-25"] {
        assert_eq!(post(&[malformed]).await.status(), 400, "{malformed}");
    }
    assert_eq!(
        post(&["2025-06-18", "2025-11-25"]).await.status(),
        400,
        "two of them"
    );
    assert_eq!(
        post(&["2025-11-25"]).await.status(),
        200,
        "served, though not negotiated"
    );
    assert_eq!(post(&[]).await.status(), 200, "the session tells");
    gw.stop().await;
}
