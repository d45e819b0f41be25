//! Lists of a merged endpoint: every upstream is asked at once, and what is late or down is left
//! out, counted, and announced when it is there. Spec: BRIDGING §5.4, §5.6; SPEC G-03; DESIGN §4.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use moka::sync::Cache;
use tokio::time::Instant;

use super::late_lists::{LateLists, UpstreamListing};
use super::list_deadline::FirstAnswer;
use super::lists_without_account::ListsWithoutAccount;
use super::reader::UpstreamList;
use super::session_index::{SessionIndex, SessionIndexes};
use crate::audit;
use crate::call::{Call, Reply};
use crate::digest::digest_of;
use crate::endpoint::Endpoint;
use crate::outbound::{
    AuditedPolicy, RelayFailure, SessionLinks, check_anybody_provides, given_cursor, invalid,
};
use crate::protocol::Revision;
use crate::protocol::methods::ListKind;
use crate::session::Session;
use crate::store::lists::{ClientForm, ContentDigest, ListCache, MergedResult};
use crate::telemetry::metrics::LABELED;
use crate::translate::merge::{ListMerger, missing_codes};
use crate::translate::naming::{FoundName, NameIndex, NamePrefix};
use crate::translate::project::{CacheHints, CacheScope, ResultOrigin, RevisionProjection};

/// On whose behalf upstreams are listed: only what a client asks for is audited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListPurpose {
    Client,
    /// To find out whose a name is.
    Gateway,
}

/// Lists of several upstreams, in configured order, without what policy hides.
struct CollectedLists {
    parts: Vec<UpstreamList>,
    /// What they were: equal for equal lists.
    digest: ContentDigest,
    /// Cache hints valid for all parts together.
    hints: CacheHints,
}

impl CollectedLists {
    fn new(kind: ListKind, endpoint: &Endpoint, parts: Vec<UpstreamList>) -> Self {
        let all = parts.iter().map(|part| part.hints);
        let mut hints = all.reduce(CacheHints::and).unwrap_or(CacheHints::NONE);
        if !endpoint.tools.is_empty() {
            hints.scope = CacheScope::Private;
        }
        let about = [kind.method(), &endpoint.name, hints.scope.as_json()];
        let mut named: Vec<&[u8]> = about.into_iter().map(str::as_bytes).collect();
        for part in &parts {
            let from = part.from.map_or("", Revision::as_str);
            named.extend([part.upstream.as_bytes(), from.as_bytes()]);
            named.push(if part.hosts_tasks { b"tasks" } else { b"" });
            named.push(part.own_tool.as_deref().unwrap_or_default().as_bytes());
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
        !self.parts.iter().any(|part| part.missing.is_some())
    }
}

/// The origin of a merged result that we wrote.
fn merged_origin<'a>(
    call: &'a Call,
    hints: CacheHints,
    ourselves: &'a str,
    missing: Option<&'a str>,
) -> ResultOrigin<'a> {
    ResultOrigin {
        method: call.message.method().unwrap_or_default(),
        name: "",
        server: ourselves,
        is_merged: true,
        upstream: None,
        hints,
        wraps: false,
        extended: false,
        missing,
    }
}

/// The lists of merged endpoints, and the indexes of names made of them.
#[derive(Debug)]
pub(crate) struct MergedLists {
    pub(super) links: Arc<SessionLinks>,
    pub(super) policy: Arc<AuditedPolicy>,
    pub(super) late: Arc<LateLists>,
    pub(super) cache: ListCache,
    /// Indexes by digest of the lists, for names that do not contain their upstream.
    pub(super) indexes: Cache<ContentDigest, Arc<NameIndex>>,
    /// The last of each session.
    pub(super) session_indexes: SessionIndexes,
    /// JSON text of our own `Implementation`.
    pub(super) ourselves: Arc<str>,
    /// `lists.fresh`.
    pub(super) fresh: Duration,
    pub(super) without_account: Arc<ListsWithoutAccount>,
}

impl MergedLists {
    /// Answers a list request of a merged endpoint, in one page.
    pub(crate) async fn list(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
    ) -> Result<Reply, RelayFailure> {
        if given_cursor(&call.message).is_some() {
            return Err(invalid("unknown cursor, list again from the start").into());
        }
        check_anybody_provides(&self.links, session, kind.method()).await?;
        let parts = self.collect(call, session, kind, ListPurpose::Client).await;
        let form = ClientForm {
            endpoint: Arc::clone(&call.endpoint.name),
            from: None,
            hosts_tasks: false,
            to: call.revision,
        };
        // A partial list names the missing upstreams, so it must not share the cached bytes of a whole one.
        let is_whole = parts.is_whole();
        let kept = is_whole.then(|| self.cache.made(parts.digest, form.clone()));
        let made = kept.flatten().unwrap_or_else(|| {
            let made = self.merge(call, kind, &parts);
            if is_whole {
                self.cache.keep_made(parts.digest, form, made.clone());
            }
            made
        });
        let ttl = Duration::from_millis(parts.hints.ttl_ms);
        Ok(Reply::Result(made.result(ttl)))
    }

