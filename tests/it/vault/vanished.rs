//! A server that vanishes from the network: its connections stay open, and nothing comes over them.

use std::pin::pin;
use std::time::Instant;

use futures_util::future::join_all;
use url::Url;

use super::*;
use crate::harness::eventually;
use crate::harness::network::{Network, Weather};

/// Connections to `PostgreSQL` of one process.
const CONNECTIONS: i64 = 8;
/// A statement that runs while its server vanishes.
const ASLEEP: &str = "SELECT pg_sleep(20)";

/// The database over a network that can freeze.
async fn over_network(db: &TestDatabase) -> (Network, Database) {
    let DatabasePlace::Postgres(url) = &db.place else {
        panic!("a server");
    };
    let mut url = Url::parse(url.expose()).unwrap();
    let network = Network::start(url.port().unwrap(), Weather::slow(Duration::ZERO));
    let network = network.await.unwrap();
    url.set_port(Some(network.port)).unwrap();
    let place = DatabasePlace::Postgres(Secret::new(url.as_str()));
    (network, Database::connect(&place).await.unwrap())
}

/// Waits until `count` connections run [`ASLEEP`], which `beside` sees.
async fn until_asleep(beside: &Database, count: i64) {
    eventually("running statements", async || {
        let running = "SELECT COUNT(*) FROM pg_stat_activity \
             WHERE query = 'SELECT pg_sleep(20)' AND datname = current_database()";
        let running = beside.fetch(running, &[]).await.unwrap();
        (running[0].int(0).unwrap() == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn connections_to_a_server_that_has_vanished_are_replaced() {
    let Some(db) = Backend::Postgres.database().await else {
        return;
    };
    let (network, database) = over_network(&db).await;
    let beside = db.open().await;
    let asked = join_all((0..CONNECTIONS).map(|_| database.fetch(ASLEEP, &[])));
    let vanishes = async {
        until_asleep(&beside, CONNECTIONS).await;
        network.freeze();
    };
    let (answers, ()) = tokio::join!(asked, vanishes);
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    // A new connection meets a server that is there.
    eventually("another connection", async || {
        database.fetch("SELECT 1", &[]).await.ok()
    })
    .await;
    database.close().await;
}

// The gateway closes the database at its stop, shortly after it has dropped its background work.
#[tokio::test]
async fn close_waits_for_no_server_that_has_vanished() {
    let Some(db) = Backend::Postgres.database().await else {
        return;
    };
    let (network, database) = over_network(&db).await;
    let beside = db.open().await;
    {
        let mut asked = pin!(database.fetch(ASLEEP, &[]));
        tokio::select! {
            answer = &mut asked => panic!("{answer:?}"),
            () = until_asleep(&beside, 1) => network.freeze(),
        }
    }
    // The pool asks the connection for an answer before it is given out again.
    tokio::task::yield_now().await;
    let closing = Instant::now();
    database.close().await;
    let taken = closing.elapsed();
    assert!(taken < Duration::from_secs(3), "{taken:?}");
}
