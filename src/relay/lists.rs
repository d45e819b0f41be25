//! Lists of a merged endpoint: every upstream is asked at once, and what is late or down is left
//! out, counted, and announced when it is there. Spec: BRIDGING §5.4, §5.6; SPEC G-03; DESIGN §4.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::absent::not_ready;
use super::bring_back::merged_origin;
use super::catalog::Place;
use super::kept::lifetime;
use super::merge::ListMerger;
use super::naming::{Index, Prefix};
use super::project::{Hints, Projection, Scope};
use super::route::invalid;
use super::{Failure, Relay};
use crate::audit;
use crate::call::{Call, Reply};
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::protocol::methods::ListKind;
use crate::protocol::{Message, Revision, extensions, json};
use crate::session::Session;
use crate::store::lists::{Digest, Form, Held, Made, digest_of};
use crate::telemetry::metrics::{COUNTERS, LABELED};

/// Pages of one upstream's list that are read.
pub(super) const MAX_PAGES: usize = 100;

/// On whose behalf upstreams are listed: only what a client asks for is audited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Client,
    /// To find out whose a name is.
    Gateway,
}

/// One upstream's whole list.
pub(super) struct Part {
    upstream: Arc<str>,
    /// What the upstream speaks, once it listed anything.
    from: Option<Revision>,
    pub(super) pages: Vec<(Digest, Message)>,
    /// What holds for all of them.
    hints: Hints,
    /// Whether it was late or failed.
    is_missing: bool,
}

/// Lists of several upstreams, in configured order, without what policy hides.
struct Collected {
    parts: Vec<Part>,
    /// What they were: equal for equal lists.
    digest: Digest,
    /// What may be promised for all of them together.
    hints: Hints,
}

impl Part {
    /// Of an upstream that lists nothing, which takes nothing from what holds for the others.
    fn empty(upstream: &Arc<str>) -> Self {
        Self {
            upstream: Arc::clone(upstream),
            from: None,
            pages: Vec::new(),
            hints: Hints::ANY,
            is_missing: false,
        }
    }

    /// JSON texts of the pages' arrays, in the client's revision. What cannot be read is passed
    /// over, and counted.
    fn items(&self, call: &Call, kind: ListKind) -> Vec<Cow<'_, str>> {
        let projection = Projection::of(self.from, call.revision);
        let mut pages = Vec::with_capacity(self.pages.len());
        for (_, message) in &self.pages {
            let items = message.result_member(kind.member()).unwrap_or("[]");
            match projection.items(kind, items) {
                Ok(items) => pages.push(items),
                Err(_) => LABELED.upstream_garbage.add(&self.upstream, 1),
            }
        }
        pages
    }
}

impl Collected {
    fn new(kind: ListKind, endpoint: &Endpoint, parts: Vec<Part>) -> Self {
        let all = parts.iter().map(|part| part.hints);
        let mut hints = all.reduce(Hints::and).unwrap_or(Hints::NONE);
        if !endpoint.tools.is_empty() {
            hints.scope = Scope::Private;
        }
        let about = [kind.method(), &endpoint.name, hints.scope.as_json()];
        let mut named: Vec<&[u8]> = about.into_iter().map(str::as_bytes).collect();
        for part in &parts {
            let from = part.from.map_or("", Revision::as_str);
            named.extend([part.upstream.as_bytes(), from.as_bytes()]);
            named.extend(part.pages.iter().map(|(digest, _)| digest.as_slice()));
        }
        let digest = digest_of(named);
        Self {
            parts,
            digest,
            hints,
        }
    }

    fn is_whole(&self) -> bool {
        !self.parts.iter().any(|part| part.is_missing)
    }
}

