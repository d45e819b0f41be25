//! Durable data: where the database and the key of the vault are, and opening both.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use crate::audit::{AccountEvent, AccountRecord, AuditOutcome, AuditSink};
use crate::clock::SystemClock;
use crate::config::{Config, DatabaseUrl};
use crate::database::{self, Database, DatabaseError, DatabasePlace, MigrationResult};
use crate::process::HostEnvironment;
use crate::secret::Secret;
use crate::vault::{GrantKey, Vault, VaultKeyError, VaultKeys, has_grants, key_file};

/// The database, below the state directory.
const DATABASE: &str = "drawbridge.db";
/// Default port of `PostgreSQL`.
const POSTGRES_PORT: u16 = 5432;
/// The key of the vault, below the state directory.
const KEY: &str = "vault.key";

/// Why durable data cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DurableError {
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// It cannot be opened.
    #[error("the database {name}")]
    Open {
        /// The file, or host and port of the server.
        name: String,
        /// The remedy, if one is known.
        remedy: Option<&'static str>,
        /// Why.
        #[source]
        error: DatabaseError,
    },
    /// The keys of the configuration.
    #[error("keys.vault")]
    Keys(#[from] VaultKeyError),
    /// There is no place for the database or the key.
    #[error("no state directory can be used; name a file in database.url and a key in keys.vault")]
    StateDirectory(#[source] io::Error),
    /// The database has accounts, and the configuration lacks their key.
    #[error(
        "the key of the vault, {}, is missing, and the database has accounts that only it opens: bring it back, or run \
         this as the user of the gateway and with its state directory", .0.display()
    )]
    LostKey(PathBuf),
    /// The key file.
    #[error("the key of the vault, {}", .path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
}

impl DurableError {
    /// Whether the operator has to change something before a restart can help (exit code 78).
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Database(error) | Self::Open { error, .. } => error.is_configuration(),
            Self::Keys(_) | Self::LostKey(_) => true,
            Self::StateDirectory(_) | Self::KeyFile { .. } => false,
        }
    }

    /// What the operator can do; `None` where the text says it, or nothing is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Database(error) => error.file_remedy(),
            Self::Open { remedy, .. } => *remedy,
            Self::KeyFile { error, .. } => match error.kind() {
                io::ErrorKind::InvalidData => Some(
                    "restore its backup; without one, move the file away: users connect their accounts again",
                ),
                io::ErrorKind::PermissionDenied => {
                    Some("run this as the user of the gateway, who must own the file")
                }
                _ => None,
            },
            Self::Keys(_) | Self::StateDirectory(_) | Self::LostKey(_) => None,
        }
    }
}

/// What happens where the file of the database is not there, or that of the key of accounts in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostKey {
    /// Both are made. With a new key the accounts count as not connected, and people connect again.
    Replaced,
    /// Nothing is made or opened: a program that runs as another user looks in another place.
    Refused,
}

/// Opens the vault where there is something in it, or may soon be: the file of the database is there, the database is a
/// server, or callers have accounts of their own and what is lost is replaced.
///
/// # Errors
/// See [`DurableError`].
pub async fn open_if_there(
    config: &Config,
    host: &HostEnvironment,
    lost: LostKey,
) -> Result<Option<Vault>, DurableError> {
    let there = match &config.database.url {
        DatabaseUrl::Default => host.state_file(DATABASE).map(DatabasePlace::Sqlite),
        DatabaseUrl::Sqlite(path) => path.is_file().then(|| DatabasePlace::Sqlite(path.clone())),
        DatabaseUrl::Postgres(url) => Some(DatabasePlace::Postgres(url.clone())),
    };
    let place = match there {
        None if config.has_user_accounts() && lost == LostKey::Replaced => place(config, host)?,
        None => return Ok(None),
        Some(there) => there,
    };
    open(config, host, &place, lost).await.map(Some)
}

/// [Keeps](Vault::keep) the vault until it is dropped. Grants that are removed for being unused are audited.
pub(super) async fn keep(vault: Vault, forget: Duration, audit: AuditSink) {
    let forgotten = |key: &GrantKey| {
        let record = AccountRecord::new(AccountEvent::Revoked, key.owner, &key.upstream);
        audit.account(record.reason(AuditOutcome::Ok, "unused"));
    };
    vault.keep(forget, forgotten).await;
}

