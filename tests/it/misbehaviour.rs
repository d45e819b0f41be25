//! Upstreams that break the protocol: the caller gets an answer, and other callers are not affected.

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::process::{find, is_alive};
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually, within};
use crate::modern::Modern;

/// The stub behind either carrier; the returned stub lives as long as the test.
async fn behind(carrier: &str, keys: &str) -> (Gateway, Option<HttpStub>) {
    if carrier == "http" {
        let stub = HttpStub::start(&[]).await;
        (
            Setup::open().http("stub", &stub, keys).start().await,
            Some(stub),
        )
    } else {
        (
            Setup::open().stub_with("stub", &[], keys).start().await,
            None,
        )
    }
}

/// A child that writes the next line of `lines` after each line read, whatever the input.
fn scripted(lines: &[&str]) -> String {
    let steps = lines.iter().map(|line| match *line {
        "" => "read -r _; ".to_owned(),
        line => format!("read -r _; echo '{line}'; "),
    });
    steps.collect::<String>() + "cat > /dev/null"
}

// SPEC §1 ("JSON-RPC arrays").
#[tokio::test]
async fn a_child_of_2025_03_26_may_say_several_things_in_one_line() {
    let child = scripted(&[
        r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-03-26","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"old","version":"1"}}}"#,
        "",
        r#"[{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"first"}},7,{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"then"}]}}]"#,
    ]);
    let keys = "era = \"legacy\"";
    let setup = Setup::open().stdio("old", "sh", &["-c", &child], keys);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/old").await;
    let (_, exchange) = user.start_call("any", json!({})).await;
    let (before, reply) = exchange.finish().await;
    assert_eq!(before[0]["params"]["data"], "first", "{before:?}");
    assert_eq!(text_of(&reply.unwrap()), "then");
    gw.stop().await;
}

