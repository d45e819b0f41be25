//! Lists that a session was given by its upstreams, and the events since that may have changed them.
//! Requests and events are numbered in one order ([`EventNumber`]), and only numbers are compared: a list that was requested
//! before a change is stale after it, however late the list arrives. The numbers are those of the whole process, not a
//! counter of each list, as a page of one session is compared with the events of another that may adopt it. Times are
//! ages alone: `fresh` and `lasts`. Spec: SPEC M-85; DESIGN §5.

use std::sync::{Arc, Mutex};

use super::lock;
use crate::protocol::methods::ListKind;
use crate::store::lists::CachedPage;
use crate::sync::event_number::EventNumber;
use crate::sync::on_drop::OnDrop;

/// Pages remembered per upstream.
const MAX_PAGES: usize = 400;

/// Lists by upstream.
#[derive(Debug, Default)]
pub struct ListValidity(Mutex<Vec<UpstreamLists>>);

/// What one upstream listed.
#[derive(Debug)]
struct UpstreamLists {
    upstream: Arc<str>,
    /// The last begin or end of a tool call.
    called: Option<EventNumber>,
    /// Change notices began to be received.
    heard: Option<EventNumber>,
    changes: [ListChanges; ListKind::ALL.len()],
    pages: Vec<GivenPage>,
}

/// The changes of an upstream's lists of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct ListChanges {
    /// The last one: pages requested before it are stale.
    last: Option<EventNumber>,
    /// When the last one was recorded, by itself an event.
    recorded: Option<EventNumber>,
}

/// A page that was given.
#[derive(Debug)]
struct GivenPage {
    kind: ListKind,
    cursor: Option<Box<str>>,
    held: CachedPage,
    /// Whether a recheck of the page was begun.
    rechecked: bool,
}

impl GivenPage {
    fn is_at(&self, kind: ListKind, cursor: Option<&str>) -> bool {
        self.kind == kind && self.cursor.as_deref() == cursor
    }
}

/// A page that may be served from the cache now.
#[derive(Debug)]
pub struct CurrentPage {
    /// The page.
    pub held: CachedPage,
    /// Whether the caller has to recheck the page beside answering: it is older than `CachedPage::fresh`.
    /// `true` once per page.
    pub is_due: bool,
}

impl UpstreamLists {
    fn new(upstream: &Arc<str>) -> Self {
        Self {
            upstream: Arc::clone(upstream),
            called: None,
            heard: None,
            changes: [ListChanges::default(); ListKind::ALL.len()],
            pages: Vec::new(),
        }
    }

    fn changes(&self, kind: ListKind) -> ListChanges {
        self.changes.get(kind as usize).copied().unwrap_or_default()
    }

    /// Whether no change came after the request of a page.
    fn is_unchanged(&self, page: &GivenPage) -> bool {
        page.held.is_since(self.changes(page.kind).last)
    }

    fn page(&self, kind: ListKind, cursor: Option<&str>) -> Option<&CachedPage> {
        let found = self.any_page(kind, cursor);
        let unchanged = found.filter(|page| self.is_unchanged(page));
        unchanged.map(|page| &page.held)
    }

    fn any_page(&self, kind: ListKind, cursor: Option<&str>) -> Option<&GivenPage> {
        self.pages.iter().find(|page| page.is_at(kind, cursor))
    }

    /// Records a change of the kinds for which `concerned` holds: pages requested before it are stale.
    fn change(&mut self, at: EventNumber, concerned: impl Fn(ListKind) -> bool) {
        for kind in ListKind::ALL {
            if concerned(kind)
                && let Some(changes) = self.changes.get_mut(kind as usize)
            {
                changes.last = changes.last.max(Some(at));
                changes.recorded = Some(EventNumber::next());
            }
        }
    }
}

