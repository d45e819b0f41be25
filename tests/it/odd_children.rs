//! Children that spell, break or time things oddly, scripted line by line.
//! Spec: SPEC C-01, D-02, D-07, D-08, D-11, U-14.

use std::path::Path;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::http::initialize;
use crate::harness::session::text_of;
use crate::harness::{Gateway, Setup, eventually, within};
use crate::modern::Modern;

/// A child of either era that answers each request by its method; `$id` is the request's. `cases` of
/// a shell come first, the tool `plain` is always there.
fn child(cases: &str) -> String {
    const USUAL: &str = r#"
        *'"initialize"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"odd","version":"1"}}}' ;;
        *server/discover*) say '{"jsonrpc":"2.0","id":'$id',"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}}}}' ;;
        *'"plain"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"plain"}]}}' ;;
    "#;
    format!(
        r#"say() {{ printf '%s\n' "$1"; }}
        while read -r line; do
            id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
            case "$line" in {cases} {USUAL} esac
        done"#
    )
}

fn behind(child: &str, keys: &str) -> Setup {
    Setup::open().stdio("odd", "sh", &["-c", child], keys)
}

// Spec: SPEC C-01, D-11. As with ids, some servers make text of every token.
#[rstest]
#[tokio::test]
async fn a_child_that_makes_text_of_our_tokens_is_understood(
    #[values("legacy", "modern")] era: &str,
) {
    let odd = child(
        r#"
        *subscriptions/listen*)
            say '{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"'$id'"},"notifications":{"toolsListChanged":true}}}'
            say '{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"'$id'"}}}' ;;
        *'"slow"'*)
            say '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"'$id'","progress":1}}'
            say '{"jsonrpc":"2.0","id":"'$id'","result":{"content":[]}}' ;;
        "#,
    );
    let gw = behind(&odd, &format!("era = {era:?}")).start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    let params = json!({"name": "slow", "arguments": {}, "_meta": {"progressToken": "mine"}});
    let (_, exchange) = user.start("tools/call", params).await;
    let (before, reply) = exchange.finish().await;
    reply.expect("a result");
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(before[0]["params"]["progressToken"], "mine");
    if era == "modern" {
        let changed = user.listen().await.message().await.expect("a notice");
        assert_eq!(changed["method"], "notifications/tools/list_changed");
    }
    gw.stop().await;
}

// Spec: SPEC D-02, U-14.
#[rstest]
#[tokio::test]
async fn a_reply_that_cannot_be_read_fails_its_call_at_once_and_a_log_line_fails_none(
    #[values("legacy", "modern")] era: &str,
) {
    let odd = child(
        r#"
        *'"broken"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"content":[],"share":NaN}}' ;;
        *'"noisy"'*)
            say '{"level":"error","id":'$id',"error":"this is a log"}'
            say 'DEBUG {"jsonrpc":"2.0","id":'$id',"result":{}} (12 ms)'
            say '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"fine"}]}}' ;;
        "#,
    );
    let keys = format!("era = {era:?}\nidle_timeout = \"5m\"");
    let gw = behind(&odd, &keys).start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    let broken = within("its failure", user.call("broken", json!({}))).await;
    let said = format!("{broken:?}");
    assert!(said.contains("invalid message: not valid JSON"), "{said}");
    assert_eq!(user.text("noisy", json!({})).await, "fine");
    gw.stop().await;
}

// Spec: SPEC L-07, D-09. Servers that watch over their client end when a ping stays unanswered.
#[rstest]
#[tokio::test]
async fn requests_without_a_place_are_answered_at_once(#[values("legacy", "modern")] era: &str) {
    let odd = child(
        r#"
        *'"keeps_alive"'*)
            call=$id
            say '{"jsonrpc":"2.0","id":"ping","method":"ping"}'
            say '{"jsonrpc":"2.0","id":"odd","method":"vendor/unknown"}' ;;
        *'"id":"ping","result":{}'*) seen="$seen ping" ;;
        *'"id":"odd","error":{"code":-32601'*) seen="$seen odd" ;;
        "#,
    );
    let both = r#"case "$seen" in " ping odd"|" odd ping")
            seen=""
            say '{"jsonrpc":"2.0","id":'$call',"result":{"content":[{"type":"text","text":"alive"}]}}' ;;
        esac
        done"#;
    let odd = odd.trim_end().strip_suffix("done").unwrap().to_owned() + both;
    let gw = behind(&odd, &format!("era = {era:?}")).start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    let text = within("both answers", user.text("keeps_alive", json!({}))).await;
    assert_eq!(text, "alive");
    gw.stop().await;
}

