//! The GET stream and the messages that belong on no other stream.

use std::collections::HashSet;

use http::StatusCode;
use serde_json::json;

use crate::harness::http::everything;
use crate::harness::{Setup, eventually};

// Spec: SPEC T-21, T-22, T-29.
#[tokio::test]
async fn a_change_is_told_once_on_one_stream() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.tools().await;
    let mut older = user.listen().await;
    let mut newer = user.listen().await;
    user.text("change_tools", json!({})).await;
    let told = tokio::select! {
        message = newer.until("notifications/tools/list_changed") => message,
        message = older.until("notifications/tools/list_changed") => message,
    };
    assert_eq!(told["jsonrpc"], "2.0");
    user.text("change_resources", json!({})).await;
    let (mut changes, mut seen) = (0, false);
    while !seen {
        let message = tokio::select! { m = newer.message() => m, m = older.message() => m };
        let method = message.unwrap()["method"].as_str().unwrap().to_owned();
        changes += usize::from(method == "notifications/tools/list_changed");
        seen = method == "notifications/resources/list_changed";
    }
    assert_eq!(changes, 0, "the first change was told twice");
    gw.stop().await;
}

// Spec: SPEC T-29.
#[tokio::test]
async fn a_stream_is_heard_again_when_a_newer_one_is_closed() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.tools().await;
    let mut older = user.listen().await;
    let newer = user.listen().await;
    drop(newer);
    eventually("one stream is closed", async || {
        (gw.metric("drawbridge_streams_open", "").await < 1.5).then_some(())
    })
    .await;
    user.text("change_tools", json!({})).await;
    older.until("notifications/tools/list_changed").await;
    gw.stop().await;
}

// Spec: SPEC T-15, T-26.
#[tokio::test]
async fn a_quiet_stream_is_kept_alive_by_comments() {
    let gw = Setup::open()
        .server("keep_alive = \"1s\"")
        .stub("stub", &[])
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut stream = user.listen().await;
    let mut comments = 0;
    while comments < 2 {
        let event = stream.next().await.expect("the stream stays open");
        if event.comment.is_some() {
            assert_eq!(event.id, None, "a comment carries no event id");
            comments += 1;
        }
    }
    gw.stop().await;
}

// Spec: SPEC C-50.
#[tokio::test]
async fn a_subscriber_hears_of_updates_until_it_unsubscribes() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let other = gw.anonymous().open("/mcp/stub").await;
    let uri = "stub://static/1";
    user.request("resources/subscribe", json!({"uri": uri}))
        .await
        .expect("subscribed");
    let mut stream = user.listen().await;
    let mut foreign = other.listen().await;
    assert_eq!(
        user.text("touch_resource", json!({"uri": uri})).await,
        "announced"
    );
    let update = stream.until("notifications/resources/updated").await;
    assert_eq!(update["params"]["uri"], uri);
    user.request("resources/unsubscribe", json!({"uri": uri}))
        .await
        .expect("unsubscribed");
    assert_eq!(
        user.text("touch_resource", json!({"uri": uri})).await,
        "not subscribed"
    );
    other.text("change_prompts", json!({})).await;
    while let Some(message) = foreign.message().await {
        assert_ne!(
            message["method"], "notifications/resources/updated",
            "another's update"
        );
        if message["method"] == "notifications/prompts/list_changed" {
            break;
        }
    }
    gw.stop().await;
}

// Spec: SPEC L-03.
#[tokio::test]
async fn nothing_is_asked_of_a_client_that_declared_nothing() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw
        .anonymous()
        .open_as("/mcp/stub", "2025-11-25", json!({}))
        .await;
    for tool in ["ask_form", "ask_sampling", "ask_roots", "ask_url"] {
        let (_, exchange) = user.start_call(tool, json!({})).await;
        let (before, reply) = exchange.finish().await;
        assert!(
            before.iter().all(|message| message.get("id").is_none()),
            "{tool}: {before:?}"
        );
        assert!(reply.unwrap().to_string().contains("-32601"), "{tool}");
    }
    // The same upstream, asked by a client that can answer, does ask.
    let able = gw
        .anonymous()
        .open_as("/mcp/stub", "2025-11-25", everything())
        .await;
    let (_, mut exchange) = able.start_call("ask_roots", json!({})).await;
    let question = exchange.next().await.expect("a question");
    assert_eq!(question["method"], "roots/list");
    able.answer(&question, json!({"roots": []})).await;
    exchange.finish().await.1.expect("a result");
    gw.stop().await;
}

