//! Handles used by another principal, who must gain no information (BRIDGING §4.1).

use serde_json::{Value, json};

use super::basics::failure;
use super::questions::asking;
use super::{Outcome, Place};

pub(super) async fn session(place: &Place) -> Outcome {
    let stranger = place.other("thief").await;
    let owner = place.client.session();
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let headers = owner.headers();
    let answer = stranger
        .actor
        .post(&stranger.path, &headers, &message)
        .await;
    Outcome::Status(answer.status())
}

pub(super) async fn event(place: &Place) -> Outcome {
    let stranger = place.other("thief").await;
    let mut running = place
        .client
        .start(
            "tools/call",
            json!({
                // It runs on while its stream is resumed.
                "name": place.cell.name("notices"), "arguments": {"n": 2, "gap_ms": 1000},
                "_meta": {"progressToken": 1},
            }),
        )
        .await;
    running.next().await.expect("a notice");
    let event = running
        .last_event
        .lock()
        .unwrap()
        .clone()
        .expect("events have ids");
    // Its owner is let in.
    assert_eq!(place.client.session().resume(&event).await.status(), 200);
    Outcome::Status(stranger.session().resume(&event).await.status())
}

pub(super) async fn url(place: &Place) -> Outcome {
    let stranger = place.other("thief").await;
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let url = place.client.line().url();
    Outcome::Status(stranger.actor.post(url, &[], &message).await.status())
}

pub(super) async fn cursor(place: &Place) -> Outcome {
    let stranger = place.other("thief").await;
    let first = place
        .client
        .request("tools/list", json!({}))
        .await
        .expect("a page");
    let params = json!({ "cursor": first["nextCursor"] });
    let own = place.client.request("tools/list", params.clone()).await;
    assert_eq!(failure(&own), Outcome::Works, "{own:?}");
    failure(&stranger.request("tools/list", params).await)
}

pub(super) async fn state(place: &Place) -> Outcome {
    let stranger = place.other("thief").await;
    let (params, _ear) = asking(place, "ask_form").await;
    let mut running = place.client.start("tools/call", params.clone()).await;
    let interim = loop {
        let message = running.next().await.expect("an interim result");
        if message.get("method").is_none() {
            break message["result"].clone();
        }
    };
    assert_eq!(interim["resultType"], "input_required", "{interim}");
    let mut again = params;
    again["requestState"] = interim["requestState"].clone();
    let keys = interim["inputRequests"].as_object().unwrap().keys();
    let answer = json!({"action": "accept", "content": {"name": "Mallory"}});
    again["inputResponses"] = keys
        .map(|key| (key.clone(), answer.clone()))
        .collect::<Value>();
    let stolen = failure(&stranger.request("tools/call", again.clone()).await);
    // Its owner goes on as if nothing had been.
    let own = place.client.request("tools/call", again).await;
    assert_eq!(failure(&own), Outcome::Works, "{own:?}");
    stolen
}
