//! The database of durable data: `SQLite` or `PostgreSQL`, one set of queries for both.
//!
//! Queries are text with `$1`, `$2`, …, which both understand, over three types: 64-bit numbers, text, bytes; no column
//! is ever NULL. `SQLite` has one connection that writes, so that writers queue here instead of in the file, and a few
//! that read. Its schema is migrated whenever it is opened; that of `PostgreSQL` by `drawbridge migrate` alone.

mod files;
mod remedy;
mod schema;
mod sql;

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

pub use files::is_in_memory;
pub use schema::{MigrationResult, SCHEMA};
pub use sql::{SqlRow, SqlTransaction, SqlValue};

use crate::secret::Secret;

/// For a connection of the pool, and for the lock on an `SQLite` file that another process writes.
const PATIENCE: Duration = Duration::from_secs(5);
/// For the end of all connections.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Connections that read an `SQLite` file.
const READERS: u32 = 4;
/// Connections to `PostgreSQL`, per process.
const CONNECTIONS: u32 = 8;

/// Limits of a `PostgreSQL` server, so that no gateway waits for the lock of a gateway that hangs. Migrations, which wait
/// for each other, have no limits.
const LIMITS: [(&str, &str); 3] = [
    ("statement_timeout", "5s"),
    ("lock_timeout", "5s"),
    ("idle_in_transaction_session_timeout", "10s"),
];

/// Which database.
#[derive(Debug, Clone)]
pub enum DatabasePlace {
    /// A file.
    Sqlite(PathBuf),
    /// A URL, which may hold a password.
    Postgres(Secret),
}

/// Why the database cannot be used, or has refused a query.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// `drawbridge migrate` must run first.
    #[error(
        "the database has schema {found}, and this program needs {needed}: run drawbridge migrate"
    )]
    NotMigrated {
        /// Number of the schema, 0 for none.
        found: i64,
        /// Number that this program has.
        needed: i64,
    },
    /// A later program has made the schema unusable for this one.
    #[error(
        "the database has schema {found}, which programs of schema {oldest} or later can use; this one has {ours}: \
         run a newer drawbridge"
    )]
    TooNew {
        /// Number of the schema.
        found: i64,
        /// The oldest program that can use the schema.
        oldest: i64,
        /// Number that this program has.
        ours: i64,
    },
    /// An applied migration differs from the same migration in this program, or the database failed in a migration.
    #[error("the schema of the database cannot be brought up to date")]
    Migration(#[source] MigrateError),
    /// The URL is none.
    #[error("the URL of the database cannot be used")]
    Url(#[source] sqlx::Error),
    /// A file or directory.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A row was edited into something that no program writes.
    #[error("a row of the database is malformed")]
    Malformed,
    /// A server does not answer.
    #[error("the database did not answer within {0:?}")]
    Slow(Duration),
    /// The database refused, or did not answer in time.
    #[error("the database failed")]
    Failed(#[from] sqlx::Error),
}

impl DatabaseError {
    /// Whether the operator has to change something before a restart can help (exit code 78).
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::NotMigrated { .. } | Self::TooNew { .. } | Self::Url(_) => true,
            // A server that was lost or refuses for now may accept the same migration later.
            Self::Migration(_) => self.failure().is_none(),
            Self::File { .. } | Self::Malformed | Self::Slow(_) | Self::Failed(_) => false,
        }
    }
}

/// Pools of connections. Cloning shares them.
#[derive(Debug, Clone)]
enum Engine {
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
    },
    Postgres(PgPool),
}

/// An open database whose schema this program can use. Cloning shares the connections.
#[derive(Debug, Clone)]
pub struct Database {
    engine: Engine,
}

impl Database {
    /// Opens the database and checks its schema; an `SQLite` file is made and migrated where needed. Waits 5 s at most
    /// for a connection.
    ///
    /// # Errors
    /// See [`DatabaseError`]; nothing was changed, but an `SQLite` file may have been made.
    ///
    /// # Cancel safety
    /// A migration is applied whole or not at all.
    pub async fn open(place: &DatabasePlace) -> Result<Self, DatabaseError> {
        let database = Self::connect_with(place, &LIMITS).await?;
        if let Engine::Sqlite { .. } = database.engine {
            database.migrate().await?;
        } else {
            schema::check(&database).await?;
        }
        if let DatabasePlace::Sqlite(path) = place {
            files::restrict(path)?;
        }
        Ok(database)
    }

