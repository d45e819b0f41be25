//! The schema: embedded migrations, and whether this program can use the schema found.

use futures_util::future::BoxFuture;
use sqlx::error::BoxDynError;
use sqlx::migrate::{Migration, MigrationSource, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::{Database, DatabaseError, Engine};

/// Number, name, text for `SQLite`, text for `PostgreSQL`. Migrations only add, and are never changed.
type EmbeddedMigration = (i64, &'static str, &'static str, &'static str);

/// All migrations, in order.
const MIGRATIONS: [EmbeddedMigration; 2] = [
    (
        1,
        "vault",
        include_str!("../../migrations/sqlite/0001_vault.sql"),
        include_str!("../../migrations/postgres/0001_vault.sql"),
    ),
    (
        2,
        "programs",
        include_str!("../../migrations/sqlite/0002_programs.sql"),
        include_str!("../../migrations/postgres/0002_programs.sql"),
    ),
];

/// Number of the schema of this program.
pub const SCHEMA: i64 = 2;

/// What a migration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationResult {
    /// Number of the schema before, 0 for an empty database.
    pub from: i64,
    /// Number of the schema now; larger than [`SCHEMA`] where a later program has migrated.
    pub to: i64,
}

/// The texts of one database. `sqlx::migrate!` would do the same with a compiler plug-in that builds both drivers twice.
#[derive(Debug)]
struct EmbeddedMigrations(fn(&EmbeddedMigration) -> &'static str);

impl MigrationSource<'static> for EmbeddedMigrations {
    fn resolve(self) -> BoxFuture<'static, Result<Vec<Migration>, BoxDynError>> {
        let migrations = MIGRATIONS.iter().map(|migration| {
            let text = SqlStr::from_static((self.0)(migration));
            let (number, name) = (migration.0, migration.1);
            Migration::new(number, name.into(), MigrationType::Simple, text, false)
        });
        let migrations = migrations.collect();
        Box::pin(async move { Ok(migrations) })
    }
}

/// What a database says of its schema.
struct FoundSchema {
    number: i64,
    /// The oldest program that can use the schema.
    oldest: i64,
}

async fn found(database: &Database) -> Result<FoundSchema, DatabaseError> {
    let tables = match database.engine {
        Engine::Sqlite { .. } => {
            "SELECT COUNT(*) FROM sqlite_schema WHERE name = 'schema_compatibility'"
        }
        Engine::Postgres(_) => {
            "SELECT COUNT(*) FROM pg_tables WHERE tablename = 'schema_compatibility' \
             AND schemaname = current_schema()"
        }
    };
    // Of the writing connection: a migration that another process has just committed is seen.
    let mut tx = database.begin().await?;
    let mut found = FoundSchema {
        number: 0,
        oldest: 0,
    };
    if tx.number(tables, &[]).await? > 0 {
        let rows = "SELECT MAX(version), MAX(oldest) FROM schema_compatibility";
        if let Some(row) = tx.fetch(rows, &[]).await?.first() {
            found.number = row.int(0)?;
            found.oldest = row.int(1)?;
        }
    }
    tx.commit().await?;
    Ok(found)
}

impl FoundSchema {
    fn refuse_too_new(&self) -> Result<(), DatabaseError> {
        if self.oldest > SCHEMA {
            return Err(DatabaseError::TooNew {
                found: self.number,
                oldest: self.oldest,
                ours: SCHEMA,
            });
        }
        Ok(())
    }
}

/// Whether this program can use the schema as it is.
pub(super) async fn check(database: &Database) -> Result<(), DatabaseError> {
    let found = found(database).await?;
    found.refuse_too_new()?;
    if found.number < SCHEMA {
        return Err(DatabaseError::NotMigrated {
            found: found.number,
            needed: SCHEMA,
        });
    }
    Ok(())
}

/// Applies what is missing.
pub(super) async fn migrate(database: &Database) -> Result<MigrationResult, DatabaseError> {
    let before = found(database).await?;
    before.refuse_too_new()?;
    match &database.engine {
        Engine::Sqlite { writer, .. } => {
            let migrator = migrator(EmbeddedMigrations(|migration| migration.2)).await?;
            // One transaction around all: processes that open a new file at the same time wait here, since the
            // migrator takes no lock on SQLite.
            let begin = AssertSqlSafe("BEGIN IMMEDIATE").into_sql_str();
            let mut tx = writer.begin_with(begin).await?;
            let done = migrator.run_direct(None, &mut *tx, false).await;
            done.map_err(DatabaseError::Migration)?;
            tx.commit().await?;
        }
        Engine::Postgres(pool) => {
            let migrator = migrator(EmbeddedMigrations(|migration| migration.3)).await?;
            let mut connection = pool.acquire().await?;
            let done = migrator.run_direct(None, &mut *connection, false).await;
            done.map_err(DatabaseError::Migration)?;
        }
    }
    let after = found(database).await?;
    Ok(MigrationResult {
        from: before.number,
        to: after.number,
    })
}

async fn migrator(source: EmbeddedMigrations) -> Result<Migrator, DatabaseError> {
    let made = Migrator::new(source).await;
    let mut migrator = made.map_err(DatabaseError::Migration)?;
    // A later program may have migrated further: `oldest` says whether this program can go on.
    migrator.set_ignore_missing(true);
    Ok(migrator)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statements of a text, in the words of one database.
    fn statements(text: &str) -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("--"));
        let plain = lines.map(|line| {
            line.replace(") STRICT;", ");")
                .replace(" BIGINT ", " INTEGER ")
                .replace(" BYTEA ", " BLOB ")
        });
        plain.collect()
    }

    #[test]
    fn both_databases_have_the_same_schema() {
        for ((number, name, sqlite, postgres), expected) in MIGRATIONS.iter().zip(1..) {
            assert_eq!(*number, expected, "{name}");
            assert_eq!(statements(sqlite), statements(postgres), "{name}");
        }
    }

    #[test]
    fn last_migration_is_the_schema() {
        assert_eq!(MIGRATIONS.last().map(|last| last.0), Some(SCHEMA));
    }

    #[test]
    fn every_sqlite_table_is_strict() {
        for (_, name, sqlite, _) in MIGRATIONS {
            let count = |word: &str| sqlite.matches(word).count();
            assert_eq!(count("CREATE TABLE"), count(") STRICT;"), "{name}");
        }
    }
}
