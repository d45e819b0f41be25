//! Whose traffic may share an upstream session or child: one session, one principal, or all.
//! Spec: DESIGN §6; BRIDGING §1.3.

mod accounts;
mod asking;
mod checks;
mod status;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use self::accounts::{AccountFactory, EntryAccounts};
use self::checks::CheckedLinks;
use super::account::{Account, PerAccount};
use super::carrier::duplex::{ChildSource, DuplexSource};
use super::carrier::http::client::HttpClient;
use super::carrier::http::client_error::ClientError;
use super::carrier::http::http_session::ResponseBounds;
use super::carrier::{AskedClient, AskingHabit, Carrier, LegacySseOnly, LinkSettings};
use super::first_start::{FirstStart, FirstStarts};
use super::health::UpstreamHealth;
use super::link::modern::ToolSchemas;
use super::link::negotiated::{EraCell, EraLink};
use super::link::shared::{PoolKey, SharedLinks};
use super::user_accounts::{AccountKeeping, AccountState, UserAccounts};
use crate::budget::{BudgetHolder, ByteBudget, ReplyShare};
use crate::call::{
    AdoptedLink, CallerAccess, ClientCapabilities, NoticeIntake, OwnerKey, UpstreamLink,
};
use crate::cause::ErrorCause;
use crate::config::{self, AccountKind, Isolation, TransportKind};
use crate::grants::{
    AccountProbe, AccountSetupError, LoginGrants, TokenFailure, UpstreamAccount, UserTokens,
};
use crate::ownership::Fence;
use crate::process::holders::{HolderKey, SessionHolders};
use crate::process::{ChildIsolation, HostEnvironment, StdioRuntime};
use crate::protocol::{Era, Revision};
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::UpstreamLoad;
use crate::vault::GrantKey;

/// A shared HTTP session without users is ended after this.
const SHARED_HTTP_IDLE: Duration = Duration::from_mins(1);

/// A session's side of a link: its identity, and the questions that its client answers.
#[derive(Debug)]
pub struct ClientContext {
    /// Owner of credentials, children and quotas.
    pub owner: OwnerKey,
    /// The tokens of the caller, where they are exchanged.
    pub caller: Option<Arc<CallerAccess>>,
    /// The session.
    pub session: HolderKey,
    /// Capabilities of the client.
    pub capabilities: ClientCapabilities,
    /// JSON text of the client's `clientInfo`.
    pub client_info: Bytes,
    /// The revision offered to the upstream: the client's own, so that least has to be projected.
    pub offer: Revision,
    /// Receiver of messages outside calls.
    pub intake: Arc<dyn NoticeIntake>,
    /// What a session of its own begins with, where another replica had it before.
    pub adopted: Option<AdoptedLink>,
}

/// Why upstreams cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// An HTTP client cannot be made.
    #[error("upstream {upstream:?}: {source}")]
    Client {
        /// Which upstream.
        upstream: String,
        /// Why.
        source: ClientError,
    },
    /// An account cannot be set up.
    #[error("upstream {upstream:?}: auth")]
    Account {
        /// Which upstream.
        upstream: String,
        /// Why.
        source: AccountSetupError,
    },
    /// The helper processes for children cannot be started.
    #[error("helper processes for stdio upstreams cannot be started")]
    Stdio(#[from] std::io::Error),
}

