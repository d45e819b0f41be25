//! The vault over both databases: stored grants, records that do not open, refreshes under leases, the end of grants.

mod commands;
mod crashes;
mod grants;
mod leases;
mod programs;
mod read_only;
mod schema;
mod tables;
mod vanished;

use std::sync::Arc;
use std::time::Duration;

use drawbridge::call::{OwnerKey, Principal};
use drawbridge::clock::{SharedClock, TestClock};
use drawbridge::config::SealKey;
use drawbridge::database::{Database, DatabasePlace};
use drawbridge::secret::Secret;
use drawbridge::vault::{GrantKey, GrantKind, GrantRecord, TokenPlacement, Vault, VaultKeys};

use crate::harness::postgres::{self, PostgresServer};

/// When tests begin, seconds since the Unix epoch.
const START: u64 = 1_800_000_000;

/// Which database a test is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    Sqlite,
    Postgres,
}

/// An empty database, for as long as this lives.
struct TestDatabase {
    place: DatabasePlace,
    dir: tempfile::TempDir,
    _server: Option<Arc<PostgresServer>>,
}

impl Backend {
    /// `None` without `PostgreSQL`.
    async fn database(self) -> Option<TestDatabase> {
        let dir = tempfile::tempdir().unwrap();
        let (server, place) = match self {
            Self::Sqlite => (None, DatabasePlace::Sqlite(dir.path().join("test.db"))),
            Self::Postgres => {
                let (server, place) = postgres::database().await?;
                (Some(server), place)
            }
        };
        Some(TestDatabase {
            place,
            dir,
            _server: server,
        })
    }
}

impl TestDatabase {
    /// Another process's connections to the database, migrated.
    async fn open(&self) -> Database {
        let database = Database::connect(&self.place).await.unwrap();
        database.migrate().await.unwrap();
        database
    }

    /// Another process's vault.
    async fn vault(&self, keys: &[&str], clock: &Arc<TestClock>) -> Vault {
        let clock = Arc::clone(clock);
        let shared: SharedClock = clock;
        Vault::new(self.open().await, ring(keys), shared)
    }
}

/// A key ring; the material of a key is its name.
fn ring(names: &[&str]) -> VaultKeys {
    let keys: Vec<_> = names
        .iter()
        .map(|name| SealKey {
            id: (*name).to_owned(),
            key: Secret::new(name.repeat(32)),
        })
        .collect();
    VaultKeys::new(&keys).unwrap()
}

fn clock() -> Arc<TestClock> {
    TestClock::at(START)
}

fn owner(name: &str) -> OwnerKey {
    Principal::new("https://issuer.test", name, "", Vec::new(), None).owner()
}

fn key(name: &str) -> GrantKey {
    GrantKey::new(owner(name), "tracker")
}

/// A grant whose tokens have `mark` in them.
fn record(mark: &str) -> GrantRecord {
    GrantRecord {
        kind: GrantKind::User,
        issuer: "https://as.test".to_owned(),
        token_endpoint: Some("https://as.test/token".to_owned()),
        revocation_endpoint: Some("https://as.test/revoke".to_owned()),
        resource: "https://tracker.test/mcp".to_owned(),
        client_id: Some("client-1".to_owned()),
        auth_method: Some("none".to_owned()),
        placement: TokenPlacement::Header {
            name: "Authorization".to_owned(),
            prefix: "Bearer ".to_owned(),
        },
        scopes: vec!["read".to_owned(), "write".to_owned()],
        requested: Vec::new(),
        account: Some("Alice".to_owned()),
        access_token: Some(Secret::new(format!("access-{mark}"))),
        access_ends: Some((START + 3600) * 1000),
        refresh_token: Some(Secret::new(format!("refresh-{mark}"))),
    }
}

/// The access token of a grant as the database has it.
async fn token(vault: &Vault, key: &GrantKey) -> Option<String> {
    let grant = vault.read_grant(key).await.unwrap()?;
    let token = grant.record.access_token?;
    Some(token.expose().to_owned())
}

const MINUTE: Duration = Duration::from_mins(1);
const DAY: Duration = Duration::from_hours(24);