// Spec: SPEC L-03, D-09. A server may look whether its client is there before it shakes hands.
#[rstest]
#[tokio::test]
async fn a_ping_before_the_handshake_is_answered(#[values("auto", "legacy")] era: &str) {
    let odd = child(
        r#"
        *server/discover*) ;;
        *'"initialize"'*) hello=$id; say '{"jsonrpc":"2.0","id":"first","method":"ping"}' ;;
        *'"id":"first","result":{}'*) say '{"jsonrpc":"2.0","id":'$hello',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"odd","version":"1"}}}' ;;
        "#,
    );
    let gw = behind(&odd, &format!("era = {era:?}")).start().await;
    let opened = within("a session", gw.anonymous().open("/mcp/odd")).await;
    assert_eq!(opened.hello["serverInfo"]["name"], "odd");
    assert_eq!(opened.text("plain", json!({})).await, "plain");
    gw.stop().await;
}

// Spec: SPEC M-40, U-14; BRIDGING §3.10.
#[rstest]
#[tokio::test]
async fn a_result_that_is_no_object_reaches_no_client(#[values("legacy", "modern")] era: &str) {
    let odd = child(
        r#"
        *'"nothing"'*) say '{"jsonrpc":"2.0","id":'$id',"result":null}' ;;
        *'"text"'*) say '{"jsonrpc":"2.0","id":'$id',"result":"{}"}' ;;
        *'"list"'*) say '{"jsonrpc":"2.0","id":'$id',"result":[{}]}' ;;
        "#,
    );
    let gw = behind(&odd, &format!("era = {era:?}")).start().await;
    let older = gw.anonymous().open("/mcp/odd").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/odd");
    for tool in ["nothing", "text", "list"] {
        let older = older.call(tool, json!({})).await;
        let modern = modern.call(tool, json!({})).await;
        for reply in [older, modern] {
            let error = reply.expect_err(tool);
            assert_eq!(error["code"], -32603, "{tool}: {error}");
            assert!(error.to_string().contains("no JSON object"), "{error}");
        }
    }
    let garbage = gw.metric("drawbridge_upstream_garbage_total", "odd").await;
    assert!((5.5..6.5).contains(&garbage), "{garbage}");
    assert_eq!(older.text("plain", json!({})).await, "plain");
    gw.stop().await;
}

// Spec: SPEC C-10, U-14. A reply may be under way when its call is cancelled.
#[rstest]
#[tokio::test]
async fn a_reply_to_a_call_that_was_cancelled_is_no_garbage(
    #[values("legacy", "modern")] era: &str,
) {
    let odd = child(
        r#"
        *'"late"'*) late=$id; say '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":'$id',"progress":1}}' ;;
        *notifications/cancelled*) replied=yes; say '{"jsonrpc":"2.0","id":'$late',"result":{"content":[]}}' ;;
        *'"replied"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"'$replied'"}]}}' ;;
        *'"unasked"'*) say '{"jsonrpc":"2.0","id":4711,"result":{"content":[]}}'; say '{"jsonrpc":"2.0","id":'$id',"result":{"content":[]}}' ;;
        "#,
    );
    let gw = behind(&odd, &format!("era = {era:?}")).start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    let garbage = async || gw.metric("drawbridge_upstream_garbage_total", "odd").await;
    let params = json!({"name": "late", "arguments": {}, "_meta": {"progressToken": "mine"}});
    let (id, mut late) = user.start("tools/call", params).await;
    late.next().await.expect("progress");
    let reason = json!({"requestId": id, "reason": "enough"});
    user.notify("notifications/cancelled", reason).await;
    eventually("the late reply", async || {
        (user.text("replied", json!({})).await == "yes").then_some(())
    })
    .await;
    drop(late);
    assert!(garbage().await < 0.5, "{}", garbage().await);
    user.call("unasked", json!({})).await.expect("a result");
    let unasked = garbage().await;
    assert!((0.5..1.5).contains(&unasked), "{unasked}");
    gw.stop().await;
}

