//! Reads one upstream's list page by page, from the cache where a page is valid, else from the upstream.
//! Spec: BRIDGING §5.4; DESIGN §5.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::page_key::{ListPageKey, list_request, no_list};
use super::pages::{FetchOutcome, FetchRole, ListPages, land};
use crate::call::{Call, Reply};
use crate::fault::{Fault, FaultKind};
use crate::outbound::{SessionLinks, not_ready};
use crate::protocol::methods::ListKind;
use crate::protocol::{Era, Message, Revision, extensions, json};
use crate::session::Session;
use crate::store::lists::{CachedPage, ContentDigest};
use crate::sync::event_number::EventNumber;
use crate::telemetry::metrics::{COUNTERS, LABELED};
use crate::translate::merge::MissingReason;
use crate::translate::project::{CacheHints, RevisionProjection};

/// Most pages read of one list.
pub(crate) const MAX_PAGES: usize = 100;

/// One upstream's whole list.
pub(crate) struct UpstreamList {
    pub(crate) upstream: Arc<str>,
    /// Revision of the upstream, once the first page arrived.
    pub(crate) from: Option<Revision>,
    /// Whether its calls are run here as tasks of 2025-11-25.
    pub(crate) hosts_tasks: bool,
    pub(crate) pages: Vec<(ContentDigest, Message)>,
    /// Cache hints valid for all pages.
    pub(crate) hints: CacheHints,
    /// Why the upstream is missing, or its list is stale.
    pub(crate) missing: Option<MissingReason>,
    /// JSON text of the gateway's own tool that stands for the upstream's.
    pub(crate) own_tool: Option<String>,
}

impl UpstreamList {
    /// The part of an upstream that lists nothing, with the cache hints for the empty list.
    pub(crate) fn empty(upstream: &Arc<str>, hints: CacheHints) -> Self {
        Self {
            upstream: Arc::clone(upstream),
            from: None,
            hosts_tasks: false,
            pages: Vec::new(),
            hints,
            missing: None,
            own_tool: None,
        }
    }

    /// Appends a page; returns the cursor of the next page.
    fn take(&mut self, held: &CachedPage, message: Message, promise: CacheHints) -> Option<String> {
        self.from = Some(held.declared.revision);
        self.hosts_tasks = held.declared.hosts_tasks();
        self.hints = self.hints.and(promise);
        let next = message.result_member("nextCursor");
        let next = next.filter(|next| *next != "null").map(str::to_owned);
        self.pages.push((held.digest, message));
        next
    }

    /// Whether a page is one of these once more, its `nextCursor` included: the upstream reads no cursors, or ends its lists
    /// with the cursor `""`, which asks for the first page.
    fn repeats(&self, held: &CachedPage) -> bool {
        let mut pages = self.pages.iter();
        pages.any(|(digest, _)| *digest == held.digest)
    }

    /// Entries of all its pages, as the upstream lists them.
    pub(crate) fn length(&self, kind: ListKind) -> usize {
        let of_page = |(_, page): &(ContentDigest, Message)| {
            let items = page.result_member(kind.member()).unwrap_or("[]");
            json::elements(items).map_or(0, |items| items.len())
        };
        self.pages.iter().map(of_page).sum()
    }

    /// What its pages hold.
    pub(crate) fn digests(&self) -> Vec<ContentDigest> {
        self.pages.iter().map(|(digest, _)| *digest).collect()
    }

    /// JSON texts of the pages' arrays, in the client's revision. What cannot be read is passed
    /// over, and counted.
    pub(crate) fn items(&self, call: &Call, kind: ListKind) -> Vec<Cow<'_, str>> {
        let projection =
            RevisionProjection::of(self.from, call.revision).hosting_tasks(self.hosts_tasks);
        let mut pages = Vec::with_capacity(self.pages.len());
        for (_, message) in &self.pages {
            let items = message.result_member(kind.member()).unwrap_or("[]");
            match projection.items(kind, items, &self.upstream) {
                Ok(items) => pages.push(items),
                Err(_) => LABELED.upstream_garbage.add(&self.upstream, 1),
            }
        }
        pages
    }
}

/// A list that could not be read.
struct UnreadableList {
    fault: Fault,
    /// Whether the upstream no longer knew where it went on.
    in_the_middle: bool,
}

/// Reads whole lists of one upstream.
#[derive(Debug)]
pub(crate) struct ListReader {
    pub(super) links: Arc<SessionLinks>,
    pub(super) pages: Arc<ListPages>,
    /// `lists.ttl`.
    pub(super) ttl: Duration,
}

