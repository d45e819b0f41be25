//! Missing accounts: the lists meanwhile, a key that its upstream refuses, and calls that wait for the same question.

use serde_json::{Value, json};

use super::user_key::{KEY, OTHER, Page, World, connect, path_in};
use super::world::Verdict;
use crate::harness::events::EventStream;
use crate::harness::eventually;
use crate::harness::session::{Session, text_of};

async fn open(world: &World) -> Session {
    let user = world.gw.anonymous();
    user.open_as("/mcp/up", "2025-06-18", json!({})).await
}

fn refuse_all(world: &World) {
    world.upstream.judges(|_, _| Verdict::Unauthorized);
}

/// The account is asked for in words.
async fn is_asked(session: &Session, text: &str) {
    let refused = session.call("echo", json!({"text": text})).await.unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    assert!(text_of(&refused).contains("/connect/up?for="), "{refused}");
}

#[tokio::test]
async fn refused_key_stays_is_said_and_is_asked_for_again() {
    let world = World::start("").await;
    connect(&world, KEY).await;
    let session = open(&world).await;
    assert_eq!(session.text("echo", json!({"text": "one"})).await, "one");
    refuse_all(&world);
    is_asked(&session, "two").await;
    assert_eq!(world.upstream.count("two"), 1);
    // Not sent again at once, and not deleted.
    is_asked(&session, "three").await;
    assert_eq!(world.upstream.count("three"), 0);
    let page = Page::open(&world, "/connect/up").await.text;
    assert!(
        page.contains("refused this key") && page.contains("Replace"),
        "{page}"
    );
    let all = Page::open(&world, "/connect").await.text;
    assert!(all.contains("refused"), "{all}");

    world
        .upstream
        .judges(|token, _| Verdict::of(token == Some(OTHER)));
    connect(&world, OTHER).await;
    assert_eq!(session.text("echo", json!({"text": "four"})).await, "four");
    let page = Page::open(&world, "/connect/up").await.text;
    assert!(!page.contains("refused"), "{page}");
    world.gw.stop().await;
}

#[tokio::test]
async fn legacy_call_with_a_refused_key_goes_on_with_another() {
    let world = World::start("").await;
    connect(&world, KEY).await;
    world
        .upstream
        .judges(|token, _| Verdict::of(token == Some(OTHER)));
    let session = world.gw.anonymous().open("/mcp/up").await;
    let (_, exchange) = session.start_call("echo", json!({"text": "waited"})).await;
    let mut stream = exchange.stream();
    let question = stream.message().await.unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    connect(&world, OTHER).await;
    let reply = until_reply(&mut stream).await.pop().unwrap();
    assert_eq!(text_of(&reply["result"]), "waited", "{reply}");
    world.gw.stop().await;
}

/// All messages up to the reply.
async fn until_reply(stream: &mut EventStream) -> Vec<Value> {
    let mut seen = Vec::new();
    loop {
        let message = stream.message().await.expect("a reply");
        let is_reply = message.get("method").is_none();
        seen.push(message);
        if is_reply {
            return seen;
        }
    }
}

#[tokio::test]
async fn own_last_list_is_shown_while_the_key_is_refused() {
    let world = World::start("").await;
    connect(&world, KEY).await;
    let session = open(&world).await;
    let before = session.tools().await;
    assert!(before.contains(&"echo".to_owned()), "{before:?}");
    refuse_all(&world);
    is_asked(&session, "x").await;
    eventually("the own last list", async || {
        (open(&world).await.tools().await == before).then_some(())
    })
    .await;
    // Another account has other lists, and a removed one has none.
    connect(&world, OTHER).await;
    is_asked(&session, "y").await;
    assert_eq!(open(&world).await.tools().await, ["connect_up"]);
    world.gw.stop().await;
}

#[tokio::test]
async fn list_of_a_removed_account_is_shown_no_more() {
    let world = World::start("").await;
    connect(&world, KEY).await;
    let session = open(&world).await;
    assert!(session.tools().await.contains(&"echo".to_owned()));
    Page::open(&world, "/connect/up")
        .await
        .submit("disconnect", "")
        .await;
    assert_eq!(session.tools().await, ["connect_up"]);
    assert_eq!(open(&world).await.tools().await, ["connect_up"]);
    world.gw.stop().await;
}

#[tokio::test]
async fn common_lists_are_shown_where_the_operator_says_so() {
    let world = World::start_with("lists = \"common\"", "").await;
    assert_eq!(open(&world).await.tools().await, ["connect_up"]);
    connect(&world, KEY).await;
    let all = open(&world).await.tools().await;
    Page::open(&world, "/connect/up")
        .await
        .submit("disconnect", "")
        .await;
    assert_eq!(open(&world).await.tools().await, all);
    is_asked(&open(&world).await, "x").await;
    world.gw.stop().await;
}

