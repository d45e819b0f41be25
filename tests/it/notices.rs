//! Which stream of a client a message takes that names no call, and bursts of change notices.
//! Spec: SPEC T-21, T-22, M-42, M-75, C-02.

use std::sync::Arc;

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::events::EventStream;
use crate::harness::session::{Exchange, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually, within};
use crate::modern::Modern;

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
const UPDATED: &str = "notifications/resources/updated";
/// Calls that ask at the same time.
const AT_ONCE: usize = 30;

async fn behind(carrier: &str) -> (Gateway, Option<HttpStub>) {
    if carrier == "http" {
        let stub = HttpStub::start(&[]).await;
        let gw = Setup::open().http("stub", &stub, "").start().await;
        (gw, Some(stub))
    } else {
        (Setup::open().stub("stub", &[]).start().await, None)
    }
}

fn accept(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// What comes on a call before its reply, answered where it is a question; the text of the reply.
async fn answering(user: &Session, mut exchange: Exchange) -> String {
    loop {
        let message = exchange.next().await.expect("a reply");
        match message["method"].as_str() {
            None => return text_of(&message["result"]).to_owned(),
            Some("elicitation/create") => user.answer(&message, accept("Ada")).await,
            Some(_) => {}
        }
    }
}

// Spec: SPEC M-75; BRIDGING §5.6.
#[rstest]
#[tokio::test]
async fn burst_of_list_changes_becomes_a_few(
    #[values("legacy", "modern")] era: &str,
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier).await;
    let burst = json!({"list": "tools", "n": 200, "ms": 500});
    let end = json!({"list": "prompts"});
    let mut stream = if era == "legacy" {
        let user = gw.anonymous().open("/mcp/stub").await;
        let stream = user.listen().await;
        user.text("announce", burst).await;
        user.text("announce", end).await;
        stream
    } else {
        let user = Modern::new(gw.anonymous(), "/mcp/stub");
        let wanted = json!({"toolsListChanged": true, "promptsListChanged": true});
        let params = json!({"notifications": wanted});
        let listen = user.request(&json!(1), "subscriptions/listen", params);
        let mut stream = user.post(&listen).await.events();
        stream.message().await.expect("an acknowledgement");
        user.call("announce", burst).await.expect("a result");
        user.call("announce", end).await.expect("a result");
        stream
    };
    let mut heard = 0;
    loop {
        let message = stream.message().await.expect("a notice");
        match message["method"].as_str() {
            Some(TOOLS_CHANGED) => heard += 1,
            Some(PROMPTS_CHANGED) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=20).contains(&heard), "{heard}");
    gw.stop().await;
}

/// Finishes `exchange` and calls again until a call brings a notice of this method.
async fn hears(user: &Session, exchange: Exchange, method: &str) {
    let (mut before, reply) = exchange.finish().await;
    reply.expect("a result");
    eventually(method, async || {
        let heard = before.iter().any(|message| message["method"] == method);
        if !heard {
            before = user.start_call("echo", json!({})).await.1.finish().await.0;
        }
        heard.then_some(())
    })
    .await;
}

// A client without a GET stream, as many are by default.
#[rstest]
#[tokio::test]
async fn client_without_get_stream_hears_of_changes(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier).await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let uri = json!({"uri": "stub://static/1"});
    let followed = user.request("resources/subscribe", uri.clone()).await;
    followed.expect("subscribed");
    for _ in 0..5 {
        let (_, exchange) = user.start_call("change_tools", json!({})).await;
        hears(&user, exchange, TOOLS_CHANGED).await;
        let (_, exchange) = user.start_call("touch_resource", uri.clone()).await;
        hears(&user, exchange, UPDATED).await;
    }
    gw.stop().await;
}

// Spec: SPEC T-22.
#[tokio::test]
async fn notice_on_a_calls_stream_stays_on_that_calls() {
    let (gw, _stub) = behind("http").await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut get = user.listen().await;
    let arguments = json!({"list": "tools", "via": "call"});
    let (_, exchange) = user.start_call("announce", arguments).await;
    let (before, _) = exchange.finish().await;
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(before[0]["method"], TOOLS_CHANGED);
    user.text("announce", json!({"list": "prompts"})).await;
    let first = get.message().await.expect("a notice");
    assert_eq!(first["method"], PROMPTS_CHANGED, "{first}");
    gw.stop().await;
}

