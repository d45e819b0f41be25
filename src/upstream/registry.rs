//! Whose traffic may share an upstream session or child: one session, one principal, or all.
//! Spec: DESIGN §6; BRIDGING §1.3.

mod accounts;
mod asking;
mod caller_accounts;
mod checked_links;
mod checks;
mod entries;
mod links;
mod setup_error;
mod shared_accounts;
mod status;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub use self::caller_accounts::CallerAccounts;
use self::entries::{EntryParts, RegistryEntry};
use self::links::LinkMaker;
pub use self::setup_error::SetupError;
pub use self::shared_accounts::SharedAccounts;
use super::account::Account;
use super::carrier::http::http_session::ResponseBounds;
use super::first_start::FirstStart;
use super::link::negotiated::EraCell;
use super::link::shared::SharedLinks;
use super::user_accounts::AccountKeeping;
use crate::budget::ByteBudget;
use crate::call::{
    AdoptedLink, CallerAccess, ClientCapabilities, NoticeIntake, OwnerKey, UpstreamLink,
};
use crate::cause::ErrorCause;
use crate::config::{self, Isolation, TransportKind};
use crate::grants::LoginGrants;
use crate::ownership::Fence;
use crate::process::holders::HolderKey;
use crate::process::{ChildIsolation, HostEnvironment, StdioRuntime};
use crate::protocol::{Era, Revision};
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::line_limit::LineLimit;
use crate::vault::Vault;

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
    /// The state that a link of its own begins with, if another replica had the session before.
    pub adopted: Option<AdoptedLink>,
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
    /// The vault with the accounts of callers.
    vault: Option<Vault>,
    /// Whether the gateway gets tokens for any upstream.
    any_credentials: bool,
    /// The kept logins of callers, where an upstream needs them.
    logins: Option<Arc<LoginGrants>>,
    tasks: TaskSpawner,
    fence: Fence,
    left_out: LineLimit<(Arc<str>, &'static str)>,
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
        let parts = EntryParts {
            stdio: stdio.as_ref(),
            bounds,
            replies: &replies,
        };
        let (entries, logins) = parts.entries(config, keeping, &tasks)?;
        Ok(Self {
            entries,
            shared: SharedLinks::default(),
            stdio,
            replies,
            limits,
            stdio_idle: config.stdio.idle,
            any_accounts: config.has_user_accounts(),
            vault: keeping.map(|keeping| keeping.vault.clone()),
            any_credentials: config.upstreams.iter().any(|one| one.auth.is_some()),
            logins,
            tasks,
            fence: Fence::default(),
            left_out: LineLimit::default(),
        })
    }

    /// Puts the upstreams behind `fence`: no message goes to legacy upstreams while the fence is closed.
    #[must_use]
    pub fn behind(self, fence: &Fence) -> Self {
        let fence = fence.clone();
        Self { fence, ..self }
    }

    /// The byte budget of messages from upstreams.
    #[must_use]
    pub fn replies(&self) -> &Arc<ByteBudget> {
        &self.replies
    }

    /// The accounts of callers at all upstreams.
    #[must_use]
    pub fn caller_accounts(&self) -> CallerAccounts<'_> {
        CallerAccounts {
            entries: &self.entries,
            is_any: self.any_accounts,
            vault: self.vault.as_ref(),
            logins: self.logins.as_deref(),
        }
    }

    /// The links of accounts that several sessions may share.
    #[must_use]
    pub fn shared_accounts(&self) -> SharedAccounts<'_> {
        SharedAccounts {
            entries: &self.entries,
            shared: &self.shared,
            tasks: &self.tasks,
        }
    }

    /// Whether the gateway gets tokens for any upstream.
    #[must_use]
    pub fn any_credentials(&self) -> bool {
        self.any_credentials
    }

    /// The configuration of an upstream.
    #[must_use]
    pub fn settings(&self, upstream: &str) -> Option<&Arc<config::UpstreamConfig>> {
        self.entries.get(upstream).map(|entry| &entry.settings)
    }

    /// The configured upstreams.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.entries.keys()
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

    /// Whether a session cannot outlive the process that has its connection to `upstream`: the connection is not shared by
    /// all, and the upstream is not `restartable`.
    #[must_use]
    pub fn ends_with_replica(&self, upstream: &str) -> bool {
        let Some(entry) = self.entries.get(upstream) else {
            return false;
        };
        let settings = &entry.settings;
        settings.isolation != Isolation::Shared && !settings.restartable
    }

    /// Whether calls of a modern client for `owner` share a session at an upstream, which only one replica may have. True for
    /// a legacy upstream that is not shared by all; `None` while its era is unknown.
    #[must_use]
    pub fn has_sessions_of_modern_clients(&self, upstream: &str, owner: OwnerKey) -> Option<bool> {
        let entry = self.entries.get(upstream)?;
        if entry.settings.isolation == Isolation::Shared {
            return Some(false);
        }
        let account = entry.carrier.account_of(owner);
        let era = entry.eras.of(account, || EraCell::new(&entry.settings));
        era.spoken().map(|(era, _)| era == Era::Legacy)
    }

    /// Whether an upstream speaks the modern era, alone or besides the legacy one.
    #[must_use]
    pub fn speaks_modern(&self, upstream: &str) -> bool {
        self.entries
            .get(upstream)
            .is_some_and(|entry| entry.eras.common().speaks_modern())
    }

    /// Progress of the first start of an upstream since the start of the gateway: of `owner`, if the upstream can tell
    /// owners apart.
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

    /// When a session that waited for the return of an upstream may open it. 50 sessions may do so per second.
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
    pub fn link(&self, upstream: &str, client: ClientContext) -> Option<Arc<dyn UpstreamLink>> {
        let (name, entry) = self.entries.get_key_value(upstream)?;
        let maker = LinkMaker {
            upstreams: self,
            name,
            entry,
        };
        Some(maker.link(client))
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
