//! Replies that are none, or none that can be read.

use super::*;
use crate::harness::session::text_of;

// Spec: SPEC U-13, U-14; JSON-RPC 2.0 §5: a server that could not read a request knows no id.
#[rstest]
#[tokio::test]
async fn an_error_without_an_id_says_why_a_request_was_refused_but_not_behind_a_wall(
    #[values("legacy", "modern")] era: &str,
) {
    const NULL: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"the shade is too blue"}}"#;
    const NONE: &str = r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"it is too blue"}}"#;
    const EVENT: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":null,\
                         \"error\":{\"code\":-32602,\"message\":\"much too blue\"}}\n\n";
    let up = Upstream::start(|what, _| match what {
        "call null" => Does::Status(400, NULL),
        "call none" => Does::Status(400, NONE),
        "call whole" => Does::Status(200, NULL),
        "call event" => Does::Events(vec![(0, EVENT), (60_000, "")], None),
        "call wall" => Does::Status(403, NULL),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    for tool in ["null", "none", "whole", "event"] {
        let said = outcome(&user, tool).await;
        assert!(said.contains("too blue"), "{tool}: {said}");
        assert!(said.contains("-32602"), "{tool}: {said}");
    }
    let said = outcome(&user, "wall").await;
    assert!(!said.contains("too blue"), "{said}");
    assert_eq!(up.count("initialize"), usize::from(era == "legacy"));
    gw.stop().await;
}

// An expired token, say: else only the callers would learn of it.
#[rstest]
#[tokio::test]
async fn the_log_says_why_calls_of_an_open_session_fail(#[values("legacy", "modern")] era: &str) {
    let up = Upstream::start(|what, _| match what {
        "call expired" => Does::Status(401, "no such token"),
        "call page" => Does::Status(200, "<html>"),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "fine").await.contains("done"));
    for tool in ["expired", "expired", "page"] {
        outcome(&user, tool).await;
    }
    let said = |cause: &str| {
        let lines = gw.log_records();
        let fits = |line: &&Value| {
            let error = line["error"].as_str().unwrap_or_default();
            line["level"] == "WARN" && line["upstream"] == "up" && error.contains(cause)
        };
        lines.iter().filter(fits).count()
    };
    eventually("the cause of the last", async || {
        (said("invalid message") == 1).then_some(())
    })
    .await;
    assert_eq!(said("HTTP status 401"), 1, "{:?}", gw.log());
    let garbage = gw.metric("drawbridge_upstream_garbage_total", "up").await;
    assert!((garbage - 1.0).abs() < f64::EPSILON, "{garbage}");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_body_that_is_no_message_is_called_what_its_headers_say(
    #[values("legacy", "modern")] era: &str,
) {
    const PAGE: [&str; 2] = ["content-type", "text/html; charset=utf-8"];
    const CODED: [&str; 2] = ["content-encoding", "gzip"];
    let up = Upstream::start(|what, _| match what {
        "call page" => Does::Labelled(PAGE, b"<html>Sign in</html>"),
        "call coded" => Does::Labelled(CODED, b"\x1f\x8b\x08\0"),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "page").await;
    assert!(
        said.contains("Content-Type") && said.contains("text/html"),
        "{said}"
    );
    let said = outcome(&user, "coded").await;
    assert!(
        said.contains("Content-Encoding") && said.contains("gzip"),
        "{said}"
    );
    gw.stop().await;
}

// Spec: SPEC U-14.
#[rstest]
#[tokio::test]
async fn a_reply_on_a_stream_that_cannot_be_read_fails_its_call_at_once(
    #[values("legacy", "modern")] era: &str,
) {
    // Whichever number the call has.
    let event = |id| -> &'static str {
        let event = format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":NaN}}\n\n");
        event.leak()
    };
    let up = Upstream::start(move |what, _| match what {
        "call broken" => {
            let events = (2..9).map(|id| (0, event(id)));
            Does::Events(events.chain([(300_000, "")]).collect(), None)
        }
        _ => Does::Usual,
    })
    .await;
    let keys = format!("era = {era:?}\nidle_timeout = \"5m\"");
    let gw = up.behind(&keys).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "broken").await;
    assert!(said.contains("invalid message"), "{said}");
    gw.stop().await;
}