/// Answers the questions of a GET stream, and nothing else.
async fn answer_get(user: &Session, mut get: EventStream) {
    while let Some(message) = get.message().await {
        if message["method"] == "elicitation/create" {
            user.answer(&message, accept("Ada")).await;
        }
    }
}

// A client that answers questions only where they come by its GET stream.
#[rstest]
#[tokio::test]
async fn answers_on_the_get_stream_alone_are_enough(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier).await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let get = user.listen().await;
    let calls = join_all((0..AT_ONCE).map(|_| user.call("ask_form", json!({"via": "get"}))));
    let replies = tokio::select! {
        replies = within("all replies", calls) => replies,
        () = answer_get(&user, get) => panic!("the stream ended"),
    };
    for reply in replies {
        let result = reply.expect("a result");
        assert!(text_of(&result).contains("Ada"), "{result}");
    }
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn parallel_questions_without_get_stream_lose_none(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier).await;
    let user = Arc::new(gw.anonymous().open("/mcp/stub").await);
    let calls = (0..AT_ONCE).map(|_| async {
        let (_, exchange) = user.start_call("ask_form", json!({"via": "get"})).await;
        answering(&user, exchange).await
    });
    for text in within("all replies", join_all(calls)).await {
        assert!(text.contains("Ada"), "{text}");
    }
    gw.stop().await;
}

/// Calls a tool of the stub that asks, and answers each time that the call ends with questions; the text of the
/// result.
async fn answering_modern(user: &Modern) -> String {
    let mut params = json!({"name": "ask_form", "arguments": {"via": "get"}});
    loop {
        let result = user.send("tools/call", params.clone()).await;
        let result = result.expect("a result");
        if result["resultType"] != "input_required" {
            return text_of(&result).to_owned();
        }
        let asked = result["inputRequests"].as_object().unwrap();
        let answers = asked.keys().map(|key| (key.clone(), accept("Ada")));
        params["inputResponses"] = Value::Object(answers.collect());
        params["requestState"] = result["requestState"].clone();
    }
}

// The reply to one call may come before the answer to a question of another that was asked in it.
#[tokio::test]
async fn parallel_questions_of_modern_calls_lose_none() {
    let stub = HttpStub::start(&[]).await;
    let setup = Setup::open().toml("[limits]\nparked_per_principal = 64");
    let gw = setup.http("stub", &stub, "").start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let calls = (0..AT_ONCE).map(|_| answering_modern(&user));
    for text in within("all replies", join_all(calls)).await {
        assert!(text.contains("Ada"), "{text}");
    }
    gw.stop().await;
}

// Spec: SPEC T-21: never on two streams under one id.
#[tokio::test]
async fn question_unanswered_on_the_get_stream_is_asked_again() {
    let (gw, _stub) = behind("http").await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut get = user.listen().await;
    user.text("echo", json!({})).await;
    let (_, mut exchange) = user.start_call("ask_form", json!({"via": "get"})).await;
    let asked = get.until("elicitation/create").await;
    let again = exchange.next().await.expect("the question again");
    assert_eq!(again["method"], "elicitation/create");
    assert_ne!(again["id"], asked["id"]);
    let withdrawn = get.until("notifications/cancelled").await;
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    user.answer(&again, accept("Ada")).await;
    let (_, reply) = exchange.finish().await;
    assert!(text_of(&reply.expect("a result")).contains("Ada"));
    gw.stop().await;
}

// Spec: SPEC M-42.
#[tokio::test]
async fn modern_call_carries_no_notices_of_others() {
    let (gw, _stub) = behind("http").await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    for via in ["get", "call"] {
        let arguments = json!({"list": "tools", "n": 3, "ms": 30, "via": via});
        let params = json!({"name": "announce", "arguments": arguments});
        let request = user.request(&json!(via), "tools/call", params);
        let answer = user.post(&request).await;
        let first = if answer.is_stream() {
            answer.events().message().await.expect("a reply")
        } else {
            answer.json().await
        };
        assert_eq!(first["id"], via, "{first}");
    }
    gw.stop().await;
}

fn with_listchanged(text: &Value) -> bool {
    text.to_string().contains("istChanged")
}

