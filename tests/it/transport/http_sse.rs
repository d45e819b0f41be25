//! HTTP+SSE of 2024-11-05 towards clients. Spec: SPEC §5.

use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;
use serde_json::json;

use crate::harness::connection::EventSession;
use crate::harness::http::{everything, initialize, without_request_id};
use crate::harness::session::text_of;
use crate::harness::{Gateway, Setup, eventually};

const ON: &str = "[server.sse]\nenabled = true";

async fn secured() -> Gateway {
    let setup = Setup::secured().server(ON).stub("stub", &[]);
    setup.start().await
}

// Spec: SPEC H-01, H-02.
#[tokio::test]
async fn a_session_of_the_old_transport_lists_and_calls() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    for path in ["/sse/stub", "/sse", "/sse/"] {
        let (mut session, hello) =
            EventSession::open_as(&alice, path, "2024-11-05", &json!({})).await;
        assert_eq!(hello["protocolVersion"], "2024-11-05", "{path}");
        let posts = session.post_to.split('?').next().unwrap();
        assert_eq!(posts, path.trim_end_matches('/').replace("sse", "messages"));
        let id = session.start("tools/list", json!({})).await;
        let tools = session.reply(id).await.1.unwrap();
        assert!(tools["tools"].as_array().unwrap().len() > 5, "{tools}");
        let echoed = session.call("echo", json!({"text": "hi"})).await.unwrap();
        assert!(text_of(&echoed).contains("hi"), "{echoed}");
    }
    gw.stop().await;
}

// Spec: SPEC L-01. SDKs use newer revisions over this transport as well.
#[tokio::test]
async fn the_revision_that_the_client_offers_is_spoken() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    for (offered, spoken) in [("2025-06-18", "2025-06-18"), ("1999-01-01", "2024-11-05")] {
        let (_, hello) = EventSession::open_as(&alice, "/sse/stub", offered, &json!({})).await;
        assert_eq!(hello["protocolVersion"], spoken);
    }
    gw.stop().await;
}

// Spec: SPEC H-05.
#[tokio::test]
async fn a_client_of_the_old_transport_may_be_pointed_at_the_new_url() {
    let gw = secured().await;
    let mut session = EventSession::open(&gw.principal("alice"), "/mcp/stub").await;
    session.call("echo", json!({"text": "hi"})).await.unwrap();
    gw.stop().await;
}

// Spec: SPEC T-33.
#[tokio::test]
async fn an_array_with_a_message_of_a_later_revision_is_refused_whole() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    let nothing = json!({});
    let (mut session, _) = EventSession::open_as(&alice, "/sse/stub", "2025-03-26", &nothing).await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientCapabilities": {}});
    let array = json!([
        {"jsonrpc": "2.0", "id": 70, "method": "ping"},
        {"jsonrpc": "2.0", "id": 71, "method": "tools/list", "params": {"_meta": meta}},
    ]);
    assert_eq!(session.post(&array).await.status(), 400);
    // Neither message was answered: the next reply is the ping's.
    let id = session.start("ping", json!({})).await;
    let first = session.stream.message().await.expect("a reply");
    assert_eq!(first["id"], id, "{first}");
    gw.stop().await;
}

// Spec: SPEC H-08.
#[tokio::test]
async fn switched_off_the_paths_do_not_exist() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice");
    assert_eq!(alice.get("/sse", &[]).await.status(), 404);
    let posted = alice.post("/messages", &[], &json!({})).await;
    assert_eq!(posted.status(), 404);
    assert_eq!(alice.get("/mcp", &[]).await.status(), 400);
    gw.stop().await;
}

