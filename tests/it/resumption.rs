//! Disconnects: from the first event id that a client received, no event is lost and none is repeated.
//! Spec: SPEC T-23 to T-27, DESIGN §5.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::events::EventStream;
use crate::harness::session::text_of;
use crate::harness::{Session, Setup, eventually};

/// A small generator of random numbers (xorshift), so that a failing run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn progress_call(notices: u64, gap_ms: u64) -> Value {
    json!({"name": "notices", "arguments": {"n": notices, "gap_ms": gap_ms},
           "_meta": {"progressToken": "p"}})
}

/// Reads a stream until `cut` messages came or it ended.
async fn read_some(stream: &mut EventStream, cut: u64, into: &mut Vec<Value>) -> bool {
    for _ in 0..cut {
        match stream.message().await {
            Some(message) => into.push(message),
            None => return true,
        }
    }
    false
}

/// A call of many notices, cut and resumed at random points until its reply came.
async fn interrupted_call(user: &Session, random: &mut Random, cuts: u64) -> u64 {
    const NOTICES: u64 = 40;
    let (id, exchange) = user.start("tools/call", progress_call(NOTICES, 3)).await;
    let mut stream = exchange.stream();
    let mut got = Vec::new();
    // From the first event id on nothing may be lost: read at least that.
    while stream.last_id.is_none() {
        got.extend(stream.next().await.expect("an event").message());
    }
    let mut made = 0;
    loop {
        let cut = if made < cuts {
            random.below(6)
        } else {
            u64::MAX
        };
        let ended = read_some(&mut stream, cut, &mut got).await;
        if ended
            || got
                .last()
                .is_some_and(|message| message.get("method").is_none())
        {
            break;
        }
        let last = stream.last_id.clone().unwrap();
        drop(stream);
        made += 1;
        tokio::time::sleep(Duration::from_millis(random.below(15))).await;
        stream = user.resume(&last).await.events();
        stream.last_id.get_or_insert(last);
    }
    let reply = got.pop().expect("a reply");
    assert_eq!(reply["id"], id);
    assert_eq!(text_of(&reply["result"]), format!("{NOTICES} sent"));
    let progress: Vec<u64> = got
        .iter()
        .map(|notice| notice["params"]["progress"].as_u64().unwrap())
        .collect();
    assert_eq!(
        progress,
        (1..=NOTICES).collect::<Vec<_>>(),
        "after {made} cuts"
    );
    made
}

#[tokio::test]
async fn post_streams_survive_fifty_disconnects() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let mut random = Random(0x5eed);
    let mut made = 0;
    while made < 50 {
        made += interrupted_call(&user, &mut random, 50 - made).await;
    }
    gw.stop().await;
}

/// The stub's resources in turn: equal change notices in one queue may be coalesced, different ones may not.
fn resource(number: u64) -> String {
    format!("stub://static/{}", number % 5 + 1)
}

#[tokio::test]
async fn a_get_stream_survives_fifty_disconnects() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    user.tools().await;
    for number in 0..5 {
        let uri = json!({"uri": resource(number)});
        let subscribed = user.request("resources/subscribe", uri).await;
        subscribed.expect("subscribed");
    }
    // Notices sent while no GET stream is open may arrive on the call's own stream, and bursts of one resource are
    // coalesced: the last change of each resource is never lost.
    let touch = async |number: u64, untold: &mut BTreeSet<String>| {
        let arguments = json!({"uri": resource(number)});
        let (_, exchange) = user.start_call("touch_resource", arguments).await;
        let (before, reply) = exchange.finish().await;
        assert_eq!(text_of(&reply.expect("a result")), "announced");
        untold.insert(resource(number));
        for update in before {
            untold.remove(update["params"]["uri"].as_str().unwrap());
        }
    };
    let mut random = Random(0xfeed);
    let mut stream = user.listen().await;
    let (mut made, mut untold) = (1, BTreeSet::new());
    // The first event gives the id to come back with.
    touch(0, &mut untold).await;
    stream.until("notifications/resources/updated").await;
    untold.clear();
    let mut last = String::new();
    for _ in 0..50 {
        // A stream without events leaves the last event id unchanged.
        last = stream.last_id.clone().unwrap_or(last);
        drop(stream);
        for _ in 0..=random.below(3) {
            touch(made, &mut untold).await;
            made += 1;
        }
        let resumed = user.resume(&last).await;
        stream = resumed.expect(http::StatusCode::OK).await.events();
        for _ in 0..random.below(2) {
            touch(made, &mut untold).await;
            made += 1;
        }
        while !untold.is_empty() {
            let update = stream.until("notifications/resources/updated").await;
            untold.remove(update["params"]["uri"].as_str().unwrap());
        }
    }
    gw.stop().await;
}

