//! Changed lists of upstreams that several replicas use: a replica that hears of a change tells the other replicas, and
//! each replica tells its sessions. Spec: DESIGN §8.1; `docs/adr/0025`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::call::{Notice, NoticeArrival};
use crate::catalog::SharedPages;
use crate::config::Isolation;
use crate::outbound::SessionLinks;
use crate::protocol::Era;
use crate::session::{Session, SessionRegistry};
use crate::store::notices::{ListChange, SharedNotices};
use crate::upstream::Upstreams;
use crate::upstream::account::Account;

/// After an outage, all sessions are told of all lists within this time: their clients do not ask together.
const SPREAD: Duration = Duration::from_secs(5);

/// The lists that have change notices.
pub(super) const LISTS: [&str; 3] = ["tools", "prompts", "resources"];

/// The kind of list that another replica names, if it is known here.
pub(super) fn known_list(change: &ListChange) -> Option<&'static str> {
    LISTS.into_iter().find(|what| **what == *change.what)
}

/// Tells other replicas of changes, where there are any. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct SharedChanges {
    notices: Arc<OnceLock<Arc<SharedNotices>>>,
    upstreams: Arc<Upstreams>,
}

impl SharedChanges {
    /// For changes of `upstreams`; tells no replica yet.
    pub(super) fn new(upstreams: &Arc<Upstreams>) -> Self {
        Self {
            notices: Arc::default(),
            upstreams: Arc::clone(upstreams),
        }
    }

    /// Tells the other replicas of a change that the upstream itself has announced, where it may concern their sessions.
    /// `era` is what the upstream speaks.
    pub(super) fn publish(&self, upstream: &Arc<str>, what: &'static str, era: Option<Era>) {
        if let Some(notices) = self.notices.get()
            && self.concern_others(upstream, era)
        {
            notices.publish(ListChange {
                upstream: upstream.to_string(),
                what: what.to_owned(),
            });
        }
    }

    /// Tells other replicas through `notices` from now on. Only the first call has an effect.
    pub(super) fn share(&self, notices: Arc<SharedNotices>) {
        self.notices.get_or_init(|| notices);
    }

    /// Ends the pages in `pages` that are older than changes that were not heard here, of all upstreams for `None`, and
    /// tells `sessions` of the changes in the background.
    pub(super) fn tell_later(
        &self,
        (links, sessions): (&Arc<SessionLinks>, &Arc<SessionRegistry>),
        pages: &SharedPages,
        upstream: Option<&str>,
        lists: Vec<&'static str>,
    ) {
        let arrival = NoticeArrival::now(None);
        // At once, and where no session is told as well: a session that begins later may adopt a page.
        self.record(pages, upstream, &lists, arrival);
        let teller = ChangeTeller {
            links: Arc::clone(links),
            sessions: Arc::clone(sessions),
            changes: self.clone(),
            upstream: upstream.map(Into::into),
            lists,
            arrival,
        };
        links.spawner.spawn_service(teller.run());
    }

    /// Ends the pages in `pages` that are older than a change that was not heard here, of all upstreams for `None`. Another
    /// replica may name an upstream that is not configured here.
    pub(super) fn record(
        &self,
        pages: &SharedPages,
        upstream: Option<&str>,
        lists: &[&'static str],
        arrival: NoticeArrival,
    ) {
        let is_meant = |name: &str| upstream.is_none_or(|meant| meant == name);
        for name in self.upstreams.names().filter(|name| is_meant(name)) {
            for what in lists {
                pages.record(name, Account::Common, what, arrival.number);
            }
        }
    }

    /// Whether a change of an upstream that speaks `era` may concern sessions of other replicas: all callers use it over
    /// one session, or it knows no sessions, and callers have no accounts there, and so lists, of their own.
    fn concern_others(&self, upstream: &str, era: Option<Era>) -> bool {
        let settings = self.upstreams.settings(upstream);
        settings.is_some_and(|settings| {
            let auth = settings.auth.as_ref();
            let is_of_callers = auth.is_some_and(|auth| auth.kind().is_of_callers());
            let is_one = settings.isolation == Isolation::Shared || era == Some(Era::Modern);
            is_one && !is_of_callers
        })
    }
}

/// When a session is told of all lists, after `told` of `count` sessions.
fn due(told: usize, count: usize) -> Duration {
    let share = |sessions: usize| u32::try_from(sessions).unwrap_or(u32::MAX);
    SPREAD
        .mul_f64(f64::from(share(told)) / f64::from(share(count).max(1)))
        .min(SPREAD)
}

/// Tells the sessions of this replica that lists have changed, and lets no older list answer them.
struct ChangeTeller {
    links: Arc<SessionLinks>,
    sessions: Arc<SessionRegistry>,
    changes: SharedChanges,
    /// `None` for all.
    upstream: Option<Arc<str>>,
    lists: Vec<&'static str>,
    arrival: NoticeArrival,
}

impl ChangeTeller {
    async fn run(self) {
        let (began, count) = (Instant::now(), self.sessions.len());
        let mut told = 0;
        for owner in self.sessions.owners().all() {
            for session in self.sessions.owners().sessions(owner) {
                if self.upstream.is_none() {
                    sleep_until(began + due(told, count)).await;
                }
                self.tell(&session);
                told += 1;
            }
            // There may be thousands.
            tokio::task::yield_now().await;
        }
    }

    fn tell(&self, session: &Arc<Session>) {
        for upstream in &session.endpoint.upstreams {
            let is_meant = self.upstream.as_ref().is_none_or(|meant| meant == upstream);
            if !is_meant {
                continue;
            }
            let key = self.links.knowledge_key(session, upstream);
            let declared = self.links.declarations.last(&key);
            let era = declared.map(|declared| declared.revision.era());
            if self.changes.concern_others(upstream, era) {
                let intake = self.links.client(session, upstream).intake;
                for what in &self.lists {
                    intake.notice(upstream, Notice::list_changed(what), self.arrival);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_told_one_after_the_other() {
        assert_eq!(due(0, 20_000), Duration::ZERO);
        assert_eq!(due(10_000, 20_000), SPREAD / 2);
        // More may be opened meanwhile.
        assert_eq!(due(30_000, 20_000), SPREAD);
        assert_eq!(due(0, 0), Duration::ZERO);
        assert!(due(1, usize::MAX) < Duration::from_micros(1));
    }
}
