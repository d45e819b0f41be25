//! Questions of `/status` and `check --online` about upstreams: state, number of children that may start at once, and
//! causes of failures.

use std::error::Error as _;
use std::time::Duration;

use super::Upstreams;
use crate::cause::{ErrorCause, LastCause};
use crate::fault::{Fault, FaultKind};
use crate::status::UpstreamStatus;
use crate::upstream::error::LinkError;
use crate::vault::GrantCensus;

impl Upstreams {
    /// The status of every upstream at `now` (since the Unix epoch), by name. `census` has the accounts of callers, if
    /// they were counted.
    #[must_use]
    pub fn status(&self, now: Duration, census: Option<&GrantCensus>) -> Vec<UpstreamStatus> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .map(|(name, entry)| entry.status(name, now, census))
            .collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Children that one principal can start at the same time without waiting for a place: one at least.
    #[must_use]
    pub fn children_at_once(&self) -> usize {
        let starts = self
            .stdio
            .as_ref()
            .map_or(1, |stdio| stdio.starts_at_once());
        starts.max(1)
    }

    /// Checks, without a caller, how callers get accounts at `upstream`. An obstacle becomes the cause of its account in
    /// the [status](Self::status). `issuers` are those whose tokens callers may have. Takes 8 s at most, and sends nothing
    /// if there is nothing to check.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub async fn look_up_account(&self, upstream: &str, issuers: &[String]) {
        let Some(entry) = self.entries.get(upstream) else {
            return;
        };
        match (&entry.accounts.account, &entry.accounts.probe) {
            (Some(account), _) => account.look(issuers).await,
            (None, Some(probe)) => probe.look().await,
            (None, None) => {}
        }
    }

    /// Finds out which issuer's token `upstream` wants, if it refused ours and its challenge says where that stands,
    /// so that its cause names the issuer. Takes 3 s at most.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub async fn name_issuer(&self, upstream: &str) {
        let Some(entry) = self.entries.get(upstream) else {
            return;
        };
        if let Some(login) = entry.carrier.login()
            && login.issuer().is_none()
            && login.look().await.is_some()
        {
            entry.health.names_issuer(&LinkError::Status(401), login);
        }
    }

    /// Why `upstream` failed with `fault`, and the remedy where it is known: for a failure after it was opened, which
    /// says nothing of its health.
    #[must_use]
    pub fn cause_of(&self, upstream: &str, fault: &Fault) -> Option<ErrorCause> {
        let cause = LastCause::default();
        let login = self.entries.get(upstream)?.carrier.login();
        match fault
            .source()
            .and_then(|source| source.downcast_ref::<LinkError>())
        {
            Some(error) => cause.set(error, error.remedy(login.map(|login| &**login))),
            None => cause.set(fault, remedy_of(fault).map(Into::into)),
        }
        cause.snapshot()
    }
}

/// The remedy for a fault that the gateway itself found.
fn remedy_of(fault: &Fault) -> Option<&'static str> {
    let is_late = fault.kind == FaultKind::UpstreamTimeout;
    is_late.then_some("look what the upstream does meanwhile; `connect_timeout` says how long it may take to open")
}