// Spec: SPEC T-23: the reply outlives the socket.
#[tokio::test]
async fn a_reply_is_kept_for_a_client_that_went_away() {
    let setup = Setup::open()
        .server("sse_after = \"20ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (id, exchange) = user.start_call("sleep", json!({"ms": 300})).await;
    let mut stream = exchange.stream();
    let priming = stream
        .next()
        .await
        .unwrap()
        .id
        .expect("the priming event has an id");
    drop(stream);
    let mut resumed = user.resume(&priming).await.events();
    let reply = resumed.message().await.expect("the reply");
    assert_eq!(
        (&reply["id"], text_of(&reply["result"])),
        (&json!(id), "slept")
    );
    assert_eq!(resumed.message().await, None, "a finished stream ends");
    // Resume a second time: the first resumption consumed no event.
    let mut again = user.resume(&priming).await.events();
    assert_eq!(again.message().await.expect("the reply again")["id"], id);
    gw.stop().await;
}

// Spec: SPEC T-25.
#[tokio::test]
async fn only_the_stream_of_the_event_is_replayed() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (first, one) = user.start("tools/call", progress_call(3, 10)).await;
    let (second, two) = user.start("tools/call", progress_call(3, 10)).await;
    let (mut one, two) = (one.stream(), two.stream());
    let event = loop {
        if let Some(id) = one.next().await.unwrap().id {
            break id;
        }
    };
    drop(one);
    two_ends(two, second).await;
    let mut resumed = user.resume(&event).await.events();
    let mut ids = Vec::new();
    while let Some(message) = resumed.message().await {
        ids.extend(message.get("id").cloned());
    }
    assert_eq!(ids, [json!(first)]);
    gw.stop().await;
}

async fn two_ends(mut stream: EventStream, id: i64) {
    while let Some(message) = stream.message().await {
        if message.get("method").is_none() {
            assert_eq!(message["id"], id);
        }
    }
}

// Go, Java and C# end their session for a 404, Java also for a 400; Python and C# resume an empty stream for ever.
// Spec: SPEC T-20, T-24, T-25, T-44, T-48.
#[tokio::test]
async fn event_of_no_known_call_is_405() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let mallory = gw.principal("mallory").open("/mcp/stub").await;
    let (_, exchange) = alice.start("tools/call", progress_call(2, 5)).await;
    let mut stream = exchange.stream();
    let first = stream.next().await.expect("an event").id.expect("an id");
    while stream.message().await.is_some() {}
    let event = stream.last_id.clone().expect("an event id");
    for id in [&first, &event] {
        let foreign = mallory.resume(id).await;
        assert_eq!(foreign.status(), 405, "another session's event");
        assert_eq!(foreign.header("allow"), Some("POST, DELETE"));
    }
    for unknown in ["0000000000000000.1.1", &format!("{event}9")] {
        assert_eq!(alice.resume(unknown).await.status(), 405, "{unknown}");
    }
    assert_eq!(alice.resume(&event).await.status(), 405, "nothing is left");
    assert_eq!(alice.resume(&first).await.status(), 200, "its owner's");
    gw.stop().await;
}

// The SDK for Go up to 1.1, which speaks no later revision than 2025-06-18, ends its session where it is refused.
// Spec: SPEC T-25.
#[tokio::test]
async fn stream_of_a_cancelled_call_is_empty_in_older_revisions() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    for (revision, status) in [("2025-06-18", 200), ("2025-11-25", 405)] {
        let actor = gw.anonymous();
        let user = actor.open_as("/mcp/stub", revision, json!({})).await;
        let (id, exchange) = user.start("tools/call", progress_call(10_000, 5)).await;
        let mut stream = exchange.stream();
        stream.message().await.expect("a notice");
        let cancelled = json!({"requestId": id});
        user.notify("notifications/cancelled", cancelled).await;
        while let Some(message) = stream.message().await {
            assert_eq!(message["method"], "notifications/progress");
        }
        let last = stream.last_id.clone().expect("an event id");
        let resumed = user.resume(&last).await;
        assert_eq!(resumed.status(), status, "{revision}");
        if status == 200 {
            assert_eq!(resumed.events().message().await, None, "{revision}");
        }
    }
    gw.stop().await;
}

