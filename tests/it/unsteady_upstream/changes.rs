//! Upstreams whose streams of changes fail.

use super::*;

// Spec: SPEC U-02, U-12.
#[tokio::test]
async fn subscriptions_that_are_not_answered_hold_up_a_call_for_one_limit_only() {
    const FOLLOWED: usize = 40;
    let up = Upstream::start(|what, before| match (what, before) {
        ("call again", 0) => Does::Status(404, ""),
        ("resources/subscribe", FOLLOWED..) => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let gw = up
        .behind(&format!("{LEGACY}connect_timeout = \"1s\""))
        .await;
    let user = gw.anonymous().open("/mcp/up").await;
    for n in 0..FOLLOWED {
        let uri = json!({"uri": format!("test://{n}")});
        let reply = user.request("resources/subscribe", uri).await;
        reply.expect("a subscription");
    }
    assert!(outcome(&user, "again").await.contains("done"));
    gw.stop().await;
}

// Spec: BRIDGING §3.4.
#[rstest]
#[tokio::test]
async fn the_stream_outside_calls_is_tried_again_after_a_refusal_that_passes(
    #[values(409, 429)] status: u16,
) {
    let up = Upstream::start(move |what, before| match (what, before) {
        ("GET", 0) => Does::Status(status, ""),
        ("GET", _) => Does::Events(vec![(0, ": hello\n\n"), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let stream = user.listen().await;
    eventually("it is tried again", async || {
        (up.count("GET") == 2).then_some(())
    })
    .await;
    drop(stream);
    gw.stop().await;
}

// Spec: SPEC U-10: an upstream sends again what came after the last event.
#[tokio::test]
async fn the_stream_outside_calls_goes_on_behind_an_event_that_is_too_large() {
    let begun = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&begun);
    let answer = move |request: Request| {
        let count = Arc::clone(&count);
        async move {
            let method = request.method().clone();
            let is_resumed = request.headers().contains_key("last-event-id");
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            if method != Method::GET {
                return usual(&method, &serde_json::from_slice(&body).unwrap_or_default());
            }
            let mut events = String::new();
            if !is_resumed {
                count.fetch_add(1, Ordering::SeqCst);
                events += "id: 1\ndata:\n\n";
            }
            events.push_str("id: 2\ndata: ");
            events.extend(std::iter::repeat_n(' ', 300_000));
            events.push_str("\n\n");
            let response = Response::builder().header("content-type", "text/event-stream");
            response.body(Body::from(events)).unwrap()
        }
    };
    let url = serve(answer).await + "/mcp";
    let limits = "[limits]\nupstream_message = \"256KiB\"\nsse_event = \"256KiB\"";
    let gw = Setup::open().toml(limits).url("up", &url, LEGACY).start();
    let gw = gw.await;
    let user = gw.anonymous().open("/mcp/up").await;
    let stream = user.listen().await;
    eventually("a stream that resumes nothing", async || {
        (begun.load(Ordering::SeqCst) > 1).then_some(())
    })
    .await;
    drop(stream);
    gw.stop().await;
}

// Spec: SPEC U-10. For an event no longer stored the TypeScript SDK answers with 400 or 500, Python's with an empty stream.
#[rstest]
#[tokio::test]
async fn a_position_that_an_upstream_does_not_know_costs_no_session(
    #[values(200, 400, 404, 500)] status: u16,
) {
    let (begun, opened) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let (streams, sessions) = (Arc::clone(&begun), Arc::clone(&opened));
    let answer = move |request: Request| {
        let (streams, sessions) = (Arc::clone(&streams), Arc::clone(&sessions));
        async move {
            let method = request.method().clone();
            let is_resumed = request.headers().contains_key("last-event-id");
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            if method != Method::GET {
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                if body["method"] == "initialize" {
                    sessions.fetch_add(1, Ordering::SeqCst);
                }
                return usual(&method, &body);
            }
            let stream = Response::builder().header("content-type", "text/event-stream");
            if is_resumed && status == 200 {
                return stream.body(Body::empty()).unwrap();
            }
            if is_resumed {
                let error = json!({"code": -32000, "message": "Invalid event ID format"});
                let body = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
                return Response::builder()
                    .status(status)
                    .header("content-type", "application/json")
                    .body(Body::from(body))
                    .unwrap();
            }
            streams.fetch_add(1, Ordering::SeqCst);
            stream.body(Body::from("id: 1\ndata:\n\n")).unwrap()
        }
    };
    let url = serve(answer).await + "/mcp";
    let gw = Setup::open().url("up", &url, LEGACY).start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    let stream = user.listen().await;
    eventually("a stream that resumes nothing", async || {
        (begun.load(Ordering::SeqCst) > 1).then_some(())
    })
    .await;
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    drop(stream);
    gw.stop().await;
}

// Spec: BRIDGING §3.4: what an upstream announces in the first call would be lost.
#[tokio::test]
async fn get_stream_is_sent_for_before_the_first_call() {
    let up = Upstream::start(|what, _| match what {
        "GET" => Does::Events(vec![(0, ": hello\n\n"), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    for _ in 0..3 {
        up.seen.lock().unwrap().clear();
        let user = gw.anonymous().open("/mcp/up").await;
        assert!(outcome(&user, "first").await.contains("done"));
        let seen = up.seen.lock().unwrap().clone();
        let at = |what: &str| seen.iter().position(|seen| seen == what);
        assert!(at("GET").is_some(), "{seen:?}");
        assert!(at("GET") < at("call first"), "{seen:?}");
    }
    gw.stop().await;
}

// Spec: BRIDGING §3.4: a call was sent before the stream was open, and may have changed the list.
#[tokio::test]
async fn get_stream_that_opened_late_is_made_good_by_a_list_changed() {
    let now = CancellationToken::new();
    let later = now.clone();
    let up = Upstream::start(move |what, _| match what {
        "GET" => Does::Stream(later.clone()),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert_eq!(user.tools().await, Vec::<String>::new());
    assert!(outcome(&user, "call").await.contains("done"));
    let mut stream = user.listen().await;
    now.cancel();
    let told = stream.message().await.expect("a notice");
    assert_eq!(told["method"], "notifications/tools/list_changed");
    gw.stop().await;
}

// Some servers send the head of the stream with its first event.
#[rstest]
#[case::no_head(Does::Hang)]
#[case::no_stream(Does::Status(405, ""))]
#[tokio::test]
async fn call_does_not_wait_for_a_get_stream_without_head(#[case] get: Does) {
    let hangs = matches!(get, Does::Hang);
    let up = Upstream::start(move |what, _| match what {
        "GET" if hangs => Does::Hang,
        "GET" => Does::Status(405, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    for _ in 0..3 {
        assert!(outcome(&user, "call").await.contains("done"));
    }
    assert_eq!(up.count("GET"), 1);
    gw.stop().await;
}

// Spec: BRIDGING §3.4; SPEC M-74.
#[tokio::test]
async fn who_waits_to_hear_a_session_that_is_lost_waits_for_the_next_one() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("GET", 0) => Does::Hang,
        ("GET", _) => Does::Status(405, ""),
        ("call again", 0) => Does::Status(404, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listen = user.request(&json!("l"), "subscriptions/listen", wanted);
    let mut events = user.post(&listen).await.events();
    let ack = events.message().await.expect("an acknowledgement");
    assert_eq!(ack["params"]["notifications"]["toolsListChanged"], true);
    user.call("again", json!({})).await.expect("a result");
    let over = events
        .message()
        .await
        .expect("the end of what cannot be told");
    assert_eq!(over["id"], "l", "{over}");
    gw.stop().await;
}

// Spec: BRIDGING §3.4; SPEC U-04: what opens no stream is as good as 405.
#[rstest]
#[case::a_page(200, "<h1>MCP server</h1>")]
#[case::nothing(204, "")]
#[tokio::test]
async fn a_page_in_place_of_the_stream_outside_calls_says_that_there_is_none(
    #[case] status: u16,
    #[case] page: &'static str,
) {
    let up = Upstream::start(move |what, _| match what {
        "GET" => Does::Status(status, page),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listen = user.request(&json!("l"), "subscriptions/listen", wanted);
    let ack = user.post(&listen).await.events().message().await;
    let honoured = &ack.expect("an acknowledgement")["params"]["notifications"];
    assert_eq!(*honoured, json!({}));
    assert_eq!(up.count("GET"), 1);
    gw.stop().await;
}

// Spec: BRIDGING §3.4; SPEC M-75.
#[tokio::test]
async fn a_listen_that_the_upstream_refuses_is_no_promise_to_clients() {
    const NO: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"nothing to hear"}}"#;
    let up = Upstream::start(|what, _| match what {
        "server/discover" => Does::Events(
            vec![],
            Some(json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {"listChanged": true}},
            })),
        ),
        "subscriptions/listen" => Does::Status(400, NO),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind("era = \"modern\"").await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listen = user.request(&json!("l"), "subscriptions/listen", wanted);
    let ack = user.post(&listen).await.events().message().await;
    let honoured = &ack.expect("an acknowledgement")["params"]["notifications"];
    assert_eq!(*honoured, json!({}));
    eventually("the log says why", async || {
        let log = gw.log().concat();
        log.contains("nothing to hear").then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: BRIDGING §3.4, §3.10: an upstream out of reach has not refused the subscription.
#[rstest]
#[case::busy(503)]
#[case::broken(500)]
#[tokio::test]
async fn a_subscription_that_does_not_get_through_fails_as_a_call_does(#[case] status: u16) {
    let up = Upstream::start(move |what, _| match what {
        "server/discover" => Does::Events(
            vec![],
            Some(json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"resources": {"subscribe": true}},
            })),
        ),
        "subscriptions/listen" | "resources/read" => Does::Status(status, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind("era = \"modern\"").await;
    let user = gw.anonymous().open("/mcp/up").await;
    let error = async |method: &str| {
        let params = json!({"uri": "test://1"});
        let request =
            json!({"jsonrpc": "2.0", "id": user.next_id(), "method": method, "params": params});
        let mut said = within(method, user.post(&request)).await.json().await;
        let mut error = said["error"].take();
        crate::harness::http::without_request_id(&mut error);
        error
    };
    let read = error("resources/read").await;
    assert_eq!(read["code"], -32603, "{read}");
    assert_eq!(error("resources/subscribe").await, read);
    gw.stop().await;
}

// Spec: BRIDGING §3.4: a page is of what stands in for the upstream, and passes.
#[tokio::test]
async fn a_page_where_there_was_a_stream_before_a_pause_is_no_refusal() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("GET", 1) => Does::Status(200, "<h1>Back soon</h1>"),
        ("GET", _) => Does::Events(vec![(0, ": hello\n\n"), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = Modern::new(gw.anonymous(), "/mcp/up");
    let listen = async || {
        let wanted = json!({"notifications": {"toolsListChanged": true}});
        let listen = user.request(&json!("l"), "subscriptions/listen", wanted);
        let mut events = user.post(&listen).await.events();
        events.message().await.expect("an acknowledgement");
        events
    };
    drop(listen().await);
    let _events = eventually("the stream is opened anew", async || {
        let events = listen().await;
        (up.count("GET") > 1).then_some(events)
    })
    .await;
    eventually("it is tried again after the page", async || {
        (up.count("GET") > 2).then_some(())
    })
    .await;
    gw.stop().await;
}

const CHANGED: &str =
    "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";

// Spec: BRIDGING §3.4: a client that only listens makes no call that would open the stream.
#[rstest]
#[tokio::test]
async fn stream_that_is_refused_for_a_while_is_heard_again(#[values(403, 405)] status: u16) {
    let up = Upstream::start(move |what, before| match (what, before) {
        ("GET", 0) => Does::Events(vec![(0, ": hello\n\n")], None),
        ("GET", 1) => Does::Status(status, ""),
        ("GET", _) => Does::Events(vec![(0, CHANGED), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let mut stream = user.listen().await;
    eventually("it is tried again", async || {
        (up.count("GET") == 3).then_some(())
    })
    .await;
    let told = stream.message().await.expect("a notice");
    assert_eq!(told["method"], "notifications/tools/list_changed");
    gw.stop().await;
}

// Spec: BRIDGING §3.4: what the upstream announces in that call would be lost.
#[tokio::test]
async fn call_between_two_get_streams_waits_for_the_second() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("GET", 0) => Does::Events(vec![(0, CHANGED)], None),
        ("GET", _) => Does::Events(vec![(0, ": hello\n\n"), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let mut stream = user.listen().await;
    stream.message().await.expect("a notice");
    assert!(outcome(&user, "first").await.contains("done"));
    let seen = up.seen.lock().unwrap().clone();
    let before = seen.iter().take_while(|what| *what != "call first");
    assert_eq!(before.filter(|what| *what == "GET").count(), 2, "{seen:?}");
    gw.stop().await;
}
