//! The keys in Redis of a gateway with `[cluster]`, while sessions live.

use std::sync::Arc;
use std::time::Duration;

use drawbridge::call::LogLevel;
use drawbridge::config::SealKey;
use drawbridge::redis_client::RedisClient;
use drawbridge::seal::Sealer;
use drawbridge::secret::Secret;
use drawbridge::store::events::SessionKey;
use drawbridge::store::records::{RecordState, SessionRecord, SharedRecords};
use drawbridge::store::scripts::StoreKeys;
use serde_json::json;

use super::{ask, dump, has, keys_with_life, redis};
use crate::harness::gateway::Gateway;
use crate::harness::redis::RedisServer;
use crate::harness::upstream::HttpStub;
use crate::harness::{Setup, eventually};

const KEY: &str = "0123456789abcdefghijklmnopqrstuv";

/// A gateway over the stub, which shares its stores in Redis.
async fn replica(server: &RedisServer, stub: &HttpStub, more: &str) -> Gateway {
    let tables = format!(
        "[keys]\nseal = [{{ id = \"k1\", key = \"{KEY}\" }}]\n[cluster]\nredis = \"redis://127.0.0.1:{}\"\n\
         listen = \"127.0.0.1:0\"\nsecret = \"{KEY}\"\nprefix = \"gw\"\n{more}",
        server.port
    );
    Setup::open()
        .toml(&tables)
        .http("stub", stub, "")
        .start()
        .await
}

/// The session whose record is in Redis.
async fn recorded(client: &RedisClient) -> SessionKey {
    let key = eventually("a record is written", async || {
        let keys: Vec<String> = ask(client, &["KEYS", "gw:*:record"]).await;
        keys.into_iter().next()
    })
    .await;
    let (_, digits) = key.split_once('{').unwrap();
    let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}

/// Records as another replica with the same keys reads them.
fn records(client: &RedisClient) -> SharedRecords {
    let ring = [SealKey {
        id: "k1".to_owned(),
        key: Secret::new(KEY),
    }];
    let sealer = Arc::new(Sealer::new(&ring).unwrap());
    let keys = StoreKeys::new("gw");
    SharedRecords::new(
        Arc::new(client.clone()),
        keys,
        sealer,
        Duration::from_hours(1),
    )
}

/// Waits for a record that `fits`.
async fn record(
    client: &RedisClient,
    session: SessionKey,
    fits: impl Fn(&SessionRecord) -> bool,
) -> SessionRecord {
    let records = records(client);
    eventually("the record fits", async || {
        match records.read(session).await.ok()? {
            RecordState::Owned {
                record: Some(record),
                ..
            } if fits(&record) => Some(*record),
            _ => None,
        }
    })
    .await
}

#[tokio::test]
async fn record_has_what_an_adopter_needs_and_nothing_is_in_clear() {
    let Some((server, client)) = redis().await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let gw = replica(&server, &stub, "").await;
    let user = gw.anonymous().open("/mcp").await;
    let session = recorded(&client).await;
    let level = json!({"level": "warning"});
    user.request("logging/setLevel", level).await.unwrap();
    user.text("echo", json!({"text": "MARKED-ARGUMENT"})).await;
    let found = record(&client, session, |record| {
        record.level == Some(LogLevel::Warning) && !record.upstreams.is_empty()
    })
    .await;
    assert!(found.is_initialized);
    assert_eq!(found.upstreams[0].upstream, "stub");
    let upstream_session = found.upstreams[0].id.expose().to_owned();
    let dump = dump(&server, &client).await;
    assert!(has(&dump, ":record"));
    for secret in ["MARKED", upstream_session.as_str(), "clientInfo", KEY] {
        assert!(!has(&dump, secret), "{secret}");
    }
    keys_with_life(&client).await;
    user.delete().await;
    eventually("the record says that the session is over", async || {
        let state = records(&client).read(session).await.ok()?;
        (state == RecordState::Over).then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn events_have_ids_once_redis_has_them_and_go_out_without_it() {
    let Some((mut server, client)) = redis().await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let gw = replica(&server, &stub, "").await;
    let user = gw.anonymous().open("/mcp").await;
    let call = || {
        json!({"name": "notices", "arguments": {"n": 3, "gap_ms": 1},
               "_meta": {"progressToken": "p"}})
    };
    let (_, exchange) = user.start("tools/call", call()).await;
    let mut stream = exchange.stream();
    let mut messages = 0;
    while let Some(event) = stream.next().await {
        if event.message().is_some() {
            assert!(event.id.is_some(), "{event:?}");
            messages += 1;
        }
    }
    assert_eq!(messages, 4);
    let logs: Vec<String> = ask(&client, &["KEYS", "gw:*:events"]).await;
    assert_eq!(logs.len(), 1);
    server.kill();
    let (_, exchange) = user.start("tools/call", call()).await;
    let mut stream = exchange.stream();
    let mut messages = 0;
    while let Some(event) = stream.next().await {
        messages += usize::from(event.message().is_some());
    }
    assert_eq!(messages, 4, "the call does not need Redis");
    assert_eq!(stream.last_id, None);
    assert!(gw.metric("drawbridge_events_unlogged_total", "").await >= 4.0);
    server.start().await;
    let client = server.client().await;
    eventually("the log is written again", async || {
        let logs: Vec<String> = ask(&client, &["KEYS", "gw:*:events"]).await;
        (logs.len() == 1).then_some(())
    })
    .await;
    recorded(&client).await;
    gw.stop().await;
}

#[tokio::test]
async fn two_gateways_share_the_rate_of_a_caller() {
    let Some((server, _client)) = redis().await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let limits = "[limits]\nrate = \"20/h\"\n";
    let (one, two) = (
        replica(&server, &stub, limits).await,
        replica(&server, &stub, limits).await,
    );
    let mut accepted = 0;
    for gw in [&one, &two] {
        let user = gw.anonymous().open("/mcp").await;
        // `initialize`. Its notification takes from the rate too, but is accepted whether or not that has room.
        accepted += 1;
        for _ in 0..40 {
            let answer = user.request("tools/list", json!({})).await;
            accepted += usize::from(answer.is_ok());
        }
    }
    // Apart each would accept 39. Together: 40 less a notification or two, and a slice of one for each replica.
    assert!((38..=42).contains(&accepted), "{accepted}");
    one.stop().await;
    two.stop().await;
}