// Spec: SPEC H-03, H-04, T-47.
#[tokio::test]
async fn the_url_for_posts_works_for_its_principal_alone() {
    let gw = secured().await;
    let mut alice = EventSession::open(&gw.principal("alice"), "/sse/stub").await;
    let ping = json!({"jsonrpc": "2.0", "id": 99, "method": "ping"});
    let stranger = gw.principal("mallory");
    let theirs = stranger.post(&alice.post_to, &[], &ping).await;
    let mut theirs = theirs.expect(StatusCode::NOT_FOUND).await.error().await;
    without_request_id(&mut theirs);
    let forged = "/messages/stub?sessionId=AAAA";
    let forged = alice.actor.post(forged, &[], &ping).await;
    let mut forged = forged.expect(StatusCode::NOT_FOUND).await.error().await;
    without_request_id(&mut forged);
    assert_eq!(theirs, forged, "a stranger's handle looks like none");
    // On another endpoint it is none either.
    let elsewhere = alice.post_to.replace("/messages/stub", "/messages");
    let elsewhere = alice.actor.post(&elsewhere, &[], &ping).await;
    assert_eq!(elsewhere.status(), 404);
    let nobody = gw.anonymous().post(&alice.post_to, &[], &ping).await;
    assert_eq!(nobody.status(), 401);
    let evil = [("origin", "https://evil.example")];
    let page = alice.actor.post(&alice.post_to, &evil, &ping).await;
    assert_eq!(page.status(), 403);
    let opened = alice.actor.get("/sse/stub", &evil).await;
    assert_eq!(opened.status(), 403);
    assert_eq!(gw.anonymous().get("/sse/stub", &[]).await.status(), 401);
    // The session is unaffected by the refused requests.
    alice.call("echo", json!({"text": "hi"})).await.unwrap();
    gw.stop().await;
}

// Spec: RFC 9728 §3.3: clients compare the resource with the URL they use.
#[tokio::test]
async fn the_stream_is_a_resource_of_its_own_that_takes_the_endpoints_tokens() {
    let gw = secured().await;
    let refused = gw.anonymous().get("/sse/stub", &[]).await;
    let challenge = refused.header("www-authenticate").unwrap().to_owned();
    let place = "/.well-known/oauth-protected-resource/sse/stub";
    assert!(challenge.contains(place), "{challenge}");
    let document = gw.anonymous().get(place, &[]).await.json().await;
    let resource = format!("{}/sse/stub", gw.url);
    assert_eq!(document["resource"], resource);
    let audiences = [resource];
    let own = gw.issuer().mint("alice", &audiences, "mcp:tools");
    let bearer = gw.bearer(&own);
    EventSession::open(&bearer, "/sse/stub").await;
    // The reverse does not hold: this token is not valid for Streamable HTTP.
    let hello = initialize(1, "2025-11-25", &everything());
    assert_eq!(bearer.post("/mcp/stub", &[], &hello).await.status(), 401);
    gw.stop().await;
}

#[tokio::test]
async fn methods_bodies_and_types_are_refused_as_everywhere() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    let posted = alice.post("/sse", &[], &json!({})).await;
    assert_eq!(posted.status(), 405);
    assert_eq!(posted.header("allow"), Some("GET"));
    let got = alice.get("/messages", &[]).await;
    assert_eq!((got.status(), got.header("allow")), (405, Some("POST")));
    let json_only = alice.get("/sse", &[("accept", "application/json")]).await;
    assert_eq!(json_only.status(), 406);
    let mut session = EventSession::open(&alice, "/sse/stub").await;
    let text = [("content-type", "text/plain")];
    let answer = alice.post_raw(&session.post_to, &text, "{}").await;
    assert_eq!(answer.status(), 415);
    let broken = alice.post_raw(&session.post_to, &[], "{").await;
    let error = broken.expect(StatusCode::BAD_REQUEST).await.error().await;
    assert_eq!(error["code"], -32700);
    let large = vec![b' '; 5 << 20];
    let large = alice.post_raw(&session.post_to, &[], large).await;
    assert_eq!(large.status(), 413);
    let modern = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta":
        {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}});
    session.tell(&modern).await;
    assert_eq!(session.reply(7).await.1.unwrap_err()["code"], -32022);
    // A client waits for its reply on the stream, whatever a status says.
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":8,"method":"ping","params":{{"a":{}{}}}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    let deep = alice.post_raw(&session.post_to, &[], deep).await;
    assert_eq!(deep.status(), 202);
    assert_eq!(session.reply(8).await.1.unwrap_err()["code"], -32700);
    session.call("echo", json!({"text": "hi"})).await.unwrap();
    gw.stop().await;
}

