//! `RegistryEntry`: one upstream of the registry. Made from the configuration without opening anything.

use std::collections::HashMap;
use std::sync::Arc;

use super::accounts::{AccountFactory, EntryAccounts};
use super::checked_links::CheckedLinks;
use super::setup_error::SetupError;
use crate::budget::{BudgetHolder, ByteBudget, ReplyShare};
use crate::call::OwnerKey;
use crate::config::{self, Isolation, TransportKind};
use crate::grants::LoginGrants;
use crate::process::StdioRuntime;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::UpstreamLoad;
use crate::upstream::account::{Account, PerAccount};
use crate::upstream::carrier::duplex::{ChildSource, DuplexSource};
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::carrier::http::get_stream::SingleStreamHabit;
use crate::upstream::carrier::http::http_session::ResponseBounds;
use crate::upstream::carrier::{AskingHabit, Carrier, LegacySseOnly};
use crate::upstream::first_start::FirstStarts;
use crate::upstream::health::UpstreamHealth;
use crate::upstream::link::modern::ToolSchemas;
use crate::upstream::link::negotiated::EraCell;
use crate::upstream::user_accounts::AccountKeeping;

/// One upstream, and its known state.
#[derive(Debug)]
pub(super) struct RegistryEntry {
    pub(super) settings: Arc<config::UpstreamConfig>,
    pub(super) carrier: Carrier,
    /// The share of its messages that belong to no one caller.
    pub(super) replies: ReplyShare,
    pub(super) asks: AskingHabit,
    pub(super) single_streams: SingleStreamHabit,
    pub(super) eras: PerAccount<EraCell>,
    pub(super) schemas: PerAccount<ToolSchemas>,
    pub(super) health: Arc<UpstreamHealth>,
    pub(super) load: Arc<UpstreamLoad>,
    /// The links to children, for liveness checks.
    pub(super) links: CheckedLinks,
    /// The accounts whose tokens requests or children have.
    pub(super) accounts: EntryAccounts,
}

impl RegistryEntry {
    pub(super) fn account(&self, owner: OwnerKey) -> Account {
        match self.settings.isolation {
            Isolation::Principal => self.carrier.account_of(owner).private_to(owner),
            Isolation::Session | Isolation::Shared => self.carrier.account_of(owner),
        }
    }
}

/// Entries by name, and the kept logins of callers where an upstream needs them.
type MadeEntries = (HashMap<Arc<str>, RegistryEntry>, Option<Arc<LoginGrants>>);

/// The parts that all entries share.
pub(super) struct EntryParts<'a> {
    /// Runs children; `None` without stdio upstreams.
    pub(super) stdio: Option<&'a Arc<StdioRuntime>>,
    pub(super) bounds: ResponseBounds,
    pub(super) replies: &'a Arc<ByteBudget>,
}

impl EntryParts<'_> {
    /// Every upstream of `config`.
    ///
    /// # Errors
    /// A client or an account cannot be made.
    pub(super) fn entries(
        &self,
        config: &config::Config,
        keeping: Option<AccountKeeping<'_>>,
        tasks: &TaskSpawner,
    ) -> Result<MadeEntries, SetupError> {
        let mut entries = HashMap::new();
        let mut factory = AccountFactory::new(config, tasks.clone());
        for (number, upstream) in config.upstreams.iter().enumerate() {
            let (carrier, accounts) = match (&upstream.carrier, self.stdio) {
                (config::CarrierConfig::Http(http), _) => {
                    let (client, made) = factory.client(upstream, http, keeping)?;
                    let carrier = http_carrier(client, http.transport, self.bounds);
                    (carrier, made)
                }
                (config::CarrierConfig::Stdio(_), Some(stdio)) => {
                    let made = factory.children(upstream, stdio.isolation(), keeping)?;
                    let (credentials, made) = made.unzip();
                    let children = DuplexSource::Children(ChildSource::new(stdio, credentials));
                    (Carrier::Duplex(children), made.unwrap_or_default())
                }
                (config::CarrierConfig::Stdio(_), None) => continue,
            };
            let settings = Arc::new(upstream.clone());
            let name: Arc<str> = Arc::from(upstream.name.as_str());
            let first_starts = FirstStarts::new(upstream.isolation == Isolation::Principal);
            entries.insert(
                Arc::clone(&name),
                RegistryEntry {
                    load: UpstreamLoad::of(&name),
                    links: CheckedLinks::default(),
                    health: Arc::new(UpstreamHealth::new(name, first_starts)),
                    eras: PerAccount::new(EraCell::new(upstream)),
                    schemas: PerAccount::new(ToolSchemas::default()),
                    asks: AskingHabit::default(),
                    single_streams: SingleStreamHabit::default(),
                    settings,
                    carrier,
                    replies: ReplyShare::new(self.replies, BudgetHolder::Upstream(number)),
                    accounts,
                },
            );
        }
        Ok((entries, factory.into_logins()))
    }
}

/// The carrier over `client`, with the transport of the configuration.
fn http_carrier(client: HttpClient, transport: TransportKind, bounds: ResponseBounds) -> Carrier {
    let client = Box::new(client);
    match transport {
        TransportKind::Streamable => Carrier::Http(client, bounds, None),
        TransportKind::Auto => Carrier::Http(client, bounds, Some(LegacySseOnly::default())),
        TransportKind::Sse => Carrier::Duplex(DuplexSource::Events(client, bounds)),
        TransportKind::WebSocket => Carrier::Duplex(DuplexSource::Sockets(client, bounds)),
    }
}
