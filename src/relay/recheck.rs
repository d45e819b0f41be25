//! Lists that a client was given before their changes could be heard: they are looked at again, and
//! the client is told where they differ. It would be told at the beginning of every session
//! otherwise, and ask for everything twice. At the beginning a modern client needs none of this: its
//! subscription is acknowledged after that of its upstream. Spec: BRIDGING §3.4; SPEC M-75.

use std::sync::Arc;

use super::Relay;
use super::catalog::Place;
use super::icons;
use super::nobody::own_call;
use crate::call::{ClientCapabilities, Notice, Reply};
use crate::fault::Fault;
use crate::protocol::methods::ListKind;
use crate::protocol::{Era, Message};
use crate::session::Session;
use crate::store::lists::Held;

/// Pages that are looked at again at the same time: all sessions at a link hear at once.
pub(super) const AT_ONCE: usize = 16;

/// A page, as it was given.
type Given = (ListKind, Option<Box<str>>, Held);

impl Relay {
    /// Changes of `lists` are heard from now on: looks again at what the session has of them.
    pub(super) fn heard(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        lists: &[&'static str],
    ) {
        let known = session.shelf();
        let again = known.heard(upstream);
        if session.revision.era() == Era::Modern && !again {
            return;
        }
        let given = known.given(upstream, |kind| lists.contains(&kind.capability()));
        self.recheck_later(session, upstream, given);
    }

    /// Looks again at a page that was just given, if it was asked for before changes were heard.
    pub(super) fn recheck_where_due(&self, session: &Arc<Session>, place: Place<'_>, held: &Held) {
        if session.shelf().may_be_missed(place.upstream, held.asked) {
            let given = (place.kind, place.cursor.map(Into::into), held.clone());
            self.recheck_later(session, place.upstream, vec![given]);
        }
    }

    fn recheck_later(&self, session: &Arc<Session>, upstream: &Arc<str>, given: Vec<Given>) {
        let Some(relay) = self.own.upgrade().filter(|_| !given.is_empty()) else {
            return;
        };
        let (session, upstream) = (Arc::clone(session), Arc::clone(upstream));
        self.parts.tasks.spawn_service(async move {
            let recheck = async {
                for (kind, cursor, held) in &given {
                    let place = Place {
                        upstream: &upstream,
                        kind: *kind,
                        cursor: cursor.as_deref(),
                    };
                    relay.recheck(&session, place, held).await;
                }
            };
            tokio::select! {
                () = session.closed().cancelled() => {}
                () = recheck => {}
            }
        });
    }

    /// Tells the session that a list changed, unless the page that it has is still the same or it
    /// knows already.
    async fn recheck(&self, session: &Arc<Session>, place: Place<'_>, given: &Held) {
        let Ok(_turn) = self.rechecks.acquire().await else {
            return;
        };
        let is_current = || {
            let known = session.shelf();
            let last = known.last(place.upstream, place.kind, place.cursor);
            last.is_some_and(|last| last.asked == given.asked)
        };
        if !is_current() {
            return;
        }
        let same = self.is_same(session, place, given).await;
        let same = same.unwrap_or_else(|fault| {
            tracing::debug!(upstream = %place.upstream, error = %fault, "a list cannot be looked at again");
            false
        });
        if same || !is_current() {
            return;
        }
        let what = place.kind.capability();
        session.shelf().changed(place.upstream, what);
        let key = self.catalog_key(session, place.upstream);
        self.catalog.changed(&key, what);
        session.tell(Notice::list_changed(what));
    }

    /// Whether the upstream lists now what it did; a page that is no longer kept is not known.
    async fn is_same(
        &self,
        session: &Arc<Session>,
        place: Place<'_>,
        given: &Held,
    ) -> Result<bool, Fault> {
        let Some(before) = self.page(given) else {
            return Ok(false);
        };
        let key = self.catalog_key(session, place.upstream);
        let missed = |held: &Held| session.shelf().may_be_missed(place.upstream, held.asked);
        if let Some(held) = self.catalog.other(key, place).filter(|held| !missed(held)) {
            return Ok(held.digest == given.digest);
        }
        let link = self.link(session, place.upstream)?;
        let request = self.list_request(place.kind, place.cursor)?;
        let fetch = self.begin_fetch(&*link, place.kind).await?;
        let nothing = ClientCapabilities::none();
        let call = own_call(&session.principal, session, request.clone(), nothing);
        let reply = icons::in_page(link.call(&request, &call).await?, place);
        let Reply::Relayed(now) = reply else {
            return Ok(false);
        };
        let same = shown(&before.message, place.kind) == shown(&now, place.kind);
        if same {
            self.keep(session, &*link, place, fetch, &now);
        }
        Ok(same)
    }
}

/// The items of a page, and whether there are more; the rest is not what a client sees change.
fn shown(page: &Message, kind: ListKind) -> (Option<&str>, bool) {
    let next = page.result_member("nextCursor");
    let items = page.result_member(kind.member());
    (items, next.is_some_and(|next| next != "null"))
}
