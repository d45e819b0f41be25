//! Accounts of callers at the upstream `http`: what they cost a call, and the start of a gateway that keeps many.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use drawbridge::call::Principal;
use drawbridge::clock::SystemClock;
use drawbridge::config::SealKey;
use drawbridge::database::{Database, DatabasePlace};
use drawbridge::secret::Secret;
use drawbridge::vault::{GrantKey, GrantKind, GrantRecord, TokenPlacement, Vault, VaultKeys};

use crate::keys::ISSUER;
use crate::place::Place;

/// Accounts of a gateway that keeps many.
pub(crate) const MANY: usize = 10_000;
/// How much longer than without accounts such a gateway may take to start.
pub(crate) const START_LIMIT: f64 = 1.2;
/// Material of the key that seals the accounts of a run.
const KEY: &str = "the accounts of a run of the drill";

/// Makes a database with an account of each of `subjects` at the upstream `http`, which is at `url`. Returns the tables of
/// a gateway that has it.
pub(crate) async fn prepare(
    place: &Place,
    name: &str,
    url: &str,
    subjects: impl Iterator<Item = String>,
) -> anyhow::Result<String> {
    let (file, key) = (
        place.dir.join(format!("{name}.db")),
        place.dir.join(format!("{name}.key")),
    );
    std::fs::write(&key, KEY).context("cannot write the key of the accounts")?;
    let keys = VaultKeys::new(&[SealKey {
        id: "drill".to_owned(),
        key: Secret::new(KEY),
    }])?;
    let database = Database::open(&DatabasePlace::Sqlite(file.clone())).await?;
    let vault = Vault::new(database.clone(), keys, Arc::new(SystemClock));
    for subject in subjects {
        let owner = Principal::new(ISSUER, &subject, "", Vec::new(), None).owner();
        let key = GrantKey::new(owner, "http");
        vault.put_grant(&key, &record(url, &subject)).await?;
    }
    database.close().await;
    Ok(tables(&file, &key))
}

/// An account whose token does not end during the run.
fn record(url: &str, subject: &str) -> GrantRecord {
    GrantRecord {
        kind: GrantKind::User,
        issuer: ISSUER.to_owned(),
        token_endpoint: Some(format!("{ISSUER}/token")),
        revocation_endpoint: None,
        resource: url.to_owned(),
        client_id: Some("drill".to_owned()),
        auth_method: Some("none".to_owned()),
        placement: TokenPlacement::Header {
            name: "authorization".to_owned(),
            prefix: "Bearer ".to_owned(),
        },
        scopes: Vec::new(),
        requested: Vec::new(),
        account: None,
        access_token: Some(Secret::new(format!("token-of-{subject}"))),
        access_ends: None,
        refresh_token: Some(Secret::new(format!("refresh-of-{subject}"))),
    }
}

fn tables(file: &Path, key: &Path) -> String {
    format!(
        "\n[upstreams.http.auth]\nkind = \"user\"\n\n[database]\nurl = \"sqlite:{}\"\n\n[keys]\n\
         vault = [{{ id = \"drill\", file = \"{}\" }}]\n\n[connect.login]\nissuer = \"{ISSUER}\"\n\
         client_id = \"drill\"\nclient_secret = \"nobody logs in\"\n",
        file.display(),
        key.display()
    )
}
