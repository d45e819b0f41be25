//! `/mcp`: several upstreams behind one URL. Spec: BRIDGING §4, §5; DESIGN §4.

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually};
use crate::modern::Modern;

async fn two() -> (Gateway, HttpStub) {
    let stub = HttpStub::start(&["--name", "web server"]).await;
    let gw = Setup::open()
        .stub("left", &[])
        .http("right", &stub, "")
        .start()
        .await;
    (gw, stub)
}

async fn pids(user: &Session) -> (String, String) {
    (
        user.text("left__pid", json!({})).await,
        user.text("right__pid", json!({})).await,
    )
}

#[tokio::test]
async fn equal_names_are_kept_apart_by_prefix() {
    let (gw, _stub) = two().await;
    let user = gw.anonymous().open("/mcp").await;
    let tools = user.tools().await;
    for name in ["left__echo", "right__echo"] {
        assert_eq!(
            tools.iter().filter(|tool| *tool == name).count(),
            1,
            "{name}"
        );
    }
    assert!(tools.iter().all(|tool| tool.contains("__")), "{tools:?}");
    let (left, right) = pids(&user).await;
    assert_ne!(left, right);
    let prompts = user.names("prompts/list", "prompts", "name").await;
    assert!(prompts.contains(&"left__greet".into()) && prompts.contains(&"right__greet".into()));
    let prompt = json!({"name": "right__greet", "arguments": {"name": "Ada"}});
    let prompt = user.request("prompts/get", prompt).await.expect("a prompt");
    assert!(prompt.to_string().contains("Ada"));
    gw.stop().await;
}

#[tokio::test]
async fn equal_uris_are_kept_apart_and_come_back_mapped() {
    let (gw, _stub) = two().await;
    let user = gw.anonymous().open("/mcp").await;
    let uris = user.names("resources/list", "resources", "uri").await;
    for uri in ["left+stub://static/1", "right+stub://static/1"] {
        assert!(uris.contains(&uri.to_owned()), "{uris:?}");
        let read = user
            .request("resources/read", json!({"uri": uri}))
            .await
            .expect("contents");
        assert_eq!(read["contents"][0]["uri"], uri);
    }
    let templates = user
        .names(
            "resources/templates/list",
            "resourceTemplates",
            "uriTemplate",
        )
        .await;
    assert!(
        templates.contains(&"left+stub://item/{id}".to_owned()),
        "{templates:?}"
    );
    let read = user
        .request("resources/read", json!({"uri": "left+stub://item/7"}))
        .await;
    assert_eq!(
        read.expect("contents")["contents"][0]["uri"],
        "left+stub://item/7"
    );
    let reference = json!({"type": "ref/resource", "uri": "right+stub://item/{id}"});
    let completion = json!({"ref": reference, "argument": {"name": "id", "value": "1"}});
    user.request("completion/complete", completion)
        .await
        .expect("a completion");
    gw.stop().await;
}

#[tokio::test]
async fn updates_name_the_uri_that_was_subscribed_to() {
    let (gw, _stub) = two().await;
    let user = gw.anonymous().open("/mcp").await;
    let mut stream = user.listen().await;
    for (tool, uri) in [
        ("left__touch_resource", "left+stub://static/2"),
        ("right__touch_resource", "right+stub://static/2"),
    ] {
        user.request("resources/subscribe", json!({ "uri": uri }))
            .await
            .expect("subscribed");
        eventually("the upstream announces it", async || {
            let told = user.text(tool, json!({"uri": "stub://static/2"})).await;
            (told == "announced").then_some(())
        })
        .await;
        let update = stream.until("notifications/resources/updated").await;
        assert_eq!(update["params"]["uri"], uri);
    }
    gw.stop().await;
}

// Spec: BRIDGING §4.1: also where other sessions follow resources over the same links.
#[rstest]
#[tokio::test]
async fn the_same_uri_is_followed_at_each_upstream_for_itself(
    #[values("principal", "shared")] isolation: &str,
) {
    let keys = format!("isolation = {isolation:?}");
    let setup = Setup::open().stub_with("left", &[], &keys);
    let gw = setup.stub_with("right", &[], &keys).start().await;
    let (left, right) = ("left+stub://static/1", "right+stub://static/1");
    let both = gw.anonymous().open("/mcp").await;
    let mut told_both = both.listen().await;
    let one = gw.anonymous().open("/mcp").await;
    let mut told_one = one.listen().await;
    for (user, method, uri) in [
        (&both, "resources/subscribe", left),
        (&both, "resources/subscribe", right),
        (&one, "resources/subscribe", left),
        (&both, "resources/unsubscribe", left),
    ] {
        let answer = user.request(method, json!({"uri": uri})).await;
        answer.expect("an answer");
    }
    let uri = json!({"uri": "stub://static/1"});
    // Touch the unfollowed resource first: a wrong notice would arrive before the right one.
    both.text("right__touch_resource", uri.clone()).await;
    one.text("left__touch_resource", uri).await;
    for (stream, uri) in [(&mut told_both, right), (&mut told_one, left)] {
        let update = stream.until("notifications/resources/updated").await;
        assert_eq!(update["params"]["uri"], uri);
    }
    gw.stop().await;
}