/// Every configured upstream.
#[derive(Debug)]
pub struct Upstreams {
    entries: HashMap<Arc<str>, RegistryEntry>,
    shared: SharedLinks,
    stdio: Option<Arc<StdioRuntime>>,
    replies: Arc<ByteBudget>,
    limits: config::LimitsConfig,
    stdio_idle: Duration,
    /// Whether callers have accounts of their own anywhere.
    any_accounts: bool,
    /// Whether the gateway gets tokens for any upstream.
    any_credentials: bool,
    /// The kept logins of callers, where an upstream needs them.
    logins: Option<Arc<LoginGrants>>,
    tasks: TaskSpawner,
    fence: Fence,
    left_out: LineLimit<(Arc<str>, &'static str)>,
}

#[derive(Debug)]
struct RegistryEntry {
    settings: Arc<config::UpstreamConfig>,
    carrier: Carrier,
    /// The share of its messages that belong to no one caller.
    replies: ReplyShare,
    asks: AskingHabit,
    eras: PerAccount<EraCell>,
    schemas: PerAccount<ToolSchemas>,
    health: Arc<UpstreamHealth>,
    load: Arc<UpstreamLoad>,
    /// Those to children.
    links: CheckedLinks,
    /// Whose tokens the requests carry, where the gateway gets them.
    account: Option<Arc<UpstreamAccount>>,
    /// The accounts of callers, where each has one.
    users: Option<Arc<dyn UserAccounts>>,
    /// Their tokens, where they agree at an authorization server.
    tokens: Option<Arc<UserTokens>>,
    /// In place of `tokens` where accounts are not kept but checked.
    probe: Option<Arc<AccountProbe>>,
    /// Why nobody's credential is used.
    withheld: Option<TokenFailure>,
}

impl Upstreams {
    /// Prepares every upstream of `config` without opening one. `host` has the resources that children are started
    /// with, `keeping` the accounts of callers: without it they have none. Needs a Tokio runtime.
    ///
    /// # Errors
    /// A client cannot be made, or the helper processes for children cannot be started.
    pub fn new(
        config: &config::Config,
        host: HostEnvironment,
        keeping: Option<AccountKeeping<'_>>,
        tasks: TaskSpawner,
    ) -> Result<Self, SetupError> {
        let limits = config.limits.clone();
        let bounds = ResponseBounds {
            message: limits.upstream_message,
            event: limits.sse_event,
            depth: limits.json_depth,
        };
        let replies = ByteBudget::of_replies(
            limits.replies_total,
            limits.replies_per_principal,
            limits.upstream_message.max(limits.sse_event),
        );
        let any_stdio = config.upstreams.iter().any(|one| one.carrier.is_stdio());
        let stdio = if any_stdio {
            Some(StdioRuntime::start(&config.stdio, &limits, host, &tasks)?)
        } else {
            None
        };
        if let Some(stdio) = stdio.as_ref().filter(|_| config.has_child_accounts()) {
            warn_of_accounts(stdio.isolation());
        }
        let mut entries = HashMap::new();
        let mut accounts = AccountFactory::new(config, tasks.clone());
        for (number, upstream) in config.upstreams.iter().enumerate() {
            let (carrier, made) = match (&upstream.carrier, &stdio) {
                (config::CarrierConfig::Http(http), _) => {
                    let (client, made) = accounts.client(upstream, http, keeping)?;
                    let carrier = http_carrier(client, http.transport, bounds);
                    (carrier, made)
                }
                (config::CarrierConfig::Stdio(_), Some(stdio)) => {
                    let made = accounts.children(upstream, stdio.isolation(), keeping)?;
                    let (credentials, made) = made.unzip();
                    let children = DuplexSource::Children(ChildSource::new(stdio, credentials));
                    (Carrier::Duplex(children), made.unwrap_or_default())
                }
                (config::CarrierConfig::Stdio(_), None) => continue,
            };
            let EntryAccounts {
                account,
                users,
                tokens,
                probe,
                withheld,
            } = made;
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
                    settings,
                    carrier,
                    replies: ReplyShare::new(&replies, BudgetHolder::Upstream(number)),
                    account,
                    users,
                    tokens,
                    probe,
                    withheld,
                },
            );
        }
        Ok(Self {
            entries,
            shared: SharedLinks::default(),
            stdio,
            replies,
            limits,
            stdio_idle: config.stdio.idle,
            any_accounts: config.has_user_accounts(),
            any_credentials: config.upstreams.iter().any(|one| one.auth.is_some()),
            logins: accounts.into_logins(),
            tasks,
            fence: Fence::default(),
            left_out: LineLimit::default(),
        })
    }

    /// The same upstreams behind `fence`: no message goes to legacy upstreams while the fence is closed.
    #[must_use]
    pub fn behind(self, fence: &Fence) -> Self {
        let fence = fence.clone();
        Self { fence, ..self }
    }

    /// The budget of what upstreams send.
    #[must_use]
    pub fn replies(&self) -> &Arc<ByteBudget> {
        &self.replies
    }

    /// Whether callers have accounts of their own at the upstream.
    #[must_use]
    pub fn has_accounts(&self, upstream: &str) -> bool {
        // Most gateways have none: their calls look for no entry.
        self.any_accounts
            && self
                .entries
                .get(upstream)
                .is_some_and(|entry| entry.users.is_some())
    }

    /// Whether the gateway gets tokens for any upstream.
    #[must_use]
    pub fn any_credentials(&self) -> bool {
        self.any_credentials
    }

    /// The upstreams where callers have accounts of their own.
    pub fn with_accounts(&self) -> impl Iterator<Item = &str> {
        let with_users = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.users.is_some());
        with_users.map(|(name, _)| &**name)
    }

    /// The tokens of callers at each upstream where they agree at an authorization server, and those of their kept logins
    /// at each issuer.
    pub fn user_tokens(&self) -> impl Iterator<Item = &Arc<UserTokens>> {
        let entries = self.entries.values();
        let of_upstreams = entries.filter_map(|entry| entry.tokens.as_ref());
        of_upstreams.chain(self.logins.iter().flat_map(|logins| logins.tokens()))
    }

    /// The upstreams that the grant of `key` is an account at: one, or all upstreams that use a kept login.
    #[must_use]
    pub fn upstreams_of(&self, key: &GrantKey) -> Vec<Arc<str>> {
        if let Some((name, _)) = self.entries.get_key_value(&key.upstream) {
            return vec![Arc::clone(name)];
        }
        let has_it = |entry: &RegistryEntry| {
            let users = entry.users.as_ref();
            users.is_some_and(|users| users.grant_names().contains(&key.upstream))
        };
        let entries = self.entries.iter().filter(|(_, entry)| has_it(entry));
        entries.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Where the vault has the grant of `owner` for the upstream: one of these.
    #[must_use]
    pub fn grant_keys(&self, upstream: &str, owner: OwnerKey) -> Vec<GrantKey> {
        let entry = self.entries.get(upstream);
        let users = entry.and_then(|entry| entry.users.as_ref());
        let names = users.map_or_else(Vec::new, |users| users.grant_names());
        let keys = names.into_iter();
        keys.map(|upstream| GrantKey { owner, upstream }).collect()
    }

    /// Whether `owner` has an account at the upstream that calls can use; `None` where callers have none of their own, and
    /// for the gateway itself. No waiting where the account was used lately.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn account_state(
        &self,
        upstream: &str,
        owner: OwnerKey,
    ) -> Result<Option<AccountState>, TokenFailure> {
        let entry = self.entries.get(upstream).filter(|_| !owner.is_gateway());
        let Some(users) = entry.and_then(|entry| entry.users.as_ref()) else {
            return Ok(None);
        };
        match users.known(owner) {
            Some(known) => Ok(Some(known)),
            None => users.look_up(owner).await.map(Some),
        }
    }

    /// [`account_state`](Self::account_state) as the database has it, without waiting for a token to be refreshed: one
    /// that can be is connected.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn kept_account(
        &self,
        upstream: &str,
        owner: OwnerKey,
    ) -> Result<Option<AccountState>, TokenFailure> {
        let entry = self.entries.get(upstream);
        match entry.and_then(|entry| entry.users.as_ref()) {
            Some(users) => users.kept(owner).await.map(Some),
            None => Ok(None),
        }
    }

    /// The number of the connection of `owner` that the upstream has asked for more scopes of; `None` where it has not.
    #[must_use]
    pub fn wants_more(&self, upstream: &str, owner: OwnerKey) -> Option<i64> {
        self.entries
            .get(upstream)?
            .users
            .as_ref()?
            .wants_more(owner)
    }

    /// The configuration of an upstream.
    #[must_use]
    pub fn settings(&self, upstream: &str) -> Option<&Arc<config::UpstreamConfig>> {
        self.entries.get(upstream).map(|entry| &entry.settings)
    }

    /// Whether an upstream hung lately, so that waiting for it now would be in vain.
    #[must_use]
    pub fn is_stuck(&self, upstream: &str) -> bool {
        self.entries
            .get(upstream)
            .is_some_and(|entry| entry.health.is_stuck())
    }

    /// Whether the last attempt to reach an upstream failed, or was given up.
    #[must_use]
    pub fn is_failing(&self, upstream: &str) -> bool {
        self.entries
            .get(upstream)
            .is_some_and(|entry| entry.health.is_failing())
    }

    /// Why the last attempt to reach an upstream failed; `None` once one succeeded.
    #[must_use]
    pub fn last_cause(&self, upstream: &str) -> Option<ErrorCause> {
        self.entries.get(upstream)?.health.cause().snapshot()
    }

    /// [`last_cause`](Self::last_cause) for any caller: without addresses and text of the upstream.
    #[must_use]
    pub fn public_reason(&self, upstream: &str) -> Option<Cow<'static, str>> {
        self.entries.get(upstream)?.health.public_reason()
    }

    /// Admits a log line for an answer that went out without an upstream, with the number of suppressed lines before
    /// it. One line a minute for each upstream and kind of answer; `what` keeps upstreams that were only not ready
    /// apart.
    #[must_use]
    pub fn admit_left_out(&self, upstream: &str, what: &'static str) -> Option<u64> {
        let (name, _) = self.entries.get_key_value(upstream)?;
        self.left_out.admit((Arc::clone(name), what))
    }

    /// The account of facts about an upstream that were learned for `owner`: the principal's, if isolation or
    /// credentials let the upstream tell principals apart.
    #[must_use]
    pub fn account(&self, upstream: &str, owner: OwnerKey) -> Account {
        let entry = self.entries.get(upstream);
        entry.map_or(Account::Principal(owner), |entry| entry.account(owner))
    }

    /// Whether what a session has open at an upstream ends with this process and is not to be rebuilt: over a connection
    /// for whole messages that is not shared by all, where the upstream is not `restartable`.
    #[must_use]
    pub fn ends_with_replica(&self, upstream: &str) -> bool {
        let Some(entry) = self.entries.get(upstream) else {
            return false;
        };
        let is_piped = match &entry.carrier {
            Carrier::Duplex(_) => true,
            Carrier::Http(_, _, older) => older.as_ref().is_some_and(LegacySseOnly::is_spoken),
        };
        let settings = &entry.settings;
        is_piped && settings.isolation != Isolation::Shared && !settings.restartable
    }

    /// Whether an upstream speaks the modern era, alone or besides the legacy one.
    #[must_use]
    pub fn speaks_modern(&self, upstream: &str) -> bool {
        self.entries
            .get(upstream)
            .is_some_and(|entry| entry.eras.common().speaks_modern())
    }

    /// How far the first start of an upstream has come, since that of the gateway; that of `owner` where the
    /// upstream sees owners apart.
    #[must_use]
    pub fn first_start(&self, upstream: &str, owner: &OwnerKey) -> FirstStart {
        let entry = self.entries.get(upstream);
        entry.map_or(FirstStart::Over, |entry| {
            entry.health.first_starts.of(owner)
        })
    }

    /// Notes that a list requested at `since` went out without an upstream, which was late.
    pub fn was_late(&self, upstream: &str, since: Instant) {
        if let Some(entry) = self.entries.get(upstream) {
            entry.health.was_late(since);
        }
    }

    /// Resolves when an upstream answers again after a failure; never for an unknown upstream. Cancel safe.
    pub async fn recovered(&self, upstream: &str) {
        match self.entries.get(upstream) {
            Some(entry) => entry.health.recovered().await,
            None => std::future::pending().await,
        }
    }

    /// When a session that waited for the return of an upstream may open it: 50 of them in a second.
    #[must_use]
    pub fn next_return(&self, upstream: &str) -> Instant {
        let entry = self.entries.get(upstream);
        entry.map_or_else(Instant::now, |entry| entry.health.next_return())
    }

    /// Capabilities of the client declared to an upstream: none if the upstream serves all principals over a single
    /// connection, where the client behind a question is unknown (DESIGN §6).
    #[must_use]
    pub fn declarable(&self, upstream: &str, client: &ClientCapabilities) -> ClientCapabilities {
        match self.settings(upstream) {
            Some(settings)
                if settings.isolation == Isolation::Shared
                    && !has_streams_of_calls(&settings.carrier) =>
            {
                ClientCapabilities::none()
            }
            _ => client.clone(),
        }
    }

    /// A link for this client context: its own, or membership of a shared one. Nothing is opened yet.
    #[must_use]
    pub fn link(&self, upstream: &str, mut client: ClientContext) -> Option<Arc<dyn UpstreamLink>> {
        let (name, entry) = self.entries.get_key_value(upstream)?;
        // No other upstream is told apart, or given, what callers bring.
        let exchanges = entry.account.as_ref().map(|account| account.kind());
        client.caller = client
            .caller
            .filter(|_| exchanges == Some(AccountKind::TokenExchange));
        if entry.settings.isolation == Isolation::Session {
            let holders = SessionHolders::of(client.session);
            return Some(self.make(name, entry, client, (holders, true)));
        }
        let key = PoolKey {
            upstream: Arc::clone(name),
            account: entry.account(client.owner),
            access: client.caller.as_ref().map(|caller| *caller.key()),
            capabilities: client.capabilities.fingerprint(),
            offer: client.offer,
        };
        let idle = match entry.carrier {
            Carrier::Duplex(DuplexSource::Children(_)) => self.stdio_idle,
            Carrier::Duplex(_) | Carrier::Http(..) => SHARED_HTTP_IDLE,
        };
        let intake = Arc::clone(&client.intake);
        let member = (client.session, client.owner, intake);
        let make = |intake, holders: SessionHolders| {
            let client_info = crate::upstream::OWN_INFO;
            let client = ClientContext {
                client_info,
                intake,
                // Other sessions are at the link too.
                adopted: None,
                ..client
            };
            self.make(name, entry, client, (holders, false))
        };
        Some(self.shared.place(key, member, (idle, &self.tasks), make))
    }

    /// A link held by the sessions of `holders`; `exclusive` if used by one session alone.
    fn make(
        &self,
        name: &Arc<str>,
        entry: &RegistryEntry,
        client: ClientContext,
        (holders, exclusive): (SessionHolders, bool),
    ) -> Arc<EraLink> {
        let unattributed = match entry.settings.isolation {
            Isolation::Session if client.offer.era() == Era::Legacy => AskedClient::Session,
            Isolation::Session | Isolation::Principal => AskedClient::Call,
            Isolation::Shared => AskedClient::Nobody,
        };
        let account = entry.carrier.account_of(client.owner);
        let era = entry.eras.of(account, || EraCell::new(&entry.settings));
        let settings = LinkSettings {
            unattributed,
            asks: entry.asks.clone(),
            upstream: Arc::clone(&entry.settings),
            name: Arc::clone(name),
            carrier: entry
                .carrier
                .on_behalf_of(client.owner, client.caller.as_ref()),
            owner: client.owner,
            capabilities: client.capabilities,
            client_info: client.client_info,
            client: client.offer.era(),
            offer: era.offer(client.offer),
            intake: client.intake,
            holders,
            exclusive,
            tasks: self.tasks.clone(),
            message_depth: self.limits.json_depth,
            replies: entry.replies.clone(),
            health: Arc::clone(&entry.health),
            load: Arc::clone(&entry.load),
            fence: self.fence.clone(),
            connection: account.connection(),
            adopted: Mutex::new(
                client
                    .adopted
                    .map(|link| link.for_account(account.connection())),
            ),
        };
        let schemas = entry.schemas.of(account, ToolSchemas::default);
        let link = EraLink::new(Arc::new(settings), era, schemas);
        if let Carrier::Duplex(DuplexSource::Children(_)) = entry.carrier {
            entry.links.add(&link);
        }
        link
    }

    /// Ends shared links and every child, until `by` at the latest.
    pub async fn shut_down(&self, by: Instant) {
        let children = async {
            if let Some(stdio) = &self.stdio {
                stdio.shut_down(by).await;
            }
        };
        tokio::join!(self.shared.close(by), children);
    }
}

impl RegistryEntry {
    fn account(&self, owner: OwnerKey) -> Account {
        match self.settings.isolation {
            Isolation::Principal => self.carrier.account_of(owner).private_to(owner),
            Isolation::Session | Isolation::Shared => self.carrier.account_of(owner),
        }
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

/// Warns where children can read each other's tokens and keys, or get none for that reason.
fn warn_of_accounts(isolation: ChildIsolation) {
    if let Some(complaint) = isolation.account_complaint() {
        tracing::warn!("{complaint}");
    }
}

/// Whether a question can come on the stream of the call that it belongs to.
fn has_streams_of_calls(carrier: &config::CarrierConfig) -> bool {
    match carrier {
        config::CarrierConfig::Stdio(_) => false,
        config::CarrierConfig::Http(http) => {
            matches!(
                http.transport,
                TransportKind::Auto | TransportKind::Streamable
            )
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