impl ListValidity {
    /// A page that may be served again: no change was announced and no tool called since it was requested,
    /// and it is fresh. If change notices were received without a break since the request (`epoch` is the
    /// current unbroken epoch, computed only if needed), the page lasts for `CachedPage::lasts`; not for ever,
    /// as many servers declare `listChanged` and never send it.
    pub fn current(
        &self,
        upstream: &str,
        kind: ListKind,
        cursor: Option<&str>,
        epoch: impl FnOnce() -> Option<u64>,
    ) -> Option<CurrentPage> {
        let (held, called) = {
            let upstreams = lock(&self.0);
            let lists = find(&upstreams, upstream)?;
            (lists.page(kind, cursor)?.clone(), lists.called)
        };
        let calm = held.outlives_calls || held.is_since(called);
        let age = held.asked.elapsed();
        if !calm {
            return None;
        }
        if age < held.fresh {
            let is_due = false;
            return Some(CurrentPage { held, is_due });
        }
        let heard = held.epoch.is_some() && age < held.lasts && held.epoch == epoch();
        heard.then(|| CurrentPage {
            is_due: self.begin_recheck(upstream, held.number),
            held,
        })
    }

    /// Whether the caller begins the recheck of the page requested at `number`: `true` for the first caller only.
    fn begin_recheck(&self, upstream: &str, number: EventNumber) -> bool {
        let mut upstreams = lock(&self.0);
        let page = find_mut(&mut upstreams, upstream).and_then(|lists| {
            let mut pages = lists.pages.iter_mut();
            pages.find(|page| page.held.number == number)
        });
        page.is_some_and(|page| !std::mem::replace(&mut page.rechecked, true))
    }

    /// The last page given, however old; `None` once the upstream announced a change.
    pub fn last(&self, upstream: &str, kind: ListKind, cursor: Option<&str>) -> Option<CachedPage> {
        let upstreams = lock(&self.0);
        find(&upstreams, upstream)?.page(kind, cursor).cloned()
    }

    /// The last page given, even if stale: for an upstream that takes too long to answer.
    pub fn last_given(
        &self,
        upstream: &str,
        kind: ListKind,
        cursor: Option<&str>,
    ) -> Option<CachedPage> {
        let upstreams = lock(&self.0);
        let page = find(&upstreams, upstream)?.any_page(kind, cursor)?;
        Some(page.held.clone())
    }

    /// The last given pages, without stale ones, of the kinds for which `concerned` holds.
    pub fn given(
        &self,
        upstream: &str,
        concerned: impl Fn(ListKind) -> bool,
    ) -> Vec<(ListKind, Option<Box<str>>, CachedPage)> {
        let upstreams = lock(&self.0);
        let Some(lists) = find(&upstreams, upstream) else {
            return Vec::new();
        };
        let pages = lists.pages.iter();
        pages
            .filter(|page| concerned(page.kind) && lists.is_unchanged(page))
            .map(|page| (page.kind, page.cursor.clone(), page.held.clone()))
            .collect()
    }

    /// Whether the session was given no list of this kind, called no tool and received no change notice.
    pub fn is_untouched(&self, upstream: &str, kind: ListKind) -> bool {
        let upstreams = lock(&self.0);
        find(&upstreams, upstream).is_none_or(|lists| {
            lists.called.is_none()
                && lists.changes(kind).last.is_none()
                && !lists.pages.iter().any(|page| page.kind == kind)
        })
    }

    /// The last event that may have changed lists of this kind: a change, or with `by_calls` a call.
    pub fn disturbed(&self, upstream: &str, kind: ListKind, by_calls: bool) -> Option<EventNumber> {
        let upstreams = lock(&self.0);
        let lists = find(&upstreams, upstream)?;
        let called = lists.called.filter(|_| by_calls);
        called.max(lists.changes(kind).last)
    }

    /// When this session last recorded a change of lists of this kind, at any upstream. What was made of lists is good as long
    /// as this stays as it was before they were read. The number of the last change would not do: a change that a list has
    /// shown has the number of its request, and what was made meanwhile has a higher one, though it was made of older lists.
    pub fn last_recorded(&self, kind: ListKind) -> Option<EventNumber> {
        let upstreams = lock(&self.0);
        upstreams
            .iter()
            .filter_map(|lists| lists.changes(kind).recorded)
            .max()
    }

    /// Records that the upstream's change notices are received from now on; `true` if they were received
    /// before.
    pub fn heard(&self, upstream: &Arc<str>) -> bool {
        let mut before = None;
        self.at(upstream, |lists| {
            before = lists.heard.replace(EventNumber::next());
        });
        before.is_some()
    }

    /// Whether a page was requested before change notices were received, so that a change may have been missed.
    pub fn may_be_missed(&self, upstream: &str, page: &CachedPage) -> bool {
        let upstreams = lock(&self.0);
        let heard = find(&upstreams, upstream).and_then(|lists| lists.heard);
        !page.is_since(heard)
    }