// Spec: SPEC U-14. `null` as the result of a method without result members is accepted.
#[tokio::test]
async fn a_subscription_that_is_granted_with_null_is_granted() {
    let odd = child(
        r#"
        *'"initialize"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-06-18","capabilities":{"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"odd","version":"1"}}}' ;;
        *'"logging/setLevel"'* | *'"resources/'*subscribe*) say '{"jsonrpc":"2.0","id":'$id',"result":null}' ;;
        "#,
    );
    let gw = behind(&odd, "era = \"legacy\"").start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    for (method, params) in [
        ("ping", json!({})),
        ("logging/setLevel", json!({"level": "info"})),
        ("resources/subscribe", json!({"uri": "a:1"})),
        ("resources/unsubscribe", json!({"uri": "a:1"})),
    ] {
        let reply = within(method, user.request(method, params)).await;
        assert_eq!(reply, Ok(json!({})), "{method}");
    }
    let garbage = gw.metric("drawbridge_upstream_garbage_total", "odd").await;
    assert!(garbage < 0.5, "{garbage}");
    gw.stop().await;
}

// Spec: SPEC U-14.
#[tokio::test]
async fn a_handshake_that_cannot_be_read_fails_at_once() {
    let odd = child(r#"*'"initialize"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{NaN}}' ;;"#);
    let keys = "era = \"legacy\"\nconnect_timeout = \"5m\"";
    let setup = behind(&odd, keys).toml("[mcp]\nconnect_wait = \"5m\"");
    let gw = setup.start().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let answer = within("the failure", gw.anonymous().post("/mcp/odd", &[], &hello)).await;
    let said = answer.text().await;
    assert!(said.contains("invalid message"), "{said}");
    gw.stop().await;
}

// The child ended before a call could be sent to it: the error must not leave open whether one ran.
#[tokio::test]
async fn a_child_that_ends_of_its_handshake_is_said_to_end_while_it_is_opened() {
    let odd = child(r#"*'"initialize"'*) echo 'no licence' >&2; exit 3 ;;"#);
    let gw = behind(&odd, "era = \"legacy\"").start().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let answer = within("the failure", gw.anonymous().post("/mcp/odd", &[], &hello)).await;
    let said = answer.text().await;
    assert!(said.contains("while it was being opened"), "{said}");
    assert!(said.contains("exit status: 3: no licence"), "{said}");
    assert!(!said.contains("unknown"), "{said}");
    gw.stop().await;
}

/// Shell that waits until the test has made the file `go` in `dir`.
fn wait_for_go(dir: &Path) -> String {
    format!("while [ ! -e {}/go ]; do sleep 0.05; done", dir.display())
}

fn go(dir: &TempDir) {
    std::fs::write(dir.path().join("go"), "").unwrap();
}

// Spec: SPEC D-08; BRIDGING §1.3: a verdict on a child that died of its probe applies to its owner alone.
#[tokio::test]
async fn a_child_that_dies_of_its_probe_says_nothing_of_other_owners_children() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let refuses = child(
        r#"*'"initialize"'*) say '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"what?"}}' ;;"#,
    );
    let odd = format!(
        "if mkdir {at}/first 2>/dev/null; then echo $HOME > {at}/unlucky; {}; exit 3; fi\n{}",
        wait_for_go(dir.path()),
        refuses.replace(
            "case \"$line\"",
            &format!("echo \"$HOME $line\" >> {at}/seen; case \"$line\"")
        ),
    );
    let keys = "isolation = \"principal\"\nconnect_timeout = \"1m\"";
    let setup = Setup::secured().stdio("odd", "sh", &["-c", &odd], keys);
    let gw = setup.start().await;
    let unlucky = Modern::new(gw.principal("alice"), "/mcp/odd");
    let lucky = Modern::new(gw.principal("bob"), "/mcp/odd");
    let (_, result, ()) = tokio::join!(
        unlucky.call("plain", json!({})),
        async {
            eventually("the first child", async || {
                dir.path().join("unlucky").exists().then_some(())
            })
            .await;
            lucky.call("plain", json!({})).await
        },
        async {
            eventually("both wait", async || {
                let running = gw.metric("drawbridge_calls_running", "").await;
                (running >= 2.0).then_some(())
            })
            .await;
            go(&dir);
        }
    );
    assert_eq!(text_of(&result.expect("a result")), "plain");
    let read = |name| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let (home, seen) = (read("unlucky"), read("seen"));
    let others = seen.lines().filter(|line| !line.starts_with(home.trim()));
    let greeted: Vec<_> = others.filter(|line| line.contains("initialize")).collect();
    assert!(
        greeted.is_empty(),
        "nothing said that it is legacy: {greeted:?}"
    );
    gw.stop().await;
}

// Spec: SPEC D-08; DESIGN §6: a session that waits for another one's probe does not probe again.
#[tokio::test]
async fn sessions_of_one_owner_do_not_probe_one_after_the_other_what_dies_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let odd = child(&format!(
        "*server/discover*) echo >> {at}/probes; {}; exit 3 ;;",
        wait_for_go(dir.path())
    ));
    let keys = "isolation = \"session\"\nconnect_timeout = \"1m\"";
    let gw = behind(&odd, keys).start().await;
    let users = [gw.anonymous(), gw.anonymous(), gw.anonymous()];
    let opened = users.iter().map(|user| user.open("/mcp/odd"));
    let (opened, ()) = tokio::join!(futures_util::future::join_all(opened), async {
        eventually("all wait for the probe", async || {
            (gw.metric("drawbridge_sessions_open", "").await >= 3.0).then_some(())
        })
        .await;
        go(&dir);
    });
    for user in &opened {
        assert_eq!(user.text("plain", json!({})).await, "plain");
    }
    let probes = std::fs::read_to_string(dir.path().join("probes")).unwrap();
    assert_eq!(probes.lines().count(), 1);
    gw.stop().await;
}

