//! Which schemas this program can use.

use drawbridge::database::{DatabaseError, SCHEMA};
use futures_util::future::join_all;
use rstest::rstest;

use super::*;

#[tokio::test]
async fn postgres_is_migrated_by_the_command_alone() {
    let Some(db) = Backend::Postgres.database().await else {
        return;
    };
    let refused = Database::open(&db.place).await.unwrap_err();
    assert!(matches!(
        refused,
        DatabaseError::NotMigrated { found: 0, .. }
    ));
    assert!(refused.is_configuration());
    assert!(refused.to_string().contains("drawbridge migrate"));
    let database = Database::connect(&db.place).await.unwrap();
    let result = database.migrate().await.unwrap();
    assert_eq!((result.from, result.to), (0, SCHEMA));
    let again = database.migrate().await.unwrap();
    assert_eq!((again.from, again.to), (SCHEMA, SCHEMA));
    Database::open(&db.place).await.unwrap();
}

#[tokio::test]
async fn sqlite_is_migrated_when_opened() {
    let db = Backend::Sqlite.database().await.unwrap();
    Database::open(&db.place).await.unwrap().close().await;
    Database::open(&db.place).await.unwrap();
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_migrations_at_once_are_one(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let all = (0..6).map(|_| {
        let place = db.place.clone();
        tokio::spawn(async move {
            let database = Database::connect(&place).await?;
            database.migrate().await
        })
    });
    for done in join_all(all).await {
        assert_eq!(done.unwrap().unwrap().to, SCHEMA);
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn next_schema_is_used_and_a_breaking_one_refused(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let later = db.open().await;
    let add = "INSERT INTO schema_compatibility (version, oldest) VALUES ($1, $2)";
    let next = [(SCHEMA + 1).into(), SCHEMA.into()];
    later.execute(add, &next).await.unwrap();
    Database::open(&db.place).await.unwrap().close().await;
    let breaking = [(SCHEMA + 2).into(), (SCHEMA + 1).into()];
    later.execute(add, &breaking).await.unwrap();
    let refused = Database::open(&db.place).await.unwrap_err();
    assert!(matches!(refused, DatabaseError::TooNew { .. }), "{refused}");
    assert!(refused.is_configuration());
    let refused = later.migrate().await.unwrap_err();
    assert!(matches!(refused, DatabaseError::TooNew { .. }), "{refused}");
}
