//! Lists of a merged endpoint whose upstream takes too long or fails: how long each is waited for, what
//! stands in for it, and how it is asked for in the background until the client can be shown it.
//! Spec: BRIDGING §5.6, §5.7; SPEC G-03; DESIGN §6.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Relay;
use super::catalog::ListPageKey;
use super::list_deadline::FirstAnswer;
use super::pages::UpstreamList;
use crate::call::{Call, ClientCapabilities, DownstreamLink, InputOutcome, InputRequests, Notice};
use crate::cause::chain;
use crate::fault::{Fault, FaultKind};
use crate::protocol::methods::ListKind;
use crate::session::{BackgroundFetch, Session};
use crate::telemetry::metrics::COUNTERS;
use crate::translate::merge::MissingReason;
use crate::translate::project::CacheHints;
use crate::upstream::Upstreams;

/// Between two attempts to reach an upstream that was left out: the first, and the longest.
const RETURN_FIRST: Duration = Duration::from_secs(1);
const RETURN_LONGEST: Duration = Duration::from_mins(1);
/// Retry intervals for an upstream that is open but does not answer list requests.
const SILENT_FIRST: Duration = Duration::from_mins(1);
const SILENT_LONGEST: Duration = Duration::from_mins(10);

/// What an upstream is called that is not waited for any longer.
const NOT_READY: &str = "is not ready yet";

/// A request for one upstream's list that goes on when the client no longer waits for it.
struct DetachedFetch {
    work: BoxFuture<'static, Result<UpstreamList, Fault>>,
    asker: Arc<DetachedLink>,
    cancel: CancellationToken,
}

/// Outcome of one upstream's list within its deadline.
pub(super) enum UpstreamListing {
    /// Its list.
    Part(UpstreamList),
    /// Its list as it was last given: it is still asked.
    StandIn(UpstreamList),
    /// Nothing: it overran or failed.
    Nothing(MissingReason),
}

impl Relay {
    /// Whether waiting for an upstream is useless: the upstream hung lately, and this session has no open link
    /// to it.
    pub(super) fn is_in_vain(&self, session: &Session, upstream: &str) -> bool {
        self.parts.upstreams.is_stuck(upstream) && !is_open(session, upstream)
    }

    /// One upstream's list within the deadline of [`ListDeadline`](super::list_deadline::ListDeadline). A late request
    /// continues in the background; `lacking` says whether a client is shown a list without it.
    pub(super) async fn list_in_time(
        &self,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
        lacking: bool,
        first_answer: &FirstAnswer,
    ) -> UpstreamListing {
        if let Some(part) = self.kept_part(session, upstream, kind) {
            return UpstreamListing::Part(part);
        }
        let absences = session.absences();
        let since = Instant::now();
        let patience = self.list_patience(session, upstream, kind, lacking);
        let over = patience.over(first_answer);
        tokio::pin!(over);
        // Send no second request for a late list while the first is pending: it would be just as late.
        let is_settled = tokio::select! {
            biased;
            () = absences.settled(upstream, kind) => true,
            () = &mut over => false,
        };
        if !is_settled {
            let (listed, shown) = self.without(session, upstream, kind);
            absences.show(upstream, kind, lacking.then_some(shown));
            return listed;
        }
        if let Some(part) = self.kept_part(session, upstream, kind) {
            return UpstreamListing::Part(part);
        }
        let Some(mut fetching) = self.fetching(call, session, upstream, kind) else {
            return UpstreamListing::Nothing(MissingReason::Failed);
        };
        let came = tokio::select! {
            came = &mut fetching.work => Some(came),
            () = &mut over => None,
            () = call.cancel.cancelled() => {
                fetching.cancel.cancel();
                Some(fetching.work.as_mut().await)
            }
        };
        match came {
            Some(Ok(part)) => {
                absences.forget(upstream, kind);
                UpstreamListing::Part(part)
            }
            Some(Err(fault)) => {
                left_out(&self.parts.upstreams, upstream, "list", &fault);
                if lacking && comes_back(&fault) {
                    let begun = absences.begin(upstream, kind, false, Some(Vec::new()));
                    self.bring_later(call, session, begun, None);
                }
                UpstreamListing::Nothing(self.why_missing(session, upstream, Some(&fault)))
            }
            None => {
                self.note_late(session, upstream, since);
                let (listed, shown) = self.without(session, upstream, kind);
                let shown = lacking.then_some(shown);
                let begun = absences.begin(upstream, kind, true, shown);
                self.bring_later(call, session, begun, Some(fetching));
                listed
            }
        }
    }