impl Relay {
    /// Answers a list request of a merged endpoint, in one page.
    pub(super) async fn list(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
    ) -> Result<Reply, Failure> {
        if call.message.param("cursor").is_some() {
            return Err(invalid("unknown cursor, list again from the start").into());
        }
        self.check_anybody_provides(session, kind.method()).await?;
        let parts = self.collect(call, session, kind, Asks::Client).await;
        let form = Form {
            endpoint: Arc::clone(&call.endpoint.name),
            from: None,
            to: call.revision,
        };
        let kept = self.catalog.lists.made(parts.digest, form.clone());
        let made = kept.unwrap_or_else(|| {
            let made = self.merge(call, kind, &parts);
            if parts.is_whole() {
                let lists = &self.catalog.lists;
                lists.keep_made(parts.digest, form, made.clone());
            }
            made
        });
        let ttl = Duration::from_millis(parts.hints.ttl_ms);
        Ok(Reply::Result(made.result(ttl)))
    }

    fn merge(&self, call: &Call, kind: ListKind, parts: &Collected) -> Made {
        let mut merger = ListMerger::new(kind);
        for part in &parts.parts {
            let prefix = Prefix::new(Arc::clone(&part.upstream));
            for page in part.items(call, kind) {
                let shown = |name: &str| self.is_shown(call, &part.upstream, kind, name);
                if merger.append(&prefix, &page, shown).is_err() {
                    LABELED.upstream_garbage.add(&part.upstream, 1);
                }
            }
        }
        let list = merger.finish(None);
        if list.dropped > 0 || !list.lookalikes.is_empty() {
            tracing::warn!(
                dropped = list.dropped,
                lookalikes = ?list.lookalikes,
                "a merged list leaves items out or shows look-alikes"
            );
        }
        let projection = Projection::new(call.revision, call.revision);
        let origin = merged_origin(call, parts.hints);
        let (text, ends_in_ttl) = projection.authored_open(list.result, &origin);
        Made {
            text: text.into(),
            ends_in_ttl,
        }
    }

    /// What the session's own lists say about names that do not name their upstream.
    pub(super) async fn index(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
    ) -> Arc<Index> {
        let partial = (session.key(), kind);
        if let Some(index) = self.partial_indexes.get(&partial) {
            return index;
        }
        let parts = self.collect(call, session, kind, Asks::Gateway).await;
        if let Some(index) = self.indexes.get(&parts.digest) {
            return index;
        }
        let mut index = Index::default();
        for part in &parts.parts {
            let prefix = Prefix::new(Arc::clone(&part.upstream));
            for page in part.items(call, kind) {
                let shown = |name: &str| self.is_shown(call, prefix.upstream(), kind, name);
                if index.add(kind, &prefix, &page, shown).is_err() {
                    LABELED.upstream_garbage.add(prefix.upstream(), 1);
                }
            }
        }
        let index = Arc::new(index);
        if parts.is_whole() {
            self.indexes.insert(parts.digest, Arc::clone(&index));
        } else {
            // Not every unknown name is to wait for the one that is missing.
            self.partial_indexes.insert(partial, Arc::clone(&index));
        }
        index
    }

    /// Every upstream's list, in configured order, without what policy hides.
    async fn collect(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
        asks: Asks,
    ) -> Collected {
        let wait = self.parts.settings.mcp.connect_wait;
        let all = call.endpoint.upstreams.iter().map(|upstream| async move {
            if self.decide_part(call, upstream, kind.method()).is_err() {
                return Part::empty(upstream);
            }
            let audited = (asks == Asks::Client).then(|| self.audit_part(call, upstream));
            let listed = tokio::time::timeout(wait, self.list_one(call, session, upstream, kind));
            match listed.await {
                Ok(Ok(part)) => {
                    if let Some(audited) = audited {
                        audited.end(audit::Outcome::Ok);
                    }
                    part
                }
                late_or_failed => {
                    LABELED.upstream_skipped.add(upstream, 1);
                    match late_or_failed {
                        Err(_) => self.note_late(session, upstream),
                        Ok(failed) => {
                            let error = failed.err().map(tracing::field::display);
                            tracing::warn!(upstream = %upstream, error, "left out of a list");
                        }
                    }
                    self.await_return(session, upstream);
                    // Partial: nobody shall keep it.
                    Part {
                        hints: Hints::NONE,
                        is_missing: true,
                        ..Part::empty(upstream)
                    }
                }
            }
        });
        let parts = join_all(all).await;
        Collected::new(kind, &call.endpoint, parts)
    }

