//! A new key of `[keys] seal` in the middle of its rotation. Spec: `docs/operations/replicas.md`, "New keys".

use serde_json::json;

use super::SECRET;
use super::adoption::{LEASE, adopted, keeps};
use super::knows;
use crate::harness::redis::{self, RedisServer};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup};

/// A replica that seals with the first of these keys and opens what either has sealed.
async fn sealing(redis: &RedisServer, stub: &HttpStub, keys: [&str; 2]) -> Gateway {
    let entries = keys.map(|id| format!("{{ id = \"{id}\", key = \"{id}-{SECRET}\" }}"));
    let tables = format!(
        "[keys]\nseal = [{}]\n[cluster]\nredis = \"{}\"\nlisten = \"127.0.0.1:0\"\n\
         secret = \"{SECRET}\"\nlease = \"2s\"\n",
        entries.join(", "),
        redis.url()
    );
    let setup = Setup::open().toml(&tables).http("stub", stub, "");
    setup.start().await
}

/// A session at a replica that has something to lose.
async fn open(gateway: &Gateway) -> Session {
    let user = gateway.anonymous().open("/mcp/stub").await;
    let kept = json!({"key": "k", "value": "kept"});
    user.text("state_set", kept).await;
    user
}

#[tokio::test]
async fn sessions_go_on_between_the_old_key_and_the_new_one() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let old = sealing(&redis, &stub, ["k1", "k2"]).await;
    let new = sealing(&redis, &stub, ["k2", "k1"]).await;
    for gateway in [&old, &new] {
        knows(gateway, 2).await;
    }
    // Redis has to have been there for a lease.
    tokio::time::sleep(LEASE).await;
    let (of_old, of_new) = (open(&old).await, open(&new).await);
    let at_new = of_old.at(new.anonymous());
    let at_old = of_new.at(old.anonymous());
    assert!(
        keeps(&at_new).await.contains("kept"),
        "passed on to the old"
    );
    assert!(
        keeps(&at_old).await.contains("kept"),
        "passed on to the new"
    );
    new.kill().await;
    assert!(keeps(&at_old).await.contains("kept"), "adopted");
    assert!((adopted(&old).await - 1.0).abs() < 0.5);
    old.stop().await;
}
