//! `drawbridge migrate` and `drawbridge vault`: the database and the accounts in it. Nothing secret is printed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{BAD_CONFIG, fail, out, refuse};
use crate::app::durable::{self, DurableError, LostKey};
use crate::config::{self, Config};
use crate::database::{DatabaseError, MigrationResult};
use crate::digest::hex;
use crate::process::HostEnvironment;
use crate::runtime::workers;
use crate::status::TextTable;
use crate::telemetry::chain::chain;
use crate::vault::{GrantListing, GrantState, Vault};

/// Fewest hexadecimal digits that name a principal: those of access lines.
const MIN_DIGITS: usize = 8;

/// Said where there is no database.
const NO_DATABASE: &str = "no account was ever connected: there is no database yet. If a gateway has accounts, run this \
    as its user and with its state directory";

/// What to do with the vault.
#[derive(Debug, Subcommand)]
pub(super) enum VaultCommand {
    /// Lists accounts: whose, where, since when, last used. Prints no secret.
    List {
        #[command(flatten)]
        file: ConfigFile,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Removes accounts. Running gateways stop using them within 5 s, and tell the authorization servers.
    Revoke {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        which: AccountFilter,
    },
    /// Seals every account again under the first key of `keys.vault`, also while gateways run. Each gateway must have
    /// this key in its configuration before. Then says whether the older keys may go.
    ///
    /// Exit code 0: no record needs an older key. 1: some do, or the database fails. 78: the configuration or the
    /// schema cannot be used.
    Rotate {
        #[command(flatten)]
        file: ConfigFile,
    },
}

/// Whose durable data.
#[derive(Debug, Clone, Args)]
pub(super) struct ConfigFile {
    /// The configuration.
    #[arg(long, env = "DRAWBRIDGE_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

// Which accounts; several options narrow it. No doc comment: it would stand in for that of the command.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = true)]
pub(super) struct AccountFilter {
    /// Of this principal: the beginning of its digest, 8 digits at least, as `vault list` and access lines show it.
    #[arg(long, value_name = "DIGEST", value_parser = digits)]
    principal: Option<String>,
    /// At this upstream.
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// All of them.
    #[arg(long, conflicts_with_all = ["principal", "upstream"])]
    all: bool,
}

fn digits(text: &str) -> Result<String, String> {
    let is_hex = text.chars().all(|c| c.is_ascii_hexdigit());
    if is_hex && (MIN_DIGITS..=64).contains(&text.len()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("expected {MIN_DIGITS} to 64 hexadecimal digits"))
    }
}

impl AccountFilter {
    fn matches(&self, grant: &GrantListing) -> bool {
        let digest = hex(grant.key.owner.bytes());
        let is_whose = self.principal.as_ref();
        let is_whose = is_whose.is_none_or(|digits| digest.starts_with(digits));
        let is_where = self.upstream.as_ref();
        is_whose && is_where.is_none_or(|upstream| **upstream == *grant.key.upstream)
    }
}

/// Brings the schema of the database up to date.
pub(super) fn migrate(file: &ConfigFile) -> ExitCode {
    with_config(&file.config, async |config, host| {
        let (place, MigrationResult { from, to }) = durable::migrate(config, host).await?;
        out::say(&if from == to {
            format!("{place}: schema {to}, nothing to do")
        } else {
            format!("{place}: schema {to}, from {from}")
        });
        Ok(ExitCode::SUCCESS)
    })
}

/// Lists, revokes or rotates.
pub(super) fn vault(command: &VaultCommand) -> ExitCode {
    match command {
        VaultCommand::List { file, json } => {
            let nothing = if *json { "[]" } else { NO_DATABASE };
            with_vault(file, nothing, async |vault| list(vault, *json).await)
        }
        VaultCommand::Revoke { file, which } => {
            with_vault(file, NO_DATABASE, async |vault| revoke(vault, which).await)
        }
        VaultCommand::Rotate { file } => {
            with_vault(file, NO_DATABASE, async |vault| rotate(vault).await)
        }
    }
}

async fn list(vault: &Vault, as_json: bool) -> Result<ExitCode, DatabaseError> {
    let grants = all_grants(vault).await?;
    if as_json {
        let all: Vec<Value> = grants.iter().map(json_of).collect();
        out::say(&Value::Array(all).to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = TextTable::new([
        "PRINCIPAL",
        "UPSTREAM",
        "ISSUER",
        "ACCOUNT",
        "SCOPES",
        "CONNECTED",
        "LAST USED",
        "KEY",
    ]);
    for grant in &grants {
        let [issuer, account, scopes] = match &grant.state {
            GrantState::Readable {
                issuer,
                scopes,
                account,
                ..
            } => [
                issuer.clone(),
                account.clone().unwrap_or_default(),
                scopes.join(" "),
            ],
            GrantState::Unreadable => ["(does not open)".to_owned(), String::new(), String::new()],
        };
        let cells = [
            grant.key.owner.to_string(),
            grant.key.upstream.to_string(),
            issuer,
            account,
            scopes,
            time(grant.made),
            time(grant.used),
            grant.sealed_by.clone(),
        ];
        table.row(cells.each_ref().map(|cell| printable(cell)), None);
    }
    out::say(table.to_string().trim_end());
    Ok(ExitCode::SUCCESS)
}

async fn revoke(vault: &Vault, which: &AccountFilter) -> Result<ExitCode, DatabaseError> {
    let (mut removed, mut unreadable) = (0, 0);
    let grants = all_grants(vault).await?;
    for grant in grants.iter().filter(|grant| which.matches(grant)) {
        if vault.remove_grant(&grant.key).await? {
            removed += 1;
            unreadable += u32::from(matches!(grant.state, GrantState::Unreadable));
            let (owner, upstream) = (grant.key.owner, printable(&grant.key.upstream));
            out::say(&format!("removed: {owner} at {upstream}"));
        }
    }
    out::say(&format!(
        "accounts removed: {removed}; running gateways stop using them within 5 s"
    ));
    if unreadable > 0 {
        out::say(&format!(
            "{unreadable} of them did not open: their authorization servers are not told, so end them there too"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

async fn rotate(vault: &Vault) -> Result<ExitCode, DatabaseError> {
    let result = vault.rotate().await?;
    let name = vault.keys().sealing_name();
    out::say(&format!(
        "records sealed again under {name}: {}",
        result.resealed
    ));
    if result.is_complete() {
        out::say(&format!(
            "no record needs another key: once every gateway seals under {name}, the others may leave keys.vault"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    out::complain(&format!(
        "records under other keys: {}; a gateway still seals under one of these keys, or the records do not open. Keep \
         the older keys, and run this again when every gateway has {name} first in keys.vault",
        result.left
    ));
    Ok(ExitCode::FAILURE)
}

async fn all_grants(vault: &Vault) -> Result<Vec<GrantListing>, DatabaseError> {
    let mut all: Vec<GrantListing> = Vec::new();
    loop {
        let page = vault
            .listing()
            .page(all.last().map(|grant| &grant.key))
            .await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

fn json_of(grant: &GrantListing) -> Value {
    let mut entry = json!({
        "principal": hex(grant.key.owner.bytes()),
        "upstream": &*grant.key.upstream,
        "connected": time(grant.made),
        "used": time(grant.used),
        "key": grant.sealed_by,
        "readable": false,
    });
    if let (
        GrantState::Readable {
            issuer,
            scopes,
            account,
            ..
        },
        Some(members),
    ) = (&grant.state, entry.as_object_mut())
    {
        members.insert("readable".to_owned(), json!(true));
        members.insert("issuer".to_owned(), json!(issuer));
        members.insert("scopes".to_owned(), json!(scopes));
        members.insert("account".to_owned(), json!(account));
    }
    entry
}

/// Untrusted text without control characters; a dash for nothing.
fn printable(text: &str) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    text.replace(char::is_control, "?")
}

/// In seconds, UTC.
fn time(since_epoch: Duration) -> String {
    let second = i64::try_from(since_epoch.as_secs()).unwrap_or_default();
    jiff::Timestamp::from_second(second)
        .unwrap_or_default()
        .to_string()
}

/// Does `work`, or says `nothing` where there is no database.
fn with_vault(
    file: &ConfigFile,
    nothing: &str,
    work: impl AsyncFnOnce(&Vault) -> Result<ExitCode, DatabaseError>,
) -> ExitCode {
    with_config(&file.config, async |config, host| {
        let Some(vault) = durable::open_if_there(config, host, LostKey::Refused).await? else {
            out::say(nothing);
            return Ok(ExitCode::SUCCESS);
        };
        let done = work(&vault).await;
        vault.close().await;
        Ok(done?)
    })
}

fn with_config(
    file: &Path,
    work: impl AsyncFnOnce(&Config, &HostEnvironment) -> Result<ExitCode, DurableError>,
) -> ExitCode {
    let config = match config::load(file) {
        Ok(config) => config,
        Err(refusal) => return refuse(&file.to_string_lossy(), &refusal),
    };
    let runtime = match workers::alone() {
        Ok(runtime) => runtime,
        Err(error) => {
            out::complain(&format!("error: the runtime cannot be started: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(work(&config, &HostEnvironment::current())) {
        Ok(code) => code,
        Err(error) => {
            fail(&chain(&error), error.remedy());
            ExitCode::from(if error.is_configuration() {
                BAD_CONFIG
            } else {
                1
            })
        }
    }
}