#[tokio::test]
async fn no_filter_hides_the_tool_that_connects() {
    let few = "[endpoints.few]\nupstreams = [\"up\"]\ntools = [\"up:nothing\"]";
    let world = World::start(few).await;
    let user = world.gw.anonymous();
    let session = user.open_as("/mcp/few", "2025-06-18", json!({})).await;
    assert_eq!(session.tools().await, ["connect_up"]);
    let refused = session.call("connect_up", json!({})).await.unwrap();
    assert!(text_of(&refused).contains("/connect/up?for="), "{refused}");
    world.gw.stop().await;
}

/// Both calls have reached the gateway.
async fn two_run(world: &World) {
    eventually("two running calls", async || {
        let running = world.gw.metric("drawbridge_calls_running", "").await;
        (running >= 2.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn calls_of_a_session_wait_for_one_question() {
    let world = World::start("").await;
    let session = world.gw.anonymous().open("/mcp/up").await;
    let (_, first) = session.start_call("echo", json!({"text": "first"})).await;
    let mut first = first.stream();
    let question = first.message().await.unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let (_, second) = session.start_call("echo", json!({"text": "second"})).await;
    two_run(&world).await;
    session.answer(&question, json!({"action": "accept"})).await;
    connect(&world, KEY).await;
    let mut second = second.stream();
    let first = until_reply(&mut first).await;
    assert_eq!(text_of(&first.last().unwrap()["result"]), "first");
    let second = until_reply(&mut second).await;
    assert_eq!(text_of(&second.last().unwrap()["result"]), "second");
    let asked = |message: &&Value| message["method"] == "elicitation/create";
    assert_eq!(second.iter().find(asked), None);
    world.gw.stop().await;
}

#[tokio::test]
async fn declined_question_ends_the_calls_that_wait_for_it() {
    let world = World::start("").await;
    let session = world.gw.anonymous().open("/mcp/up").await;
    let (_, first) = session.start_call("echo", json!({"text": "first"})).await;
    let mut first = first.stream();
    let question = first.message().await.unwrap();
    let (_, second) = session.start_call("echo", json!({"text": "second"})).await;
    let mut second = second.stream();
    two_run(&world).await;
    session
        .answer(&question, json!({"action": "decline"}))
        .await;
    for stream in [&mut first, &mut second] {
        let reply = until_reply(stream).await.pop().unwrap();
        assert_eq!(reply["result"]["isError"], true, "{reply}");
    }
    assert_eq!(world.upstream.count("first"), 0);
    world.gw.stop().await;
}

// SPEC C-85: the end of a call does not end the question.
#[tokio::test]
async fn completion_follows_when_the_call_is_over() {
    let world = World::start("[connect]\nwait = \"200ms\"").await;
    let session = world.gw.anonymous().open("/mcp/up").await;
    let mut listening = session.listen().await;
    let link = async || {
        let (_, exchange) = session.start_call("echo", json!({"text": "x"})).await;
        let (_, reply) = exchange.finish().await;
        let error = reply.unwrap_err();
        assert_eq!(error["code"], -32042, "{error}");
        error["data"]["elicitations"][0].clone()
    };
    let open = link().await;
    assert_eq!(link().await, open);
    let path = path_in(open["url"].as_str().unwrap());
    Page::open(&world, &path).await.submit("connect", KEY).await;
    let id = &open["elicitationId"];
    let mut seen = Vec::new();
    loop {
        let message = listening.message().await.expect("a notification");
        if message["method"] == "notifications/elicitation/complete" {
            assert_eq!(message["params"]["elicitationId"], *id, "{seen:?}");
            break;
        }
        seen.push(message);
    }
    world.gw.stop().await;
}

/// Lets lists go without a key.
fn lists_to_all(world: &World) {
    world.upstream.judges(|token, body| {
        Verdict::of(token == Some(KEY) || token.is_none() && !body.contains("tools/call"))
    });
}

#[tokio::test]
async fn what_is_listed_without_an_account_is_shown_to_who_has_none() {
    let world = World::start("").await;
    lists_to_all(&world);
    let before = open(&world).await.tools().await;
    assert!(before.contains(&"echo".to_owned()), "{before:?}");
    assert!(!before.contains(&"connect_up".to_owned()), "{before:?}");
    is_asked(&open(&world).await, "early").await;
    assert_eq!(world.upstream.count("early"), 0);
    // Once for all, and with the key it is the caller's own.
    assert_eq!(world.keys_of("tools/list"), [None]);
    let session = open(&world).await;
    connect(&world, KEY).await;
    assert_eq!(session.text("echo", json!({"text": "one"})).await, "one");
    session.tools().await;
    let key = Some(format!("Bearer {KEY}"));
    assert!(world.keys_of("tools/list").contains(&key));
    assert!(!world.upstream.seen().iter().any(|(header, body)| {
        header.is_none() && (body.contains("one") || body.contains("tools/call"))
    }));
    world.gw.stop().await;
}

#[tokio::test]
async fn empty_list_without_an_account_leaves_the_tool_that_connects() {
    let world = World::start("").await;
    world
        .upstream
        .judges(|token, body| match (token, body.contains("tools/list")) {
            (None, true) => Verdict::NoTools,
            (None, false) => Verdict::of(!body.contains("tools/call")),
            (Some(key), _) => Verdict::of(key == KEY),
        });
    assert_eq!(open(&world).await.tools().await, ["connect_up"]);
    assert_eq!(world.keys_of("tools/list"), [None]);
    world.gw.stop().await;
}

#[tokio::test]
async fn merged_list_has_what_is_listed_without_an_account() {
    let world = World::start("[upstreams.down]\nurl = \"http://127.0.0.1:9/mcp\"").await;
    lists_to_all(&world);
    let user = world.gw.anonymous();
    let session = user.open_as("/mcp", "2025-06-18", json!({})).await;
    let tools = session.tools().await;
    assert!(tools.contains(&"up__echo".to_owned()), "{tools:?}");
    let refused = session
        .call("up__echo", json!({"text": "x"}))
        .await
        .unwrap();
    assert!(text_of(&refused).contains("/connect/up?for="), "{refused}");
    world.gw.stop().await;
}

#[tokio::test]
async fn own_last_list_goes_before_what_is_listed_without_an_account() {
    let world = World::start("").await;
    connect(&world, KEY).await;
    let session = open(&world).await;
    let own = session.tools().await;
    // What the gateway would be told for itself.
    world
        .upstream
        .judges(|token, _| Verdict::of(token.is_none()));
    is_asked(&session, "x").await;
    eventually("the own last list", async || {
        (open(&world).await.tools().await == own).then_some(())
    })
    .await;
    assert!(!world.keys_of("tools/list").contains(&None));
    world.gw.stop().await;
}

#[tokio::test]
async fn upstream_that_lists_nothing_without_an_account_is_asked_once() {
    let world = World::start("").await;
    for _ in 0..5 {
        assert_eq!(open(&world).await.tools().await, ["connect_up"]);
    }
    let seen = world.upstream.seen();
    let without = seen.iter().filter(|(_, body)| body.contains("initialize"));
    assert!(without.count() <= 1, "{seen:?}");
    world.gw.stop().await;
}

#[tokio::test]
async fn upstream_that_demands_tokens_has_not_failed() {
    let world = World::start("").await;
    assert_eq!(open(&world).await.tools().await, ["connect_up"]);
    assert_eq!(world.upstream.count("initialize"), 1);
    let status = world.gw.admin_text("/status").await.unwrap().1;
    assert!(!status.contains("wants a token"), "{status}");
    let failed = world
        .gw
        .metric("drawbridge_upstream_failed_total", "")
        .await;
    assert!(failed < 1.0, "{failed}");
    let log = world.gw.log().join("\n");
    for line in [
        "a call of the upstream failed",
        "upstream fails",
        "names the issuer",
    ] {
        assert!(!log.contains(line), "{log}");
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn upstream_that_was_down_is_soon_asked_again_for_its_lists() {
    let world = World::start("").await;
    world.upstream.judges(|_, _| Verdict::Down);
    let session = open(&world).await;
    assert_eq!(session.tools().await, ["connect_up"]);
    lists_to_all(&world);
    eventually("the lists without an account", async || {
        let tools = session.tools().await;
        tools.contains(&"echo".to_owned()).then_some(())
    })
    .await;
    world.gw.stop().await;
}

/// Waits for this notification.
async fn is_told(listening: &mut EventStream, method: &str) {
    loop {
        let message = listening.message().await.expect("a notification");
        if message["method"] == method {
            return;
        }
    }
}

#[tokio::test]
async fn session_is_told_when_an_upstream_that_was_down_lists() {
    let world = World::start("").await;
    world.upstream.judges(|_, _| Verdict::Down);
    let session = world.gw.anonymous().open("/mcp/up").await;
    let mut listening = session.listen().await;
    assert_eq!(session.tools().await, ["connect_up"]);
    lists_to_all(&world);
    // Neither this client nor another lists meanwhile.
    eventually("the upstream is asked again", async || {
        (world.upstream.count("tools/list") > 0).then_some(())
    })
    .await;
    is_told(&mut listening, "notifications/tools/list_changed").await;
    let tools = session.tools().await;
    assert!(tools.contains(&"echo".to_owned()), "{tools:?}");
    world.gw.stop().await;
}
