//! `[database]` and `[connect]` as typed values.

use std::path::PathBuf;
use std::time::Duration;

use super::login_types::LoginConfig;
use crate::secret::Secret;

/// `[database]`.
#[derive(Debug, Clone)]
pub struct DatabaseConfig {
    /// The kind of database and its location.
    pub url: DatabaseUrl,
}

/// `database.url`.
#[derive(Debug, Clone)]
pub enum DatabaseUrl {
    /// `drawbridge.db` in the state directory.
    Default,
    /// An `SQLite` file.
    Sqlite(PathBuf),
    /// A `PostgreSQL` URL, which may hold a password.
    Postgres(Secret),
}

/// `[connect]`.
#[derive(Debug, Clone)]
pub struct ConnectConfig {
    /// The issuers where people log in to open the connect pages.
    pub logins: Vec<LoginConfig>,
    /// How long a call waits for its user to connect an account.
    pub wait: Duration,
    /// Grants unused for this long are revoked and removed.
    pub forget: Duration,
}
