//! Lists of a merged endpoint whose upstream takes too long or fails: how long each is waited for, what
//! stands in for it, and how it is asked for in the background until the client can be shown it.
//! Spec: BRIDGING §5.6, §5.7; SPEC G-03; DESIGN §6.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::detached_link::DetachedLink;
use super::list_deadline::{FirstAnswer, ListDeadline};
use super::page_key::ListPageKey;
use super::pages::ListPages;
use super::reader::{ListReader, UpstreamList};
use super::session_index::SessionIndexes;
use crate::call::Call;
use crate::cause::chain;
use crate::fault::{Fault, FaultKind};
use crate::outbound::{SessionLinks, is_open, left_out};
use crate::protocol::methods::ListKind;
use crate::session::{BackgroundFetch, Session};
use crate::sync::backoff::Backoff;
use crate::telemetry::metrics::COUNTERS;
use crate::translate::merge::MissingReason;
use crate::translate::project::CacheHints;
use crate::upstream::FirstStart;

/// Between two attempts to reach an upstream that was left out: the first, and the longest.
const RETURN_FIRST: Duration = Duration::from_secs(1);
const RETURN_LONGEST: Duration = Duration::from_mins(1);
/// Longest wait of a list for an upstream whose last request failed or overran, or which is not open yet and
/// whose list is known from other sessions.
const DOUBTFUL_WAIT: Duration = Duration::from_secs(1);
/// Longest wait of a list for an upstream that overran, if a stale list can be returned instead.
const STAND_IN_WAIT: Duration = Duration::from_millis(250);
/// Retry intervals for an upstream that is open but does not answer list requests.
const SILENT_FIRST: Duration = Duration::from_mins(1);
const SILENT_LONGEST: Duration = Duration::from_mins(10);

/// A request for one upstream's list that goes on when the client no longer waits for it.
struct DetachedFetch {
    work: BoxFuture<'static, Result<UpstreamList, Fault>>,
    asker: Arc<DetachedLink>,
    cancel: CancellationToken,
}

/// Outcome of one upstream's list within its deadline.
pub(crate) enum UpstreamListing {
    /// Its list.
    Part(UpstreamList),
    /// Its list as it was last given: it is still asked.
    StandIn(UpstreamList),
    /// Nothing: it overran or failed.
    Nothing(MissingReason),
}

/// Lists of upstreams that are waited for only so long.
#[derive(Debug)]
pub(crate) struct LateLists {
    pub(super) links: Arc<SessionLinks>,
    pub(super) pages: Arc<ListPages>,
    pub(super) reader: Arc<ListReader>,
    /// Those of a session whose list came late are out of date.
    pub(super) session_indexes: SessionIndexes,
    /// `mcp.first_wait`.
    pub(super) first_wait: Duration,
}

impl LateLists {
    /// One upstream's list within the deadline of [`ListDeadline`]. A late request
    /// continues in the background; `lacking` says whether a client is shown a list without it.
    pub(crate) async fn list_in_time(
        self: &Arc<Self>,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
        lacking: bool,
        first_answer: &FirstAnswer,
    ) -> UpstreamListing {
        if let Some(part) = self.reader.kept_part(session, upstream, kind) {
            return UpstreamListing::Part(part);
        }
        let absences = session.absences();
        let since = Instant::now();
        let patience = self.patience(session, upstream, kind, lacking);
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
        if let Some(part) = self.reader.kept_part(session, upstream, kind) {
            return UpstreamListing::Part(part);
        }
        let mut fetching = self.fetching(call, session, upstream, kind);
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
                left_out(&self.links.upstreams, upstream, "list", &fault);
                if lacking && comes_back(&fault) {
                    let begun = absences.begin(upstream, kind, false, Some(Vec::new()));
                    self.bring_later(call, session, begun, None);
                }
                UpstreamListing::Nothing(self.links.why_missing(session, upstream, Some(&fault)))
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

    /// How long a list waits for one upstream: less where waiting was in vain the last time. Only a client's
    /// list has more patience with a first start.
    fn patience(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        kind: ListKind,
        of_client: bool,
    ) -> ListDeadline {
        let wait = self.links.connect_wait;
        let overran = session.absences().is_absent(upstream, kind);
        let start = self.links.upstreams.first_start(upstream, &session.owner());
        let stands_in = || self.stand_in(session, upstream, kind).is_some();
        let wait = if overran && stands_in() {
            wait.min(STAND_IN_WAIT)
        } else if overran
            || self.links.is_doubtful(session, upstream)
            || start == FirstStart::Over && !is_open(session, upstream) && stands_in()
        {
            wait.min(DOUBTFUL_WAIT)
        } else {
            wait
        };
        let started = match start {
            FirstStart::Pending => Some(Instant::now()),
            FirstStart::Running(since) => Some(since),
            FirstStart::Over => None,
        };
        let started = started.filter(|_| of_client && !overran);
        ListDeadline::new(wait, started, self.first_wait)
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
            let why = self.links.why_missing(session, upstream, None);
            (UpstreamListing::Nothing(why), Vec::new())
        }
    }