// VS Code opens no further GET stream in its session where this one is refused. Spec: SPEC T-25, T-48.
#[tokio::test]
async fn event_of_no_call_opens_the_get_stream() {
    const CHANGED: &str = "notifications/tools/list_changed";
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let mallory = gw.principal("mallory").open("/mcp/stub").await;
    alice.tools().await;
    mallory.tools().await;
    let mut stream = alice.listen().await;
    let place = stream.next().await.expect("an event").id.expect("an id");
    alice.text("change_tools", json!({})).await;
    stream.until(CHANGED).await;
    for unknown in ["1", "x.y.z", "0000000000000000.0.1", &place] {
        let opened = mallory.resume(unknown).await;
        let mut opened = opened.expect(http::StatusCode::OK).await.events();
        let first = opened.next().await.expect("a first event");
        assert_eq!(first.data.as_deref(), Some(""), "{unknown}: {first:?}");
        mallory.text("change_tools", json!({})).await;
        opened.until(CHANGED).await;
    }
    gw.stop().await;
}

// The SDKs for TypeScript and Go keep no id from one connection to the next. Spec: SPEC T-25, T-26.
#[tokio::test]
async fn stream_is_resumed_by_the_ids_of_its_last_connection_alone() {
    let setup = Setup::open()
        .server("sse_after = \"20ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (id, exchange) = user.start_call("sleep", json!({"ms": 2_000})).await;
    let mut stream = exchange.stream();
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        let first = stream.next().await.expect("a first event");
        assert_eq!(first.data.as_deref(), Some(""), "{first:?}");
        let place = first.id.expect("an id to come back with");
        // The SDK for Go ends its session where reconnections bring no new id.
        assert!(seen.insert(place.clone()), "{place} once more");
        drop(stream);
        let resumed = user.resume(&place).await;
        stream = resumed.expect(http::StatusCode::OK).await.events();
    }
    let reply = stream.message().await.expect("the reply");
    assert_eq!(reply["id"], id);
    gw.stop().await;
}

// Spec: DESIGN §5: past the evicted edge a POST stream still gives its reply.
#[tokio::test]
async fn an_evicted_stream_still_gives_its_reply() {
    let setup = Setup::open()
        .toml("[events]\nper_session = \"16KiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let params = json!({"name": "notices", "arguments": {"n": 60, "bytes": 1000, "gap_ms": 2},
                        "_meta": {"progressToken": 1}});
    let (id, exchange) = user.start("tools/call", params).await;
    let mut stream = exchange.stream();
    let event = loop {
        if let Some(id) = stream.next().await.unwrap().id {
            break id;
        }
    };
    while stream.message().await.is_some() {}
    let mut resumed = user
        .resume(&event)
        .await
        .expect(http::StatusCode::OK)
        .await
        .events();
    let mut last = None;
    while let Some(message) = resumed.message().await {
        last = Some(message);
    }
    assert_eq!(last.expect("the reply")["id"], id);
    gw.stop().await;
}

// Spec: SPEC T-25, T-44.
#[tokio::test]
async fn running_call_goes_on_past_evicted_events() {
    let setup = Setup::open()
        .toml("[events]\nper_session = \"16KiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let params = json!({"name": "notices", "arguments": {"n": 10_000, "bytes": 1000, "gap_ms": 10},
                        "_meta": {"progressToken": 1}});
    let (_, exchange) = user.start("tools/call", params).await;
    let mut stream = exchange.stream();
    let event = loop {
        if let Some(id) = stream.next().await.unwrap().id {
            break id;
        }
    };
    let unresumable = async || gw.metric("drawbridge_streams_unresumable_total", "").await;
    // The call goes on, and its notices evict the earlier events.
    eventually("the event is gone", async || {
        stream.message().await.expect("a notice");
        let evicted = gw.metric("drawbridge_events_evicted_total", "").await;
        (evicted > 5.0).then_some(())
    })
    .await;
    assert!(unresumable().await < 0.5);
    drop(stream);
    let resumed = user.resume(&event).await;
    let mut rest = resumed.expect(http::StatusCode::OK).await.events();
    for _ in 0..2 {
        let notice = rest.message().await.expect("a notice");
        assert_eq!(notice["method"], "notifications/progress", "{notice}");
    }
    assert!((unresumable().await - 1.0).abs() < 0.1);
    // An id that never was is none of a stream whose events are gone.
    assert_eq!(user.resume(&format!("{event}99999")).await.status(), 405);
    assert!((unresumable().await - 1.0).abs() < 0.1);
    gw.stop().await;
}