    /// Opens the database for [`migrate`](Self::migrate), whatever its schema.
    ///
    /// # Errors
    /// As [`open`](Self::open), but for those of the schema.
    pub async fn connect(place: &DatabasePlace) -> Result<Self, DatabaseError> {
        Self::connect_with(place, &[]).await
    }

    async fn connect_with(
        place: &DatabasePlace,
        limits: &[(&str, &str)],
    ) -> Result<Self, DatabaseError> {
        let engine = match place {
            DatabasePlace::Sqlite(path) => sqlite(path).await?,
            DatabasePlace::Postgres(url) => postgres(url, limits).await?,
        };
        Ok(Self { engine })
    }

    /// Brings the schema up to date: migrations only add, each is applied whole or not at all, and processes that
    /// migrate at the same time wait for each other.
    ///
    /// # Errors
    /// The schema is too new for this program, was changed by hand, or the database fails.
    pub async fn migrate(&self) -> Result<MigrationResult, DatabaseError> {
        schema::migrate(self).await
    }

    /// Ends all connections, and with the last one of an `SQLite` file its `-wal` and `-shm`. Takes a second at most: a
    /// connection whose statement a vanished server has not answered is abandoned.
    ///
    /// # Cancel safety
    /// When dropped, no new connection is given out, and some may still be open.
    pub async fn close(&self) {
        let closed = async {
            match &self.engine {
                Engine::Sqlite { writer, readers } => {
                    // The call refuses new writers at once; the writer ends last, as readers cannot remove the `-wal`.
                    let last = writer.close();
                    readers.close().await;
                    last.await;
                }
                Engine::Postgres(pool) => pool.close().await,
            }
        };
        drop(tokio::time::timeout(CLOSE_WITHIN, closed).await);
    }
}

async fn sqlite(path: &Path) -> Result<Engine, DatabaseError> {
    files::create(path)?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        // A refresh token that was rotated must survive a power cut: the old one is void.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(PATIENCE)
        .disable_statement_logging();
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .min_connections(1)
        .acquire_timeout(PATIENCE)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_with(options.clone())
        .await?;
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(options.read_only(true));
    Ok(Engine::Sqlite { writer, readers })
}

async fn postgres(url: &Secret, limits: &[(&str, &str)]) -> Result<Engine, DatabaseError> {
    let options = PgConnectOptions::from_str(url.expose())
        .map_err(DatabaseError::Url)?
        .application_name("drawbridge")
        .options(limits.iter().copied())
        .disable_statement_logging();
    // The pool would try a refused connection again, and say only that it took too long.
    let probe = tokio::time::timeout(PATIENCE, options.connect()).await;
    let probe = probe.map_err(|_| sqlx::Error::PoolTimedOut)??;
    probe.close().await?;
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(PATIENCE)
        .after_release(|connection, _| Box::pin(takes_writes(connection)))
        .connect_with(options)
        .await?;
    Ok(Engine::Postgres(pool))
}

/// Whether a connection that was used answers, and its server takes writes, so that it can be used again. After a failover the
/// name of the server may lead to the former one for a while, which answers reads alone. The pool asks itself for an answer,
/// but without a bound: all connections whose statements a vanished server has not answered would be missing for as long
/// as TCP waits.
///
/// # Errors
/// It gives no answer: the connection is closed.
async fn takes_writes(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let asked = sqlx::query("SHOW transaction_read_only").fetch_one(connection);
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    let row = answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(row.try_get::<&str, _>(0)? != "on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn close_refuses_writers_while_a_reader_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let place = DatabasePlace::Sqlite(dir.path().join("a.db"));
        let database = Database::open(&place).await.unwrap();
        let Engine::Sqlite { writer, readers } = &database.engine else {
            panic!("a file");
        };
        let _busy = readers.acquire().await.unwrap();
        database.close().await;
        assert!(writer.is_closed());
    }
}