    /// Keeps a page, unless a change was announced since it was requested.
    pub fn hold(
        &self,
        upstream: &Arc<str>,
        kind: ListKind,
        cursor: Option<&str>,
        held: CachedPage,
    ) {
        self.at(upstream, |lists| {
            let changed = lists.changes(kind).last;
            if !held.is_since(changed) {
                return;
            }
            let kept = GivenPage {
                kind,
                cursor: cursor.map(Into::into),
                held,
                rechecked: false,
            };
            if cursor.is_none() {
                // No cursor leads to the later pages of the replaced list any more.
                lists
                    .pages
                    .retain(|page| page.kind != kind || page.held.is_since(changed));
            }
            let mut pages = lists.pages.iter_mut();
            if let Some(known) = pages.find(|page| page.is_at(kind, cursor)) {
                // A slow answer to an earlier request may come last.
                if known.held.number <= kept.held.number {
                    *known = kept;
                }
            } else if lists.pages.len() < MAX_PAGES {
                lists.pages.push(kept);
            }
        });
    }

    /// A tool is called, or was: the upstream may list something else now.
    pub fn called(&self, upstream: &Arc<str>) {
        self.at(upstream, |lists| lists.called = Some(EventNumber::next()));
    }

    /// Notes that a tool of the upstream is called, from now until the guard is dropped: meanwhile what the upstream
    /// lists may change without notice, so that an unannounced list is not believed. Not begun before the gateway's
    /// own look at the tool's declaration, which then could use no list of another session.
    pub fn calling<'a>(&'a self, upstream: &'a Arc<str>) -> OnDrop<impl FnOnce() + use<'a>> {
        self.called(upstream);
        OnDrop::new(|| self.called(upstream))
    }

    /// Records a change of the upstream's `what` (`tools`, `prompts`, `resources`). `at` is the number of the event that told
    /// of it: of a notice, or of the request of the list that showed it. That list stays.
    pub fn changed(&self, upstream: &Arc<str>, what: &str, at: EventNumber) {
        self.at(upstream, |lists| {
            lists.change(at, |kind| kind.capability() == what);
        });
    }

    /// There is a new connection to the upstream: what the session had from an older one is over.
    /// What a modern upstream lists belongs to no connection.
    pub fn reconnected(&self, upstream: &Arc<str>) {
        self.at(upstream, |lists| {
            let is_over = lists.pages.iter().any(|page| {
                page.held.is_own && !page.held.outlives_calls && lists.is_unchanged(page)
            });
            if is_over {
                lists.change(EventNumber::next(), |_| true);
            }
        });
    }

    /// The session has another account at the upstream: what was given with the one before is not shown any more.
    pub fn forget(&self, upstream: &Arc<str>) {
        self.at(upstream, |lists| {
            lists.change(EventNumber::next(), |_| true);
            lists.pages.clear();
        });
    }

    fn at(&self, upstream: &Arc<str>, act: impl FnOnce(&mut UpstreamLists)) {
        let mut upstreams = lock(&self.0);
        if let Some(lists) = find_mut(&mut upstreams, upstream) {
            return act(lists);
        }
        let mut lists = UpstreamLists::new(upstream);
        act(&mut lists);
        upstreams.push(lists);
    }
}

fn find<'a>(upstreams: &'a [UpstreamLists], upstream: &str) -> Option<&'a UpstreamLists> {
    upstreams.iter().find(|lists| *lists.upstream == *upstream)
}