    /// One upstream's list, from kept pages where they may answer.
    pub(super) async fn list_one(
        &self,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Result<Part, Fault> {
        let mut part = Part::empty(upstream);
        let mut cursor: Option<String> = None;
        while part.pages.len() < MAX_PAGES {
            let place = Place {
                upstream,
                kind,
                cursor: cursor.as_deref(),
            };
            let Some((held, message)) = self.page_at(call, session, place).await? else {
                break;
            };
            part.from = Some(held.declared.revision);
            part.hints = part.hints.and(self.promise(&held, &message));
            let next = message.result_member("nextCursor");
            let next = next.filter(|next| *next != "null").map(str::to_owned);
            part.pages.push((held.digest, message));
            // A cursor that stands still would go round for ever.
            if next.is_none() || next == cursor {
                break;
            }
            cursor = next;
        }
        Ok(part)
    }

    /// One page, kept or asked for; nothing where the upstream has no such lists.
    async fn page_at(
        &self,
        call: &Call,
        session: &Arc<Session>,
        place: Place<'_>,
    ) -> Result<Option<(Held, Message)>, Fault> {
        let kept = self.held(session, place);
        if let Some(held) = kept
            && let Some(page) = self.page(&held)
        {
            COUNTERS.lists_hits.add(1);
            return Ok(Some((held, page.message.clone())));
        }
        if self.is_in_vain(session, place.upstream) {
            return Err(not_ready(place.upstream));
        }
        let declared = self.learn(session, place.upstream, None).await?;
        if !declares(&declared.capabilities, place.kind) {
            return Ok(None);
        }
        let link = self.link(session, place.upstream)?;
        let request = self.list_request(place.kind, place.cursor)?;
        let fetch = self.begin_fetch(&*link, place.kind).await?;
        let Reply::Relayed(message) = link.call(&request, call).await? else {
            return Ok(None);
        };
        match self.keep(session, &*link, place, fetch, &message) {
            Some(held) => Ok(Some((held, message))),
            None => Err(Fault::upstream(
                FaultKind::UpstreamInvalid,
                format!(
                    "upstream \"{}\" did not list its {}",
                    place.upstream,
                    place.kind.member()
                ),
            )),
        }
    }

    /// What a page promises a client: a modern upstream's own promise, as far as it still holds.
    fn promise(&self, held: &Held, message: &Message) -> Hints {
        if !held.outlives_calls {
            return Hints::private(self.parts.settings.lists.ttl);
        }
        Hints {
            scope: Hints::read(message).scope,
            ..Hints::private(lifetime(held))
        }
    }

    pub(super) fn is_shown(&self, call: &Call, upstream: &str, kind: ListKind, name: &str) -> bool {
        kind != ListKind::Tools || self.parts.policy.shows_tool(&call.endpoint, upstream, name)
    }

    pub(super) fn list_request(
        &self,
        kind: ListKind,
        cursor: Option<&str>,
    ) -> Result<Message, Fault> {
        let params = match cursor {
            Some(cursor) => format!(r#","params":{{"cursor":{cursor}}}"#),
            None => String::new(),
        };
        let method = kind.method();
        self.reparse(format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}"{params}}}"#).into())
    }
}

fn declares(capabilities: &[u8], kind: ListKind) -> bool {
    let text = std::str::from_utf8(capabilities).unwrap_or("{}");
    match kind {
        ListKind::Skills => extensions::declares(text, extensions::SKILLS),
        _ => json::member(text, kind.capability()).is_some(),
    }
}
