//! One upstream in `/status`.

use std::time::Duration;

use super::entries::RegistryEntry;
use crate::cause::{ErrorCause, LastCause};
use crate::config::{self, TransportKind};
use crate::grants::TokenFailure;
use crate::protocol::{Era, Revision};
use crate::status::{
    self, AccountNumbers, AccountStatus, UpstreamStatus, millis, tenth, time_text,
};
use crate::upstream::carrier::Carrier;
use crate::vault::{GrantCensus, GrantCounts};

impl RegistryEntry {
    /// The row of `/status` for this upstream, under `name`.
    pub(super) fn status(
        &self,
        name: &str,
        now: Duration,
        census: Option<&GrantCensus>,
    ) -> UpstreamStatus {
        let (state, lasted) = self.health.state();
        let (era, revision) = self.spoken();
        let recent = self.load.recent();
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        UpstreamStatus {
            name: name.to_owned(),
            transport: self.transport().to_owned(),
            state,
            since: time_text(now.saturating_sub(lasted)),
            since_s: lasted.as_secs(),
            cause: self.last_cause(state, now),
            account: self.account_status(census),
            era: era.map(|era| era_word(era).to_owned()),
            revision: revision.map(|revision| revision.as_str().to_owned()),
            sessions: count(self.load.sessions()),
            children: count(self.load.children()),
            calls_in_flight: count(self.load.calls()),
            calls_per_minute: tenth(recent.calls),
            failures_per_minute: tenth(recent.failures),
            p50_ms: recent.p50.map(millis),
            p99_ms: recent.p99.map(millis),
        }
    }

    /// The gateway's own account, or those of callers, whose last cause may be of any of them.
    fn account_status(&self, census: Option<&GrantCensus>) -> Option<AccountStatus> {
        let kind = self.settings.auth.as_ref()?.kind();
        let cause = match (
            &self.accounts.account,
            &self.accounts.tokens,
            &self.accounts.probe,
            &self.accounts.withheld,
        ) {
            (Some(account), ..) => account.last_cause(),
            (None, Some(tokens), ..) => tokens.account().last_cause(),
            (None, None, Some(probe), _) => probe.last_cause(),
            (None, None, None, Some(withheld)) => cause_of(withheld),
            // Pasted keys: their causes are on their own pages.
            (None, None, None, None) => None,
        };
        let counts = census
            .zip(self.accounts.users.as_ref())
            .map(|(census, users)| {
                let names = users.grant_names().into_iter();
                let counted = names.filter_map(|name| census.get(&*name).copied());
                counted.fold(GrantCounts::default(), GrantCounts::plus)
            });
        Some(AccountStatus {
            kind: kind.as_str().to_owned(),
            accounts: counts.map(|counts| AccountNumbers {
                connected: counts.connected,
                refused: counts.refused,
                ended: counts.ended,
                unreadable: counts.unreadable,
            }),
            cause: cause.map(Into::into),
        })
    }

    /// Why the upstream is not reached; while it is, why a call failed lately.
    fn last_cause(
        &self,
        state: status::UpstreamState,
        now: Duration,
    ) -> Option<status::CauseStatus> {
        let is_well = state == status::UpstreamState::Up;
        let cause = self.health.cause().snapshot().filter(|_| !is_well);
        let cause = cause.or_else(|| self.health.recent_call_cause(now));
        cause.map(Into::into)
    }

    fn spoken(&self) -> (Option<Era>, Option<Revision>) {
        let legacy = self.health.legacy_revision();
        match self.eras.common().spoken() {
            Some((Era::Modern, revision)) => (Some(Era::Modern), revision),
            Some((Era::Legacy, _)) => (Some(Era::Legacy), legacy),
            None => (legacy.map(|_| Era::Legacy), legacy),
        }
    }

    /// As in the configuration, but for one that was found to speak HTTP+SSE alone.
    fn transport(&self) -> &'static str {
        let http = match &self.settings.carrier {
            config::CarrierConfig::Stdio(_) => return "stdio",
            config::CarrierConfig::Http(http) => http,
        };
        match (http.transport, &self.carrier) {
            (TransportKind::Auto, Carrier::Http(_, _, Some(older))) if older.is_spoken() => "sse",
            (TransportKind::Auto, _) => "auto",
            (TransportKind::Streamable, _) => "streamable",
            (TransportKind::Sse, _) => "sse",
            (TransportKind::WebSocket, _) => "websocket",
        }
    }
}

fn cause_of(failure: &TokenFailure) -> Option<ErrorCause> {
    let cause = LastCause::default();
    cause.set(failure, Some(failure.remedy().to_owned().into()));
    cause.snapshot()
}

fn era_word(era: Era) -> &'static str {
    match era {
        Era::Legacy => "legacy",
        Era::Modern => "modern",
    }
}
