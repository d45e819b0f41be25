//! `GrantCensus`: how many grants of each upstream can be used, counted in the background.

use std::collections::BTreeMap;

use super::{GrantListing, GrantState, Vault};
use crate::database::DatabaseError;
use crate::telemetry::metrics::STATES;

/// Whether grants can be used; all grants of one upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrantCounts {
    /// The gateway can use them.
    pub connected: u64,
    /// Their upstream refused them last.
    pub refused: u64,
    /// Their token has ended, and nothing gets another one: their user has to connect again.
    pub ended: u64,
    /// They do not open: their key is missing, or they were edited.
    pub unreadable: u64,
}

impl GrantCounts {
    /// Each state and its number.
    #[must_use]
    pub fn all(&self) -> [(&'static str, u64); 4] {
        [
            ("connected", self.connected),
            ("refused", self.refused),
            ("ended", self.ended),
            ("unreadable", self.unreadable),
        ]
    }

    /// The counts of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            connected: self.connected + other.connected,
            refused: self.refused + other.refused,
            ended: self.ended + other.ended,
            unreadable: self.unreadable + other.unreadable,
        }
    }

    fn add(&mut self, grant: &GrantListing, now: u64) {
        let count = match &grant.state {
            GrantState::Unreadable => &mut self.unreadable,
            GrantState::Readable { state, .. } if state.refused.is_some() => &mut self.refused,
            GrantState::Readable { ends, .. } if ends.is_some_and(|ends| ends <= now) => {
                &mut self.ended
            }
            GrantState::Readable { .. } => &mut self.connected,
        };
        *count += 1;
    }
}

/// The grants of all upstreams by the name of the upstream, and kept logins by that of their issuer.
pub type GrantCensus = BTreeMap<String, GrantCounts>;

/// Counts all grants, for the metric and for `/status`. Each is opened: a state is part of what is sealed.
///
/// # Errors
/// The database fails: the numbers stay as they are.
pub(super) async fn take(vault: &Vault) -> Result<GrantCensus, DatabaseError> {
    let now = u64::try_from(vault.now()).unwrap_or_default();
    let mut census = GrantCensus::new();
    let mut last = None;
    loop {
        let page = vault.listing().page(last.as_ref()).await?;
        let Some(end) = page.last() else { break };
        last = Some(end.key.clone());
        for grant in &page {
            let counts = census.entry(grant.key.upstream.to_string()).or_default();
            counts.add(grant, now);
        }
        // A page takes some milliseconds, in which calls would wait.
        tokio::task::yield_now().await;
    }
    let numbers = census.iter().flat_map(|(upstream, counts)| {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        let states = counts.all().into_iter();
        states.map(move |(state, count)| ((upstream.clone(), state), number(count)))
    });
    STATES.grants.replace(numbers);
    Ok(census)
}