// The Go SDK's client asks for the modern revision first, and ends on any status but 2xx.
#[tokio::test]
async fn client_that_wants_2xx_for_every_post_connects() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    let mut session = EventSession::connect(&alice, "/sse/stub").await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientCapabilities": {}});
    let params = json!({"_meta": meta});
    let discover = session.start("server/discover", params.clone()).await;
    let refused = session.reply(discover).await.1.unwrap_err();
    assert_eq!(refused["code"], -32022);
    assert_eq!(refused["data"]["requested"], "2026-07-28");
    // Messages that need no answer get none.
    session.notify("notifications/initialized", params).await;
    session.tell(&initialize(1, "2024-11-05", &json!({}))).await;
    session.reply(1).await.1.expect("a session");
    session.notify("notifications/initialized", json!({})).await;
    let unknown = session.start("no/such/method", json!({})).await;
    let refused = session.reply(unknown).await.1.unwrap_err();
    assert_eq!(refused["code"], -32601);
    session.call("echo", json!({"text": "hi"})).await.unwrap();
    gw.stop().await;
}

#[tokio::test]
async fn before_initialize_and_twice_are_refused_on_the_stream() {
    let gw = secured().await;
    let mut early = EventSession::connect(&gw.principal("alice"), "/sse/stub").await;
    let id = early.start("tools/list", json!({})).await;
    let error = early.reply(id).await.1.unwrap_err();
    assert_eq!(error["code"], -32600);
    early.tell(&initialize(7, "2024-11-05", &json!({}))).await;
    early.reply(7).await.1.expect("a session");
    early.tell(&initialize(8, "2024-11-05", &json!({}))).await;
    assert_eq!(early.reply(8).await.1.unwrap_err()["code"], -32600);
    gw.stop().await;
}

// Spec: BRIDGING §1.2: the single stream is the way to ask; in a revision that knows the question.
#[tokio::test]
async fn questions_and_progress_come_on_the_one_stream() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    let (mut session, _) =
        EventSession::open_as(&alice, "/sse/stub", "2025-06-18", &everything()).await;
    let call = json!({"name": "ask_form", "arguments": {}});
    let id = session.start("tools/call", call).await;
    let question = session.stream.until("elicitation/create").await;
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": answer});
    session.tell(&answer).await;
    let result = session.reply(id).await.1.unwrap();
    assert!(text_of(&result).contains("Ada"), "{result}");
    let call = json!({"name": "notices", "arguments": {"n": 3},
                      "_meta": {"progressToken": "p"}});
    let id = session.start("tools/call", call).await;
    let (before, reply) = session.reply(id).await;
    reply.expect("a result");
    let progress = before
        .iter()
        .filter(|m| m["method"] == "notifications/progress");
    assert_eq!(progress.count(), 3, "{before:?}");
    gw.stop().await;
}

// SDKs negotiate 2024-11-05 on this transport and use newer capabilities in it.
#[tokio::test]
async fn peers_of_2024_11_05_use_what_both_declare() {
    let newer = ["--only", "--revision", "2025-06-18"];
    let setup = Setup::open().server(ON).stub("stub", &[]);
    let gw = setup.stub("newer", &newer).start().await;
    let actor = gw.anonymous();
    let open = async |path| EventSession::open_as(&actor, path, "2024-11-05", &everything()).await;
    let (mut session, hello) = open("/sse/stub").await;
    assert_eq!(hello["capabilities"]["completions"], json!({}), "{hello}");
    for tool in ["ask_form", "ask_url"] {
        let call = json!({"name": tool, "arguments": {}});
        let id = session.start("tools/call", call).await;
        let question = session.stream.until("elicitation/create").await;
        let answer = json!({"action": "accept", "content": {"name": "Ada"}});
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": answer});
        session.tell(&answer).await;
        let result = session.reply(id).await.1.unwrap();
        assert!(text_of(&result).contains("accept"), "{tool}: {result}");
    }
    // A merged endpoint asks as its upstreams do.
    let (mut merged, hello) = open("/sse").await;
    assert_eq!(hello["capabilities"]["completions"], json!({}), "{hello}");
    let call = json!({"name": "stub__ask_form", "arguments": {}});
    merged.start("tools/call", call).await;
    merged.stream.until("elicitation/create").await;
    // An upstream of another revision may not ask.
    let (mut session, hello) = open("/sse/newer").await;
    assert_eq!(hello["capabilities"]["completions"], json!(null), "{hello}");
    let result = session.call("ask_form", json!({})).await.unwrap();
    assert!(text_of(&result).contains("-32601"), "{result}");
    gw.stop().await;
}

