//! Calls run as tasks, in the design that the client supports.

use serde_json::{Value, json};

use super::basics::failure;
use super::{Outcome, Place};
use crate::harness::eventually;
use crate::harness::session::text_of;
use crate::matrix::client::Client;

/// Begins a task of `ms` milliseconds; returns the parameter that names the task in requests.
async fn begin(place: &Place, client: &Client, ms: u64) -> Value {
    client.take_tasks();
    let mut params = json!({"name": place.cell.name("errand"), "arguments": {"ms": ms}});
    let modern = place.cell.client.is_modern();
    if !modern {
        params["task"] = json!({"ttl": 60_000});
    }
    let begun = client.request("tools/call", params).await.expect("a task");
    let task = if modern { &begun } else { &begun["task"] };
    assert_eq!(task["status"], "working", "{begun}");
    json!({"taskId": task["taskId"]})
}

pub(super) async fn run(place: &Place) -> Outcome {
    let client = place.other("works").await;
    let about = begin(place, &client, 50).await;
    let done = eventually("the end of the task", async || {
        let state = client.request("tasks/get", about.clone()).await.unwrap();
        (state["status"] == "completed").then_some(state)
    })
    .await;
    let result = if place.cell.client.is_modern() {
        done["result"].clone()
    } else {
        client.request("tasks/result", about).await.unwrap()
    };
    assert_eq!(text_of(&result), "errand done");
    Outcome::Works
}

pub(super) async fn stolen(place: &Place) -> Outcome {
    let (owner, stranger) = (place.other("works").await, place.other("thief").await);
    stranger.take_tasks();
    let about = begin(place, &owner, 600_000).await;
    let methods = if place.cell.client.is_modern() {
        ["tasks/get", "tasks/update", "tasks/cancel"]
    } else {
        ["tasks/get", "tasks/result", "tasks/cancel"]
    };
    let mut stolen = Vec::new();
    for method in methods {
        stolen.push(failure(&stranger.request(method, about.clone()).await));
    }
    stolen.dedup();
    assert_eq!(stolen.len(), 1, "{stolen:?}");
    // The task goes on, unaffected.
    let own = owner.request("tasks/get", about).await.expect("a task");
    assert_eq!(own["status"], "working", "{own}");
    stolen[0]
}
