//! Tools that behave.

use serde_json::{Value, json};

use super::Call;
use crate::rpc::{Outcome, notification};

pub(super) async fn run(call: &Call) -> Outcome {
    match call.name.as_str() {
        "sleep" => {
            tokio::time::sleep(call.millis("ms")).await;
            Outcome::text("slept")
        }
        "notices" => notices(call).await,
        "big" => Outcome::text(&"x".repeat(call.size("bytes"))),
        "fail" => fail(call),
        "regional" => Outcome::text(&format!("region {:?}", call.text("region"))),
        "bad_headers" => Outcome::text("called"),
        "seen_headers" => {
            let headers: Vec<Value> = call.headers.iter().map(|(n, v)| json!([n, v])).collect();
            Outcome::text(&Value::from(headers).to_string())
        }
        "seen_meta" => Outcome::text(call.meta.as_deref().unwrap_or("null")),
        "session_info" => Outcome::text(&session_info(call).to_string()),
        _ => Outcome::text(&call.world.stats().to_string()),
    }
}

async fn notices(call: &Call) -> Outcome {
    let count = call.number("n").unwrap_or(1);
    // Each message is written by itself, as by servers that write when something arises.
    let apart = call.number("apart") == Some(1);
    let padding = "x".repeat(call.size("bytes"));
    let meta: Option<Value> = call
        .meta
        .as_deref()
        .and_then(|m| serde_json::from_str(m).ok());
    let token = meta.as_ref().and_then(|meta| meta.get("progressToken"));
    for number in 1..=count {
        let notice = match token {
            Some(token) => notification(
                "notifications/progress",
                &json!({"progressToken": token, "progress": number, "total": count,
                        "message": format!("{number} of {count} {padding}")}),
            ),
            None => notification(
                "notifications/message",
                &json!({"level": "info", "logger": "notices",
                        "data": format!("{number} of {count} {padding}")}),
            ),
        };
        call.outlet.message(notice);
        if call.number("logs").is_some_and(|every| number % every == 0) {
            let params = json!({"level": "info", "logger": "notices", "data": number});
            call.outlet
                .message(notification("notifications/message", &params));
        }
        let gap = call.millis("gap_ms");
        if !gap.is_zero() {
            tokio::time::sleep(gap).await;
        } else if apart {
            tokio::task::yield_now().await;
        }
    }
    Outcome::text(&format!("{count} sent"))
}

fn fail(call: &Call) -> Outcome {
    let message = call.text("message").unwrap_or("failed as asked");
    match call.arguments.get("code").and_then(Value::as_i64) {
        Some(code) => Outcome::Error(code, message.to_owned()),
        None => Outcome::Result(
            json!({"content": [{"type": "text", "text": message}], "isError": true}).to_string(),
        ),
    }
}

fn session_info(call: &Call) -> Value {
    call.session.with(|inner| {
        json!({
            "session": call.session.id,
            "revision": inner.revision,
            "client": inner.client,
            "subscriptions": inner.subscriptions,
        })
    })
}