// The SDKs accept this too: some servers turn every id into a string.
#[rstest]
#[case::legacy("legacy", &[])]
#[case::found_out("auto", &[r#"{"jsonrpc":"2.0","id":"0","error":{"code":-32601,"message":"what?"}}"#])]
#[tokio::test]
async fn a_child_that_makes_text_of_our_ids_is_understood(
    #[case] era: &str,
    #[case] probed: &[&str],
) {
    let session = [
        r#"{"jsonrpc":"2.0","id":"1","result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"old","version":"1"}}}"#,
        "",
        r#"{"jsonrpc":"2.0","id":"2","result":{"content":[{"type":"text","text":"here"}]}}"#,
    ];
    let child = scripted(&[probed, &session].concat());
    let keys = format!("era = {era:?}");
    let setup = Setup::open().stdio("old", "sh", &["-c", &child], &keys);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/old").await;
    assert_eq!(user.text("any", json!({})).await, "here");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn noise_around_the_reply_does_not_reach_the_caller(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(user.text("garbage", json!({})).await, "after the garbage");
    assert_eq!(user.text("foreign_id", json!({})).await, "for you");
    assert_eq!(user.text("answer_twice", json!({})).await, "first");
    let split = user.text("split_lines", json!({"bytes": 5000})).await;
    assert!(
        split.chars().all(|c| c == 'é') && split.len() >= 4900,
        "{}",
        split.len()
    );
    assert_eq!(user.text("echo", json!({})).await, "{}");
    gw.stop().await;
}

#[tokio::test]
async fn a_flood_on_stderr_does_not_block_the_child() {
    let (gw, _) = behind("stdio", "").await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(
        user.text("flood_stderr", json!({"bytes": 5_000_000})).await,
        "flooded"
    );
    assert!(
        gw.log().iter().map(String::len).sum::<usize>() < 1_000_000,
        "the log is rate-limited"
    );
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_message_over_the_limit_fails_its_call_and_not_the_gateway(
    #[values("stdio", "http")] carrier: &str,
) {
    let stub = HttpStub::start(&[]).await;
    let setup =
        Setup::open().toml("[limits]\nupstream_message = \"256KiB\"\nsse_event = \"256KiB\"");
    let setup = match carrier {
        "http" => setup.http("stub", &stub, ""),
        _ => setup.stub("stub", &[]),
    };
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(
        user.text("big", json!({"bytes": 100_000})).await.len(),
        100_000
    );
    let reply = user.call("big", json!({"bytes": 2_000_000})).await;
    assert!(reply.is_err() || reply.unwrap()["isError"] == true);
    assert_eq!(
        user.text("echo", json!({})).await,
        "{}",
        "the next call works"
    );
    gw.stop().await;
}

#[tokio::test]
async fn a_request_over_the_limit_is_refused_as_one_that_did_not_run() {
    let setup = Setup::open().toml("[limits]\nupstream_message = \"256KiB\"");
    let gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let long = json!({"text": "x".repeat(400_000)});
    let reply = within("a refusal", user.call("echo", long)).await;
    let said = reply.map_or_else(|error| error.to_string(), |result| result.to_string());
    assert!(said.contains("cannot be sent on"), "{said:.200}");
    let short = user.text("echo", json!({})).await;
    assert_eq!(short, "{}", "the next call works");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_silent_call_ends_at_the_idle_timeout(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "idle_timeout = \"1s\"").await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let reply = within("the idle time-out", user.call("never", json!({}))).await;
    assert!(
        reply.is_err() || reply.as_ref().unwrap()["isError"] == true,
        "{reply:?}"
    );
    // Progress keeps a call alive past the idle time-out. Spec: SPEC U-12, C-03.
    let lively = json!({"name": "notices", "arguments": {"n": 8, "gap_ms": 300},
                        "_meta": {"progressToken": 1}});
    let result = user.request("tools/call", lively).await.expect("a result");
    assert_eq!(text_of(&result), "8 sent");
    gw.stop().await;
}

#[tokio::test]
async fn a_call_ends_at_the_total_timeout_whatever_it_sends() {
    let (gw, _) = behind("stdio", "total_timeout = \"1s\"").await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let endless = json!({"name": "notices", "arguments": {"n": 1000, "gap_ms": 50},
                         "_meta": {"progressToken": 1}});
    let reply = within("the total time-out", user.request("tools/call", endless)).await;
    assert!(reply.is_err() || reply.unwrap()["isError"] == true);
    gw.stop().await;
}

// Issue: "the caller gets an error with the child's last words at once, the next call works".
#[tokio::test]
async fn a_crash_in_mid_call_gives_the_last_words() {
    let (gw, _) = behind("stdio", "").await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let crash = user.call("crash", json!({"words": "disk on fire", "code": 7}));
    let reply = within("the end of the call", crash).await;
    let text = reply.map_or_else(|error| error.to_string(), |result| result.to_string());
    assert!(text.contains("disk on fire"), "{text}");
    assert_eq!(
        user.text("echo", json!({})).await,
        "{}",
        "the next call works"
    );
    gw.stop().await;
}

#[tokio::test]
async fn a_killed_child_is_noticed_at_once() {
    let (gw, _) = behind("stdio", "").await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let pid: i32 = user.text("pid", json!({})).await.parse().unwrap();
    let (call, ()) = tokio::join!(user.call("never", json!({})), async {
        eventually("the call runs", async || {
            user.text("stats", json!({}))
                .await
                .contains("\"running\":2")
                .then_some(())
        })
        .await;
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    assert!(
        call.is_err() || call.as_ref().unwrap()["isError"] == true,
        "{call:?}"
    );
    assert_ne!(user.text("pid", json!({})).await, pid.to_string());
    gw.stop().await;
}

#[tokio::test]
async fn a_child_that_cannot_start_is_an_error_with_its_words() {
    let gw = Setup::open()
        .stub("broken", &["--crash-on-start"])
        .stdio("missing", "/no/such/program", &[], "")
        .stub("fine", &[])
        .start()
        .await;
    let hello = crate::harness::http::initialize(1, "2025-11-25", &json!({}));
    for (path, words) in [
        ("/mcp/broken", "crashing at start"),
        ("/mcp/missing", "cannot be found"),
    ] {
        let answer = gw.anonymous().post(path, &[], &hello).await;
        let status = answer.status();
        let text = answer.text().await;
        assert!(text.contains(words), "{path} {status}: {text}");
        assert!(text.contains("error"), "{path} {status}: {text}");
        assert!(!text.contains("/no/such"), "{path} {status}: {text}");
    }
    let kept = |line: &String| line.contains("/no/such/program");
    eventually("the log names the program", async || {
        gw.log().iter().any(kept).then_some(())
    })
    .await;
    let user = gw.anonymous().open("/mcp/fine").await;
    assert_eq!(user.text("echo", json!({})).await, "{}");
    gw.stop().await;
}

#[tokio::test]
async fn a_child_that_ignores_its_end_is_killed_with_its_group() {
    let keys = "stop = { eof = \"200ms\", term = \"200ms\" }";
    let args = ["--ignore-sigterm", "--ignore-eof"];
    let gw = Setup::open().stub_with("stub", &args, keys).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let pid = |text: String| find(text.parse().unwrap()).expect("it runs");
    let child = pid(user.text("pid", json!({})).await);
    let grandchild = pid(user.text("spawn_grandchild", json!({})).await);
    user.delete().await;
    eventually("both are gone", async || {
        (!is_alive(child) && !is_alive(grandchild)).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC U-02. Answers of SDK examples in place of 404 mean the same; the call has not run.
#[rstest]
#[case::not_found("404")]
#[case::not_found_under_the_id_of_the_request(
    r#"404 {"error":{"code":-32001,"message":"Session not found"}}"#
)]
#[case::example(
    r#"400 {"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#
)]
#[case::without_an_id(r#"400 {"error":{"code":-32600,"message":"Session not found"},"id":null}"#)]
#[case::only_one_transport(
    r#"400 {"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}"#
)]
#[case::plain_text("400 Bad Request: No valid session ID provided")]
#[case::gone("410 it has ended")]
#[case::rust_sdk("401 Unauthorized: Session not found")]
#[tokio::test]
async fn an_http_upstream_that_forgets_the_session_gets_a_new_one(#[case] answer: &str) {
    let stub = HttpStub::start(&["--unknown-session", answer]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.text("forget_session", json!({})).await;
    eventually("a second session", async || {
        let echoed = user.text("echo", json!({"a": 1})).await;
        assert_eq!(echoed, r#"{"a":1}"#);
        (stub.counted("initialize").await == 2).then_some(())
    })
    .await;
    gw.stop().await;
}

#[rstest]
#[case::of_another_kind(r#"400 {"error":{"code":-32602,"message":"no such session type"}}"#)]
#[case::about_something_else(r#"400 {"error":{"code":-32000,"message":"bad colour"}}"#)]
#[case::unknown_thing_with_404(r#"404 {"error":{"code":-32602,"message":"no such colour"}}"#)]
#[tokio::test]
async fn another_refusal_costs_no_session(#[case] answer: &str) {
    let stub = HttpStub::start(&["--unknown-session", answer]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    user.text("forget_session", json!({})).await;
    let words = answer.split('"').nth(7).unwrap();
    eventually("the refusal", async || {
        let answer = user.call("echo", json!({})).await;
        format!("{answer:?}").contains(words).then_some(())
    })
    .await;
    assert_eq!(stub.counted("initialize").await, 1);
    gw.stop().await;
}

// Spec: BRIDGING §3.4: subscriptions end with a lost session, and changes before the next session are not announced.
#[rstest]
#[tokio::test]
async fn who_follows_a_resource_hears_of_it_when_the_session_was_lost(
    #[values("stdio", "http")] carrier: &str,
    #[values("legacy", "modern")] client: &str,
    #[values(true, false)] goes_on_to_call: bool,
) {
    let (gw, _stub) = behind(carrier, "").await;
    let uri = "stub://static/1";
    let session = gw.anonymous().open("/mcp/stub").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/stub");
    let mut stream = if client == "legacy" {
        let stream = session.listen().await;
        let subscribed = session.request("resources/subscribe", json!({"uri": uri}));
        assert_eq!(subscribed.await, Ok(json!({})));
        stream
    } else {
        let wanted = json!({"notifications": {"resourceSubscriptions": [uri]}});
        let request = modern.request(&json!(1), "subscriptions/listen", wanted.clone());
        let mut stream = modern.post(&request).await.events();
        let ack = stream.message().await.expect("an acknowledgement");
        assert_eq!(ack["params"]["notifications"], wanted["notifications"]);
        stream
    };
    let call = async |tool| match client {
        "legacy" => session.call(tool, json!({})).await,
        _ => modern.call(tool, json!({})).await,
    };
    let lose = if carrier == "stdio" {
        "crash"
    } else {
        "forget_session"
    };
    drop(call(lose).await);
    if goes_on_to_call {
        eventually("calls work again", async || {
            let echoed = call("echo").await;
            echoed
                .is_ok_and(|result| result["isError"] != true)
                .then_some(())
        })
        .await;
    }
    let told = stream.until("notifications/resources/updated").await;
    assert_eq!(told["params"]["uri"], uri, "{told}");
    gw.stop().await;
}

// Spec: BRIDGING §3.4: change notices sent between two GET streams of a session were missed.
#[rstest]
#[case::ended("end_stream", "404")]
#[case::forgotten("forget_session", "400 Invalid or missing session ID")]
#[tokio::test]
async fn who_follows_a_resource_hears_of_it_when_the_stream_was_lost(
    #[case] tool: &str,
    #[case] answer: &str,
) {
    let stub = HttpStub::start(&["--unknown-session", answer]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut stream = user.listen().await;
    let uri = json!({"uri": "stub://static/1"});
    let subscribed = user.request("resources/subscribe", uri.clone()).await;
    assert_eq!(subscribed, Ok(json!({})));
    stub.heard().await;
    drop(user.call(tool, json!({})).await);
    let told = stream.until("notifications/resources/updated").await;
    assert_eq!(told["params"], uri);
    gw.stop().await;
}

// Spec: SPEC U-10.
#[tokio::test]
async fn a_broken_upstream_stream_is_resumed_where_the_upstream_can() {
    let stub = HttpStub::start(&["--resumable"]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(
        user.text("break_stream", json!({"ms": 100})).await,
        "after the break"
    );
    let polite = json!({"ms": 100, "retry_ms": 50});
    assert_eq!(user.text("break_stream", polite).await, "after the break");
    gw.stop().await;
}

#[tokio::test]
async fn an_http_upstream_that_polls_is_followed() {
    let stub = HttpStub::start(&["--poll", "50"]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(user.text("sleep", json!({"ms": 300})).await, "slept");
    let older = gw.anonymous();
    let older = older.open_as("/mcp/stub", "2025-06-18", json!({})).await;
    let (_, exchange) = older.start_call("sleep", json!({"ms": 300})).await;
    assert_eq!(text_of(&exchange.finish().await.1.unwrap()), "slept");
    gw.stop().await;
}

// Spec: SPEC T-27: the client is polled as the upstream polls us.
#[tokio::test]
async fn stream_is_closed_as_the_upstream_closes_its_own() {
    let stub = HttpStub::start(&["--poll", "70"]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (id, exchange) = user.start_call("sleep", json!({"ms": 300})).await;
    let mut stream = exchange.stream();
    let first = stream.next().await.expect("the priming event");
    assert_eq!((first.retry, first.data.as_deref()), (None, Some("")));
    let last = stream.next().await.expect("a reconnection time");
    assert_eq!((last.retry, &last.data), (Some(70), &None));
    assert_eq!(stream.next().await, None, "the stream ends");
    let resumed = user.resume(&first.id.unwrap()).await;
    let mut resumed = resumed.expect(http::StatusCode::OK).await.events();
    let reply = resumed.message().await.expect("the reply");
    assert_eq!(
        (&reply["id"], text_of(&reply["result"])),
        (&json!(id), "slept")
    );
    assert_eq!(resumed.retry, None);
    gw.stop().await;
}

// A break is no planned close: the gateway alone resumes.
#[tokio::test]
async fn stream_outlives_a_break_of_the_upstreams_own() {
    let stub = HttpStub::start(&["--resumable"]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, exchange) = user.start_call("break_stream", json!({"ms": 100})).await;
    let mut stream = exchange.stream();
    let reply = loop {
        let message = stream.message().await.expect("the reply");
        if message.get("method").is_none() {
            break message;
        }
    };
    assert_eq!(text_of(&reply["result"]), "after the break");
    assert_eq!(stream.retry, None);
    gw.stop().await;
}

// Spec: SPEC U-04.
#[tokio::test]
async fn upstreams_without_sessions_or_get_streams_work() {
    for args in [
        &["--stateless"][..],
        &["--no-get"],
        &["--sse", "always"],
        &["--sse", "never"],
    ] {
        let stub = HttpStub::start(args).await;
        let gw = Setup::open().http("stub", &stub, "").start().await;
        let user = gw.anonymous().open("/mcp/stub").await;
        let stream = user.listen().await;
        assert_eq!(
            user.text("echo", json!({"a": 1})).await,
            r#"{"a":1}"#,
            "{args:?}"
        );
        assert!(user.tools().await.contains(&"echo".to_owned()), "{args:?}");
        drop(stream);
        gw.stop().await;
    }
}

// Spec: SPEC U-13, E-05.
#[tokio::test]
async fn an_http_upstream_that_is_down_is_an_error_and_comes_back() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(user.text("echo", json!({})).await, "{}");
    let port = stub.port();
    stub.stop().await;
    let reply = user.call("echo", json!({})).await;
    assert!(reply.is_err() || reply.unwrap()["isError"] == true);
    let _stub = HttpStub::start_on(port, &[]).await;
    eventually("it is used again", async || {
        user.call("echo", json!({}))
            .await
            .is_ok_and(|result| result["isError"] != true)
            .then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC A-22, DESIGN §6 (header inclusion list).
#[tokio::test]
async fn the_callers_headers_stay_here() {
    let stub = HttpStub::start(&[]).await;
    let keys = "headers = { \"X-Team\" = \"platform\" }";
    let gw = Setup::secured().http("stub", &stub, keys).start().await;
    let alice = gw.principal("alice");
    let user = alice.open("/mcp/stub").await;
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                         "params": {"name": "seen_headers", "arguments": {}}});
    let mut headers = user.headers();
    headers.extend([
        ("cookie", "secret=1"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-custom", "y"),
    ]);
    let reply: Value = alice
        .post("/mcp/stub", &headers, &message)
        .await
        .json()
        .await;
    let seen = text_of(&reply["result"]).to_lowercase();
    assert!(seen.contains("x-team"), "{seen}");
    for leaked in [
        "authorization",
        "cookie",
        "x-forwarded",
        "x-custom",
        alice.token().unwrap(),
    ] {
        assert!(!seen.contains(&leaked.to_lowercase()), "{leaked} in {seen}");
    }
    assert!(!seen.contains(&user.id.to_lowercase()), "our session id");
    gw.stop().await;
}