// Spec: SPEC D-07, D-08. The child reads both requests when ready, and answers the later one first.
#[tokio::test]
async fn a_slow_child_that_refuses_the_handshake_before_it_says_what_it_speaks_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let discovered = r#"{"jsonrpc":"2.0","id":0,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}}"#;
    let refused = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"what?"}}"#;
    let odd = format!(
        "echo >> {at}/starts
        if mkdir {at}/first; then read -r asked; read -r greeted; echo '{refused}'; echo '{discovered}'; fi
        {}",
        child(r#"*'"initialize"'*) say '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"what?"}}' ;;"#)
    );
    let gw = behind(&odd, "connect_timeout = \"1m\"").start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    assert_eq!(user.text("plain", json!({})).await, "plain");
    let starts = std::fs::read_to_string(dir.path().join("starts")).unwrap();
    // The second child is asked for a session alone; no third one is needed.
    assert_eq!(starts.lines().count(), 2);
    gw.stop().await;
}

// Spec: BRIDGING §3.1 step 7; SPEC C-20, M-42. The level is sent beside the retry's answer, in either order.
#[tokio::test]
async fn what_a_child_logs_beside_a_change_of_level_reaches_the_retry() {
    let odd = child(
        r#"
        *'"initialize"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"odd","version":"1"}}}' ;;
        *'"asks"'*) call=$id; is_told=; say '{"jsonrpc":"2.0","id":77,"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}' ;;
        *logging/setLevel*) is_told=yes ;;
        *'"action"'*)
            [ "$is_told" ] || read -r level
            say '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"answered"}}'
            say '{"jsonrpc":"2.0","id":'$call',"result":{"content":[{"type":"text","text":"done"}]}}' ;;
        "#,
    );
    let gw = behind(&odd, "era = \"legacy\"").start().await;
    let quiet = Modern::new(gw.anonymous(), "/mcp/odd");
    let asked = quiet.call("asks", json!({})).await.expect("a question");
    let (key, _) = asked["inputRequests"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    let params = json!({
        "name": "asks", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {}}},
    });
    let level = json!({"io.modelcontextprotocol/logLevel": "debug"});
    let loud = Modern::new(gw.anonymous(), "/mcp/odd").meta(level);
    let retry = loud.start("tools/call", params).await;
    let (before, reply) = within("the reply", retry.finish()).await;
    assert_eq!(text_of(&reply.expect("a result")), "done");
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(before[0]["params"]["data"], "answered");
    gw.stop().await;
}

/// How many wait for a place, as the metrics say it.
async fn awaited(gw: &Gateway) -> String {
    let awaited = gw.metric("drawbridge_children_awaited", "").await;
    awaited.to_string()
}