    fn merge(&self, call: &Call, kind: ListKind, parts: &CollectedLists) -> MergedResult {
        let mut merger = ListMerger::new(kind);
        for part in &parts.parts {
            if let Some(tool) = &part.own_tool {
                merger.append_own(tool);
            }
            let prefix = NamePrefix::new(Arc::clone(&part.upstream));
            for page in part.items(call, kind) {
                let shown = |name: &str| self.is_shown(call, &part.upstream, kind, name);
                if merger.append(&prefix, &page, shown).is_err() {
                    LABELED.upstream_garbage.add(&part.upstream, 1);
                }
            }
        }
        let list = merger.finish();
        if list.dropped > 0 || !list.lookalikes.is_empty() {
            tracing::warn!(
                dropped = list.dropped,
                lookalikes = ?list.lookalikes,
                "a merged list leaves items out or shows look-alikes"
            );
        }
        let projection = RevisionProjection::new(call.revision, call.revision);
        let missing = parts.parts.iter();
        let missing = missing.filter_map(|part| Some((&part.upstream, part.missing?)));
        let missing = missing_codes(missing);
        let ours = &*self.ourselves;
        let origin = merged_origin(call, parts.hints, ours, missing.as_deref());
        let (text, ends_in_ttl) = projection.authored_open(list.result, &origin);
        MergedResult {
            text: text.into(),
            ends_in_ttl,
        }
    }

    /// What the session's own lists say about `given`, which does not name its upstream.
    pub(crate) async fn index(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
        given: &str,
    ) -> Arc<NameIndex> {
        let about = (session.key(), kind);
        let changes = session.list_validity().last_recorded(kind);
        if let Some(known) = self.session_indexes.get(&about)
            && known.changes == changes
            && self.is_enough(&known, given)
        {
            return known.index;
        }
        let made = Instant::now();
        let parts = self
            .collect(call, session, kind, ListPurpose::Gateway)
            .await;
        let is_whole = parts.is_whole();
        let index = self.indexes.get(&parts.digest);
        let index = index.unwrap_or_else(|| self.index_of(call, kind, &parts));
        let known = SessionIndex {
            made,
            changes,
            is_whole,
            index: Arc::clone(&index),
        };
        self.session_indexes.insert(about, known);
        index
    }

    fn index_of(&self, call: &Call, kind: ListKind, parts: &CollectedLists) -> Arc<NameIndex> {
        let mut index = NameIndex::default();
        for part in &parts.parts {
            let prefix = NamePrefix::new(Arc::clone(&part.upstream));
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
        }
        index
    }

    /// Whether the session's own lists name `uri`, or a template of theirs may; also where they cannot all
    /// be had.
    pub(crate) async fn is_listed(&self, call: &Call, session: &Arc<Session>, uri: &str) -> bool {
        for kind in [ListKind::Resources, ListKind::Templates] {
            let index = self.index(call, session, kind, uri).await;
            let known = self.session_indexes.get(&(session.key(), kind));
            let is_whole = known.is_some_and(|known| known.is_whole);
            if !is_whole || index.may_name(uri) {
                return true;
            }
        }
        false
    }

    /// Whether an index says enough of a name: not every unknown name is to wait for an upstream that is
    /// missing, and not every call of a known one is to list what the call before it put in doubt.
    fn is_enough(&self, known: &SessionIndex, given: &str) -> bool {
        !known.is_whole
            || known.made.elapsed() < self.fresh && known.index.find(given) != FoundName::Nobody
    }

    /// Every upstream's list, in configured order, without what policy hides.
    async fn collect(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
        asks: ListPurpose,
    ) -> CollectedLists {
        let first_answer = &FirstAnswer::default();
        let all = call.endpoint.upstreams.iter().map(|upstream| async move {
            if self
                .policy
                .decide_part(call, upstream, kind.method())
                .is_err()
            {
                // A list filtered by policy is private to the caller (SPEC M-83).
                return UpstreamList::empty(upstream, CacheHints::DECLARED);
            }
            let lists = &self.without_account;
            if let Some(part) = lists.part(session, upstream, kind).await {
                return part;
            }
            let audited =
                (asks == ListPurpose::Client).then(|| self.policy.audit_part(call, upstream));
            let lacking = asks == ListPurpose::Client;
            let listed =
                self.late
                    .list_in_time(call, session, upstream, kind, lacking, first_answer);
            let listed = listed.await;
            if matches!(listed, UpstreamListing::Part(_)) {
                first_answer.note();
            }
            match listed {
                UpstreamListing::Part(part) | UpstreamListing::StandIn(part) => {
                    if let Some(audited) = audited {
                        audited.end(audit::AuditOutcome::Ok);
                    }
                    part
                }
                UpstreamListing::Nothing(why) => {
                    // The upstream may just have refused the account.
                    if let Some(part) = lists.part(session, upstream, kind).await {
                        return part;
                    }
                    LABELED.upstream_skipped.add(upstream, 1);
                    // Neither we nor clients may cache a partial list.
                    UpstreamList {
                        missing: Some(why),
                        ..UpstreamList::empty(upstream, CacheHints::NONE)
                    }
                }
            }
        });
        let parts = join_all(all).await;
        CollectedLists::new(kind, &call.endpoint, parts)
    }

    pub(crate) fn is_shown(&self, call: &Call, upstream: &str, kind: ListKind, name: &str) -> bool {
        kind != ListKind::Tools || self.policy.shows_tool(&call.endpoint, upstream, name)
    }
}
