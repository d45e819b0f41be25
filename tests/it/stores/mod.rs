//! What replicas keep in Redis, each store by its contract: event logs, session records, borrowed rates.

mod events;
mod gateway;
mod notices;
mod quotas;
mod rates;
mod records;
mod shards;

use std::sync::Arc;

use drawbridge::redis_client::{FromRedisValue, RedisClient, cmd};
use drawbridge::seal::Sealer;

use crate::harness::redis::{RedisServer, server};

/// A Redis of the test's own, and a connection to it. `None` where Redis is not installed.
async fn redis() -> Option<(RedisServer, RedisClient)> {
    let server = server(&[]).await?;
    let client = server.client().await;
    Some((server, client))
}

/// The key ring that all replicas of a test share.
fn sealer() -> Arc<Sealer> {
    Arc::new(Sealer::new(&[]).unwrap())
}

/// The answer to one command.
async fn ask<T: FromRedisValue>(client: &RedisClient, words: &[&str]) -> T {
    let (name, arguments) = words.split_first().unwrap();
    let mut command = cmd(name);
    for argument in arguments {
        command.arg(*argument);
    }
    client.command("test", &command).await.unwrap()
}

/// All keys; each key has a time to live.
async fn keys_with_life(client: &RedisClient) -> Vec<String> {
    let keys: Vec<String> = ask(client, &["KEYS", "*"]).await;
    for key in &keys {
        let life: i64 = ask(client, &["PTTL", key]).await;
        assert!(life > 0, "{key} has no life: {life}");
    }
    keys
}

/// Everything that Redis has, as its file of data.
async fn dump(server: &RedisServer, client: &RedisClient) -> Vec<u8> {
    ask::<()>(client, &["SAVE"]).await;
    std::fs::read(server.dir().join("dump.rdb")).unwrap()
}

/// Whether `bytes` has `text` anywhere.
fn has(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}