// Spec: SPEC T-24, T-25, T-26.
#[tokio::test]
async fn a_get_stream_opens_with_the_place_before_what_was_held_back() {
    const CHANGED: &str = "notifications/tools/list_changed";
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.tools().await;
    let open = async || {
        let mut stream = user.listen().await;
        let first = stream.next().await.expect("a first event");
        assert_eq!(first.data.as_deref(), Some(""), "{first:?}");
        let place = first.id.expect("an id");
        (stream, place)
    };
    let close = async |stream| {
        drop(stream);
        eventually("the stream is closed", async || {
            (gw.metric("drawbridge_streams_open", "").await < 1.0).then_some(())
        })
        .await;
    };
    let resume = async |place: &str| {
        let answer = user.resume(place).await.expect(StatusCode::OK).await;
        answer.events()
    };
    let (stream, place) = open().await;
    close(stream).await;
    // No event was on the stream yet.
    let mut stream = resume(&place).await;
    user.text("change_tools", json!({})).await;
    stream.until(CHANGED).await;
    close(stream).await;
    // Nobody listens.
    user.text("change_tools", json!({})).await;
    let (stream, before) = open().await;
    assert_ne!(place, before);
    close(stream).await;
    let mut stream = resume(&before).await;
    stream.until(CHANGED).await;
    close(stream).await;
    let (_stream, after) = open().await;
    assert_ne!(before, after);
    gw.stop().await;
}

/// As many GET streams as a session may have by default.
const STREAMS: usize = 8;

// Spec: SPEC T-25. Dead connections count until TCP notices.
#[tokio::test]
async fn resume_takes_the_place_of_dead_streams() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.tools().await;
    let mut dead = Vec::new();
    for _ in 0..STREAMS {
        let mut stream = user.listen().await;
        stream.next().await.expect("the priming event");
        dead.push(stream);
    }
    let refused = user.actor.get(&user.path, &user.headers()).await;
    assert_eq!(refused.status(), 429, "it can resume instead");
    let last = dead[STREAMS - 1].last_id.clone().expect("an id");
    let resumed = user.resume(&last).await.expect(StatusCode::OK).await;
    let mut resumed = resumed.events();
    user.text("change_tools", json!({})).await;
    resumed.until("notifications/tools/list_changed").await;
    for mut stream in dead {
        assert_eq!(stream.message().await, None, "a replaced stream ends");
    }
    gw.stop().await;
}

// Spec: SPEC T-25. VS Code opens no other stream in its session where this one is refused.
#[tokio::test]
async fn get_stream_goes_on_where_events_are_gone() {
    const CHANGED: &str = "notifications/tools/list_changed";
    const UPDATED: &str = "notifications/resources/updated";
    let setup = Setup::open().toml("[events]\nper_session = \"16KiB\"");
    let gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.tools().await;
    let uri = json!({"uri": "stub://static/1"});
    let followed = user.request("resources/subscribe", uri).await;
    followed.expect("subscribed");
    let mut stream = user.listen().await;
    let first = stream.next().await.expect("the priming event");
    let place = first.id.expect("an id");
    user.text("change_tools", json!({})).await;
    stream.until(CHANGED).await;
    let forged = format!("{}99", stream.last_id.as_ref().expect("an id"));
    drop(stream);
    // The notices of this call evict the change notification from the log.
    let arguments = json!({"n": 60, "bytes": 1000, "gap_ms": 2});
    let params = json!({"name": "notices", "arguments": arguments, "_meta": {"progressToken": 1}});
    user.request("tools/call", params).await.unwrap();
    let resumed = user.resume(&place).await.expect(StatusCode::OK).await;
    let mut resumed = resumed.events();
    let mut untold = HashSet::from([CHANGED, UPDATED]);
    while !untold.is_empty() {
        let message = resumed.message().await.expect("a notice");
        untold.remove(message["method"].as_str().unwrap_or_default());
    }
    // Behind an event that never was, the stream goes on too.
    drop(resumed);
    let opened = user.resume(&forged).await.expect(StatusCode::OK).await;
    opened.events().until(UPDATED).await;
    gw.stop().await;
}

#[tokio::test]
async fn resume_takes_the_places_of_dead_call_streams() {
    let limits = "[limits]\nstreams_per_session = 1\ncalls_per_session = 1";
    let setup = Setup::open().server("sse_after = \"20ms\"").toml(limits);
    let gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (id, exchange) = user.start_call("sleep", json!({"ms": 1500})).await;
    let mut dead = exchange.stream();
    let first = dead.next().await.expect("the priming event");
    let last = first.id.expect("an id");
    // Neither end of the dead connection is closed.
    let mut streams = vec![dead];
    for _ in 0..4 {
        let resumed = user.resume(&last).await.expect(StatusCode::OK).await;
        streams.push(resumed.events());
    }
    let mut newest = streams.pop().unwrap();
    let reply = newest.message().await.expect("the reply");
    assert_eq!(reply["id"], id);
    gw.stop().await;
}

// Clients of these revisions have no id to resume with, and open another stream instead.
#[tokio::test]
async fn new_stream_replaces_the_oldest_without_priming() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous();
    let user = user.open_as("/mcp/stub", "2025-06-18", json!({})).await;
    user.tools().await;
    let mut oldest = user.listen().await;
    let mut dead = Vec::new();
    for _ in 0..STREAMS + 2 {
        dead.push(user.listen().await);
    }
    assert_eq!(oldest.message().await, None, "a replaced stream ends");
    let mut newest = dead.pop().unwrap();
    user.text("change_tools", json!({})).await;
    newest.until("notifications/tools/list_changed").await;
    let replaced = gw.metric("drawbridge_streams_replaced_total", "").await;
    assert_eq!(replaced.to_string(), "3");
    let open = gw.metric("drawbridge_streams_open", "").await;
    assert!(open < 8.5, "{open}");
    gw.stop().await;
}
