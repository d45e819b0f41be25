//! Lists that a client was given before their changes could be heard: they are looked at again, and
//! the client is told where they differ. It would be told at the beginning of every session
//! otherwise, and ask for everything twice. At the beginning a modern client needs none of this: its
//! subscription is acknowledged after that of its upstream. Lists that answer longer because their
//! changes are declared to be announced are looked at again as well: many servers declare
//! `listChanged` and announce no change. Spec: BRIDGING §3.4; SPEC M-75.

use std::sync::Arc;

use super::ListPages;
use super::fetch::PageFetch;
use crate::call::{ClientCapabilities, Reply, UpstreamLink};
use crate::catalog::page_key::{ListPageKey, list_request, no_list};
use crate::cause::chain;
use crate::fault::Fault;
use crate::outbound::own_call;
use crate::protocol::methods::ListKind;
use crate::protocol::{Era, Message};
use crate::session::Session;
use crate::store::lists::CachedPage;
use crate::sync::event_number::EventNumber;

/// Pages that are looked at again at the same time: all sessions at a link hear at once.
pub(crate) const AT_ONCE: usize = 16;

/// Why a page is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RevalidateReason {
    /// It is older than the notice feed. What cannot be looked at may have changed.
    Unheard,
    /// It is older than an unannounced list may become. What cannot be looked at ends by its age.
    Aged,
}

/// The outcome of another look at a page.
enum RevalidateOutcome {
    Same,
    /// The page cannot be compared. It may be stale for this session; the pages of other sessions stay.
    Unknown,
    /// The page differs from a page that another session fetched by the request of this number.
    Older(EventNumber),
    /// The page differs from the page that was fetched.
    Differs(Arc<dyn UpstreamLink>, PageFetch, Message),
}

/// A page, as it was given.
type ServedPage = (ListKind, Option<Box<str>>, CachedPage);

