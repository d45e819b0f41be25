//! Malformed, ambiguous and oversize messages from clients: refused where they are read, with the
//! right status, and the upstream never sees them.

use serde_json::json;

use crate::harness::{Gateway, Session, Setup};

async fn gateway() -> (Gateway, Session) {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    (gw, user)
}

/// Posts each body; all must be refused with `status` and `code`, and the session must live.
async fn all_refused(cases: &[(&str, Vec<u8>)], status: u16, code: i64) {
    let (gw, user) = gateway().await;
    for (what, body) in cases {
        let answer = user.post_raw(body.clone()).await;
        assert_eq!(answer.status(), status, "{what}");
        let error = answer.error().await;
        assert_eq!(error["code"], code, "{what}: {error}");
    }
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

fn cases<const N: usize>(cases: [(&'static str, &str); N]) -> Vec<(&'static str, Vec<u8>)> {
    cases
        .map(|(what, body)| (what, body.as_bytes().to_vec()))
        .to_vec()
}

// Spec: SPEC T-06.
#[tokio::test]
async fn what_is_not_json_is_a_parse_error() {
    let mut list = cases([
        ("nothing", ""),
        ("white space", " \r\n\t"),
        ("cut short", r#"{"jsonrpc":"2.0","id":1,"method":"ping""#),
        (
            "trailing bytes",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"} x"#,
        ),
        (
            "two messages",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}"#,
        ),
        (
            "a comment",
            r#"{"jsonrpc":"2.0",/* */"id":1,"method":"ping"}"#,
        ),
        (
            "a trailing comma",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping",}"#,
        ),
        ("single quotes", r"{'jsonrpc':'2.0','id':1,'method':'ping'}"),
        (
            "NaN",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}"#,
        ),
        (
            "a leading zero",
            r#"{"jsonrpc":"2.0","id":01,"method":"ping"}"#,
        ),
        (
            "a raw newline in a string",
            "{\"jsonrpc\":\"2.0\",\"id\":\"a\nb\",\"method\":\"ping\"}",
        ),
    ]);
    list.push((
        "bad UTF-8",
        b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}".to_vec(),
    ));
    list.push(("bad UTF-8 in the payload", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\",\"arguments\":{\"a\":\"\xc3\x28\"}}}".to_vec()));
    list.push((
        "two byte order marks",
        b"\xef\xbb\xbf\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}".to_vec(),
    ));
    list.push((
        "UTF-16",
        "{\"a\"".encode_utf16().flat_map(u16::to_le_bytes).collect(),
    ));
    all_refused(&list, 400, -32700).await;
}

// Spec: RFC 8259 §8.1.
#[tokio::test]
async fn a_byte_order_mark_before_a_message_is_passed_over() {
    let (gw, user) = gateway().await;
    let ping = "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}";
    let answer = user.post_raw(ping).await;
    assert_eq!(answer.json().await["result"], json!({}));
    gw.stop().await;
}

// Spec: DESIGN §3, "what two parsers could read differently is refused where we read".
#[tokio::test]
async fn duplicate_members_where_we_read_are_refused() {
    let list = cases([
        (
            "method twice",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#,
        ),
        (
            "id twice",
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
        ),
        (
            "an escaped twin",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/list"}"#,
        ),
        (
            "params twice",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{},"params":{"name":"echo"}}"#,
        ),
        (
            "name twice",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"pid","arguments":{}}}"#,
        ),
        (
            "token twice",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":1,"progressToken":2}}}"#,
        ),
        (
            "an unknown member twice",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","x":1,"x":2}"#,
        ),
    ]);
    all_refused(&list, 400, -32700).await;
}