fn find_mut<'a>(
    upstreams: &'a mut [UpstreamLists],
    upstream: &str,
) -> Option<&'a mut UpstreamLists> {
    let mut upstreams = upstreams.iter_mut();
    upstreams.find(|lists| *lists.upstream == *upstream)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::time::Instant;

    use super::*;
    use crate::call::ServerDeclaration;
    use crate::protocol::Revision;

    fn up() -> Arc<str> {
        "up".into()
    }

    fn held(epoch: Option<u64>) -> CachedPage {
        CachedPage {
            digest: [7; 32],
            number: EventNumber::next(),
            asked: Instant::now(),
            fresh: Duration::from_secs(5),
            lasts: Duration::from_secs(15),
            outlives_calls: false,
            epoch,
            is_own: true,
            declared: Arc::new(ServerDeclaration::new(
                Revision::LATEST_LEGACY,
                Bytes::new(),
                Bytes::new(),
                None,
            )),
        }
    }

    fn is_current(list_validity: &ListValidity, kind: ListKind, epoch: Option<u64>) -> bool {
        list_validity.current("up", kind, None, || epoch).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn an_unannounced_list_answers_until_it_is_old() {
        let list_validity = ListValidity::default();
        list_validity.hold(&up(), ListKind::Tools, None, held(None));
        assert!(is_current(&list_validity, ListKind::Tools, None));
        assert!(!is_current(&list_validity, ListKind::Prompts, None));
        assert!(
            list_validity
                .current("up", ListKind::Tools, Some("c"), || None)
                .is_none()
        );
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(!is_current(&list_validity, ListKind::Tools, None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unannounced_list_ends_with_the_first_call() {
        let list_validity = ListValidity::default();
        list_validity.hold(&up(), ListKind::Tools, None, held(None));
        list_validity.called(&up());
        assert!(!is_current(&list_validity, ListKind::Tools, None));
        assert!(list_validity.last("up", ListKind::Tools, None).is_some());
    }

    // Spec: SPEC M-85. What is declared is no promise that every change is announced.
    #[tokio::test(start_paused = true)]
    async fn heard_changes_lengthen_a_list_and_not_for_ever() {
        let list_validity = ListValidity::default();
        list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
        tokio::time::advance(Duration::from_secs(14)).await;
        assert!(is_current(&list_validity, ListKind::Tools, Some(3)));
        assert!(!is_current(&list_validity, ListKind::Tools, Some(4)));
        assert!(!is_current(&list_validity, ListKind::Tools, None));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!is_current(&list_validity, ListKind::Tools, Some(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_puts_a_list_in_doubt_that_is_heard_of() {
        let list_validity = ListValidity::default();
        list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
        list_validity.called(&up());
        assert!(!is_current(&list_validity, ListKind::Tools, Some(3)));
        assert!(list_validity.last("up", ListKind::Tools, None).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_past_its_freshness_is_rechecked_once() {
        let list_validity = ListValidity::default();
        let is_due = || {
            let current = list_validity.current("up", ListKind::Tools, None, || Some(3));
            current.map(|current| current.is_due)
        };
        list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
        assert_eq!(is_due(), Some(false));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!([is_due(), is_due()], [Some(true), Some(false)]);
        list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
        assert_eq!(is_due(), Some(false));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(is_due(), Some(true));
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_that_showed_a_change_outlives_it() {
        let list_validity = ListValidity::default();
        list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
        let found = held(Some(3));
        list_validity.changed(&up(), "tools", found.number);
        assert!(!is_current(&list_validity, ListKind::Tools, Some(3)));
        list_validity.hold(&up(), ListKind::Tools, None, found);
        assert!(is_current(&list_validity, ListKind::Tools, Some(3)));
    }

    // SPEC M-85.
    #[tokio::test(start_paused = true)]
    async fn a_change_ends_lists_of_its_kind_at_once() {
        let list_validity = ListValidity::default();
        for kind in ListKind::ALL {
            list_validity.hold(&up(), kind, None, held(Some(3)));
        }
        list_validity.changed(&up(), "resources", EventNumber::next());
        assert!(is_current(&list_validity, ListKind::Tools, Some(3)));
        assert!(!is_current(&list_validity, ListKind::Resources, Some(3)));
        assert!(!is_current(&list_validity, ListKind::Templates, Some(3)));
        assert!(
            list_validity
                .last("up", ListKind::Resources, None)
                .is_none()
        );
        let known = list_validity.last_given("up", ListKind::Resources, None);
        assert!(known.is_some(), "it may stand in");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_before_a_change_is_not_kept_after_it() {
        let list_validity = ListValidity::default();
        let before = held(Some(3));
        list_validity.changed(&up(), "tools", EventNumber::next());
        list_validity.hold(&up(), ListKind::Tools, None, before);
        assert!(!is_current(&list_validity, ListKind::Tools, Some(3)));
        list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
        assert!(is_current(&list_validity, ListKind::Tools, Some(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answer_replaces_no_later_page() {
        let list_validity = ListValidity::default();
        let [first, second] = [(); 2].map(|()| held(None));
        list_validity.hold(&up(), ListKind::Tools, None, second.clone());
        list_validity.hold(&up(), ListKind::Tools, None, first);
        let last = list_validity.last("up", ListKind::Tools, None).unwrap();
        assert_eq!(last.number, second.number);
    }

    // The clock stands: only the numbers tell what came first.
    #[tokio::test(start_paused = true)]
    async fn order_of_lists_and_events_needs_no_clock() {
        let list_validity = ListValidity::default();
        let is_kept = |page: CachedPage| {
            let number = page.number;
            list_validity.hold(&up(), ListKind::Tools, None, page);
            let current = list_validity.current("up", ListKind::Tools, None, || None);
            current.is_some_and(|current| current.held.number == number)
        };
        let changed = || list_validity.changed(&up(), "tools", EventNumber::next());
        let called = || list_validity.called(&up());
        for event in [&changed as &dyn Fn(), &called] {
            let before = held(None);
            event();
            assert!(!is_kept(before), "it was requested before the event");
            assert!(is_kept(held(None)), "and this one after it");
            event();
            assert!(!is_current(&list_validity, ListKind::Tools, None));
        }
        let (before, first, second) = (held(None), EventNumber::next(), EventNumber::next());
        // Two threads may record two changes in the other order.
        list_validity.changed(&up(), "tools", second);
        list_validity.changed(&up(), "tools", first);
        let between = CachedPage {
            number: first,
            ..held(None)
        };
        assert!(!is_kept(before) && !is_kept(between));
    }

    // An index of names that was made of the old list during the request that showed the change is no longer good.
    #[tokio::test(start_paused = true)]
    async fn change_that_a_list_shows_counts_from_now() {
        let list_validity = ListValidity::default();
        list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
        let found = held(Some(3));
        let other: Arc<str> = "other".into();
        list_validity.changed(&other, "tools", EventNumber::next());
        let [tools, prompts] =
            [ListKind::Tools, ListKind::Prompts].map(|kind| list_validity.last_recorded(kind));
        assert!(
            is_current(&list_validity, ListKind::Tools, Some(3)),
            "not known yet"
        );
        list_validity.changed(&up(), "tools", found.number);
        assert_ne!(list_validity.last_recorded(ListKind::Tools), tools);
        assert_eq!(list_validity.last_recorded(ListKind::Prompts), prompts);
    }

    #[tokio::test(start_paused = true)]
    async fn page_that_replaced_an_aged_one_is_not_due() {
        let list_validity = ListValidity::default();
        list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
        tokio::time::advance(Duration::from_secs(5)).await;
        let replaced = || {
            list_validity.hold(&up(), ListKind::Tools, None, held(Some(3)));
            Some(3)
        };
        let aged = list_validity.current("up", ListKind::Tools, None, replaced);
        assert_eq!(aged.map(|aged| aged.is_due), Some(false));
    }

    // Spec: BRIDGING §3.4.
    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_before_changes_were_heard_may_have_missed_one() {
        let list_validity = ListValidity::default();
        let before = held(None);
        assert!(
            !list_validity.may_be_missed("up", &before),
            "nobody is to hear"
        );
        assert!(!list_validity.heard(&up()), "nobody heard before");
        assert!(list_validity.may_be_missed("up", &before));
        assert!(!list_validity.may_be_missed("up", &held(None)));
        assert!(list_validity.heard(&up()), "it broke off meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn the_lists_of_a_modern_upstream_outlive_its_connections() {
        let list_validity = ListValidity::default();
        let modern = CachedPage {
            outlives_calls: true,
            ..held(None)
        };
        list_validity.hold(&up(), ListKind::Tools, None, modern);
        list_validity.reconnected(&up());
        let given = list_validity.given("up", |kind| kind == ListKind::Tools);
        assert_eq!(given.len(), 1);
        assert!(
            list_validity
                .given("up", |kind| kind == ListKind::Prompts)
                .is_empty()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_ends_what_came_over_the_old_one() {
        let list_validity = ListValidity::default();
        let others = CachedPage {
            is_own: false,
            ..held(None)
        };
        list_validity.hold(&up(), ListKind::Tools, None, others);
        list_validity.reconnected(&up());
        assert!(is_current(&list_validity, ListKind::Tools, None));
        list_validity.hold(&up(), ListKind::Tools, None, held(None));
        list_validity.reconnected(&up());
        assert!(!is_current(&list_validity, ListKind::Tools, None));
    }
}
