//! Whose traffic shares an upstream session. Spec: DESIGN §6.

use rstest::rstest;
use serde_json::json;

use crate::harness::upstream::HttpStub;
use crate::harness::{Actor, Gateway, Session, Setup, eventually};
use crate::modern::Modern;

async fn behind(carrier: &str, isolation: &str) -> (Gateway, Option<HttpStub>) {
    let keys = format!("isolation = \"{isolation}\"");
    if carrier == "http" {
        let stub = HttpStub::start(&[]).await;
        (
            Setup::secured().http("stub", &stub, &keys).start().await,
            Some(stub),
        )
    } else {
        (
            Setup::secured().stub_with("stub", &[], &keys).start().await,
            None,
        )
    }
}

async fn set(user: &Session, value: &str) {
    user.text("state_set", json!({"key": "k", "value": value}))
        .await;
}

async fn get(user: &Session) -> String {
    user.text("state_get", json!({"key": "k"})).await
}

#[rstest]
#[case("session", ["one", "(unset)", "(unset)"])]
#[case("principal", ["one", "one", "(unset)"])]
#[case("shared", ["one", "one", "one"])]
#[tokio::test]
async fn state_is_seen_by_those_who_share(
    #[case] isolation: &str,
    #[case] expected: [&str; 3],
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier, isolation).await;
    let first = gw.principal("alice").open("/mcp/stub").await;
    let second = gw.principal("alice").open("/mcp/stub").await;
    let other = gw.principal("bob").open("/mcp/stub").await;
    set(&first, "one").await;
    assert_eq!(
        [get(&first).await, get(&second).await, get(&other).await],
        expected
    );
    gw.stop().await;
}

// Spec: SPEC C-01: two clients may both use token 1.
#[rstest]
#[tokio::test]
async fn progress_goes_to_the_caller_even_when_tokens_and_ids_collide(
    #[values("session", "principal", "shared")] isolation: &str,
) {
    let (gw, _) = behind("stdio", isolation).await;
    let users = [
        gw.principal("alice").open("/mcp/stub").await,
        gw.principal("bob").open("/mcp/stub").await,
    ];
    let params = |n: u64| {
        json!({"name": "notices", "arguments": {"n": n, "gap_ms": 10},
               "_meta": {"progressToken": 1}})
    };
    let (left, right) = tokio::join!(
        users[0].start("tools/call", params(5)),
        users[1].start("tools/call", params(8)),
    );
    assert_eq!(left.0, right.0, "both use the same request id");
    let (left, right) = tokio::join!(left.1.finish(), right.1.finish());
    for ((notices, reply), n) in [(left, 5), (right, 8)] {
        let totals: Vec<_> = notices
            .iter()
            .map(|notice| notice["params"]["total"].clone())
            .collect();
        assert_eq!(totals, vec![json!(n); n], "{isolation}");
        assert_eq!(reply.unwrap()["content"][0]["text"], format!("{n} sent"));
    }
    gw.stop().await;
}

// Spec: DESIGN §6: `shared` stdio upstreams are told of no client capabilities.
#[tokio::test]
async fn a_shared_child_never_asks() {
    let (gw, _) = behind("stdio", "shared").await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let (_, exchange) = user.start_call("ask_form", json!({})).await;
    let (before, reply) = exchange.finish().await;
    assert!(before.is_empty(), "{before:?}");
    reply.expect("the call goes on");
    gw.stop().await;
}

// Spec: SPEC C-50, C-60.
#[tokio::test]
async fn one_sessions_tool_change_is_not_anothers() {
    let (gw, _) = behind("stdio", "session").await;
    let first = gw.principal("alice").open("/mcp/stub").await;
    let second = gw.principal("alice").open("/mcp/stub").await;
    let plain = first.tools().await;
    assert_eq!(second.tools().await, plain);
    first.text("change_tools", json!({})).await;
    assert!(first.tools().await.contains(&"extra".to_owned()));
    assert_eq!(second.tools().await, plain);
    gw.stop().await;
}

/// How often an upstream was sent `method`.
async fn sent(stub: &HttpStub, method: &str) -> u64 {
    let base = stub.url.trim_end_matches("/mcp");
    let answer = Actor::new(base, None).get("/stats", &[]).await;
    answer.json().await["counts"][method].as_u64().unwrap_or(0)
}

