//! Tasks of upstreams. Spec: SPEC K-10, K-12, K-18, M-10.

use serde_json::json;

use super::Modern;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup};

fn user(gw: &Gateway, name: &str) -> Modern {
    let capabilities = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    Modern::with(gw.principal(name), "/mcp", capabilities)
}

#[tokio::test]
async fn a_task_is_known_to_the_user_who_began_it_alone() {
    let stub = HttpStub::start(&["--era", "modern"]).await;
    let gw = Setup::secured()
        .http("stub", &stub, "")
        .stub("other", &[])
        .start()
        .await;
    let alice = user(&gw, "alice");
    let begun = alice.call("stub__task", json!({})).await.unwrap();
    assert_eq!(begun["resultType"], "task");
    let handle = begun["taskId"].as_str().unwrap();
    assert!(!handle.contains("own-task"));
    assert!(handle.len() <= 200, "{handle}");
    let asked = json!({"taskId": handle});
    let seen = alice.send("tasks/get", asked.clone()).await.unwrap();
    assert_eq!(seen["resultType"], "complete");
    assert_eq!(seen["status"], "working");
    let again = json!({"taskId": seen["taskId"]});
    alice.send("tasks/get", again).await.unwrap();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let refused = user(&gw, "bob").send(method, asked.clone()).await;
        assert_eq!(refused.unwrap_err()["code"], -32602);
    }
    let forged = alice.send("tasks/get", json!({"taskId": "own-task"})).await;
    assert_eq!(forged.unwrap_err()["code"], -32602);
    let undeclared = Modern::new(gw.principal("alice"), "/mcp");
    let refused = undeclared.send("tasks/get", asked).await.unwrap_err();
    assert_eq!(refused["code"], -32021);
    gw.stop().await;
}

// Spec: SPEC K-16, M-76.
#[tokio::test]
async fn a_subscription_is_told_how_a_task_stands_until_it_is_over() {
    let stub = HttpStub::start(&["--era", "modern"]).await;
    let setup = Setup::secured().http("stub", &stub, "");
    let gw = setup.stub("other", &[]).start().await;
    let alice = user(&gw, "alice");
    let task = alice.call("stub__errand", json!({"looks": 3})).await;
    let task = task.unwrap()["taskId"].clone();
    let params = json!({"notifications": {"taskIds": [task]}});
    let request = alice.request(&json!(7), "subscriptions/listen", params.clone());
    let mut events = alice.post(&request).await.events();
    let ack = events.message().await.expect("an acknowledgement");
    assert_eq!(ack["params"]["notifications"], json!({"taskIds": [task]}));
    let mut statuses = Vec::new();
    let done = loop {
        let notice = events.message().await.expect("a notification");
        assert_eq!(notice["method"], "notifications/tasks");
        assert_eq!(notice["params"]["taskId"], task);
        statuses.push(notice["params"]["status"].clone());
        if notice["params"]["status"] != "working" {
            break notice;
        }
    };
    assert_eq!(done["params"]["status"], "completed");
    assert_eq!(
        done["params"]["result"]["content"][0]["text"],
        "errand done"
    );
    assert!(statuses.len() > 1, "{statuses:?}");
    let bob = user(&gw, "bob");
    let request = bob.request(&json!(8), "subscriptions/listen", params);
    let mut events = bob.post(&request).await.events();
    let ack = events.message().await.expect("an acknowledgement");
    assert_eq!(ack["params"]["notifications"], json!({}));
    gw.stop().await;
}