// Spec: SPEC M-40, U-14.
#[rstest]
#[tokio::test]
async fn a_result_over_http_that_is_no_object_reaches_no_client(
    #[values("legacy", "modern")] era: &str,
) {
    let up = Upstream::start(|what, _| match what {
        "call nothing" => Does::Events(Vec::new(), Some(Value::Null)),
        "call text" => Does::Events(Vec::new(), Some(json!("done"))),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    for tool in ["nothing", "text"] {
        let said = outcome(&user, tool).await;
        assert!(said.contains("no JSON object"), "{tool}: {said}");
    }
    gw.stop().await;
}

// Spec: SPEC U-14.
#[rstest]
#[tokio::test]
async fn an_empty_answer_to_a_call_is_named(#[values(200, 202)] status: u16) {
    let up = Upstream::start(move |what, _| match what {
        "call void" => Does::Status(status, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "void").await;
    let expected = format!("nothing, with HTTP status {status}");
    assert!(said.contains(&expected), "{said}");
    gw.stop().await;
}

// Spec: SPEC U-14. Other clients pass such events over.
#[rstest]
#[tokio::test]
async fn events_of_another_name_are_signs_of_life_and_no_garbage(
    #[values("legacy", "modern")] era: &str,
) {
    let up = Upstream::start(|what, _| match what {
        "call long" => Does::Events(
            vec![
                (0, "event: ping\ndata: 2026-11-22\n\n"),
                (0, "data: what\n\n"),
            ],
            Some(done()),
        ),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "long").await.contains("done"));
    let garbage = gw.metric("drawbridge_upstream_garbage_total", "up").await;
    assert!((0.5..1.5).contains(&garbage), "{garbage}");
    gw.stop().await;
}

// Spec: SPEC U-14, U-12.
#[rstest]
#[tokio::test]
async fn a_reply_that_is_no_message_ends_its_call_under_another_name_too(
    #[values("legacy", "modern")] era: &str,
) {
    let reply = r#"{"jsonrpc":"2.0","id":ID,"result":NaN}"#;
    let replies = (0..10).map(|id| {
        let reply = reply.replace("ID", &id.to_string());
        format!("event: reply\ndata: {reply}\n\n")
    });
    let replies = &*replies.collect::<String>().leak();
    let up = Upstream::start(move |what, _| match what {
        "call long" => Does::Events(vec![(0, replies), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(!outcome(&user, "long").await.contains("done"));
    gw.stop().await;
}

// Spec: SPEC U-13: the status of an upstream means something else in front, to clients of either era.
#[rstest]
#[tokio::test]
async fn upstream_status_of_a_call_is_not_ours(#[values("legacy", "modern")] era: &str) {
    let up = Upstream::start(|what, _| match what.strip_prefix("call refused-") {
        Some(status) => Does::Status(status.parse().unwrap(), "<h1>internal page</h1>"),
        None => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let legacy = gw.anonymous().open("/mcp/up").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/up");
    for status in [401, 403, 404, 405, 429, 500, 503] {
        let params = json!({"name": format!("refused-{status}"), "arguments": {}});
        let id = legacy.next_id();
        let call =
            json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params.clone()});
        let answers = [
            legacy.post(&call).await,
            modern
                .post(&modern.request(&json!(1), "tools/call", params))
                .await,
        ];
        for (client, answer) in ["legacy", "modern"].into_iter().zip(answers) {
            let ours = answer.status();
            assert_eq!(answer.header("www-authenticate"), None);
            assert_eq!(ours, 200, "{status} to a {client} client");
            let said = answer.message().await;
            let is_failure = said["error"].is_object() || said["result"]["isError"] == true;
            assert!(is_failure, "{said}");
            assert!(!said.to_string().contains("internal page"), "{said}");
        }
    }
    // The session has survived all of that.
    assert!(outcome(&legacy, "fine").await.contains("done"));
    gw.stop().await;
}

// Spec: SPEC O-01, T-22: the stream of one call does not wait for the replies of others.
#[tokio::test]
async fn large_replies_on_a_foreign_stream_have_a_share() {
    const LARGE: usize = 7_500_000;
    // The ids of the calls are not known. The reply of the last call ends its stream.
    let event = |id| -> &'static str {
        let content = json!([{"type": "text", "text": "x".repeat(LARGE)}]);
        let reply = json!({"jsonrpc": "2.0", "id": id, "result": {"content": content}});
        format!("data: {reply}\n\n").leak()
    };
    let up = Upstream::start(move |what, _| match what {
        "call hang" => Does::Hang,
        "call all" => {
            let events = (2..9).map(|id| (0, event(id)));
            Does::Events(events.chain([(300_000, "")]).collect(), None)
        }
        _ => Does::Usual,
    })
    .await;
    let gw = Setup::open()
        .toml(
            "[limits]\nupstream_message = \"8MiB\"\nsse_event = \"8MiB\"\n\
             replies_per_principal = \"32MiB\"\nreplies_total = \"128MiB\"",
        )
        .url("up", &up.url, "era = \"legacy\"")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/up").await;
    let mut hanging = Vec::new();
    for _ in 0..3 {
        hanging.push(user.start_call("hang", json!({})).await.1);
    }
    user.call("all", json!({})).await.expect("its own reply");
    let held = gw.metric("drawbridge_replies_held_bytes", "").await;
    assert!(held < 33.0 * 1_048_576.0, "{held}");
    let (mut whole, mut failed) = (0, 0);
    for exchange in hanging {
        let reply = exchange.finish().await.1.expect("a result");
        let text = text_of(&reply);
        whole += usize::from(text.len() == LARGE);
        failed += usize::from(text.contains("the request ran"));
    }
    assert!(whole > 0 && failed > 0, "{whole} whole, {failed} failed");
    assert_eq!(whole + failed, 3);
    gw.stop().await;
}

// Spec: SPEC C-40. A server that reads no cursors, and one that ends its lists with the cursor "".
#[rstest]
#[tokio::test]
async fn list_that_goes_round_is_listed_once(#[values("", "more")] next: &'static str) {
    let answer = move |request: Request| async move {
        let method = request.method().clone();
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if body["method"] != "tools/list" {
            return usual(&method, &body);
        }
        let tools = json!([{"name": "a", "inputSchema": {"type": "object"}}]);
        let result = json!({"tools": tools, "nextCursor": next});
        let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
        let response = Response::builder().header("content-type", "application/json");
        response.body(Body::from(reply.to_string())).unwrap()
    };
    let url = serve(answer).await + "/mcp";
    let setup = Setup::open().url("up", &url, LEGACY).stub("b", &[]);
    let gw = setup.start().await;
    let mut merged = gw.anonymous().open("/mcp").await.tools().await;
    merged.retain(|name| name.starts_with("up__"));
    assert_eq!(merged, ["up__a"]);
    // A client of the upstream alone sees its pages: they come to an end.
    let own = gw.anonymous().open("/mcp/up").await;
    let listed = within("the end of the list", own.tools()).await;
    assert!(listed.iter().all(|name| name == "a"), "{listed:?}");
    gw.stop().await;
}

// Spec: SPEC C-40. The cursor "" of the last page asks for the first one.
#[tokio::test]
async fn list_whose_last_page_leads_to_the_first_is_listed_once() {
    let answer = |request: Request| async move {
        let method = request.method().clone();
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if body["method"] != "tools/list" {
            return usual(&method, &body);
        }
        let (name, next) = match body["params"]["cursor"].as_str() {
            Some("2") => ("b", ""),
            _ => ("a", "2"),
        };
        let tools = json!([{"name": name, "inputSchema": {"type": "object"}}]);
        let result = json!({"tools": tools, "nextCursor": next});
        let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
        let response = Response::builder().header("content-type", "application/json");
        response.body(Body::from(reply.to_string())).unwrap()
    };
    let url = serve(answer).await + "/mcp";
    let setup = Setup::open().url("up", &url, LEGACY).stub("b", &[]);
    let gw = setup.start().await;
    let mut merged = gw.anonymous().open("/mcp").await.tools().await;
    merged.retain(|name| name.starts_with("up__"));
    merged.sort();
    assert_eq!(merged, ["up__a", "up__b"]);
    gw.stop().await;
}
