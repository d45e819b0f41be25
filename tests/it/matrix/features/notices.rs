//! Notifications from upstreams.

use serde_json::{Value, json};

use super::{Outcome, Place};
use crate::harness::session::text_of;
use crate::matrix::cells::{Back, R1, Shape};

fn quiet(question: &Value) -> crate::matrix::client::Answer {
    panic!("asked {question}")
}

pub(super) async fn progress(place: &Place) -> Outcome {
    let params = json!({
        "name": place.cell.name("notices"), "arguments": {"n": 3, "gap_ms": 5},
        "_meta": {"progressToken": "mine"},
    });
    let talk = place.client.talk("tools/call", params, quiet).await;
    talk.reply.expect("a result");
    let seen: Vec<&Value> = talk
        .notices
        .iter()
        .filter(|notice| notice["method"] == "notifications/progress")
        .map(|notice| &notice["params"])
        .collect();
    let Some(last) = seen.last() else {
        return Outcome::Dropped;
    };
    assert_eq!(
        (&last["progressToken"], &last["progress"]),
        (&json!("mine"), &json!(3))
    );
    // The first revision has no words for it; an upstream of that revision may have its own.
    if place.cell.upstream != R1 {
        let is_told = last.get("message").is_some();
        assert_eq!(is_told, place.cell.client != R1, "{last}");
    }
    Outcome::Works
}

pub(super) async fn logs(place: &Place) -> Outcome {
    let client = place.other("logs").await;
    client.want_logs().await;
    let mut ear = None;
    let mut arguments = json!({"level": "error"});
    if place.cell.back == Back::Json && !place.cell.upstream.is_modern() {
        // The upstream answers the call with JSON: its only stream is the GET stream.
        arguments["via"] = "get".into();
        ear = Some(client.listen(&[]).await);
    }
    let params = json!({"name": place.cell.name("log"), "arguments": arguments});
    let talk = client.talk("tools/call", params, quiet).await;
    talk.reply.expect("a result");
    let method = "notifications/message";
    let heard = talk
        .notices
        .iter()
        .find(|notice| notice["method"] == method);
    let heard = match (heard, &mut ear) {
        (Some(notice), _) => notice.clone(),
        (None, Some(_)) if client.revision.is_modern() => return Outcome::Dropped,
        (None, Some(ear)) => ear.hears(method, &[]).await,
        (None, None) => return Outcome::Dropped,
    };
    let logger = match place.cell.shape {
        Shape::Pure => "stub".to_owned(),
        Shape::Merged => format!("{}/stub", place.cell.upstream_name()),
    };
    assert_eq!(heard["params"]["logger"], logger, "{heard}");
    client.end().await;
    Outcome::Works
}

pub(super) async fn list_changed(place: &Place) -> Outcome {
    let client = place.other("lists").await;
    // A client is notified only of lists that it has fetched.
    client.pages("tools/list").await;
    let mut ear = client.listen(&[]).await;
    let params = json!({"name": place.cell.name("change_tools"), "arguments": {}});
    let talk = client.talk("tools/call", params, quiet).await;
    let is_added = text_of(&talk.reply.expect("a result")) == "added";
    let mut heard = talk.notices;
    let shown = format!("\"{}\"", place.cell.name("extra"));
    // A notice may be of something else; the list is right after the last.
    loop {
        ear.hears("notifications/tools/list_changed", &heard).await;
        heard.clear();
        let pages = client.pages("tools/list").await;
        if json!(pages).to_string().contains(&shown) == is_added {
            break;
        }
    }
    client.end().await;
    Outcome::Works
}

pub(super) async fn resource_updated(place: &Place) -> Outcome {
    let client = place.other("updates").await;
    let uri = place.cell.uri("stub://static/1");
    let mut ear = client.listen(std::slice::from_ref(&uri)).await;
    let params = json!({
        "name": place.cell.name("touch_resource"), "arguments": {"uri": "stub://static/1"},
    });
    let talk = client.talk("tools/call", params, quiet).await;
    talk.reply.expect("a result");
    let notice = ear
        .hears("notifications/resources/updated", &talk.notices)
        .await;
    assert_eq!(notice["params"]["uri"], uri, "{notice}");
    client.end().await;
    Outcome::Works
}