// Spec: DESIGN §6: the wait for a place has its own bound, `stdio.spawn_wait`.
#[tokio::test]
async fn the_wait_for_a_place_is_no_part_of_connecting() {
    let dir = tempfile::tempdir().unwrap();
    let odd = child(&format!(
        r#"*'"long"'*) {}; say '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[]}}}}' ;;"#,
        wait_for_go(dir.path())
    ));
    let keys = "era = \"legacy\"\nconnect_timeout = \"3s\"";
    let tables = "[mcp]\nconnect_wait = \"100ms\"\n[stdio]\nmax_children = 1\nspawn_wait = \"1m\"";
    let gw = behind(&odd, keys).toml(tables).start().await;
    let first = gw.anonymous().open("/mcp/odd").await;
    let second = gw.anonymous().open("/mcp/odd").await;
    let (long, waited) = tokio::join!(first.call("long", json!({})), async {
        eventually("the child is at work", async || {
            (gw.metric("drawbridge_calls_running", "").await >= 1.0).then_some(())
        })
        .await;
        let mut waiting = Box::pin(second.call("plain", json!({})));
        let refused = tokio::time::timeout(Duration::from_secs(5), &mut waiting).await;
        assert!(refused.is_err(), "it waits: {refused:?}");
        assert_eq!(awaited(&gw).await, "1");
        go(&dir);
        waiting.await
    });
    long.expect("a result");
    assert_eq!(awaited(&gw).await, "0");
    let waited: Value = waited.expect("a result");
    assert_eq!(text_of(&waited), "plain", "{waited}");
    gw.stop().await;
}

// Spec: SPEC M-52. Clients take what is not declared for missing, and do not ask again.
#[tokio::test]
async fn a_discovery_of_one_server_waits_for_its_place_too() {
    let dir = tempfile::tempdir().unwrap();
    let odd = child(&format!(
        r#"*'"long"'*) {}; say '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[]}}}}' ;;"#,
        wait_for_go(dir.path())
    ));
    let keys = "era = \"legacy\"\nconnect_timeout = \"3s\"";
    let tables = "[stdio]\nmax_children = 1\nspawn_wait = \"1m\"";
    let gw = behind(&odd, keys).toml(tables).start().await;
    let first = gw.anonymous().open("/mcp/odd").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/odd");
    let (long, said) = tokio::join!(first.call("long", json!({})), async {
        eventually("the child is at work", async || {
            (gw.metric("drawbridge_calls_running", "").await >= 1.0).then_some(())
        })
        .await;
        let mut discovery = Box::pin(modern.send("server/discover", json!({})));
        let said = tokio::time::timeout(Duration::from_secs(5), &mut discovery).await;
        assert!(said.is_err(), "it waits: {said:?}");
        go(&dir);
        discovery.await
    });
    long.expect("a result");
    let said = said.expect("a result");
    assert!(said["capabilities"]["tools"].is_object(), "{said}");
    gw.stop().await;
}

async fn calls_run(gw: &Gateway, at_least: f64) {
    eventually("calls run", async || {
        (gw.metric("drawbridge_calls_running", "").await >= at_least).then_some(())
    })
    .await;
}

// Spec: DESIGN §6: a principal at its cap delays no probe for other principals.
#[tokio::test]
async fn who_waits_for_a_place_holds_up_no_probe_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let busy = child(&format!(
        r#"*'"long"'*) {}; say '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[]}}}}' ;;"#,
        wait_for_go(dir.path())
    ));
    let gw = Setup::secured()
        .toml("[stdio]\nmax_children_per_principal = 1\nspawn_wait = \"1m\"")
        .stdio("busy", "sh", &["-c", &busy], "era = \"legacy\"")
        .stdio("odd", "sh", &["-c", &child("")], "")
        .start()
        .await;
    let busy = gw.principal("alice").open("/mcp/busy").await;
    let waiting = Modern::new(gw.principal("alice"), "/mcp/odd");
    let other = Modern::new(gw.principal("bob"), "/mcp/odd");
    let (long, waited, ()) = tokio::join!(
        busy.call("long", json!({})),
        async {
            calls_run(&gw, 1.0).await;
            waiting.call("plain", json!({})).await
        },
        async {
            calls_run(&gw, 2.0).await;
            let served = within("the other's reply", other.call("plain", json!({}))).await;
            assert_eq!(text_of(&served.expect("a result")), "plain");
            go(&dir);
        }
    );
    long.expect("a result");
    assert_eq!(text_of(&waited.expect("a result")), "plain");
    gw.stop().await;
}

