//! What an operator can do about a database that cannot be used.

use std::io::ErrorKind;

use sqlx::sqlite::SqliteError;

use super::DatabaseError;

const WRITABLE: &str = "run this as the user of the gateway, who must own the file and be able to write in its \
                        directory";

impl DatabaseError {
    /// What helps where the database is an `SQLite` file; `None` where the text says it, or nothing is known.
    #[must_use]
    pub fn file_remedy(&self) -> Option<&'static str> {
        match self {
            Self::File { error, .. } => match error.kind() {
                ErrorKind::NotFound => {
                    Some("create its directory: the start makes the file, and no directory")
                }
                ErrorKind::PermissionDenied => Some(WRITABLE),
                _ => None,
            },
            // Spec: https://www.sqlite.org/rescode.html
            Self::Failed(error) => match primary_code(error)? {
                // SQLITE_BUSY, SQLITE_LOCKED
                5 | 6 => Some("end the program that holds the file"),
                // SQLITE_READONLY, SQLITE_CANTOPEN
                8 | 14 => Some(WRITABLE),
                // SQLITE_CORRUPT, SQLITE_NOTADB
                11 | 26 => Some(
                    "restore a backup; without one, move the file away with its -wal and -shm: users connect their accounts \
                     again",
                ),
                // SQLITE_FULL
                13 => Some("make room on its file system"),
                _ => None,
            },
            _ => None,
        }
    }

    /// What helps where the database is a `PostgreSQL`; `None` where the text says it.
    #[must_use]
    pub fn server_remedy(&self) -> Option<&'static str> {
        match self {
            Self::NotMigrated { .. } | Self::TooNew { .. } | Self::Migration(_) => None,
            _ => Some(
                "start PostgreSQL where `database.url` says, or correct its address, user, password or name there",
            ),
        }
    }
}

/// The primary result code of `SQLite`; `None` for errors of others.
fn primary_code(error: &sqlx::Error) -> Option<u32> {
    let error = error.as_database_error()?;
    error.try_downcast_ref::<SqliteError>()?;
    let extended: u32 = error.code()?.parse().ok()?;
    Some(extended & 0xff)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;
    use crate::database::{Database, DatabasePlace};

    #[tokio::test]
    async fn damaged_file_is_to_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        std::fs::write(&path, "no database ".repeat(400)).unwrap();
        let error = Database::open(&DatabasePlace::Sqlite(path)).await;
        let error = error.expect_err("no database");
        let remedy = error.file_remedy().expect("a remedy");
        assert!(remedy.contains("restore a backup"), "{error}: {remedy}");
    }

    #[test]
    fn file_of_another_user_is_to_be_given_to_the_gateway() {
        let error = DatabaseError::File {
            path: PathBuf::from("/a.db"),
            error: io::Error::from(ErrorKind::PermissionDenied),
        };
        assert_eq!(error.file_remedy(), Some(WRITABLE));
    }

    #[test]
    fn schema_of_a_server_says_what_to_do_by_itself() {
        let error = DatabaseError::NotMigrated {
            found: 0,
            needed: 1,
        };
        assert_eq!((error.server_remedy(), error.file_remedy()), (None, None));
        let lost = DatabaseError::Failed(sqlx::Error::PoolTimedOut);
        assert!(lost.server_remedy().is_some() && lost.file_remedy().is_none());
    }
}