// For clients that fail at `list_changed`.
#[rstest]
#[tokio::test]
async fn legacy_client_hears_no_list_changed_if_off(
    #[values("legacy", "modern")] upstream: &str,
    #[values("/mcp/stub", "/mcp")] path: &str,
) {
    let setup = Setup::open()
        .stub_with("stub", &["--era", upstream], "list_changed = false")
        .stub("other", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open(path).await;
    let is_merged = path == "/mcp";
    assert_eq!(with_listchanged(&user.hello["capabilities"]), is_merged);
    let prefix = if is_merged { "stub__" } else { "" };
    let mut stream = user.listen().await;
    let before = user.tools().await.len();
    user.text(&format!("{prefix}change_tools"), json!({})).await;
    // The gateway's own copies of the list are out of date all the same.
    assert_eq!(user.tools().await.len(), before + 1);
    if is_merged {
        user.text("other__change_prompts", json!({})).await;
        let first = stream.message().await.expect("a notice");
        assert_eq!(first["method"], PROMPTS_CHANGED, "{first}");
    } else {
        let uri = json!({"uri": "stub://static/1"});
        let followed = user.request("resources/subscribe", uri.clone()).await;
        followed.expect("subscribed");
        user.text("touch_resource", uri).await;
        let first = stream.message().await.expect("a notice");
        assert_eq!(first["method"], UPDATED, "{first}");
    }
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn nobody_hears_list_changed_if_it_is_off_for_all(#[values("/mcp", "/mcp/stub")] path: &str) {
    let setup = Setup::open().toml("[mcp]\nlist_changed = false");
    let gw = setup.stub("stub", &[]).stub("other", &[]).start().await;
    let user = gw.anonymous().open(path).await;
    assert!(!with_listchanged(&user.hello["capabilities"]), "{path}");
    let prefix = if path == "/mcp" { "stub__" } else { "" };
    let mut stream = user.listen().await;
    let before = user.tools().await.len();
    user.text(&format!("{prefix}change_tools"), json!({})).await;
    assert_eq!(user.tools().await.len(), before + 1);
    let resources = user.names("resources/list", "resources", "uri").await;
    let is_static = |uri: &&String| uri.ends_with("static/1");
    let shown = resources.iter().find(is_static).expect("a resource");
    let followed = user.request("resources/subscribe", json!({"uri": shown}));
    followed.await.expect("subscribed");
    let uri = json!({"uri": "stub://static/1"});
    user.text(&format!("{prefix}touch_resource"), uri).await;
    let first = stream.message().await.expect("a notice");
    assert_eq!(first["method"], UPDATED, "{first}");
    let modern = Modern::new(gw.anonymous(), path);
    let said = modern.send("server/discover", json!({})).await;
    assert!(!with_listchanged(&said.expect("a result")["capabilities"]));
    let wanted = json!({"toolsListChanged": true, "promptsListChanged": true});
    let params = json!({"notifications": wanted});
    let listen = modern.request(&json!(1), "subscriptions/listen", params);
    let mut stream = modern.post(&listen).await.events();
    let heard = stream.message().await.expect("an acknowledgement");
    assert!(
        !with_listchanged(&heard["params"]["notifications"]),
        "{heard}"
    );
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn modern_client_hears_no_list_changed_if_off(
    #[values("legacy", "modern")] upstream: &str,
    #[values("/mcp/stub", "/mcp")] path: &str,
) {
    let setup = Setup::open()
        .stub_with("stub", &["--era", upstream], "list_changed = false")
        .stub("other", &[]);
    let gw = setup.start().await;
    let user = Modern::new(gw.anonymous(), path);
    let is_merged = path == "/mcp";
    let said = user.send("server/discover", json!({})).await;
    let said = said.expect("a result");
    assert_eq!(with_listchanged(&said["capabilities"]), is_merged);
    let prefix = if is_merged { "stub__" } else { "" };
    let mut wanted = json!({"toolsListChanged": true, "promptsListChanged": true});
    if !is_merged {
        wanted["resourceSubscriptions"] = json!(["stub://static/1"]);
    }
    let params = json!({"notifications": wanted});
    let listen = user.request(&json!(1), "subscriptions/listen", params);
    let mut stream = user.post(&listen).await.events();
    let heard = stream.message().await.expect("an acknowledgement");
    assert_eq!(
        with_listchanged(&heard["params"]["notifications"]),
        is_merged
    );
    for tool in ["change_tools", "touch_resource"] {
        let arguments = json!({"uri": "stub://static/1"});
        let called = user.call(&format!("{prefix}{tool}"), arguments).await;
        called.expect("a result");
    }
    if is_merged {
        user.call("other__change_prompts", json!({}))
            .await
            .expect("a result");
    }
    let first = stream.message().await.expect("a notice");
    let expected = if is_merged { PROMPTS_CHANGED } else { UPDATED };
    assert_eq!(first["method"], expected, "{first}");
    gw.stop().await;
}