// Spec: DESIGN §6; BRIDGING §3.4: `stdio.spawn_wait` bounds the wait of a subscription as well.
#[tokio::test]
async fn the_wait_of_a_subscription_for_a_place_is_no_part_of_connecting() {
    let dir = tempfile::tempdir().unwrap();
    let odd = child(&format!(
        r#"
        *server/discover*) say '{{"jsonrpc":"2.0","id":'$id',"result":{{"supportedVersions":["2026-07-28"],"capabilities":{{"tools":{{}},"resources":{{"subscribe":true}}}}}}}}' ;;
        *subscriptions/listen*) say '{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":'$id'}},"notifications":{{"resourceSubscriptions":["test://1"]}}}}}}' ;;
        *'"long"'*) {}; say '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[]}}}}' ;;
        "#,
        wait_for_go(dir.path())
    ));
    let keys = "era = \"modern\"\nconnect_timeout = \"2s\"";
    let tables = "[stdio]\nmax_children = 1\nspawn_wait = \"1m\"";
    let gw = behind(&odd, keys).toml(tables).start().await;
    let first = gw.anonymous().open("/mcp/odd").await;
    let second = gw.anonymous().open("/mcp/odd").await;
    let (long, waited) = tokio::join!(first.call("long", json!({})), async {
        calls_run(&gw, 1.0).await;
        let uri = json!({"uri": "test://1"});
        let mut waiting = Box::pin(second.request("resources/subscribe", uri));
        let refused = tokio::time::timeout(Duration::from_secs(5), &mut waiting).await;
        assert!(refused.is_err(), "it waits: {refused:?}");
        go(&dir);
        waiting.await
    });
    long.expect("a result");
    assert_eq!(waited, Ok(json!({})));
    gw.stop().await;
}

// Spec: SPEC D-05. Its place is taken by another one before the gateway has made sure of its end.
#[tokio::test]
async fn a_child_that_closes_its_output_counts_as_lost_though_another_takes_its_place_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    let odd = child(&format!(
        r#"*'"last"'*) say '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[]}}}}'; exec >&-; : > {}; sleep 60 ;;"#,
        closed.display()
    ));
    let keys = "era = \"legacy\"\nstop = { eof = \"100ms\", term = \"100ms\" }";
    let gw = behind(&odd, keys).start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    user.call("last", json!({})).await.expect("a result");
    eventually("its output is closed", async || {
        closed.exists().then_some(())
    })
    .await;
    assert_eq!(user.text("plain", json!({})).await, "plain");
    let metric = async |name: &str| gw.metric(name, "odd").await;
    assert!(metric("drawbridge_upstream_opened_total").await > 1.0);
    eventually("the loss of the first", async || {
        (metric("drawbridge_upstream_lost_total").await >= 1.0).then_some(())
    })
    .await;
    eventually("the end of the first", async || {
        (gw.metric("drawbridge_children_running", "").await <= 1.0).then_some(())
    })
    .await;
    assert!(metric("drawbridge_upstream_lost_total").await < 2.0);
    gw.stop().await;
}

// Spec: SPEC D-08; BRIDGING §1.3: a verdict on a child that died of a handshake applies to its owner alone.
#[tokio::test]
async fn children_that_die_of_a_handshake_cost_other_owners_no_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    // `initialize` ends every child of the owner that sends it first.
    let odd = child(&format!(
        r#"
        *'"initialize"'*)
            [ -e {at}/unlucky ] || echo $HOME > {at}/unlucky
            [ "$(cat {at}/unlucky)" = "$HOME" ] && exit 3
            echo $HOME > {at}/greeted
            say '{{"jsonrpc":"2.0","id":'$id',"result":{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"odd","version":"1"}}}}}}' ;;
        "#
    ));
    let setup = Setup::secured().stdio("odd", "sh", &["-c", &odd], "");
    let gw = setup.start().await;
    let unlucky = gw.principal("alice").open("/mcp/odd").await;
    assert_eq!(unlucky.text("plain", json!({})).await, "plain");
    assert!(!dir.path().join("greeted").exists());
    let lucky = gw.principal("bob").open("/mcp/odd").await;
    assert_eq!(lucky.text("plain", json!({})).await, "plain");
    assert!(dir.path().join("greeted").exists(), "it was offered none");
    // The verdict is kept for its owner: her next child is not sent `initialize`, and no second one has to be started.
    let starts = async || gw.metric("drawbridge_children_spawned_total", "").await;
    let before = starts().await;
    let again = gw.principal("alice").open("/mcp/odd").await;
    assert_eq!(again.text("plain", json!({})).await, "plain");
    assert!(starts().await - before < 2.0, "none that dies");
    gw.stop().await;
}