impl ListPages {
    /// Changes of `lists` are heard from now on: looks again at what the session has of them. Where calls
    /// were sent before the first stream for notices opened (`is_late`), the client is told once of each
    /// list that it has.
    pub(crate) fn heard(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        lists: &[&'static str],
        is_late: bool,
    ) {
        let known = session.list_validity();
        let again = known.heard(upstream);
        if session.revision.era() == Era::Modern && !again {
            return;
        }
        let given = known.given(upstream, |kind| lists.contains(&kind.capability()));
        if is_late && !again {
            // In place of the notices that may be lost: a second look cannot tell of a change that was
            // taken back, and servers that send no head would be listed twice by every session.
            let listed = |what: &&&str| given.iter().any(|(kind, ..)| kind.capability() == **what);
            for what in lists.iter().filter(listed) {
                self.announce(session, upstream, what);
            }
            return;
        }
        self.recheck_later(session, upstream, given, RevalidateReason::Unheard);
    }

    /// Looks again at a page that was just given, if it was asked for before changes were heard.
    pub(crate) fn recheck_where_due(
        self: &Arc<Self>,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
        held: &CachedPage,
    ) {
        if session.list_validity().may_be_missed(place.upstream, held) {
            self.recheck_page(session, place, held, RevalidateReason::Unheard);
        }
    }

    /// Looks again at a page that answers beyond the age of an unannounced list.
    pub(crate) fn recheck_aged(
        self: &Arc<Self>,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
        held: &CachedPage,
    ) {
        self.recheck_page(session, place, held, RevalidateReason::Aged);
    }

    fn recheck_page(
        self: &Arc<Self>,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
        held: &CachedPage,
        why: RevalidateReason,
    ) {
        let given = (place.kind, place.cursor.map(Into::into), held.clone());
        self.recheck_later(session, place.upstream, vec![given], why);
    }

    fn recheck_later(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        given: Vec<ServedPage>,
        why: RevalidateReason,
    ) {
        if given.is_empty() {
            return;
        }
        let pages = Arc::clone(self);
        let (session, upstream) = (Arc::clone(session), Arc::clone(upstream));
        self.links.spawner.spawn_service(async move {
            let recheck = async {
                for (kind, cursor, held) in &given {
                    let place = ListPageKey::new(&upstream, *kind, cursor.as_deref());
                    pages.recheck(&session, place, held, why).await;
                }
            };
            tokio::select! {
                () = session.closed().cancelled() => {}
                () = recheck => {}
            }
        });
    }

    /// Notifies the session of a changed list, unless its page is unchanged or it was notified already.
    async fn recheck(
        self: &Arc<Self>,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
        given: &CachedPage,
        why: RevalidateReason,
    ) {
        let Some(_permit) = self.rechecks.permit(session.owner()).await else {
            return;
        };
        let is_current = || {
            let known = session.list_validity();
            let last = known.last(place.upstream, place.kind, place.cursor);
            last.is_some_and(|last| last.number == given.number)
        };
        if !is_current() {
            return;
        }
        let found = match self.look(session, place, given).await {
            Ok(found) => found,
            Err(fault) => {
                tracing::debug!(upstream = %place.upstream, error = chain(&fault), "a list cannot be looked at again");
                if why == RevalidateReason::Aged {
                    return;
                }
                RevalidateOutcome::Unknown
            }
        };
        if !is_current() {
            return;
        }
        let (upstream, what) = (place.upstream, place.kind.capability());
        match found {
            RevalidateOutcome::Same => return,
            RevalidateOutcome::Unknown => {
                let known = session.list_validity();
                known.changed(upstream, what, EventNumber::next());
            }
            RevalidateOutcome::Older(number) => self.changed(session, upstream, what, number),
            RevalidateOutcome::Differs(link, fetch, message) => {
                self.changed(session, upstream, what, fetch.number);
                // Cache the new page before the notice: the client requests it at once.
                self.keep(session, &*link, place, fetch, &message);
            }
        }
        self.links.tell_changed(session, place.upstream, what);
    }

    fn announce(&self, session: &Arc<Session>, upstream: &Arc<str>, what: &'static str) {
        self.changed(session, upstream, what, EventNumber::next());
        self.links.tell_changed(session, upstream, what);
    }

    /// Compares the page with the upstream's current list; an evicted page cannot be compared.
    async fn look(
        self: &Arc<Self>,
        session: &Arc<Session>,
        place: ListPageKey<'_>,
        given: &CachedPage,
    ) -> Result<RevalidateOutcome, Fault> {
        let before = self.page(given);
        if before.is_none() {
            return Ok(RevalidateOutcome::Unknown);
        }
        if let Some(other) = self.younger(session, place, given) {
            if other.digest != given.digest {
                return Ok(RevalidateOutcome::Older(other.number));
            }
            let again = CachedPage {
                number: other.number,
                asked: other.asked,
                ..given.clone()
            };
            let cursor = place.cursor;
            session
                .list_validity()
                .hold(place.upstream, place.kind, cursor, again);
            return Ok(RevalidateOutcome::Same);
        }
        let link = self.links.link(session, place.upstream)?;
        let request = list_request(self.edits, place.kind, place.cursor)?;
        let fetch = self.begin_fetch(&*link, session, place).await?;
        let nothing = ClientCapabilities::none();
        let call = own_call(&session.principal, session, request.clone(), nothing);
        let reply = self.arrived(link.call(&request, &call).await?, place);
        let Reply::Relayed(now) = reply else {
            return Ok(RevalidateOutcome::Unknown);
        };
        if now.result_member(place.kind.member()).is_none() {
            return Err(no_list(place));
        }
        let same = before
            .is_some_and(|before| shown(&before.message, place.kind) == shown(&now, place.kind));
        if !same {
            return Ok(RevalidateOutcome::Differs(link, fetch, now));
        }
        self.keep(session, &*link, place, fetch, &now);
        Ok(RevalidateOutcome::Same)
    }

    /// A page of another session that was asked for after `given`, and since changes are heard.
    fn younger(
        &self,
        session: &Session,
        place: ListPageKey<'_>,
        given: &CachedPage,
    ) -> Option<CachedPage> {
        let key = self.catalog_key(session, place.upstream);
        let other = self.shared.other(key, place)?;
        let missed = session
            .list_validity()
            .may_be_missed(place.upstream, &other);
        (!missed && other.number > given.number).then_some(other)
    }
}

/// The items of a page, and whether there are more; the rest is not what a client sees change.
fn shown(page: &Message, kind: ListKind) -> (Option<&str>, bool) {
    let next = page.result_member("nextCursor");
    let items = page.result_member(kind.member());
    (items, next.is_some_and(|next| next != "null"))
}
