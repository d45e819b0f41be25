//! A server that vanishes from the network: its connections stay open, and nothing comes over them.

use futures_util::future::join_all;
use url::Url;

use super::*;
use crate::harness::eventually;
use crate::harness::network::{Network, Weather};

/// Connections to `PostgreSQL` of one process.
const CONNECTIONS: i64 = 8;

#[tokio::test]
async fn connections_to_a_server_that_has_vanished_are_replaced() {
    let Some(db) = Backend::Postgres.database().await else {
        return;
    };
    let DatabasePlace::Postgres(url) = &db.place else {
        panic!("a server");
    };
    let mut url = Url::parse(url.expose()).unwrap();
    let network = Network::start(url.port().unwrap(), Weather::slow(Duration::ZERO));
    let network = network.await.unwrap();
    url.set_port(Some(network.port)).unwrap();
    let place = DatabasePlace::Postgres(Secret::new(url.as_str()));
    let (database, beside) = (Database::connect(&place).await.unwrap(), db.open().await);
    let asked = join_all((0..CONNECTIONS).map(|_| database.fetch("SELECT pg_sleep(20)", &[])));
    let vanishes = async {
        eventually("statements on all connections", async || {
            let running = "SELECT COUNT(*) FROM pg_stat_activity \
                 WHERE query = 'SELECT pg_sleep(20)' AND datname = current_database()";
            let running = beside.fetch(running, &[]).await.unwrap();
            (running[0].int(0).unwrap() == CONNECTIONS).then_some(())
        })
        .await;
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
