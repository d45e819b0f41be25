//! Calls that end before their time, by the client's will or the upstream's failing.

use serde_json::json;

use super::basics::failure;
use super::{Outcome, Place};
use crate::harness::eventually;
use crate::harness::process::{find, is_alive};
use crate::harness::session::text_of;
use crate::matrix::cells::{Back, Front};
use crate::matrix::client::{Client, Running};

/// Starts a call that lasts and waits until it runs.
async fn linger(place: &Place, client: &Client, key: &str) -> Running {
    let running = client
        .start(
            "tools/call",
            json!({
                "name": place.cell.name("linger"), "arguments": { "key": key },
                "_meta": {"progressToken": key},
            }),
        )
        .await;
    assert_eq!(place.world.state(key).await, "running");
    running
}

/// How a lasting call went.
async fn end(place: &Place, key: &str) -> Outcome {
    match place.world.end(key).await.as_str() {
        "dropped" => Outcome::Cancelled,
        "done" => Outcome::RunsOn,
        other => panic!("a call that is {other}"),
    }
}

pub(super) async fn cancel_notice(place: &Place) -> Outcome {
    let (key, client) = (place.key("notice"), &place.client);
    let mut running = linger(place, client, &key).await;
    let params = json!({"requestId": running.id, "reason": "enough"});
    assert_eq!(client.notify("notifications/cancelled", params).await, 202);
    if client.revision.is_modern() && place.cell.front == Front::Streamable {
        place.world.let_go(&key);
        while let Some(message) = running.next().await {
            if message.get("method").is_none() {
                assert_eq!(text_of(&message["result"]), "done");
            }
        }
    }
    end(place, &key).await
}

pub(super) async fn cancel_close(place: &Place) -> Outcome {
    let key = place.key("close");
    let client = place.other("closes").await;
    let mut running = linger(place, &client, &key).await;
    // If the upstream can send messages before its reply, the call's stream is open.
    let is_open = place.cell.back != Back::Json;
    if is_open {
        // A channel that carries everything may tell of lists first.
        while running.next().await.expect("progress")["method"] != "notifications/progress" {}
    }
    let id = running.id;
    let last_event = running.last_event.lock().unwrap().clone();
    drop(running);
    if place.cell.front != Front::Streamable {
        drop(client);
        return end(place, &key).await;
    }
    if client.revision.is_modern() {
        return end(place, &key).await;
    }
    // The way that a cancellation would take is long enough for two calls.
    for _ in 0..2 {
        client
            .call(&place.cell.name("echo"), json!({}))
            .await
            .expect("a result");
    }
    place.world.let_go(&key);
    let outcome = end(place, &key).await;
    if is_open {
        let last_event = last_event.expect("events have ids");
        let resumed = client.session().resume(&last_event).await;
        let reply = resumed.events().message().await.expect("the reply");
        assert_eq!(
            (&reply["id"], text_of(&reply["result"])),
            (&json!(id), "done")
        );
    }
    outcome
}

pub(super) async fn cancel_end(place: &Place) -> Outcome {
    let key = place.key("end");
    let client = place.other("ends").await;
    let _running = linger(place, &client, &key).await;
    client.end().await;
    end(place, &key).await
}

pub(super) async fn crash(place: &Place) -> Outcome {
    let client = place.other("crashes").await;
    let died = client.call(&place.cell.name("hang_up"), json!({})).await;
    let outcome = failure(&died);
    // The next call finds it alive again.
    let echoed = client.call(&place.cell.name("echo"), json!({})).await;
    assert_eq!(failure(&echoed), Outcome::Works, "{echoed:?}");
    client.end().await;
    outcome
}

pub(super) async fn unauthorized(place: &Place) -> Outcome {
    failure(
        &place
            .client
            .call(&place.cell.name("unauthorized"), json!({}))
            .await,
    )
}

pub(super) async fn forgotten(place: &Place) -> Outcome {
    let client = place.other("forgets").await;
    let call = async |tool: &str| {
        let reply = client.call(&place.cell.name(tool), json!({})).await;
        text_of(&reply.expect("a result")).to_owned()
    };
    if place.cell.back == Back::Stdio {
        let child = find(call("pid").await.parse().unwrap()).expect("it runs");
        call("exit_after_reply").await;
        eventually("the child is gone", async || {
            (!is_alive(child)).then_some(())
        })
        .await;
    } else {
        call("forget_session").await;
    }
    let outcome = failure(&client.call(&place.cell.name("echo"), json!({})).await);
    client.end().await;
    outcome
}

pub(super) async fn slow(place: &Place) -> Outcome {
    let key = place.key("slow");
    let client = place.other("waits").await;
    let params = json!({"name": place.cell.name("linger"), "arguments": { "key": key }});
    let bystander = place.other("bystands").await;
    let (reply, ()) = tokio::join!(client.request("tools/call", params), async {
        place.world.state(&key).await;
        // Nobody else waits.
        let echoed = bystander.call(&place.cell.name("echo"), json!({})).await;
        assert_eq!(failure(&echoed), Outcome::Works);
    });
    assert_eq!(
        end(place, &key).await,
        Outcome::Cancelled,
        "the upstream is told"
    );
    client.end().await;
    bystander.end().await;
    failure(&reply)
}
