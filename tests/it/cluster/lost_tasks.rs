//! Tasks whose replica is lost: those that the gateway ran have failed, those of an upstream go on. Spec: DESIGN §8.1.

use std::sync::Arc;
use std::time::Duration;

use drawbridge::config::SealKey;
use drawbridge::redis_client::cmd;
use drawbridge::seal::Sealer;
use drawbridge::secret::Secret;
use drawbridge::store::records::{RecordState, SharedRecords};
use drawbridge::store::scripts::StoreKeys;
use serde_json::{Value, json};

use super::SECRET;
use super::adoption::{over_http, settled, setup};
use crate::harness::redis::{self, RedisServer};
use crate::harness::session::text_of;
use crate::harness::socket::Socket;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, eventually};
use crate::modern::Modern;
use crate::tasks::hosted::{MODERN, about, begin, until};

/// Waits until the record of the only session names a task.
async fn task_is_recorded(redis: &RedisServer) {
    let client = redis.client().await;
    let ring = [SealKey {
        id: "k1".to_owned(),
        key: Secret::new(SECRET),
    }];
    let records = SharedRecords::new(
        Arc::new(client.clone()),
        StoreKeys::new("drawbridge"),
        Arc::new(Sealer::new(&ring).unwrap()),
        Duration::from_hours(1),
    );
    let mut keys = cmd("KEYS");
    keys.arg("drawbridge:*:record");
    eventually("the task is recorded", async || {
        let found: Vec<String> = client.command("keys", &keys).await.ok()?;
        let (_, digits) = found.first()?.split_once('{')?;
        let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
        let state = records.read(std::array::from_fn(byte)).await.ok()?;
        match state {
            RecordState::Owned {
                record: Some(record),
                ..
            } => (!record.tasks.is_empty()).then_some(()),
            _ => None,
        }
    })
    .await;
}

#[tokio::test]
async fn task_that_the_lost_replica_ran_has_failed() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&MODERN).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there: Session = here.at(two.anonymous());
    let task = begin(&here, "errand", json!({"looks": 1_000_000})).await;
    task_is_recorded(&redis).await;
    one.kill().await;
    let failed = until(&there, &task, "failed").await;
    let said = failed["statusMessage"].as_str().unwrap();
    assert!(said.contains("outcome is unknown"), "{failed}");
    assert_eq!(failed["createdAt"], task["createdAt"]);
    let result = there.request("tasks/result", about(&task)).await;
    let error = result.expect_err("it has no result");
    assert!(
        format!("{error:?}").contains("outcome is unknown"),
        "{error:?}"
    );
    let list = there.request("tasks/list", json!({})).await.unwrap();
    assert_eq!(list["tasks"], json!([failed]));
    two.stop().await;
}

#[tokio::test]
async fn task_of_an_upstream_goes_on() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&["--tasks"]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let task = begin(&here, "errand", json!({"looks": 3})).await;
    task_is_recorded(&redis).await;
    one.kill().await;
    until(&there, &task, "completed").await;
    let result = there.request("tasks/result", about(&task)).await.unwrap();
    assert_eq!(text_of(&result), "errand done");
    two.stop().await;
}

#[tokio::test]
async fn task_of_a_living_replica_has_not_failed_on_a_socket() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let make = || {
        let setup = setup(&redis).server("[server.websocket]\nenabled = true");
        setup.stub("stub", &["--tasks"])
    };
    let [one, two] = settled(make).await;
    let extensions = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let user = |gw: &Gateway| Modern::with(gw.anonymous(), "/mcp/stub", extensions.clone());
    let (here, there) = (user(&one), user(&two));
    let begun = here
        .call("errand", json!({"looks": 1_000_000}))
        .await
        .unwrap();
    let asked = json!({"taskId": begun["taskId"]});
    let mut socket = Socket::connect(&two.url, "/ws/stub", None).await;
    for method in ["tasks/get", "tasks/cancel"] {
        let request = there.request(&json!(1), method, asked.clone());
        socket.tell(&request).await;
        let refused = socket.reply(1).await.1.unwrap_err();
        let said = refused["message"].as_str().unwrap();
        assert!(said.contains("over HTTP"), "{refused}");
    }
    let state: Value = there.send("tasks/get", asked.clone()).await.unwrap();
    assert_eq!(state["status"], "working", "{state}");
    one.kill().await;
    let state: Value = there.send("tasks/get", asked.clone()).await.unwrap();
    assert_eq!(state["status"], "failed", "{state}");
    let request = there.request(&json!(2), "tasks/get", asked);
    socket.tell(&request).await;
    assert_eq!(socket.reply(2).await.1.unwrap()["status"], "failed");
    two.stop().await;
}

#[tokio::test]
async fn task_of_a_modern_client_has_failed() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = settled(|| setup(&redis).stub("stub", &["--tasks"])).await;
    let extensions = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let user = |gw: &Gateway| Modern::with(gw.anonymous(), "/mcp/stub", extensions.clone());
    let (here, there) = (user(&one), user(&two));
    let begun = here
        .call("errand", json!({"looks": 1_000_000}))
        .await
        .unwrap();
    assert_eq!(begun["resultType"], "task", "{begun}");
    one.kill().await;
    let asked = json!({"taskId": begun["taskId"]});
    let state: Value = there.send("tasks/get", asked.clone()).await.unwrap();
    assert_eq!(state["status"], "failed", "{state}");
    assert_eq!(state["taskId"], begun["taskId"]);
    let said = state["error"]["message"].as_str().unwrap();
    assert!(said.contains("outcome is unknown"), "{state}");
    assert!(there.send("tasks/cancel", asked).await.is_ok());
    two.stop().await;
}