#[tokio::test]
async fn a_bare_name_is_an_alias_only_while_one_upstream_has_it() {
    let stub = HttpStub::start(&["--tools", "3"]).await;
    let gw = Setup::open()
        .stub("left", &[])
        .http("right", &stub, "")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp").await;
    assert_eq!(user.text("state_get", json!({"key": "k"})).await, "(unset)");
    assert_eq!(
        user.text("filler_001", json!({"query": "q"})).await,
        r#"{"query":"q"}"#
    );
    let error = user.call("echo", json!({})).await.expect_err("two owners");
    assert_eq!(error["code"], -32602, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("left__echo") && text.contains("right__echo"),
        "{text}"
    );
    for unknown in [
        "nobody__echo",
        "left__nothing",
        "nothing",
        "__echo",
        "left__",
    ] {
        let reply = user.call(unknown, json!({})).await;
        assert_eq!(reply.expect_err("unknown")["code"], -32602, "{unknown}");
    }
    gw.stop().await;
}

// An index built while one upstream was away is invalidated when another upstream announces a change.
#[tokio::test]
async fn a_new_bare_name_is_found_while_another_upstream_is_away() {
    let away = HttpStub::start(&[]).await;
    let url = away.url.clone();
    away.stop().await;
    let gw = Setup::open()
        .stub("left", &[])
        .url("away", &url, "")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp").await;
    let mut stream = user.listen().await;
    let error = user.call("extra", json!({})).await.expect_err("not yet");
    assert_eq!(error["code"], -32602, "{error}");
    user.text("left__change_tools", json!({})).await;
    stream.until("notifications/tools/list_changed").await;
    assert_eq!(user.text("extra", json!({})).await, "extra");
    gw.stop().await;
}