// DESIGN §6; BRIDGING §1.3
#[tokio::test]
async fn the_last_session_that_ends_takes_its_subscription_along() {
    let (gw, stub) = behind("http", "shared").await;
    let stub = stub.expect("over HTTP");
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let uri = json!({"uri": "stub://static/1"});
    for user in [&alice, &alice, &bob] {
        let answer = user.request("resources/subscribe", uri.clone()).await;
        answer.expect("subscribed");
    }
    assert_eq!(bob.delete().await, 204);
    assert_eq!(alice.text("echo", json!({"text": "hi"})).await, "hi");
    assert_eq!(sent(&stub, "resources/unsubscribe").await, 0);
    assert_eq!(alice.delete().await, 204);
    eventually("the subscription is ended", async || {
        (sent(&stub, "resources/unsubscribe").await == 1).then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn who_never_subscribed_ends_nobodys_subscription() {
    let (gw, stub) = behind("http", "shared").await;
    let stub = stub.expect("over HTTP");
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let uri = json!({"uri": "stub://static/1"});
    let answer = alice.request("resources/subscribe", uri.clone()).await;
    answer.expect("subscribed");
    let answer = bob.request("resources/unsubscribe", uri).await;
    assert_eq!(answer, Ok(json!({})));
    assert_eq!(sent(&stub, "resources/unsubscribe").await, 0);
    gw.stop().await;
}

// DESIGN §11: `retry_safe`.
#[rstest]
#[case("retry_safe = [\"crash\"]", 1.0)]
#[case("retry_safe = [\"echo\"]", 0.0)]
#[tokio::test]
async fn a_lost_reply_is_asked_for_again_once_where_that_is_safe(
    #[case] keys: &str,
    #[case] repeated: f64,
) {
    let gw = Setup::open().stub_with("stub", &[], keys).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let lost = user.call("crash", json!({})).await.expect("a result");
    assert_eq!(lost["isError"], true, "it crashes every time");
    let count = gw.metric("drawbridge_calls_repeated_total", "stub").await;
    assert!((count - repeated).abs() < f64::EPSILON, "{count}");
    let started = gw.metric("drawbridge_children_spawned_total", "").await;
    assert!((started - 1.0 - repeated).abs() < f64::EPSILON, "{started}");
    gw.stop().await;
}

async fn wants(user: &Session, level: &str) {
    let reply = user.request("logging/setLevel", json!({"level": level}));
    assert_eq!(reply.await, Ok(json!({})));
}

/// The log messages that reach the caller while the upstream logs one of each of these levels.
async fn logged(user: &Session) -> Vec<String> {
    let mut levels = Vec::new();
    for level in ["debug", "error"] {
        let (_, exchange) = user.start_call("log", json!({"level": level})).await;
        let (notices, reply) = exchange.finish().await;
        reply.expect("a result");
        levels.extend(notices.iter().map(|n| n["params"]["level"].to_string()));
    }
    levels
}

// Spec: BRIDGING §3.5.
#[rstest]
#[tokio::test]
async fn who_shares_an_upstream_gets_the_log_messages_of_its_own_level(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, stub) = behind(carrier, "shared").await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    wants(&alice, "debug").await;
    wants(&bob, "error").await;
    if carrier == "http" {
        assert_eq!(logged(&alice).await, ["\"debug\"", "\"error\""]);
        assert_eq!(logged(&bob).await, ["\"error\""]);
    } else {
        // A pipe does not say whose call it is about.
        for user in [&alice, &bob] {
            let nothing: [&str; 0] = [];
            assert_eq!(logged(user).await, nothing);
        }
    }
    let mut streams = [alice.listen().await, bob.listen().await];
    if let Some(stub) = &stub {
        stub.heard().await;
        // Whose these are is not known: they are shown to none, and changes to both.
        let unattributed = json!({"level": "error", "via": "get"});
        alice.text("log", unattributed).await;
        alice.text("change_tools", json!({})).await;
        for stream in &mut streams {
            let first = stream.message().await.unwrap();
            assert_eq!(first["method"], "notifications/tools/list_changed");
        }
        let dropped = gw.metric("drawbridge_notices_unread_total", "").await;
        assert!(dropped > 0.5, "{dropped}");
    }
    // After Alice's session ends, no session wants `debug` any more.
    alice.delete().await;
    eventually("the upstream logs less", async || {
        let said = bob.text("log", json!({"level": "debug"})).await;
        (said == "not logged").then_some(())
    })
    .await;
    gw.stop().await;
}

/// A child that logs the `log` call's text only when the next message arrives, like a child that is slow to flush.
const LATE: &str = r#"
    late=''
    say() { printf '%s\n' "$1"; }
    while read -r line; do
        id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
        for method in notifications/message vendor/notice; do
            [ -z "$late" ] || say '{"jsonrpc":"2.0","method":"'$method'","params":{"level":"error","data":"'$late'"}}'
        done
        late=''
        case "$line" in
        *'"initialize"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"late","version":"1"}}}' ;;
        *server/discover*) say '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"what?"}}' ;;
        *tools/call*)
            case "$line" in *secret*) late=secret ;; esac
            say '{"jsonrpc":"2.0","id":'$id',"result":{"content":[]}}' ;;
        esac
    done"#;