// Spec: BRIDGING §3.6: what the client has to do is the same as before, and is not shown twice.
#[tokio::test]
async fn a_page_that_is_to_be_visited_still_is_asked_for_under_the_same_key() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let odd = child(&format!(
        r#"
        *'"visit"'*)
            if mkdir {at}/first || mkdir {at}/second; then
                say '{{"jsonrpc":"2.0","id":'$id',"error":{{"code":-32042,"message":"m","data":{{"elicitations":[{{"mode":"url","url":"https://consent.example/start","elicitationId":"e","message":"m"}}]}}}}}}'
            else
                say '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[{{"type":"text","text":"visited"}}]}}}}'
            fi ;;
        "#
    ));
    let gw = behind(&odd, "era = \"modern\"").start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/odd");
    let key = |asked: &Value| -> String {
        let all = asked["inputRequests"].as_object().expect("questions");
        assert_eq!(all.len(), 1, "{asked}");
        all.keys().next().unwrap().clone()
    };
    let retry = async |asked: &Value| {
        let params = json!({
            "name": "visit", "arguments": {}, "requestState": asked["requestState"],
            "inputResponses": {key(asked): {"action": "accept"}},
        });
        within("the answer", user.send("tools/call", params))
            .await
            .expect("a result")
    };
    let asked = user.call("visit", json!({})).await.expect("a question");
    let again = retry(&asked).await;
    assert_eq!(key(&again), key(&asked));
    assert_eq!(text_of(&retry(&again).await), "visited");
    gw.stop().await;
}

// Spec: SPEC D-05.
#[tokio::test]
async fn a_child_that_closes_its_output_and_lives_on_is_told_of_as_one() {
    let odd = child(r#"*'"mute"'*) exec 1>&- ;;"#);
    let gw = behind(&odd, "era = \"legacy\"").start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    let said = user.call("mute", json!({})).await.unwrap();
    let said = text_of(&said).to_owned();
    assert!(said.contains("last words: it closed its output"), "{said}");
    eventually("a line in the log", async || {
        let records = gw.log_records();
        let told = records.iter().find(|record| {
            record["message"] == "an upstream process was stopped: it closed its output"
        })?;
        assert_eq!(told["level"], "WARN");
        Some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC D-02, U-14. Text that a library prints without a line break precedes the next message on its line.
#[rstest]
#[tokio::test]
async fn reply_behind_other_text_is_the_reply(
    #[values("auto", "legacy", "modern")] era: &str,
    #[values("Loading... ", "[INFO] ready ", "{debug} ")] text: &str,
) {
    let odd = child(
        r#"
        *'"mixed"'*) text; say '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"mixed"}]}}' ;;
        "#,
    );
    let odd = format!("text() {{ printf '%s' '{text}'; }}\ntext\n{odd}");
    let gw = behind(&odd, &format!("era = {era:?}\nidle_timeout = \"5m\""))
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/odd").await;
    let mixed = within("its reply", user.call("mixed", json!({}))).await;
    assert_eq!(text_of(&mixed.expect("a result")), "mixed");
    let salvaged = gw.metric("drawbridge_upstream_salvaged_total", "odd").await;
    assert!((1.5..2.5).contains(&salvaged), "{salvaged}");
    gw.stop().await;
}

// Spec: SPEC D-02, U-14.
#[rstest]
#[case::own_child("session", true)]
#[case::child_of_several_callers("shared", false)]
#[tokio::test]
async fn timed_out_call_quotes_stray_lines(
    #[values("legacy", "modern")] era: &str,
    #[case] isolation: &str,
    #[case] is_quoted: bool,
) {
    let odd = child(
        r#"
        *'"stuck"'*) say 'cannot open the database: password=hunter2hunter2'; say '{"half": "a' ;;
        "#,
    );
    let keys = format!("era = {era:?}\nisolation = {isolation:?}\nidle_timeout = \"2s\"");
    let gw = behind(&odd, &keys).start().await;
    let user = gw.anonymous().open("/mcp/odd").await;
    let stuck = within("the end", user.call("stuck", json!({}))).await;
    let said = format!("{stuck:?}");
    assert!(said.contains("did not answer in time"), "{said}");
    assert_eq!(
        said.contains("cannot open the database"),
        is_quoted,
        "{said}"
    );
    assert_eq!(said.contains("half"), is_quoted, "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    gw.stop().await;
}
