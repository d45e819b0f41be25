//! What an operator can do about a database that cannot be used.

use std::io::ErrorKind;

use sqlx::migrate::MigrateError;
use sqlx::sqlite::SqliteError;

use super::DatabaseError;

const WRITABLE: &str = "run this as the user of the gateway, who must own the file and be able to write in its \
                        directory";
/// For a server that gives no answer.
const REACHABLE: &str =
    "start PostgreSQL where `database.url` says, or correct host and port there";
/// For a server whose certificate is refused, or that has none.
const CERTIFICATE: &str = "let `sslmode` and `sslrootcert` of `database.url` fit the certificate of the server, whose \
                           name must be the host there";

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
            _ => match primary_code(self.failure()?)? {
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
        }
    }

    /// What helps where the database is a `PostgreSQL`; `None` where the text says it, or nothing is known.
    #[must_use]
    pub fn server_remedy(&self) -> Option<&'static str> {
        match self {
            Self::Slow(_) => Some(REACHABLE),
            Self::Url(_) => Some("write it as postgres://user:password@host:5432/name"),
            _ => match self.failure()? {
                sqlx::Error::Tls(_) => Some(CERTIFICATE),
                // rustls reports a failed handshake as this error.
                sqlx::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
                    Some(CERTIFICATE)
                }
                sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => Some(REACHABLE),
                error => state_remedy(&error.as_database_error()?.code()?),
            },
        }
    }

    /// What the driver says; `None` for errors that this program found.
    pub(super) fn failure(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Failed(error)
            | Self::Migration(
                MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _),
            ) => Some(error),
            _ => None,
        }
    }
}

/// The remedy for an error with this SQLSTATE.
// Spec: https://www.postgresql.org/docs/current/errcodes-appendix.html
fn state_remedy(state: &str) -> Option<&'static str> {
    Some(match state {
        // invalid_authorization_specification, invalid_password
        "28000" | "28P01" => {
            "correct user and password in `database.url`, or let pg_hba.conf of the server admit this user from here"
        }
        // invalid_catalog_name
        "3D000" => "create the database, or correct its name in `database.url`",
        // insufficient_privilege
        "42501" => {
            "grant the user of `database.url` what is refused; drawbridge migrate makes tables in the first schema of \
             its search_path"
        }
        // read_only_sql_transaction
        "25006" => "name the primary server in `database.url`: this one takes no writes",
        // disk_full
        "53100" => "make room on the file system of PostgreSQL",
        // too_many_connections
        "53300" => "raise `max_connections` of PostgreSQL: a gateway takes up to eight",
        // admin_shutdown, crash_shutdown, cannot_connect_now
        "57P01" | "57P02" | "57P03" => {
            "wait until PostgreSQL has started: it is starting, recovering or stopping"
        }
        _ => return None,
    })
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

    #[test]
    fn server_lost_while_it_migrates_is_to_be_started() {
        let lost = || sqlx::Error::from(io::Error::from(ErrorKind::ConnectionReset));
        for error in [
            MigrateError::Execute(lost()),
            MigrateError::ExecuteMigration(lost(), 2),
        ] {
            let error = DatabaseError::Migration(error);
            assert_eq!(error.server_remedy(), Some(REACHABLE), "{error:?}");
            assert!(!error.is_configuration(), "{error:?}");
        }
        let edited = DatabaseError::Migration(MigrateError::VersionMismatch(1));
        assert!(edited.is_configuration() && edited.server_remedy().is_none());
    }

    #[test]
    fn server_that_refuses_is_not_to_be_started() {
        for (state, remedy) in [
            ("28P01", "user and password"),
            ("3D000", "create the database"),
            ("53300", "max_connections"),
        ] {
            let said = state_remedy(state).expect("a remedy");
            assert!(said.contains(remedy), "{state}: {said}");
        }
        let handshake = io::Error::new(ErrorKind::InvalidData, "invalid peer certificate");
        let untrusted = DatabaseError::Failed(handshake.into());
        assert_eq!(untrusted.server_remedy(), Some(CERTIFICATE));
        assert_eq!(state_remedy("XX000"), None);
        assert_eq!(DatabaseError::Malformed.server_remedy(), None);
    }
}
