//! A server that takes no writes, as after a failover while its name still leads to the former one.

use futures_util::future::join_all;

use super::*;
use crate::harness::eventually;

/// Connections to `PostgreSQL` of one process.
const CONNECTIONS: usize = 8;

#[tokio::test]
async fn connections_that_take_no_writes_are_replaced() {
    let Some(db) = Backend::Postgres.database().await else {
        return;
    };
    let beside = db.open().await;
    let set = async |text: &'static str| {
        let mut tx = beside.begin().await.unwrap();
        // Further connections of this pool begin read-only as well.
        let writes = "SET TRANSACTION READ WRITE";
        tx.execute(writes, &[]).await.unwrap();
        tx.execute(text, &[]).await.unwrap();
        tx.commit().await.unwrap();
    };
    set(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', \
         current_database()); END $$",
    )
    .await;
    let database = Database::connect(&db.place).await.unwrap();
    let asked = (0..CONNECTIONS).map(|_| database.fetch("SELECT pg_sleep(0.5)", &[]));
    let asked = join_all(asked).await;
    assert!(asked.iter().all(Result::is_ok), "reads go on: {asked:?}");
    let write = "CREATE TABLE IF NOT EXISTS written (number BIGINT)";
    assert!(database.execute(write, &[]).await.is_err());
    set(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', \
         current_database()); END $$",
    )
    .await;
    eventually("a connection that takes writes", async || {
        database.execute(write, &[]).await.ok()
    })
    .await;
    database.close().await;
}
