//! Responses to a POST: JSON or a stream, with the right id and the same bytes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup};

async fn gateway() -> Gateway {
    Setup::open().stub("stub", &[]).start().await
}

// Spec: SPEC T-13.
#[tokio::test]
async fn a_fast_reply_is_plain_json() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
                         "params": {"name": "echo", "arguments": {"text": "hi"}}});
    let answer = user.post(&message).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        answer.header("mcp-session-id"),
        None,
        "only initialize names a session"
    );
    assert_eq!(answer.json().await["id"], 7);
    gw.stop().await;
}

// Spec: SPEC C-01: a token is a string or an integer. Some clients write `null` when they have no token, and must not
// get progress for `null`.
#[tokio::test]
async fn what_is_no_progress_token_asks_for_no_progress() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for token in [json!(null), json!(1.5), json!({})] {
        let meta = json!({"progressToken": token, "vendor.example/x": 1});
        let params = json!({"name": "seen_meta", "arguments": {}, "_meta": meta});
        let result = user.request("tools/call", params).await.expect("a result");
        let seen: Value = serde_json::from_str(text_of(&result)).unwrap();
        assert_eq!(seen.get("progressToken"), None, "{seen}");
        assert_eq!(seen["vendor.example/x"], 1, "{seen}");
    }
    gw.stop().await;
}

// Spec: SPEC T-13, T-14, T-22.
#[tokio::test]
async fn a_notice_before_the_reply_makes_it_a_stream() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let params = json!({"name": "notices", "arguments": {"n": 3, "gap_ms": 20},
                        "_meta": {"progressToken": "p"}});
    let message = json!({"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": params});
    let answer = user.post(&message).await;
    assert!(answer.is_stream());
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    let cache = answer.header("cache-control").expect("cache-control");
    assert!(cache.contains("no-cache"), "{cache}");
    let mut stream = answer.events();
    for progress in 1..=3 {
        let notice = stream.message().await.expect("a notice");
        assert_eq!(notice["method"], "notifications/progress");
        assert_eq!(
            notice["params"]["progressToken"], "p",
            "the client's own token"
        );
        assert_eq!(notice["params"]["progress"], progress);
    }
    let reply = stream.message().await.expect("a reply");
    assert_eq!(reply["id"], 8);
    assert_eq!(text_of(&reply["result"]), "3 sent");
    assert_eq!(stream.message().await, None, "the reply ends the stream");
    gw.stop().await;
}

// Spec: SPEC T-23, C-02.
#[tokio::test]
async fn what_an_upstream_sends_at_once_keeps_its_order() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let params = json!({"name": "notices", "arguments": {"n": 40, "logs": 7},
                        "_meta": {"progressToken": "p"}});
    let (_, exchange) = user.start("tools/call", params).await;
    let mut stream = exchange.stream();
    let mut got = Vec::new();
    while let Some(message) = stream.message().await {
        let params = &message["params"];
        got.push(match message["method"].as_str() {
            Some("notifications/progress") => {
                assert_eq!(params["progressToken"], "p");
                format!("progress {}", params["progress"])
            }
            Some(_) => format!("log {}", params["data"]),
            None => text_of(&message["result"]).to_owned(),
        });
    }
    let mut expected = Vec::new();
    for number in 1..=40 {
        expected.push(format!("progress {number}"));
        expected.extend((number % 7 == 0).then(|| format!("log {number}")));
    }
    expected.push("40 sent".to_owned());
    assert_eq!(got, expected);
    gw.stop().await;
}

// Spec: SPEC T-13, T-26.
#[tokio::test]
async fn a_silent_call_becomes_a_stream_with_a_priming_event() {
    let setup = Setup::open()
        .server("sse_after = \"50ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, exchange) = user.start_call("sleep", json!({"ms": 400})).await;
    let mut stream = exchange.stream();
    let first = stream.next().await.expect("an event");
    assert!(first.id.is_some(), "{first:?}");
    assert_eq!(first.data.as_deref(), Some(""), "{first:?}");
    assert_eq!(text_of(&stream.message().await.unwrap()["result"]), "slept");
    assert_eq!(stream.next().await, None, "the stream ends");
    assert_eq!(stream.retry, None, "retry goes before a planned close only");
    gw.stop().await;
}

// Spec: SPEC T-13. Clients up to 2025-06-18 lose their session where a connection breaks before its head.
#[tokio::test]
async fn the_head_leaves_early_in_every_revision() {
    let gw = gateway().await;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let user = gw
            .anonymous()
            .open_as("/mcp/stub", revision, json!({}))
            .await;
        // The call never ends, and once its head took 10 s.
        let begun = async {
            let (_, exchange) = user.start_call("never", json!({})).await;
            let mut stream = exchange.stream();
            stream.next().await.expect("a sign of life")
        };
        let sign = timeout(Duration::from_secs(7), begun).await;
        let sign = sign.expect("a head at once");
        let is_old = revision < "2025-11-25";
        assert_eq!(sign.comment.is_some(), is_old, "{revision}: {sign:?}");
    }
    gw.stop().await;
}