impl ListReader {
    /// One upstream's list, from cached pages where valid. If a cursor is rejected, the list is read once more
    /// from its first page, from the upstream (BRIDGING §5.4).
    pub(crate) async fn list_one(
        &self,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Result<UpstreamList, Fault> {
        let listed = self.walk(call, session, upstream, kind).await;
        if !listed.as_ref().is_err_and(|broken| broken.in_the_middle) {
            return listed.map_err(|broken| broken.fault);
        }
        // A guess about the pages of this session alone.
        let known = session.list_validity();
        known.changed(upstream, kind.capability(), EventNumber::next());
        let again = self.walk(call, session, upstream, kind).await;
        again.map_err(|broken| broken.fault)
    }

    /// All pages, one after another.
    async fn walk(
        &self,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Result<UpstreamList, UnreadableList> {
        // Each page takes from it.
        let mut part = UpstreamList::empty(upstream, CacheHints::ANY);
        let mut cursor: Option<String> = None;
        while part.pages.len() < MAX_PAGES {
            let place = ListPageKey::new(upstream, kind, cursor.as_deref());
            let page = self.page_at(call, session, place).await;
            let page = page.map_err(|fault| UnreadableList {
                in_the_middle: cursor.is_some() && fault.kind == FaultKind::UpstreamInvalid,
                fault,
            });
            let Some((held, message)) = page? else {
                break;
            };
            if part.repeats(&held) {
                break;
            }
            let promise = self.promise(&held, &message);
            let next = part.take(&held, message, promise);
            // A cursor that stands still would go round for ever.
            if next.is_none() || next == cursor {
                break;
            }
            cursor = next;
        }
        if part.pages.is_empty() {
            part.hints = self.promise_of_none(session, upstream);
        }
        Ok(part)
    }

    /// One upstream's list without a request: all pages are cached, or no such list is declared.
    pub(crate) fn kept_part(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<UpstreamList> {
        let kept = |cursor: Option<&str>| {
            let place = ListPageKey::new(upstream, kind, cursor);
            let page = self.pages.kept_page(session, place)?;
            COUNTERS.lists_hits.add(1);
            Some(page)
        };
        let listed = self.part_of(upstream, kept);
        listed.or_else(|| {
            let known = self.links.known(session, upstream)?;
            let lists = declares(&known.capabilities, kind);
            (!lists).then(|| UpstreamList::empty(upstream, self.promise_of_none(session, upstream)))
        })
    }

    /// One upstream's list out of pages that are at hand, if all are.
    pub(crate) fn part_of(
        &self,
        upstream: &Arc<str>,
        page: impl Fn(Option<&str>) -> Option<(CachedPage, Message)>,
    ) -> Option<UpstreamList> {
        let mut part = UpstreamList::empty(upstream, CacheHints::ANY);
        let mut cursor: Option<String> = None;
        while part.pages.len() < MAX_PAGES {
            let (held, message) = page(cursor.as_deref())?;
            if part.repeats(&held) {
                break;
            }
            let promise = self.promise(&held, &message);
            let next = part.take(&held, message, promise);
            if next.is_none() || next == cursor {
                break;
            }
            cursor = next;
        }
        Some(part)
    }

    /// One page, cached or fetched; `None` if the upstream does not declare such lists.
    async fn page_at(
        &self,
        call: &Call,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Result<Option<(CachedPage, Message)>, Fault> {
        if let Some(kept) = self.pages.kept_page(session, place) {
            COUNTERS.lists_hits.add(1);
            return Ok(Some(kept));
        }
        if self.links.is_in_vain(session, place.upstream) {
            return Err(not_ready(&self.links.upstreams, place.upstream));
        }
        let declared = self.links.learn(session, place.upstream, None).await?;
        if !declares(&declared.capabilities, place.kind) {
            return Ok(None);
        }
        let lead = match self.pages.join_fetch(call, session, place).await? {
            FetchRole::Page(held, message) => return Ok(Some((held, message))),
            FetchRole::Refused(_) => return Err(no_list(place)),
            FetchRole::Ask(lead) => lead,
        };
        let asked = self.ask_at(call, session, place).await;
        let landed = match &asked {
            Ok(Some((held, message))) => FetchOutcome::Page(held.clone(), message.clone()),
            Ok(None) => FetchOutcome::Nothing,
            Err(fault) => FetchOutcome::failed(fault),
        };
        land(lead, landed);
        asked
    }

    /// Fetches and caches one page; `None` if the reply is not a relayed page.
    async fn ask_at(
        &self,
        call: &Call,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
    ) -> Result<Option<(CachedPage, Message)>, Fault> {
        let link = self.links.link(session, place.upstream)?;
        let request = list_request(self.pages.edits, place.kind, place.cursor)?;
        let fetch = self.pages.begin_fetch(&*link, session, place).await?;
        let reply = self.pages.arrived(link.call(&request, call).await?, place);
        let Reply::Relayed(message) = reply else {
            return Ok(None);
        };
        match self.pages.keep(session, &*link, place, fetch, &message) {
            Some(held) => Ok(Some((held, message))),
            None => Err(no_list(place)),
        }
    }

    /// Cache hints of a page for the client: on a modern upstream its own scope and the remaining lifetime.
    fn promise(&self, held: &CachedPage, message: &Message) -> CacheHints {
        if !held.outlives_calls {
            return CacheHints::private(self.ttl);
        }
        CacheHints {
            scope: CacheHints::read(message).scope,
            ..CacheHints::private(lifetime(held))
        }
    }

    /// Cache hints for a list that the upstream does not declare to this session: private, since a legacy
    /// upstream may declare the list to another session or later. A modern declaration is valid as long as
    /// the discovery result built from it.
    fn promise_of_none(&self, session: &Session, upstream: &Arc<str>) -> CacheHints {
        let known = self.links.known(session, upstream);
        match known.map(|known| known.revision.era()) {
            Some(Era::Modern) => CacheHints::DECLARED,
            _ => CacheHints::private(self.ttl),
        }
    }
}

fn declares(capabilities: &str, kind: ListKind) -> bool {
    match kind {
        ListKind::Skills => extensions::declares(capabilities, extensions::SKILLS),
        _ => json::member(capabilities, kind.capability()).is_some(),
    }
}

/// What is left of a page's lifetime.
pub(crate) fn lifetime(held: &CachedPage) -> Duration {
    held.fresh.saturating_sub(held.asked.elapsed())
}