#[tokio::test]
async fn what_is_no_message_is_an_invalid_request() {
    let list = cases([
        ("a number", "42"),
        ("a string", "\"ping\""),
        ("null", "null"),
        ("an empty object", "{}"),
        ("no version", r#"{"id":1,"method":"ping"}"#),
        ("version 1.0", r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#),
        (
            "a number as version",
            r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#,
        ),
        (
            "a number as method",
            r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
        ),
        ("neither method nor result", r#"{"jsonrpc":"2.0","id":1}"#),
        (
            "both result and error",
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
        ),
        (
            "method and result",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
        ),
        (
            "params as array",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#,
        ),
        (
            "params as string",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}"#,
        ),
    ]);
    all_refused(&list, 400, -32600).await;
}

// Spec: SPEC T-07.
#[tokio::test]
async fn ids_of_other_types_are_refused() {
    let list = ["null", "1.5", "true", "{}", "[]", "1e3"];
    let list: Vec<_> = list
        .iter()
        .map(|id| {
            (
                *id,
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#).into_bytes(),
            )
        })
        .collect();
    all_refused(&list, 400, -32600).await;
}

#[tokio::test]
async fn deep_nesting_is_refused_anywhere_in_the_message() {
    let (gw, user) = gateway().await;
    for (depth, is_fine) in [(100, true), (200, false), (100_000, false)] {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        let answer = user.post_raw(call(&format!("{open}{close}"))).await;
        let answer = answer.expect(http::StatusCode::OK).await;
        if !is_fine {
            assert_eq!(answer.error().await["code"], -32700, "{depth}");
        }
    }
    gw.stop().await;
}

/// A call with this argument, whose id stands last, where the TypeScript SDK writes it.
fn call(argument: &str) -> String {
    format!(
        r#"{{"method":"tools/call","params":{{"name":"echo","arguments":{{"a":{argument}}}}},"jsonrpc":"2.0","id":"mine"}}"#
    )
}

// VS Code gives up its session for any 4xx. Spec: SPEC T-17.
#[tokio::test]
async fn call_over_a_bound_is_refused_by_its_id() {
    let (gw, user) = gateway().await;
    let many = format!("[{}0]", "0,".repeat(600_000));
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for (argument, code) in [(&many, -32600), (&deep, -32700)] {
        let text = call(argument);
        let answer = user.post_raw(text.clone()).await;
        let answer = answer.expect(http::StatusCode::OK).await.json().await;
        assert_eq!(answer["id"], "mine", "{answer}");
        assert_eq!(answer["error"]["code"], code, "{answer}");
        // Without a session, in the modern era, or without a clear id: by status.
        let actor = &user.actor;
        let legacy = actor.post_raw("/mcp/stub", &[], text.clone()).await;
        assert_eq!(legacy.status(), 400);
        let modern = [("mcp-protocol-version", "2026-07-28")];
        let modern = actor.post_raw("/mcp/stub", &modern, text.clone()).await;
        assert_eq!(modern.status(), 400);
        for unclear in [r#""ID":1"#, r#""ID":1,"id":2"#] {
            let unclear = text.replace(r#""id":"mine""#, unclear);
            assert_eq!(user.post_raw(unclear).await.status(), 400);
        }
    }
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

// Spec: SPEC T-17.
#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let setup = Setup::open()
        .toml("[limits]\nbody = \"64KiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let body = |size: usize| {
        let padding = "x".repeat(size);
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
               "params": {"name": "echo", "arguments": {"a": padding}}})
    };
    assert_eq!(user.post(&body(60 << 10)).await.status(), 200);
    // In a session a status would end it for several clients.
    for size in [65 << 10, 8 << 20] {
        let answer = user
            .post(&body(size))
            .await
            .expect(http::StatusCode::OK)
            .await;
        let refused = answer.json().await;
        assert_eq!(refused["id"], 1, "{refused}");
        assert_eq!(refused["error"]["data"]["maxBytes"], 64 << 10, "{refused}");
    }
    // Messages without an id or a session, and messages of the modern revision.
    let mut notice = body(65 << 10);
    notice.as_object_mut().unwrap().remove("id");
    assert_eq!(user.post(&notice).await.status(), 413);
    let (actor, large) = (&user.actor, body(65 << 10));
    let sessionless = actor.post("/mcp/stub", &[], &large).await;
    assert_eq!(sessionless.status(), 413);
    let modern = [("mcp-protocol-version", "2026-07-28")];
    let modern = actor.post("/mcp/stub", &modern, &large).await;
    assert_eq!(modern.status(), 413);
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

#[tokio::test]
async fn missing_parameters_are_invalid_params_not_a_guess() {
    let (gw, user) = gateway().await;
    for (method, params) in [
        ("tools/call", json!({})),
        ("tools/call", json!({"name": 7})),
        (
            "tools/call",
            json!({"name": "no-such-tool", "arguments": {}}),
        ),
        ("prompts/get", json!({"name": "no-such-prompt"})),
        ("resources/read", json!({})),
        ("tools/list", json!({"cursor": "never given"})),
        ("logging/setLevel", json!({"level": "loud"})),
    ] {
        let error = user
            .request(method, params.clone())
            .await
            .expect_err("an error");
        assert_eq!(error["code"], -32602, "{method} {params}: {error}");
    }
    gw.stop().await;
}

// Spec: DESIGN §12: the body is bytes; an argument as large as the limit passes unharmed.
#[tokio::test]
async fn megabytes_pass_both_ways() {
    let (gw, user) = gateway().await;
    let text = "é☀".repeat(500_000);
    let echoed = user.text("echo", json!({"text": text})).await;
    assert_eq!(echoed, text);
    assert_eq!(
        user.text("big", json!({"bytes": 8_000_000})).await.len(),
        8_000_000
    );
    gw.stop().await;
}
