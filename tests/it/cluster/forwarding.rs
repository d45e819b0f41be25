//! A session of one replica, used at another replica. Spec: DESIGN §8.1.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::adoption::put_state;
use super::{forwards, knows, pair, replica, replica_with, tables};
use crate::harness::connection::EventSession;
use crate::harness::http::{everything, without_request_id};
use crate::harness::redis;
use crate::harness::session::text_of;
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;

#[tokio::test]
async fn session_works_at_another_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let caps = everything();
    let here = one
        .anonymous()
        .open_as("/mcp/stub", "2025-11-25", caps)
        .await;
    let there = here.at(two.anonymous());
    // JSON, and a stream that begins late.
    put_state(&here).await;
    let kept = there.text("state_get", json!({"key": "k"})).await;
    assert!(kept.contains("kept"), "one child has both calls: {kept}");
    let slept = there.text("sleep", json!({"ms": 400})).await;
    assert_eq!(slept, "slept");
    // A question on the stream of a forwarded call, answered at either replica.
    for answerer in [&here, &there] {
        let (_, mut exchange) = there.start_call("ask_form", json!({})).await;
        let question = exchange.next().await.expect("a question");
        let answer = json!({"action": "accept", "content": {"name": "Ada"}});
        answerer.answer(&question, answer).await;
        let (_, reply) = exchange.finish().await;
        assert!(text_of(&reply.unwrap()).contains("Ada"));
    }
    // The GET stream.
    let mut stream = there.listen().await;
    here.call("change_tools", json!({})).await.unwrap();
    stream.until("notifications/tools/list_changed").await;
    // Its end at one is its end at both.
    assert_eq!(there.delete().await, 204);
    for session in [&here, &there] {
        let gone = session.post(&ping()).await;
        assert_eq!(gone.status(), 404);
    }
    assert!(forwards(&two, "ok").await > 5.0);
    assert!(forwards(&one, "").await < 0.5, "the owner forwards nothing");
    one.stop().await;
    two.stop().await;
}

fn ping() -> Value {
    json!({"jsonrpc": "2.0", "id": 77, "method": "ping"})
}