#[tokio::test]
async fn notices_outside_calls_come_on_the_stream_once() {
    let gw = secured().await;
    let mut session = EventSession::open(&gw.principal("alice"), "/sse/stub").await;
    let call = json!({"name": "change_tools", "arguments": {}});
    let id = session.start("tools/call", call).await;
    let mut seen = (0, false);
    while !(seen.1 && seen.0 > 0) {
        let message = session.stream.message().await.expect("a message");
        seen.0 += i32::from(message["method"] == "notifications/tools/list_changed");
        seen.1 |= message["id"] == id;
    }
    assert_eq!(seen.0, 1);
    gw.stop().await;
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_upstream_and_never_answered() {
    let gw = secured().await;
    let mut session = EventSession::open(&gw.principal("alice"), "/sse/stub").await;
    let call = json!({"name": "sleep", "arguments": {"ms": 60_000}});
    let id = session.start("tools/call", call).await;
    let cancel = json!({"requestId": id, "reason": "enough"});
    session.notify("notifications/cancelled", cancel).await;
    // The session has a child of its own, whose stats show the reason of the cancellation.
    eventually("the cancellation", async || {
        let stats = session.call("stats", json!({})).await.unwrap();
        text_of(&stats).contains("enough").then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC H-07; BRIDGING §2.1.
#[tokio::test]
async fn closing_the_stream_ends_the_session_and_its_calls() {
    let gw = secured().await;
    let session = EventSession::open(&gw.principal("alice"), "/sse/stub").await;
    let call = json!({"name": "sleep", "arguments": {"ms": 60_000}});
    session.start("tools/call", call).await;
    eventually("the call runs", async || {
        (gw.metric("drawbridge_calls_running", "").await > 0.0).then_some(())
    })
    .await;
    let (actor, post_to) = (session.actor.clone(), session.post_to.clone());
    drop(session);
    eventually("nothing is left", async || {
        let calls = gw.metric("drawbridge_calls_running", "").await;
        let sessions = gw.metric("drawbridge_sessions_open", "").await;
        let channels = gw.metric("drawbridge_channels_open", "").await;
        (calls + sessions + channels < 1.0 && gw.children().len() <= 1).then_some(())
    })
    .await;
    let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "ping"});
    assert_eq!(actor.post(&post_to, &[], &ping).await.status(), 404);
    gw.stop().await;
}

#[tokio::test]
async fn quiet_streams_carry_comments() {
    let keep_alive = format!("keep_alive = \"50ms\"\n{ON}");
    let setup = Setup::open().server(&keep_alive).stub("stub", &[]);
    let gw = setup.start().await;
    let mut session = EventSession::connect(&gw.anonymous(), "/sse/stub").await;
    let event = session.stream.next().await.expect("an event");
    assert!(event.comment.is_some(), "{event:?}");
    gw.stop().await;
}

// Spec: SPEC O-02.
#[tokio::test]
async fn a_drain_lets_calls_finish_and_then_ends_the_stream() {
    let mut gw = secured().await;
    let mut session = EventSession::open(&gw.principal("alice"), "/sse/stub").await;
    let call = json!({"name": "sleep", "arguments": {"ms": 700}});
    let id = session.start("tools/call", call).await;
    eventually("the call runs", async || {
        (gw.metric("drawbridge_calls_running", "").await > 0.0).then_some(())
    })
    .await;
    gw.signal(rustix::process::Signal::TERM);
    session.reply(id).await.1.expect("a result");
    assert_eq!(session.stream.message().await, None);
    assert_eq!(gw.exit().await, Some(0));
}

// DESIGN §5: streams end one minute after their token.
#[tokio::test]
async fn the_stream_ends_after_its_token_unless_a_later_one_is_shown() {
    let gw = secured().await;
    let token = |left: i64| {
        let audiences = [format!("{}/mcp/stub", gw.url)];
        let mut claims = gw.issuer().claims("alice", &audiences, "mcp:tools");
        let now = claims["iat"].as_i64().unwrap();
        claims["exp"] = json!(now + left);
        let header = crate::harness::issuer::Issuer::header();
        gw.bearer(&gw.issuer().sign(&header, &claims))
    };
    // The clocks of tokens may differ by a minute: these have expired, and are still taken.
    let mut short = EventSession::open(&token(-57), "/sse/stub").await;
    let mut renewed = EventSession::open(&token(-57), "/sse/stub").await;
    renewed.actor = token(600);
    renewed.call("echo", json!({"text": "hi"})).await.unwrap();
    assert_eq!(short.stream.message().await, None, "it ends");
    renewed.call("echo", json!({"text": "hi"})).await.unwrap();
    gw.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_and_counted() {
    let setup = Setup::open().server(ON).stub("stub", &[]);
    let gw = setup.toml("[limits]\nunread = \"64KiB\"").start().await;
    let session = EventSession::open(&gw.anonymous(), "/sse/stub").await;
    // More than all buffers on the way hold.
    for n in 0..60 {
        let call = json!({"name": "big", "arguments": {"bytes": 1 << 20}});
        let call = json!({"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": call});
        // Sooner or later the stream is gone.
        session.post(&call).await;
    }
    eventually("the slow client is cut off", async || {
        let slow = gw.metric("drawbridge_channels_slow_total", "").await;
        (slow > 0.0).then_some(())
    })
    .await;
    eventually("its session is over", async || {
        (gw.metric("drawbridge_sessions_open", "").await < 1.0).then_some(())
    })
    .await;
    gw.stop().await;
}

// docs/operations/transports.md, "Ends": while the connection's buffers are full, its body is not polled.
#[tokio::test]
async fn a_client_over_its_limit_is_cut_off_while_its_connection_is_full() {
    let setup = Setup::open().server(ON).stub("stub", &[]);
    let gw = setup.toml("[limits]\nunread = \"2MiB\"").start().await;
    let session = EventSession::open(&gw.anonymous(), "/sse/stub").await;
    let next = AtomicU64::new(100);
    eventually("posts are refused", async || {
        let id = next.fetch_add(1, Ordering::Relaxed);
        let call = json!({"name": "big", "arguments": {"bytes": 256 << 10}});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call});
        (session.post(&call).await.status() == 404).then_some(())
    })
    .await;
    assert_eq!(
        gw.metric("drawbridge_channels_slow_total", "")
            .await
            .to_string(),
        "1"
    );
    assert!(gw.metric("drawbridge_sessions_open", "").await < 1.0);
    eventually("nothing runs for it", async || {
        let calls = gw.metric("drawbridge_calls_running", "").await;
        (calls < 1.0 && gw.children().len() <= 1).then_some(())
    })
    .await;
    drop(session);
    gw.stop().await;
}

// Spec: SPEC L-07.
#[tokio::test]
async fn a_ping_is_answered_before_initialize_is() {
    let gw = secured().await;
    let mut early = EventSession::connect(&gw.principal("alice"), "/sse/stub").await;
    let id = early.start("ping", json!({})).await;
    assert_eq!(early.reply(id).await.1, Ok(json!({})));
    early.tell(&initialize(7, "2024-11-05", &json!({}))).await;
    early.reply(7).await.1.expect("a session");
    gw.stop().await;
}