    /// Stale substitute for a list: the pages last returned to this session, if it has an open link; else those of
    /// a similar session before its first call, since this session would have got the same pages.
    fn stand_in(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<UpstreamList> {
        let own = |cursor: Option<&str>| {
            let held = session.list_validity().last_given(upstream, kind, cursor)?;
            let page = self.pages.page(&held)?;
            Some((held, page.message.clone()))
        };
        let others = |cursor: Option<&str>| {
            let place = ListPageKey::new(upstream, kind, cursor);
            let held = self.pages.known_elsewhere(session, place)?;
            let page = self.pages.page(&held)?;
            Some((held, page.message.clone()))
        };
        let own = is_open(session, upstream).then(|| self.reader.part_of(upstream, own));
        let mut part = own
            .flatten()
            .or_else(|| self.reader.part_of(upstream, others))?;
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
    ) -> DetachedFetch {
        let asker = Arc::new(DetachedLink::of(&call.link));
        let cancel = CancellationToken::new();
        let call = Call {
            link: Arc::clone(&asker) as _,
            cancel: cancel.clone(),
            ..call.clone()
        };
        let (session, upstream) = (Arc::clone(session), Arc::clone(upstream));
        let reader = Arc::clone(&self.reader);
        let work = Box::pin(async move { reader.list_one(&call, &session, &upstream, kind).await });
        DetachedFetch {
            work,
            asker,
            cancel,
        }
    }

    /// Continues a late list in the background until the session ends. One of several late requests holds the
    /// errand; the others are finished too, since the errand may be a follower of one of them (single-flight):
    /// dropping that leader would send the request once more.
    fn bring_later(
        self: &Arc<Self>,
        call: &Call,
        session: &Arc<Session>,
        errand: Option<BackgroundFetch>,
        fetching: Option<DetachedFetch>,
    ) {
        if let Some(fetching) = &fetching {
            fetching.asker.leave();
        }
        let (call, session) = (call.clone(), Arc::clone(session));
        let Some(errand) = errand else {
            if let Some(fetching) = fetching {
                self.links.spawner.spawn_service(async move {
                    tokio::select! {
                        () = session.closed().cancelled() => {}
                        _ = fetching.work => {}
                    }
                });
            }
            return;
        };
        let lists = Arc::clone(self);
        self.links.spawner.spawn_service(async move {
            tokio::select! {
                () = session.closed().cancelled() => {}
                () = errand.superseded.cancelled() => {}
                () = lists.bring(&call, &session, &errand, fetching) => {}
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
        let mut absent = Backoff::new(RETURN_FIRST, RETURN_LONGEST);
        let mut silent = Backoff::new(SILENT_FIRST, SILENT_LONGEST);
        loop {
            if let Some(fetching) = fetching.take() {
                match fetching.work.await {
                    Ok(part) => {
                        self.session_indexes.invalidate(&(session.key(), kind));
                        let arrival = absences.came(errand, part.digests());
                        // Skills have no such notice.
                        if arrival.differs && kind != ListKind::Skills {
                            self.links
                                .tell_changed(session, upstream, kind.capability());
                        }
                        let outdated = || self.reader.kept_part(session, upstream, kind).is_none();
                        if !(arrival.again && outdated()) {
                            return;
                        }
                    }
                    Err(fault) => {
                        tracing::debug!(%upstream, error = chain(&fault), "a list is still not there");
                        if !absences.pause(errand) || !comes_back(&fault) {
                            return;
                        }
                        self.rest(session, upstream, &mut absent, &mut silent).await;
                    }
                }
            } else {
                self.rest(session, upstream, &mut absent, &mut silent).await;
            }
            absences.resume(errand);
            let next = self.fetching(call, session, upstream, kind);
            next.asker.leave();
            fetching = Some(next);
        }
    }

    /// Waits before an upstream is asked again: longer each time, and not beyond its return.
    async fn rest(
        &self,
        session: &Session,
        upstream: &Arc<str>,
        absent: &mut Backoff,
        silent: &mut Backoff,
    ) {
        if is_open(session, upstream) {
            return tokio::time::sleep(silent.next_pause()).await;
        }
        let recovered = self.links.upstreams.recovered(upstream);
        if tokio::time::timeout(absent.next_pause(), recovered)
            .await
            .is_ok()
        {
            // Many sessions may wait: each has its turn.
            tokio::time::sleep_until(self.links.upstreams.next_return(upstream)).await;
        }
    }

    /// Notes that an answer went out without an upstream that was waited for.
    fn note_late(&self, session: &Session, upstream: &Arc<str>, since: Instant) {
        // One that is open and answers slowly is no matter of its health.
        if !is_open(session, upstream) {
            self.links.upstreams.was_late(upstream, since);
        }
    }
}

/// Whether a failed list is retried. An upstream that replied with an error or an invalid result was
/// reachable: its own change notice announces a new list.
fn comes_back(fault: &Fault) -> bool {
    !matches!(
        fault.kind,
        FaultKind::Cancelled | FaultKind::UpstreamInvalid | FaultKind::UnknownMethod
    )
}