#[tokio::test]
async fn stream_resumes_at_another_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let (_, exchange) = there.start_call("sleep", json!({"ms": 700})).await;
    let mut stream = exchange.stream();
    let first = stream.next().await.expect("a priming event");
    drop(stream);
    let rest = there.resume(&first.id.unwrap()).await;
    let mut rest = rest.expect(StatusCode::OK).await.events();
    let reply = rest.message().await.expect("the reply");
    assert_eq!(text_of(&reply["result"]), "slept");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn owner_sees_a_client_leave() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let stream = here.at(two.anonymous()).listen().await;
    let open = async || one.metric("drawbridge_streams_open", "").await;
    eventually("the stream is open", async || {
        (open().await > 0.5).then_some(())
    })
    .await;
    drop(stream);
    eventually("the stream has ended", async || {
        (open().await < 0.5).then_some(())
    })
    .await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn unknown_handles_are_refused_before_forwarding() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let setup = || Setup::secured().toml(&tables(&redis, super::SECRET, ""));
    let one = setup().stub("stub", &[]).start().await;
    let two = setup().stub("stub", &[]).trusting(&one).start().await;
    knows(&two, 2).await;
    let token = |name: &str| {
        let audiences = [&one, &two].map(|gw| format!("{}/mcp/stub", gw.url));
        one.issuer().mint(name, &audiences, "mcp:tools")
    };
    let alice = token("alice");
    let here = one.bearer(&alice).open("/mcp/stub").await;
    let there = here.at(two.bearer(&alice));
    assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
    let before = forwards(&two, "").await;
    let stranger = here.at(two.bearer(&token("mallory")));
    let theirs = stranger.post(&ping()).await;
    let mut theirs = theirs.expect(StatusCode::NOT_FOUND).await.error().await;
    let mut forged = here.at(two.bearer(&alice));
    forged.id = "AAAA".to_owned();
    let forged = forged.post(&ping()).await;
    let mut forged = forged.expect(StatusCode::NOT_FOUND).await.error().await;
    without_request_id(&mut theirs);
    without_request_id(&mut forged);
    assert_eq!(theirs, forged, "a stranger's id looks like none");
    let none = here.at(two.anonymous()).post(&ping()).await;
    assert_eq!(none.status(), 401);
    let after = forwards(&two, "").await;
    assert!((after - before).abs() < 0.5, "nothing was forwarded");
    // The owner verifies the token itself: this token is for the entry replica alone.
    let narrow = one.issuer();
    let narrow = narrow.mint("alice", &[format!("{}/mcp/stub", two.url)], "mcp:tools");
    let refused = here.at(two.bearer(&narrow)).post(&ping()).await;
    assert_eq!(refused.status(), 401);
    assert!(
        forwards(&two, "").await > after + 0.5,
        "the owner refused it"
    );
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn call_has_one_access_line_at_its_owner() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let message = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "hi"}}});
    let answer = there.post(&message).await.expect(StatusCode::OK).await;
    let id = answer.header("x-request-id").unwrap().to_owned();
    let lines = |gateway: &Gateway| {
        let mut records = gateway.log_records();
        records.retain(|one| one["target"] == "access" && one["rpc_method"] == "tools/call");
        records
    };
    let line = eventually("the access line", async || lines(&one).pop()).await;
    assert_eq!(line["request_id"], *id, "{line}");
    assert_eq!(line["client"], "127.0.0.1");
    // This line is later than any of the call.
    two.anonymous().get("/nothing", &[]).await;
    eventually("a later line", async || {
        let mut records = two.log_records();
        records.retain(|one| one["target"] == "access" && one["path"] == "other");
        records.pop()
    })
    .await;
    assert!(lines(&two).is_empty(), "{:?}", lines(&two));
    assert_eq!(lines(&one).len(), 1);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn page_gets_one_set_of_cors_headers() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let mut headers = there.headers();
    headers.push(("origin", "http://localhost:3000"));
    let answer = there.actor.post(&there.path, &headers, &ping()).await;
    let answer = answer.expect(StatusCode::OK).await;
    let allowed = answer.header("access-control-allow-origin");
    assert_eq!(allowed, Some("http://localhost:3000"));
    assert_eq!(answer.header("vary"), Some("origin"));
    // A foreign origin goes no further.
    headers.pop();
    headers.push(("origin", "https://evil.test"));
    let refused = there.actor.post(&there.path, &headers, &ping()).await;
    assert_eq!(refused.status(), 403);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn posts_of_the_old_transport_reach_their_stream() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let on = "[server.sse]\nenabled = true";
    let [one, two] = pair(|| replica(&redis).server(on)).await;
    let mut session = EventSession::open(&one.anonymous(), "/sse/stub").await;
    session.actor = two.anonymous();
    let echoed = session.call("echo", json!({"text": "hi"})).await.unwrap();
    assert_eq!(text_of(&echoed), "hi");
    assert!(forwards(&two, "ok").await > 0.5);
    drop(session);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn request_for_a_lost_owner_waits_a_lease_and_two_seconds_at_most() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica_with(&redis, "lease = \"2s\"")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    there.text("echo", json!({"text": "hi"})).await;
    let (_, call) = there.start_call("sleep", json!({"ms": 60_000})).await;
    let mut call = call.stream();
    one.kill().await;
    let started = Instant::now();
    let reply = call.message().await.expect("an error");
    assert!(reply["error"].is_object(), "{reply}");
    assert!(call.message().await.is_none(), "the stream has ended");
    // Its child is lost with the owner.
    let answer = there.post(&ping()).await;
    assert_eq!(answer.status(), 404);
    assert!(started.elapsed() < Duration::from_secs(2 + 2));
    knows(&two, 1).await;
    // And at once from now on.
    let started = Instant::now();
    assert_eq!(there.post(&ping()).await.status(), 404);
    assert!(started.elapsed() < Duration::from_secs(1));
    two.stop().await;
}

