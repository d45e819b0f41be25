//! Tools that break the protocol.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::Call;
use crate::rpc::{Outcome, notification, result_reply, text_result};
use crate::stream::Event;

pub(super) async fn run(call: &Call) -> Outcome {
    match call.name.as_str() {
        "answer_twice" => {
            let reply = result_reply(&call.id, &text_result(r#""first""#));
            call.outlet.message(reply);
            Outcome::text("second")
        }
        "foreign_id" => {
            let foreign = text_result(r#""not for you""#);
            for id in ["987654321", r#""nobody asked""#, "null"] {
                call.outlet.message(result_reply(id, &foreign));
            }
            Outcome::text("for you")
        }
        "garbage" => {
            for bytes in GARBAGE {
                call.outlet.raw(bytes);
            }
            Outcome::text("after the garbage")
        }
        "split_lines" => {
            let text = "é".repeat(call.size("bytes").max(100) / 2);
            let token = serde_json::Value::from(text).to_string();
            let reply = result_reply(&call.id, &text_result(&token));
            call.outlet.message_in_pieces(&reply);
            Outcome::Silence
        }
        "long_line" => {
            let data = "x".repeat(call.size("bytes"));
            let params = json!({"level": "info", "logger": "stub", "data": data});
            call.outlet
                .message(notification("notifications/message", &params));
            Outcome::text("sent")
        }
        "forget_session" => Outcome::text("forgotten"),
        "break_stream" => break_stream(call).await,
        _ => pending().await,
    }
}

/// Malformed lines; over HTTP they are noise inside the event stream.
const GARBAGE: [&[u8]; 6] = [
    b"this is not json\n",
    b"\n",
    b"{\"jsonrpc\":\"2.0\",\n",
    b"[1,2,3]\n",
    b"\xff\xfe\x00\x01\n",
    b"{\"jsonrpc\":\"2.0\",\"method\":42}\n\n",
];

async fn break_stream(call: &Call) -> Outcome {
    let params = json!({"level": "info", "logger": "stub", "data": "before the break"});
    call.outlet
        .message(notification("notifications/message", &params));
    if let Some(retry) = call.number("retry_ms") {
        let line = Bytes::from(format!("retry: {retry}\n\n"));
        call.outlet.event(Event::Raw(line));
        call.outlet.event(Event::Close);
    } else {
        call.outlet.event(Event::Pause);
        call.outlet.event(Event::Cut);
    }
    tokio::time::sleep(call.millis("ms").max(Duration::from_millis(20))).await;
    Outcome::text("after the break")
}
