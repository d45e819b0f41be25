//! Notices of changed lists between replicas.

use std::sync::{Arc, Mutex, Weak};

use drawbridge::redis_client::RedisClient;
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::store::notices::{ListChange, ListChangeReceiver, SharedNotices};
use drawbridge::store::scripts::StoreKeys;

use super::{ask, keys_with_life, redis};
use crate::harness::eventually;
use crate::harness::redis::server;

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<String>>);

impl ListChangeReceiver for Heard {
    fn changed(&self, change: &ListChange) {
        let text = format!("{} {}", change.upstream, change.what);
        self.0.lock().unwrap().push(text);
    }

    fn changed_again(&self, change: &ListChange) {
        let text = format!("{} {} again", change.upstream, change.what);
        self.0.lock().unwrap().push(text);
    }

    fn missed(&self) {
        self.0.lock().unwrap().push("missed".to_owned());
    }
}

struct Replica {
    notices: Arc<SharedNotices>,
    heard: Arc<Heard>,
}

impl Replica {
    fn start(client: &RedisClient) -> Self {
        let heard = Arc::new(Heard::default());
        let receiver: Weak<Heard> = Arc::downgrade(&heard);
        let (store, keys) = (Arc::new(client.clone()), StoreKeys::new("test"));
        let notices = SharedNotices::start(store, keys, receiver, &TaskSpawner::new());
        Self { notices, heard }
    }

    fn publish(&self, upstream: &str) {
        self.notices.publish(ListChange {
            upstream: upstream.to_owned(),
            what: "tools".to_owned(),
        });
    }

    fn heard(&self) -> Vec<String> {
        self.heard.0.lock().unwrap().clone()
    }

    /// Waits until the replica has heard this.
    async fn hears(&self, expected: &str) {
        eventually("the notice is heard", async || {
            self.heard().contains(&expected.to_owned()).then_some(())
        })
        .await;
    }

    /// Publishes until `other` hears it: a replica reads from when it has first asked.
    async fn meet(&self, other: &Self) {
        eventually("replicas hear each other", async || {
            self.publish("first");
            other
                .heard()
                .contains(&"first tools".to_owned())
                .then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn other_replicas_hear_of_a_change_and_the_own_one_does_not() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let (one, two) = (Replica::start(&client), Replica::start(&client));
    one.meet(&two).await;
    two.publish("files");
    one.hears("files tools").await;
    assert!(!two.heard().contains(&"files tools".to_owned()));
    assert!(!one.heard().contains(&"first tools".to_owned()));
    keys_with_life(&client).await;
}

#[tokio::test]
async fn replica_learns_that_it_has_missed_notices() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let (one, two) = (Replica::start(&client), Replica::start(&client));
    one.meet(&two).await;
    ask::<()>(&client, &["FLUSHALL"]).await;
    eventually("both say so", async || {
        let missed = |replica: &Replica| replica.heard().contains(&"missed".to_owned());
        (missed(&one) && missed(&two)).then_some(())
    })
    .await;
    one.publish("files");
    two.hears("files tools").await;
}

#[tokio::test]
async fn another_run_of_the_server_counts_as_missed_notices() {
    // With its data: each replica finds its place again.
    let Some(mut server) = server(&["--appendonly", "yes", "--appendfsync", "always"]).await else {
        return;
    };
    let client = server.client().await;
    let (one, two) = (Replica::start(&client), Replica::start(&client));
    one.meet(&two).await;
    assert!(!two.heard().contains(&"missed".to_owned()));
    server.kill();
    server.start().await;
    two.hears("missed").await;
    one.publish("files");
    two.hears("files tools").await;
    let missed = two.heard().into_iter().filter(|one| one == "missed");
    assert_eq!(missed.count(), 1);
}

#[tokio::test]
async fn change_that_was_heard_here_too_is_not_told_again() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let (one, two) = (Replica::start(&client), Replica::start(&client));
    one.meet(&two).await;
    two.publish("both");
    one.publish("both");
    one.publish("files");
    two.hears("files tools").await;
    // It may be a second change, so lists end.
    two.hears("both tools again").await;
    assert!(!two.heard().contains(&"both tools".to_owned()));
}

#[tokio::test]
async fn notices_of_an_outage_are_told_afterwards() {
    let Some((mut server, client)) = redis().await else {
        return;
    };
    let (one, two) = (Replica::start(&client), Replica::start(&client));
    one.meet(&two).await;
    server.kill();
    one.publish("files");
    server.start().await;
    two.hears("files tools").await;
    assert!(
        two.heard().contains(&"missed".to_owned()),
        "the server lost its data"
    );
}