#[tokio::test]
async fn client_cannot_pose_as_a_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    // A client cannot send the headers of replicas.
    let there = here.at(two.anonymous());
    let mut headers = there.headers();
    let own = two.admin_text("/status").await.unwrap().1;
    let own: Value = serde_json::from_str(&own).unwrap();
    let own = u32::from_str_radix(own["cluster"]["node"].as_str().unwrap(), 16).unwrap();
    let own = own.to_string();
    headers.push(("drawbridge-for", &own));
    headers.push(("drawbridge-paid", "1"));
    let answer = there.actor.post(&there.path, &headers, &ping()).await;
    assert_eq!(answer.status(), 200, "it is passed on to its owner");
    assert!(answer.header("drawbridge-for").is_none());
    assert!(forwards(&two, "ok").await > 0.5);
    // The owner is not told what the client names in `Connection`.
    headers.push(("connection", "mcp-session-id"));
    let answer = there.actor.post(&there.path, &headers, &ping()).await;
    assert_eq!(answer.status(), 400);
    let internal = two.anonymous().get("/drawbridge/replica", &[]).await;
    assert_eq!(internal.status(), 404);
    let method = Method::DELETE;
    let ended = there
        .actor
        .send(method, &there.path, &there.headers(), bytes::Bytes::new())
        .await;
    assert_eq!(ended.status(), 204);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn parked_call_is_answered_at_another_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let users = [&one, &two].map(|gw| Modern::new(gw.anonymous(), "/mcp/stub"));
    let call = json!({"name": "ask_form", "arguments": {}});
    let asked = users[0].send("tools/call", call.clone()).await.unwrap();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let keys = asked["inputRequests"].as_object().unwrap().keys();
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    let mut retry = call;
    retry["inputResponses"] = keys.map(|key| (key.clone(), answer.clone())).collect();
    retry["requestState"] = asked["requestState"].clone();
    let done = users[1].send("tools/call", retry).await.unwrap();
    assert!(text_of(&done).contains("Ada"), "{done}");
    assert!(forwards(&two, "ok").await > 0.5);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn task_of_a_modern_client_is_found_at_another_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let setup = || Setup::open().toml(&tables(&redis, super::SECRET, ""));
    let [one, two] = pair(|| setup().stub("stub", &["--tasks"])).await;
    let extensions = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let user = |gw: &Gateway| Modern::with(gw.anonymous(), "/mcp/stub", extensions.clone());
    let (here, there) = (user(&one), user(&two));
    let begun = here.call("errand", json!({"looks": 2})).await.unwrap();
    assert_eq!(begun["resultType"], "task", "{begun}");
    let asked = json!({"taskId": begun["taskId"]});
    eventually("the task is done", async || {
        let state = there.send("tasks/get", asked.clone()).await.unwrap();
        (state["status"] == "completed").then_some(())
    })
    .await;
    assert!(forwards(&two, "ok").await > 0.5);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn three_replicas_share_every_session() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(replica(&redis).start().await);
    }
    for gateway in &all {
        knows(gateway, 3).await;
    }
    for owner in &all {
        let session = owner.anonymous().open("/mcp/stub").await;
        let users: Vec<_> = all.iter().map(|gw| session.at(gw.anonymous())).collect();
        // A call at each at the same time: all reach one child.
        let calls = users.iter().enumerate().map(|(n, user)| async move {
            let text = format!("call {n}");
            assert_eq!(user.text("echo", json!({"text": text})).await, text);
            user.text("state_set", json!({"key": n.to_string(), "value": "v"}))
                .await;
        });
        futures_util::future::join_all(calls).await;
        for n in 0..3 {
            let kept = session
                .text("state_get", json!({"key": n.to_string()}))
                .await;
            assert!(kept.contains('v'), "{kept}");
        }
    }
    for gateway in all {
        gateway.stop().await;
    }
}
