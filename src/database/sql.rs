//! Values, rows and transactions of either database.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Postgres, Row as _, SqlSafeStr as _, Sqlite, Transaction};

use super::{Database, DatabaseError, Engine};

/// For a statement of a `PostgreSQL` server, waiting for a connection included.
const ANSWER: Duration = Duration::from_secs(12);

/// A value that is bound to a query.
#[derive(Debug, Clone)]
pub enum SqlValue {
    /// A number, or milliseconds since the Unix epoch.
    Int(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl From<i64> for SqlValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for SqlValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<&[u8]> for SqlValue {
    fn from(value: &[u8]) -> Self {
        Self::Bytes(value.to_owned())
    }
}

impl<const N: usize> From<&[u8; N]> for SqlValue {
    fn from(value: &[u8; N]) -> Self {
        Self::Bytes(value.to_vec())
    }
}

/// One row of an answer.
#[derive(Debug)]
pub enum SqlRow {
    /// Of a file.
    Sqlite(SqliteRow),
    /// Of a server.
    Postgres(PgRow),
}

impl SqlRow {
    /// The number in column `at`, from 0.
    ///
    /// # Errors
    /// The row has no such column, or the column has another type.
    pub fn int(&self, at: usize) -> Result<i64, DatabaseError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(at)?,
            Self::Postgres(row) => row.try_get(at)?,
        })
    }

    /// The text in column `at`, from 0.
    ///
    /// # Errors
    /// The row has no such column, or the column has another type.
    pub fn text(&self, at: usize) -> Result<String, DatabaseError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(at)?,
            Self::Postgres(row) => row.try_get(at)?,
        })
    }

    /// The bytes in column `at`, from 0.
    ///
    /// # Errors
    /// The row has no such column, or the column has another type.
    pub fn bytes(&self, at: usize) -> Result<Vec<u8>, DatabaseError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(at)?,
            Self::Postgres(row) => row.try_get(at)?,
        })
    }
}

/// Binds every value of a slice to a query.
macro_rules! bound {
    ($text:expr, $values:expr) => {
        $values
            .iter()
            .fold(sqlx::query($text), |query, value| match value {
                SqlValue::Int(number) => query.bind(*number),
                SqlValue::Text(text) => query.bind(text.as_str()),
                SqlValue::Bytes(bytes) => query.bind(bytes.as_slice()),
            })
    };
}

/// The answer of a server, or a timeout: a server that has vanished does not report its own limits either.
async fn answered<T>(
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, DatabaseError> {
    let answer = tokio::time::timeout(ANSWER, work).await;
    Ok(answer.map_err(|_| DatabaseError::Slow(ANSWER))??)
}

impl Database {
    /// Rows of one query, read beside all writers.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn fetch(
        &self,
        text: &'static str,
        values: &[SqlValue],
    ) -> Result<Vec<SqlRow>, DatabaseError> {
        Ok(match &self.engine {
            Engine::Sqlite { readers, .. } => {
                let rows = bound!(text, values).fetch(readers);
                rows.map_ok(SqlRow::Sqlite).try_collect().await?
            }
            Engine::Postgres(pool) => {
                let rows = bound!(text, values).fetch(pool);
                answered(rows.map_ok(SqlRow::Postgres).try_collect()).await?
            }
        })
    }

    /// The number in the first column of the first row; 0 without a row.
    ///
    /// # Errors
    /// The database fails, or the column holds something else.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn number(
        &self,
        text: &'static str,
        values: &[SqlValue],
    ) -> Result<i64, DatabaseError> {
        let rows = self.fetch(text, values).await?;
        rows.first().map_or(Ok(0), |row| row.int(0))
    }

    /// Runs one statement; the number of changed rows.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Done whole or not at all, and the caller does not know which.
    pub async fn execute(
        &self,
        text: &'static str,
        values: &[SqlValue],
    ) -> Result<u64, DatabaseError> {
        Ok(match &self.engine {
            Engine::Sqlite { writer, .. } => {
                let done = bound!(text, values).execute(writer).await?;
                done.rows_affected()
            }
            Engine::Postgres(pool) => {
                let done = answered(bound!(text, values).execute(pool)).await?;
                done.rows_affected()
            }
        })
    }

    /// Begins a transaction that writes. In `SQLite` it waits for all others, here and in other processes, 5 s at most.
    ///
    /// # Errors
    /// The database fails.
    pub async fn begin(&self) -> Result<SqlTransaction, DatabaseError> {
        Ok(match &self.engine {
            Engine::Sqlite { writer, .. } => {
                let begin = AssertSqlSafe("BEGIN IMMEDIATE").into_sql_str();
                SqlTransaction::Sqlite(writer.begin_with(begin).await?)
            }
            Engine::Postgres(pool) => {
                SqlTransaction::Postgres(answered(Box::pin(pool.begin())).await?)
            }
        })
    }
}

/// A transaction; dropped before [`commit`](Self::commit), it changes nothing.
#[derive(Debug)]
pub enum SqlTransaction {
    /// Of a file.
    Sqlite(Transaction<'static, Sqlite>),
    /// Of a server.
    Postgres(Transaction<'static, Postgres>),
}

impl SqlTransaction {
    /// Rows of one query.
    ///
    /// # Errors
    /// The database fails.
    pub async fn fetch(
        &mut self,
        text: &'static str,
        values: &[SqlValue],
    ) -> Result<Vec<SqlRow>, DatabaseError> {
        Ok(match self {
            Self::Sqlite(tx) => {
                let rows = bound!(text, values).fetch(&mut **tx);
                rows.map_ok(SqlRow::Sqlite).try_collect().await?
            }
            Self::Postgres(tx) => {
                let rows = bound!(text, values).fetch(&mut **tx);
                answered(rows.map_ok(SqlRow::Postgres).try_collect()).await?
            }
        })
    }

    /// The number in the first column of the first row; 0 without a row.
    ///
    /// # Errors
    /// The database fails, or the column holds something else.
    pub async fn number(
        &mut self,
        text: &'static str,
        values: &[SqlValue],
    ) -> Result<i64, DatabaseError> {
        let rows = self.fetch(text, values).await?;
        rows.first().map_or(Ok(0), |row| row.int(0))
    }

    /// Runs one statement; the number of changed rows.
    ///
    /// # Errors
    /// The database fails.
    pub async fn execute(
        &mut self,
        text: &'static str,
        values: &[SqlValue],
    ) -> Result<u64, DatabaseError> {
        Ok(match self {
            Self::Sqlite(tx) => {
                let done = bound!(text, values).execute(&mut **tx).await?;
                done.rows_affected()
            }
            Self::Postgres(tx) => {
                let done = answered(bound!(text, values).execute(&mut **tx)).await?;
                done.rows_affected()
            }
        })
    }

    /// Makes the changes last.
    ///
    /// # Errors
    /// The database fails: the changes were made or not, and the caller does not know which.
    pub async fn commit(self) -> Result<(), DatabaseError> {
        match self {
            Self::Sqlite(tx) => tx.commit().await?,
            Self::Postgres(tx) => answered(tx.commit()).await?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn server_that_has_vanished_is_not_waited_for() {
        let silent = answered(std::future::pending::<Result<(), sqlx::Error>>()).await;
        assert!(matches!(silent, Err(DatabaseError::Slow(ANSWER))));
    }
}