#[tokio::test]
async fn a_single_upstream_needs_no_prefix_unless_told() {
    let gw = Setup::open().stub("only", &[]).start().await;
    let user = gw.anonymous().open("/mcp").await;
    assert!(user.tools().await.contains(&"echo".to_owned()));
    assert_eq!(user.text("echo", json!({})).await, "{}");
    gw.stop().await;
    let setup = Setup::open()
        .toml("[mcp]\nprefix = \"always\"")
        .stub("only", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp").await;
    assert!(user.tools().await.contains(&"only__echo".to_owned()));
    assert_eq!(user.text("only__echo", json!({})).await, "{}");
    gw.stop().await;
}

#[tokio::test]
async fn named_endpoints_show_what_they_select() {
    let gw = Setup::open()
        .toml("[endpoints.dev]\nupstreams = [\"left\"]\ntools = [\"left:e*\", \"left:pid\"]")
        .stub("left", &[])
        .stub_with("hidden", &[], "merged = false\ndirect = false")
        .stub("right", &[])
        .start()
        .await;
    let dev = gw.anonymous().open("/mcp/dev").await;
    let mut tools = dev.tools().await;
    tools.sort_unstable();
    assert!(
        tools.contains(&"echo".into()) && tools.contains(&"pid".into()),
        "{tools:?}"
    );
    assert!(
        tools
            .iter()
            .all(|tool| tool == "pid" || tool.starts_with('e')),
        "{tools:?}"
    );
    let refused = dev.call("state_get", json!({"key": "k"})).await;
    assert_eq!(refused.expect_err("not shown here")["code"], -32602);
    let hello = crate::harness::http::initialize(1, "2025-11-25", &json!({}));
    assert_eq!(
        gw.anonymous()
            .post("/mcp/hidden", &[], &hello)
            .await
            .status(),
        404
    );
    let all = gw.anonymous().open("/mcp").await.tools().await;
    assert!(
        !all.iter().any(|tool| tool.starts_with("hidden")),
        "{all:?}"
    );
    gw.stop().await;
}

// Spec: SPEC C-40: an empty string is a cursor.
#[tokio::test]
async fn pages_of_all_upstreams_come_through_whole() {
    let paged = HttpStub::start(&["--tools", "45", "--list-page-size", "10"]).await;
    let empty =
        HttpStub::start(&["--tools", "25", "--list-page-size", "10", "--empty-cursor"]).await;
    let gw = Setup::open()
        .http("a", &paged, "")
        .http("b", &empty, "")
        .start()
        .await;
    let merged = gw.anonymous().open("/mcp").await.tools().await;
    assert_eq!(
        merged.iter().filter(|name| name.starts_with("a__")).count(),
        45
    );
    assert_eq!(
        merged.iter().filter(|name| name.starts_with("b__")).count(),
        25
    );
    for (path, count) in [("/mcp/a", 45), ("/mcp/b", 25)] {
        let user = gw.anonymous().open(path).await;
        assert_eq!(user.tools().await.len(), count, "{path}");
        let first = user.request("tools/list", json!({})).await.expect("a page");
        let cursor = first["nextCursor"].as_str().expect("more pages").to_owned();
        // Another session's cursor is no cursor here.
        let stranger = gw.anonymous().open("/mcp").await;
        let error = stranger
            .request("tools/list", json!({ "cursor": cursor }))
            .await;
        assert_eq!(error.expect_err("foreign")["code"], -32602, "{path}");
    }
    gw.stop().await;
}

// Spec: SPEC C-40. Some clients write `null` when they have no cursor, which strict servers refuse.
#[tokio::test]
async fn a_cursor_that_is_null_is_none() {
    let paged = HttpStub::start(&["--tools", "45", "--list-page-size", "10"]).await;
    let gw = Setup::open()
        .http("a", &paged, "")
        .stub("b", &[])
        .start()
        .await;
    let (absent, null) = (json!({}), json!({"cursor": null}));
    for path in ["/mcp", "/mcp/a"] {
        let user = gw.anonymous().open(path).await;
        let page = user.request("tools/list", absent.clone()).await.unwrap();
        let same = user.request("tools/list", null.clone()).await;
        let same = same.unwrap();
        assert!(same["tools"] == page["tools"], "{path}: {same}");
        let user = Modern::new(gw.anonymous(), path);
        let page = user.send("tools/list", absent.clone()).await.unwrap();
        let same = user.send("tools/list", null.clone()).await.unwrap();
        assert!(same["tools"] == page["tools"], "{path}: {same}");
    }
    gw.stop().await;
}

// Issue: "a slow or dead upstream costs the others nothing: partial list within its deadline, a
// notice when it returns".
#[tokio::test]
async fn a_slow_or_dead_upstream_costs_the_others_nothing() {
    let late = HttpStub::start(&[]).await;
    let port = late.port();
    let url = late.url.clone();
    late.stop().await;
    let gw = Setup::open()
        .toml("[mcp]\nconnect_wait = \"500ms\"\nfirst_wait = \"500ms\"")
        .stub("fast", &[])
        .stub_with("slow", &["--slow-start", "4000"], "")
        .url("dead", &url, "")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp").await;
    let mut stream = user.listen().await;
    let tools = user.tools().await;
    assert!(tools.contains(&"fast__echo".to_owned()), "{tools:?}");
    // Neither was waited for to its end.
    let of_others = |tool: &String| tool.starts_with("dead") || tool.starts_with("slow");
    assert!(!tools.iter().any(of_others), "{tools:?}");
    assert_eq!(user.text("fast__echo", json!({})).await, "{}");
    let error = user.call("dead__echo", json!({})).await;
    assert!(error.is_err() || error.unwrap()["isError"] == true);
    // The slow upstream is announced when ready, and the dead upstream when it returns.
    stream.until("notifications/tools/list_changed").await;
    eventually("the slow one is listed", async || {
        user.tools()
            .await
            .contains(&"slow__echo".to_owned())
            .then_some(())
    })
    .await;
    let _back = HttpStub::start_on(port, &[]).await;
    eventually("the dead one is listed", async || {
        user.tools()
            .await
            .contains(&"dead__echo".to_owned())
            .then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn a_change_of_one_upstream_is_announced_and_listed() {
    let (gw, _stub) = two().await;
    let user = gw.anonymous().open("/mcp").await;
    user.tools().await;
    let mut stream = user.listen().await;
    for (tool, extra) in [
        ("left__change_tools", "left__extra"),
        ("right__change_tools", "right__extra"),
    ] {
        user.text(tool, json!({})).await;
        stream.until("notifications/tools/list_changed").await;
        assert!(user.tools().await.contains(&extra.to_owned()), "{extra}");
    }
    gw.stop().await;
}

// Spec: BRIDGING §4.3.
#[tokio::test]
async fn questions_name_the_asker_and_take_no_context_along() {
    let (gw, _stub) = two().await;
    let user = gw.anonymous().open("/mcp").await;
    let (_, mut exchange) = user.start_call("right__ask_form", json!({})).await;
    let question = exchange.next().await.expect("a question");
    let message = question["params"]["message"].as_str().unwrap();
    assert!(message.contains("right"), "{message}");
    user.answer(&question, json!({"action": "decline"})).await;
    exchange.finish().await.1.expect("a result");
    let (_, mut exchange) = user.start_call("left__ask_sampling", json!({})).await;
    let question = exchange.next().await.expect("a question");
    let context = &question["params"]["includeContext"];
    assert!(context.is_null() || context == "none", "{question}");
    let answer = json!({"role": "assistant", "model": "m",
                        "content": {"type": "text", "text": "Hello"}});
    user.answer(&question, answer).await;
    exchange.finish().await.1.expect("a result");
    gw.stop().await;
}

// Spec: BRIDGING §4.1 (`logger`).
#[tokio::test]
async fn log_messages_name_their_upstream() {
    let (gw, _stub) = two().await;
    let user = gw.anonymous().open("/mcp").await;
    user.request("logging/setLevel", json!({"level": "debug"}))
        .await
        .expect("a level");
    for up in ["left", "right"] {
        let arguments = json!({"level": "warning", "n": 1});
        let (_, exchange) = user.start_call(&format!("{up}__log"), arguments).await;
        let (notices, _) = exchange.finish().await;
        let logger = &notices[0]["params"]["logger"];
        assert_eq!(*logger, format!("{up}/stub"), "{notices:?}");
    }
    gw.stop().await;
}

// Spec: BRIDGING §3.5: a session answered from the cache opens an upstream later.
#[tokio::test]
async fn an_upstream_hears_of_the_level_that_was_set_before_it_was_opened() {
    let (gw, _stub) = two().await;
    pids(&gw.anonymous().open("/mcp").await).await;
    let user = gw.anonymous().open("/mcp").await;
    user.request("logging/setLevel", json!({"level": "debug"}))
        .await
        .expect("a level");
    for up in ["left", "right"] {
        for _ in 0..2 {
            let stats = user.text(&format!("{up}__stats"), json!({})).await;
            let stats: Value = serde_json::from_str(&stats).unwrap();
            assert_eq!(stats["counts"]["logging/setLevel"], 1, "{up}: {stats}");
        }
    }
    gw.stop().await;
}

// Spec: BRIDGING §3.5: otherwise the upstream would refuse the level before every call.
#[rstest]
#[tokio::test]
async fn an_upstream_that_refuses_a_log_level_is_asked_for_it_once(
    #[values("legacy", "modern")] client: &str,
) {
    let args = ["--refuse-levels"];
    let stub = HttpStub::start(&args).await;
    let setup = Setup::open().stub("left", &args).http("right", &stub, "");
    let gw = setup.start().await;
    let session = gw.anonymous().open("/mcp").await;
    pids(&session).await;
    for (asked, level) in [(1, "info"), (2, "debug")] {
        let meta = json!({"io.modelcontextprotocol/logLevel": level});
        let modern = Modern::new(gw.anonymous(), "/mcp").meta(meta);
        if client == "legacy" {
            let set = session.request("logging/setLevel", json!({"level": level}));
            assert_eq!(set.await, Ok(json!({})));
        }
        for tool in ["left__stats", "right__stats", "left__stats", "right__stats"] {
            let stats = match client {
                "legacy" => session.call(tool, json!({})).await,
                _ => modern.call(tool, json!({})).await,
            };
            let stats: Value = serde_json::from_str(text_of(&stats.unwrap())).unwrap();
            let counts = &stats["counts"];
            assert_eq!(counts["logging/setLevel"], asked, "{tool}: {counts}");
        }
    }
    gw.stop().await;
}

// Spec: BRIDGING §5.1, DESIGN §4.
#[tokio::test]
async fn the_merged_hello_promises_what_the_gateway_can_keep() {
    let (gw, _stub) = two().await;
    let user = gw.anonymous().open("/mcp").await;
    let capabilities = &user.hello["capabilities"];
    for list in ["tools", "prompts", "resources"] {
        assert_eq!(capabilities[list]["listChanged"], true, "{capabilities}");
    }
    assert_eq!(user.hello["serverInfo"]["name"], "drawbridge");
    gw.stop().await;
}

#[tokio::test]
async fn long_names_are_shortened_and_still_lead_home() {
    // The longest upstream name makes `up__name` pass 64 characters only for longer tool names;
    // all of the stub's fit, so every listed name must be short and must be callable.
    let gw = Setup::open()
        .stub("a23456789-1234567890", &[])
        .stub("b", &[])
        .start()
        .await;
    let user = gw.anonymous().open("/mcp").await;
    let tools = user.tools().await;
    assert!(tools.iter().all(|name| name.len() <= 64), "{tools:?}");
    let result: Value = user
        .call("a23456789-1234567890__pid", json!({}))
        .await
        .expect("a result");
    assert!(text_of(&result).parse::<u32>().is_ok());
    gw.stop().await;
}
