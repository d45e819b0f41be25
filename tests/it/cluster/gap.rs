//! GET streams whose events are gone when another replica adopts their session. Spec: SPEC T-25; DESIGN §5, §8.1.

use drawbridge::redis_client::cmd;
use http::StatusCode;
use serde_json::json;

use super::adoption::{adopted, over_http, settled};
use crate::harness::redis::{self, RedisServer};
use crate::harness::upstream::HttpStub;

/// Removes the event logs of all sessions, as their age does.
async fn forget_events(redis: &RedisServer) {
    let client = redis.client().await;
    let mut find = cmd("KEYS");
    find.arg("drawbridge:*:events");
    let logs: Vec<String> = client.command("keys", &find).await.unwrap();
    assert!(!logs.is_empty(), "there are events");
    for log in logs {
        let mut remove = cmd("DEL");
        remove.arg(log);
        let removed: usize = client.command("del", &remove).await.unwrap();
        assert_eq!(removed, 1);
    }
}

#[tokio::test]
async fn get_stream_goes_on_where_no_event_is_left() {
    const CHANGED: &str = "notifications/tools/list_changed";
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    here.tools().await;
    let mut stream = here.listen().await;
    stub.heard().await;
    here.text("change_tools", json!({})).await;
    stream.until(CHANGED).await;
    let last = stream.last_id.clone().expect("an id");
    one.kill().await;
    drop(stream);
    forget_events(&redis).await;
    let there = here.at(two.anonymous());
    let resumed = there.resume(&last).await.expect(StatusCode::OK).await;
    assert!((adopted(&two).await - 1.0).abs() < 0.5);
    resumed.events().until(CHANGED).await;
    // What was never shown is not resumed: the stream goes on.
    let opened = there.resume(&format!("{last}999999999999")).await;
    opened.expect(StatusCode::OK).await;
    two.stop().await;
}
