//! An event reader as strict as the strictest in use, the Java SDK 0.18 to 2.0: it knows the fields
//! `id`, `event` and `data`, and comments, and gives the call up on any other line.

use serde_json::{Value, json};

use crate::harness::events::EventStream;
use crate::harness::http::everything;
use crate::harness::session::{Exchange, reply_of, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Session, Setup};

/// The next message; fails on a field unknown to a strict reader.
async fn next(stream: &mut EventStream) -> Option<Value> {
    loop {
        let event = stream.next().await?;
        assert_eq!(event.retry, None, "a field that is not known: {event:?}");
        if let Some(message) = event.message() {
            return Some(message);
        }
    }
}

/// Calls a tool; returns the methods of the messages before the reply, and the reply's text.
async fn call(user: &Session, tool: &str, arguments: Value) -> (Vec<String>, String) {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}});
    let (_, exchange) = user.start("tools/call", params).await;
    let mut stream = match exchange {
        Exchange::Stream(stream) => stream,
        Exchange::Whole(whole) => {
            let result = reply_of(whole.expect("a reply")).expect("a result");
            return (Vec::new(), text_of(&result).to_owned());
        }
    };
    let mut before = Vec::new();
    loop {
        let message = next(&mut stream).await.expect("a reply");
        let Some(method) = message["method"].as_str() else {
            assert_eq!(next(&mut stream).await, None, "the stream ends");
            let result = reply_of(message).expect("a result");
            return (before, text_of(&result).to_owned());
        };
        before.push(method.to_owned());
        if message.get("id").is_some() {
            let answer = json!({"action": "accept", "content": {"name": "Ada"}});
            user.answer(&message, answer).await;
        }
    }
}

/// `asks_outside`: questions that name no call, as on a pipe, are sent on the GET stream while one is open.
async fn assert_everything_is_read(setup: Setup, asks_outside: bool) {
    let gw = setup.server("sse_after = \"50ms\"").start().await;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let user = gw.anonymous();
        let user = user.open_as("/mcp/stub", revision, everything()).await;
        let mut outside = user.listen().await;
        user.tools().await;
        let (_, slept) = call(&user, "sleep", json!({"ms": 300})).await;
        assert_eq!(slept, "slept", "{revision}");
        let (before, _) = call(&user, "notices", json!({"n": 3, "logs": 1})).await;
        for method in ["notifications/progress", "notifications/message"] {
            let count = before.iter().filter(|it| *it == method).count();
            assert_eq!(count, 3, "{revision}: {before:?}");
        }
        if revision >= "2025-06-18" {
            let asked = async {
                if asks_outside {
                    let question = next(&mut outside).await.expect("a question");
                    assert_eq!(question["method"], "elicitation/create");
                    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
                    user.answer(&question, answer).await;
                }
            };
            let ((before, said), ()) = tokio::join!(call(&user, "ask_form", json!({})), asked);
            let asked_here = before.iter().any(|method| method == "elicitation/create");
            assert_eq!(asked_here, !asks_outside, "{revision}: {before:?}");
            assert!(said.contains("Ada"), "{revision}: {said}");
        }
        call(&user, "change_tools", json!({})).await;
        let told = next(&mut outside).await.expect("a notice");
        assert_eq!(told["method"], "notifications/tools/list_changed");
        assert_eq!(user.delete().await, 204);
    }
    gw.stop().await;
}

#[tokio::test]
async fn strict_reader_gets_all_of_a_stdio_upstream() {
    assert_everything_is_read(Setup::open().stub("stub", &[]), true).await;
}

#[tokio::test]
async fn strict_reader_gets_all_of_an_http_upstream() {
    let stub = HttpStub::start(&["--resumable"]).await;
    assert_everything_is_read(Setup::open().http("stub", &stub, ""), false).await;
}

// Java's line readers end a line at each of these.
#[tokio::test]
async fn unicode_line_separators_arrive_as_escapes() {
    let setup = Setup::open().server("[server.sse]\nenabled = true");
    let gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let said = "a\u{2028}b\u{2029}c\u{85}d";
    let arguments = json!({"text": said});
    assert!(arguments.to_string().contains('\u{2028}'), "sent raw");
    let params = json!({"name": "echo", "arguments": arguments, "_meta": {"progressToken": "p"}});
    let request = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let whole: Value = user.post(&request).await.json().await;
    assert!(text_of(&whole["result"]).contains(said), "{whole}");
    let actor = gw.anonymous();
    let mut old = crate::harness::connection::EventSession::open(&actor, "/sse/stub").await;
    old.tell(&request).await;
    let data = loop {
        let event = old.stream.next().await.expect("an event");
        if event.message().is_some_and(|message| message["id"] == 7) {
            break event.data.expect("data");
        }
    };
    assert!(data.is_ascii(), "{data:?}");
    let reply: Value = serde_json::from_str(&data).unwrap();
    assert_eq!(reply["result"], whole["result"]);
    gw.stop().await;
}