// Spec: SPEC T-10, T-13. Scripts that read JSON alone send `*/*` or no Accept.
#[tokio::test]
async fn who_names_no_stream_gets_json_for_longer() {
    let setup = Setup::open()
        .server("sse_after = \"20ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let actor = gw.anonymous();
    let old = actor.open_as("/mcp/stub", "2025-06-18", json!({})).await;
    let call = json!({"jsonrpc": "2.0", "id": 50, "method": "tools/call",
                      "params": {"name": "sleep", "arguments": {"ms": 300}}});
    for accept in ["*/*", "application/json, */*;q=0.1"] {
        let mut headers = old.headers();
        headers.push(("accept", accept));
        let answer = old.actor.post(&old.path, &headers, &call).await;
        assert!(!answer.is_stream(), "{accept}");
        assert_eq!(text_of(&answer.json().await["result"]), "slept");
    }
    let mut headers = old.headers();
    headers.push(("accept", "application/json"));
    let answer = old.actor.post(&old.path, &headers, &call).await;
    assert_eq!(answer.status(), 406);
    gw.stop().await;
}

// Spec: SPEC T-26. Older SDKs parse empty data as JSON.
#[tokio::test]
async fn older_revisions_get_no_empty_event() {
    let setup = Setup::open()
        .server("sse_after = \"50ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    for revision in ["2025-03-26", "2025-06-18"] {
        let user = gw
            .anonymous()
            .open_as("/mcp/stub", revision, json!({}))
            .await;
        let arguments = json!({"n": 2, "gap_ms": 30});
        let params = json!({"name": "notices", "arguments": arguments,
                            "_meta": {"progressToken": 1}});
        let (_, exchange) = user.start("tools/call", params).await;
        let mut stream = exchange.stream();
        while let Some(event) = stream.next().await {
            assert_ne!(event.data.as_deref(), Some(""), "{revision}");
            assert_eq!(event.retry, None, "{revision}");
        }
    }
    gw.stop().await;
}

// Spec: SPEC T-07.
#[tokio::test]
async fn request_ids_come_back_with_type_and_value() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for id in [
        "1",
        "\"1\"",
        "\"a b\"",
        "-3",
        "0",
        "9007199254740991",
        "\"\\u00e9☀\"",
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let text = user.post_raw(body).await.text().await;
        let found: &serde_json::value::RawValue =
            serde_json::from_str::<std::collections::HashMap<&str, _>>(&text).unwrap()["id"];
        assert_eq!(found.get(), id);
    }
    gw.stop().await;
}

// Spec: DESIGN §3, "Bytes, not trees".
#[tokio::test]
async fn payload_passes_byte_for_byte() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let odd =
        r#"{ "z":1.0e2,"a":12345678901234567890123,"a":"\ud83d\ude00\u0041",  "n":null,"z":[ ]}"#;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{odd}}}}}"#
    );
    let reply: Value = user.post_raw(body).await.json().await;
    assert_eq!(text_of(&reply["result"]), odd);
    gw.stop().await;
}

// Spec: SPEC T-44.
#[tokio::test]
async fn an_unknown_method_is_200_and_the_session_lives_on() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for method in ["no/such/method", "server/discover", "tools"] {
        let error = user.request(method, json!({})).await.expect_err("an error");
        assert_eq!(error["code"], -32601, "{method}: {error}");
    }
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

// Spec: SPEC T-12.
#[tokio::test]
async fn notifications_and_answers_are_accepted_without_a_body() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for message in [
        json!({"jsonrpc": "2.0", "method": "notifications/whatever"}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}),
        json!({"jsonrpc": "2.0", "id": "nobody asked", "result": {}}),
    ] {
        let answer = user.post(&message).await;
        assert_eq!(answer.status(), 202, "{message}");
        assert_eq!(answer.bytes().await.len(), 0);
    }
    gw.stop().await;
}

// Spec: SPEC L-07.
#[tokio::test]
async fn ping_is_answered_here_while_the_upstream_hangs() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, mut hanging) = user.start_call("stall", json!({})).await;
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    drop(hanging.next());
    gw.stop().await;
}

// Spec: SPEC C-10, C-11, C-12, T-23.
#[tokio::test]
async fn a_cancelled_call_is_cancelled_upstream_audited_with_its_reason_and_not_answered() {
    let setup = Setup::open()
        .server("sse_after = \"50ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (id, exchange) = user.start_call("never", json!({})).await;
    user.notify(
        "notifications/cancelled",
        json!({"requestId": id, "reason": "enough"}),
    )
    .await;
    let mut stream = exchange.stream();
    assert_eq!(stream.message().await, None, "no reply to a cancelled call");
    let told = crate::harness::eventually("the upstream hears of it", async || {
        let stats: Value = serde_json::from_str(&user.text("stats", json!({})).await).unwrap();
        (stats["counts"]["calls_cancelled"] == 1).then_some(stats["cancels"][0].clone())
    })
    .await;
    assert_eq!(told["params"]["reason"], "enough");
    let audited = crate::harness::eventually("its audit line", async || {
        let mut lines = gw.log_records().into_iter();
        lines.find(|line| line["target"] == "audit" && line["name"] == "never")
    })
    .await;
    assert_eq!(audited["outcome"], "failed");
    assert_eq!(audited["reason"], "enough");
    gw.stop().await;
}
