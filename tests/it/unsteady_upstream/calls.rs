//! Calls whose upstream hangs or breaks off: what runs runs once.

use futures_util::future::join_all;

use super::*;

// Spec: SPEC M-44, U-02; BRIDGING §3.7.
#[rstest]
#[case::unknown_session(404, "", 2)]
#[case::named_session(400, "Bad Request: No valid session ID provided", 2)]
#[case::rust_sdk(401, "Unauthorized: Session not found", 2)]
#[case::busy(503, "", 1)]
#[case::other(418, "", 1)]
#[tokio::test]
async fn a_call_whose_stream_cannot_be_resumed_is_not_run_again(
    #[case] status: u16,
    #[case] text: &'static str,
    #[case] sessions: usize,
) {
    let up = Upstream::start(move |what, _| match what {
        "call once" => Does::Events(vec![(0, "id: 1\nretry: 1\ndata: \n\n")], None),
        "GET" => Does::Status(status, text),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "once").await;
    assert!(
        said.contains("whether the request ran is unknown"),
        "{said}"
    );
    assert_eq!(up.count("call once"), 1);
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), sessions);
    eventually("it is cancelled where its session lives on", async || {
        (up.count("notifications/cancelled") == 2 - sessions).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: BRIDGING §3.7. A proxy in front of the upstream does not wait any longer.
#[tokio::test]
async fn call_behind_a_gateway_timeout_is_cancelled() {
    let up = Upstream::start(|what, _| match what {
        "call broken" => Does::Status(500, ""),
        "call late" => Does::Status(504, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    for tool in ["broken", "late"] {
        assert!(outcome(&user, tool).await.contains("HTTP status 50"));
    }
    eventually("the late one is cancelled", async || {
        (up.count("notifications/cancelled") > 0).then_some(())
    })
    .await;
    assert_eq!(up.count("notifications/cancelled"), 1);
    gw.stop().await;
}

// Spec: SPEC U-10: it starts again, or has not noticed that the stream before is gone.
#[tokio::test]
async fn a_stream_is_resumed_after_a_refusal_that_passes() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("call once", _) => Does::Events(vec![(0, "id: 1\nretry: 1\ndata: \n\n")], None),
        ("GET", 0) => Does::Status(503, ""),
        ("GET", 1) => Does::Status(409, ""),
        ("GET", _) => Does::Events(
            vec![(
                0,
                "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n",
            )],
            None,
        ),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let reply = within("the reply", user.call("once", json!({}))).await;
    assert_eq!(reply, Ok(json!({"content": []})));
    assert_eq!(up.count("GET"), 3);
    assert_eq!(up.count("call once"), 1);
    gw.stop().await;
}

// Spec: SPEC U-10. The Java SDK gives ids to its events and stores none: resumed, the stream stays open without any. Its
// replies have the id of the session over servlets, and none over WebFlux.
#[rstest]
#[case::servlet("id: a-session\n")]
#[case::webflux("")]
#[tokio::test]
async fn stream_of_a_server_without_store_is_lost(#[case] of_reply: &'static str) {
    const NOTICE: &str = "id: 0a6e7c54-3f1d-4b1e-9d53-7d2a8f0c9b11_5b0b3c1e-8a53-4c53-a0f4-1f6f0f6f3c22\ndata: \
         {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\
         \"params\":{\"level\":\"info\",\"data\":\"at work\"}}\n\n";
    let up = Upstream::start(move |what, _| match what {
        "call whole" => Does::Events(vec![(0, NOTICE), (0, of_reply)], Some(done())),
        "call broken" => Does::Events(vec![(0, NOTICE)], None),
        "GET" => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(&format!("{LEGACY}idle_timeout = \"5m\"")).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "whole").await.contains("done"));
    let said = outcome(&user, "broken").await;
    assert!(
        said.contains("whether the request ran is unknown"),
        "{said}"
    );
    assert_eq!(up.count("call broken"), 1);
    gw.stop().await;
}

// Spec: SPEC C-10; BRIDGING §3.7.
#[tokio::test]
async fn a_call_that_is_cancelled_while_its_upstream_opens_is_not_sent() {
    let now = CancellationToken::new();
    let later = now.clone();
    let up = Upstream::start(move |what, before| match (what, before) {
        ("call first", 0) => Does::Status(404, ""),
        ("initialize", 1) => Does::Later(later.clone()),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    outcome(&user, "warm").await;
    let id = user.next_id();
    let params = json!({"name": "first", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    tokio::join!(user.post(&call), async {
        eventually("it is opened again", async || {
            (up.count("initialize") == 2).then_some(())
        })
        .await;
        let cancel = json!({"requestId": id});
        user.notify("notifications/cancelled", cancel).await;
        now.cancel();
    });
    assert!(outcome(&user, "second").await.contains("done"));
    assert_eq!(up.count("call first"), 1, "only the one that was refused");
    gw.stop().await;
}

// Spec: SPEC C-10; BRIDGING §3.7: a child takes its time to start.
#[tokio::test]
async fn a_call_that_is_cancelled_while_its_child_starts_is_not_sent() {
    let slow = ["--slow-start", "1000"];
    let gw = Setup::open().stub("stub", &slow).start().await;
    let children = async || gw.metric("drawbridge_children_running", "").await;
    let known = gw.anonymous().open("/mcp/stub").await;
    known.text("echo", json!({})).await;
    let before = children().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let id = user.next_id();
    let params = json!({"name": "echo", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    tokio::join!(user.post(&call), async {
        eventually("a child starts", async || {
            (children().await > before).then_some(())
        })
        .await;
        let cancel = json!({"requestId": id});
        user.notify("notifications/cancelled", cancel).await;
    });
    let stats = user.text("stats", json!({})).await;
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["counts"]["tools/call"], 1, "only this one: {stats}");
    gw.stop().await;
}

// Spec: SPEC U-12.
#[tokio::test]
async fn a_call_that_timed_out_leaves_nothing_at_an_upstream_that_hangs() {
    let up = Upstream::start(|what, _| match what {
        "call never" | "notifications/cancelled" => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let keys = format!("{LEGACY}idle_timeout = \"1s\"\nconnect_timeout = \"1s\"");
    let gw = up.behind(&keys).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "never").await;
    assert!(said.contains("in time"), "{said}");
    eventually("it is told", async || {
        (up.count("notifications/cancelled") == 1).then_some(())
    })
    .await;
    eventually("nothing hangs any more", async || {
        (up.hanging.load(Ordering::SeqCst) == 0).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: DESIGN §6: the idle time starts again with each frame of the call.
#[rstest]
#[tokio::test]
async fn a_stream_that_is_kept_alive_keeps_its_call(
    #[values("legacy", "modern")] era: &str,
    #[values(": still here\n\n", "data: \n\n")] frame: &'static str,
) {
    let up = Upstream::start(move |what, _| match what {
        "call long" => Does::Events(vec![(250, frame); 10], Some(done())),
        _ => Does::Usual,
    })
    .await;
    let keys = format!("era = \"{era}\"\nidle_timeout = \"1s\"");
    let gw = up.behind(&keys).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let said = outcome(&user, "long").await;
    assert!(said.contains("done"), "{said}");
    gw.stop().await;
}

// Spec: SPEC U-02; BRIDGING §3.10: the exchange of a call is its own.
#[tokio::test]
async fn a_call_outlives_the_session_that_its_upstream_forgets_meanwhile() {
    let now = CancellationToken::new();
    let later = now.clone();
    let up = Upstream::start(move |what, before| match (what, before) {
        ("call slow", _) => Does::Later(later.clone()),
        ("call quick", 0) => Does::Status(404, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let (slow, ()) = tokio::join!(outcome(&user, "slow"), async {
        eventually("the slow call runs", async || {
            (up.count("call slow") == 1).then_some(())
        })
        .await;
        for call in ["quick", "quick", "other"] {
            assert!(outcome(&user, call).await.contains("done"));
        }
        now.cancel();
    });
    assert!(slow.contains("done"), "{slow}");
    assert_eq!(up.count("call slow"), 1);
    user.delete().await;
    eventually("the session that is known is ended", async || {
        (up.count("DELETE") > 0).then_some(())
    })
    .await;
    assert_eq!(up.count("DELETE"), 1, "only that one");
    gw.stop().await;
}

// Spec: SPEC U-12: what an upstream that keeps forgetting leaves behind has a bound.
#[tokio::test]
async fn of_many_forgotten_sessions_with_calls_the_oldest_is_given_up() {
    const KEPT: usize = 4;
    let now = CancellationToken::new();
    let later = now.clone();
    let up = Upstream::start(move |what, before| match what {
        "call slow" => Does::Later(later.clone()),
        "call quick" if before % 2 == 0 => Does::Status(404, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let first_is_over = CancellationToken::new();
    let slow = join_all((0..=KEPT).map(async |number| {
        eventually("its session", async || {
            (up.count("initialize") == number + 1).then_some(())
        })
        .await;
        let said = outcome(&user, "slow").await;
        if number == 0 {
            first_is_over.cancel();
        }
        said
    }));
    let (slow, ()) = tokio::join!(slow, async {
        for number in 0..=KEPT {
            eventually("the slow call runs", async || {
                (up.count("call slow") == number + 1).then_some(())
            })
            .await;
            assert!(outcome(&user, "quick").await.contains("done"));
        }
        within("the end of the oldest", first_is_over.cancelled()).await;
        now.cancel();
    });
    assert!(slow[0].contains("is unknown"), "{}", slow[0]);
    for said in &slow[1..] {
        assert!(said.contains("done"), "{said}");
    }
    gw.stop().await;
}

// Spec: BRIDGING §3.7, the end of a session.
#[tokio::test]
async fn a_session_is_ended_after_the_cancellation_of_its_calls_is_told() {
    let up = Upstream::start(|what, _| match what {
        "call never" => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    for round in 1..=10 {
        let user = gw.anonymous().open("/mcp/up").await;
        let params = json!({"name": "never", "arguments": {}});
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        tokio::join!(user.post(&call), async {
            eventually("the call runs", async || {
                (up.count("call never") == round).then_some(())
            })
            .await;
            user.delete().await;
        });
        eventually("the session is ended", async || {
            (up.count("DELETE") == round).then_some(())
        })
        .await;
        assert_eq!(up.count("notifications/cancelled"), round);
    }
    gw.stop().await;
}
