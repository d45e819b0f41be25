//! `[database]` and `[connect]` as typed values.

use std::path::PathBuf;
use std::time::Duration;

use super::account_types::ClientKey;
use super::words::{ConfigWord, word_enum};
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

/// One `connect.login`.
#[derive(Debug, Clone)]
pub struct LoginConfig {
    /// The issuer, byte for byte one of `auth.issuers`.
    pub issuer: String,
    /// The gateway's client id at the issuer.
    pub client_id: String,
    /// Secret or key of this client.
    pub client_key: ClientKey,
    /// The claim of ID tokens that holds the subject; absent: that of the issuer's access tokens.
    pub subject_claim: Option<String>,
    /// The token that identifies the person.
    pub token: LoginToken,
}

word_enum! {
    /// `connect.login.token`.
    pub enum LoginToken {
        /// The ID token.
        Id = "id",
        /// An access token for an endpoint of this gateway, as callers use it.
        Access = "access",
    }
}