// Spec: BRIDGING §3.5.
#[rstest]
#[case("bob", false)]
#[case("alice", true)]
#[tokio::test]
async fn late_log_line_of_a_shared_pipe_is_not_shown_to_the_next_user(
    #[case] next: &str,
    #[case] is_shown: bool,
) {
    let keys = "isolation = \"shared\"\nera = \"legacy\"";
    let setup = Setup::secured().stdio("late", "sh", &["-c", LATE], keys);
    let gw = setup.start().await;
    let first = gw.principal("alice").open("/mcp/late").await;
    first
        .call("tell", json!({"it": "secret"}))
        .await
        .expect("a result");
    assert_eq!(first.delete().await, 204);
    // The same child, whose only user this is now.
    let next = gw.principal(next).open("/mcp/late").await;
    let (_, exchange) = next.start_call("other", json!({})).await;
    let (before, reply) = exchange.finish().await;
    reply.expect("a result");
    let dropped = gw.metric("drawbridge_notices_unread_total", "").await;
    let started = gw.metric("drawbridge_children_spawned_total", "").await;
    assert!((started - 1.0).abs() < 0.5, "{started}");
    if is_shown {
        assert_eq!(before[0]["params"]["data"], "secret", "{before:?}");
    } else {
        assert!(before.is_empty(), "{before:?}");
        assert!(dropped > 1.5, "{dropped}");
    }
    gw.stop().await;
}

// Spec: BRIDGING §3.5.
#[tokio::test]
async fn log_lines_of_a_shared_modern_pipe_end_with_its_second_owner() {
    let keys = "isolation = \"shared\"\nera = \"modern\"";
    let setup = Setup::secured().stub_with("stub", &["--era", "modern"], keys);
    let gw = setup.start().await;
    let logged = async |name: &str| {
        let meta = json!({"io.modelcontextprotocol/logLevel": "debug"});
        let user = Modern::new(gw.principal(name), "/mcp/stub").meta(meta);
        let call = json!({"name": "log", "arguments": {"level": "error"}});
        let exchange = user.start("tools/call", call).await;
        let (notices, reply) = exchange.finish().await;
        reply.expect("a result");
        notices.len()
    };
    assert_eq!(logged("alice").await, 1);
    assert_eq!(logged("bob").await, 0);
    assert_eq!(logged("alice").await, 0);
    let dropped = gw.metric("drawbridge_notices_unread_total", "").await;
    assert!(dropped > 1.5, "{dropped}");
    gw.stop().await;
}

// Spec: SPEC C-50.
#[tokio::test]
async fn a_resource_that_was_refused_is_not_followed_when_somebody_else_does() {
    let (gw, _stub) = behind("stdio", "shared").await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let (mut hers, mut his) = (alice.listen().await, bob.listen().await);
    // Everything of the upstream would be below it.
    let refused = bob.request("resources/subscribe", json!({"uri": "stub:"}));
    assert_eq!(refused.await.unwrap_err()["code"], -32602);
    let uri = json!({"uri": "stub://static/1"});
    let reply = alice.request("resources/subscribe", uri.clone()).await;
    assert_eq!(reply, Ok(json!({})));
    alice.text("touch_resource", uri).await;
    alice.text("change_tools", json!({})).await;
    let told = hers.message().await.unwrap();
    assert_eq!(told["method"], "notifications/resources/updated");
    let told = his.message().await.unwrap();
    assert_eq!(told["method"], "notifications/tools/list_changed");
    gw.stop().await;
}