    /// What is shown where an upstream overran, and the digests of that.
    fn without(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> (UpstreamListing, Vec<[u8; 32]>) {
        if let Some(part) = self.stand_in(session, upstream, kind) {
            COUNTERS.lists_stale.add(1);
            let shown = part.digests();
            (UpstreamListing::StandIn(part), shown)
        } else {
            let why = self.why_missing(session, upstream, None);
            (UpstreamListing::Nothing(why), Vec::new())
        }
    }

    /// Stale substitute for a list: the pages last returned to this session, if it has an open link; else those of
    /// a similar session before its first call, since this session would have got the same pages.
    pub(super) fn stand_in(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<UpstreamList> {
        let own = |cursor: Option<&str>| {
            let held = session.list_validity().last_given(upstream, kind, cursor)?;
            let page = self.page(&held)?;
            Some((held, page.message.clone()))
        };
        let others = |cursor: Option<&str>| {
            let place = ListPageKey {
                upstream,
                kind,
                cursor,
            };
            let held = self.known_elsewhere(session, place)?;
            let page = self.page(&held)?;
            Some((held, page.message.clone()))
        };
        let own = is_open(session, upstream).then(|| self.part_of(upstream, own));
        let mut part = own.flatten().or_else(|| self.part_of(upstream, others))?;
        part.hints = CacheHints::NONE;
        part.missing = Some(MissingReason::LastKnown);
        Some(part)
    }

    /// Begins to ask for a list, as one that may go on without its client. Nothing happens before it is
    /// polled.
    fn fetching(
        &self,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<DetachedFetch> {
        let relay = self.own.upgrade()?;
        let asker = Arc::new(DetachedLink {
            link: Arc::clone(&call.link),
            gone: AtomicBool::new(false),
        });
        let cancel = CancellationToken::new();
        let call = Call {
            link: Arc::clone(&asker) as _,
            cancel: cancel.clone(),
            ..call.clone()
        };
        let (session, upstream) = (Arc::clone(session), Arc::clone(upstream));
        let work = Box::pin(async move { relay.list_one(&call, &session, &upstream, kind).await });
        Some(DetachedFetch {
            work,
            asker,
            cancel,
        })
    }

    /// Continues a late list in the background until the session ends. One of several late requests holds the
    /// errand; the others are finished too, since the errand may be a follower of one of them (single-flight):
    /// dropping that leader would send the request once more.
    fn bring_later(
        &self,
        call: &Call,
        session: &Arc<Session>,
        errand: Option<BackgroundFetch>,
        fetching: Option<DetachedFetch>,
    ) {
        let Some(relay) = self.own.upgrade() else {
            return;
        };
        if let Some(fetching) = &fetching {
            fetching.asker.gone.store(true, Ordering::Relaxed);
        }
        let (call, session) = (call.clone(), Arc::clone(session));
        let Some(errand) = errand else {
            if let Some(fetching) = fetching {
                self.parts.tasks.spawn_service(async move {
                    tokio::select! {
                        () = session.closed().cancelled() => {}
                        _ = fetching.work => {}
                    }
                });
            }
            return;
        };
        self.parts.tasks.spawn_service(async move {
            tokio::select! {
                () = session.closed().cancelled() => {}
                () = errand.superseded.cancelled() => {}
                () = relay.bring(&call, &session, &errand, fetching) => {}
            }
        });
    }

    /// Retries until the list arrives, and notifies the client if it was shown a different list. Each request
    /// has the timeouts of a call to the upstream (`connect_timeout`, `idle_timeout`).
    async fn bring(
        &self,
        call: &Call,
        session: &Arc<Session>,
        errand: &BackgroundFetch,
        mut fetching: Option<DetachedFetch>,
    ) {
        let (upstream, kind) = errand.place();
        let absences = session.absences();
        let (mut pause, mut silence) = (RETURN_FIRST, SILENT_FIRST);
        loop {
            if let Some(fetching) = fetching.take() {
                match fetching.work.await {
                    Ok(part) => {
                        self.session_indexes.invalidate(&(session.key(), kind));
                        let arrival = absences.came(errand, part.digests());
                        // Skills have no such notice.
                        if arrival.differs && kind != ListKind::Skills {
                            self.tell_changed(session, upstream, kind.capability());
                        }
                        let outdated = || self.kept_part(session, upstream, kind).is_none();
                        if !(arrival.again && outdated()) {
                            return;
                        }
                    }
                    Err(fault) => {
                        tracing::debug!(%upstream, error = chain(&fault), "a list is still not there");
                        if !absences.pause(errand) || !comes_back(&fault) {
                            return;
                        }
                        self.rest(session, upstream, &mut pause, &mut silence).await;
                    }
                }
            } else {
                self.rest(session, upstream, &mut pause, &mut silence).await;
            }
            absences.resume(errand);
            fetching = self.fetching(call, session, upstream, kind);
            if let Some(fetching) = &fetching {
                fetching.asker.gone.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Waits before an upstream is asked again: longer each time, and not beyond its return.
    async fn rest(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        pause: &mut Duration,
        silence: &mut Duration,
    ) {
        if is_open(session, upstream) {
            tokio::time::sleep(*silence).await;
            *silence = (*silence * 2).min(SILENT_LONGEST);
            return;
        }
        let recovered = self.parts.upstreams.recovered(upstream);
        if tokio::time::timeout(*pause, recovered).await.is_ok() {
            // Many sessions may wait: each has its turn.
            tokio::time::sleep_until(self.parts.upstreams.next_return(upstream)).await;
        }
        *pause = (*pause * 2).min(RETURN_LONGEST);
    }

    /// Notes that an answer went out without an upstream that was waited for.
    fn note_late(&self, session: &Session, upstream: &Arc<str>, since: Instant) {
        // One that is open and answers slowly is no matter of its health.
        if !is_open(session, upstream) {
            self.parts.upstreams.was_late(upstream, since);
        }
    }
}

pub(super) fn is_open(session: &Session, upstream: &str) -> bool {
    let link = session.link(upstream);
    link.is_some_and(|link| link.declared().is_some())
}

/// Whether a failed list is retried. An upstream that replied with an error or an invalid result was
/// reachable: its own change notice announces a new list.
fn comes_back(fault: &Fault) -> bool {
    !matches!(
        fault.kind,
        FaultKind::Cancelled | FaultKind::UpstreamInvalid | FaultKind::UnknownMethod
    )
}

/// Logs, rate-limited, that an answer lacks an upstream. The failure itself is logged at its origin.
pub(super) fn left_out(upstreams: &Upstreams, upstream: &str, what: &'static str, fault: &Fault) {
    if let Some(muted) = upstreams.admit_left_out(upstream, what) {
        tracing::warn!(
            upstream,
            error = chain(fault),
            muted,
            "left out of a {what}"
        );
    }
}

/// The fault for a request that must not wait for an upstream any longer; with the reason, if known.
pub(super) fn not_ready(upstreams: &Upstreams, upstream: &str) -> Fault {
    let reason = upstreams.public_reason(upstream);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    Fault::upstream(
        FaultKind::UpstreamTimeout,
        format!("upstream \"{upstream}\" {NOT_READY}{reason}"),
    )
}

/// Link of a request that may outlive the client's wait: after the client was answered, no message of
/// this request reaches it.
#[derive(Debug)]
struct DetachedLink {
    link: Arc<dyn DownstreamLink>,
    gone: AtomicBool,
}

impl DownstreamLink for DetachedLink {
    fn capabilities(&self) -> &ClientCapabilities {
        self.link.capabilities()
    }

    fn notify(&self, notice: Notice) {
        if !self.gone.load(Ordering::Relaxed) {
            self.link.notify(notice);
        }
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        if self.gone.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(InputOutcome::Unanswered));
        }
        self.link.ask(round)
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.link)
    }
}