/// Brings the schema up to date; an `SQLite` file is made where there is none.
///
/// # Errors
/// See [`DurableError`].
pub async fn migrate(
    config: &Config,
    host: &HostEnvironment,
) -> Result<(String, MigrationResult), DurableError> {
    let place = place(config, host)?;
    let migrated = async {
        let database = Database::connect(&place).await?;
        let result = database.migrate().await?;
        database.close().await;
        Ok(result)
    };
    let result = migrated.await.map_err(|error| at(&place, error))?;
    let name = match place {
        DatabasePlace::Sqlite(path) => path.display().to_string(),
        DatabasePlace::Postgres(_) => "PostgreSQL".to_owned(),
    };
    Ok((name, result))
}

/// Whether the database can be used as the start needs it, where it is a server; `None` where it is a file. Changes nothing.
///
/// # Errors
/// See [`DatabaseError`].
pub(super) async fn ask_server(config: &Config) -> Option<Result<(), DatabaseError>> {
    let DatabaseUrl::Postgres(url) = &config.database.url else {
        return None;
    };
    let opened = Database::open(&DatabasePlace::Postgres(url.clone())).await;
    if let Ok(database) = &opened {
        database.close().await;
    }
    Some(opened.map(drop))
}

async fn open(
    config: &Config,
    host: &HostEnvironment,
    place: &DatabasePlace,
    lost: LostKey,
) -> Result<Vault, DurableError> {
    let database = Database::open(place).await;
    let database = database.map_err(|error| at(place, error))?;
    if let DatabasePlace::Sqlite(path) = place
        && database::is_in_memory(path)
    {
        tracing::warn!(
            file = %path.display(),
            "database lies in memory (tmpfs): accounts end with this machine or container"
        );
    }
    let keys = if config.keys.vault.is_empty() {
        let path = state_path(host, KEY)?;
        if lost == LostKey::Refused && !path.exists() && has_grants(&database).await? {
            return Err(DurableError::LostKey(path));
        }
        let key = key_file(&path);
        vec![key.map_err(|error| DurableError::KeyFile { path, error })?]
    } else {
        config.keys.vault.clone()
    };
    let vault = Vault::new(database, VaultKeys::new(&keys)?, Arc::new(SystemClock));
    vault.listing().report_missing_keys().await?;
    Ok(vault)
}

/// `error`, with the file unless it names that itself, or with host and port of the server.
fn at(place: &DatabasePlace, error: DatabaseError) -> DurableError {
    let (name, remedy) = match place {
        DatabasePlace::Sqlite(_) if matches!(error, DatabaseError::File { .. }) => {
            return error.into();
        }
        DatabasePlace::Sqlite(path) => (path.display().to_string(), error.file_remedy()),
        DatabasePlace::Postgres(url) => (server_name(url), error.server_remedy()),
    };
    DurableError::Open {
        name,
        remedy,
        error,
    }
}

/// Host and port of a server, and no more of its URL.
fn server_name(url: &Secret) -> String {
    let url = Url::parse(url.expose()).ok();
    match url.as_ref().and_then(Url::host_str) {
        Some(host) if !host.is_empty() => {
            let port = url.as_ref().and_then(Url::port).unwrap_or(POSTGRES_PORT);
            format!("at {host}:{port}")
        }
        _ => "of database.url".to_owned(),
    }
}

/// Where the database is or is to be.
fn place(config: &Config, host: &HostEnvironment) -> Result<DatabasePlace, DurableError> {
    Ok(match &config.database.url {
        DatabaseUrl::Default => DatabasePlace::Sqlite(state_path(host, DATABASE)?),
        DatabaseUrl::Sqlite(path) => DatabasePlace::Sqlite(path.clone()),
        DatabaseUrl::Postgres(url) => DatabasePlace::Postgres(url.clone()),
    })
}

/// Where the file `name` is below a state directory, or is to be.
fn state_path(host: &HostEnvironment, name: &str) -> Result<PathBuf, DurableError> {
    if let Some(path) = host.state_file(name) {
        return Ok(path);
    }
    let directory = host.state_dir().map_err(DurableError::StateDirectory)?;
    Ok(directory.join(name))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "postgres://gate:hunter2@db.test/gate?sslmode=require",
        "the database at db.test:5432"
    )]
    #[case(
        "postgresql://gate:hunter2@[::1]:6000/gate",
        "the database at [::1]:6000"
    )]
    #[case(
        "postgres:///gate?host=/run/postgresql&password=hunter2",
        "the database of database.url"
    )]
    fn server_is_named_by_host_and_port(#[case] url: &str, #[case] named: &str) {
        let place = DatabasePlace::Postgres(Secret::new(url));
        let error = at(&place, DatabaseError::Malformed);
        let text = format!("{:#}", anyhow::Error::from(error));
        assert_eq!(text, format!("{named}: a row of the database is malformed"));
    }
}
