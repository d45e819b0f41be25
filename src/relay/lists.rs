//! Lists of a merged endpoint: every upstream is asked at once, and what is late or down is left
//! out, counted, and announced when it is there. Spec: BRIDGING §5.4, §5.6; SPEC G-03; DESIGN §4.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::bring_back::authored;
use super::merge::ListMerger;
use super::naming::{Index, Prefix};
use super::project::{Hints, Projection, Scope};
use super::route::invalid;
use super::{Failure, Relay};
use crate::audit;
use crate::call::{Call, Notice, Reply};
use crate::fault::{Fault, FaultKind};
use crate::protocol::methods::ListKind;
use crate::protocol::{Message, json};
use crate::session::Session;
use crate::telemetry::metrics::LABELED;

/// Pages of one upstream's list that are read.
const MAX_PAGES: usize = 100;
/// Between two attempts to reach an upstream that was left out: the first, and the longest.
const RETURN_FIRST: Duration = Duration::from_secs(1);
const RETURN_LONGEST: Duration = Duration::from_mins(1);

/// On whose behalf upstreams are listed: only what a client asks for is audited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Client,
    /// To find out whose a name is.
    Gateway,
}

/// One upstream's whole list, in the client's revision.
struct Part {
    upstream: Arc<str>,
    /// JSON texts of its pages' arrays.
    pages: Vec<String>,
    /// What holds for all of them.
    hints: Hints,
}

impl Part {
    /// Of an upstream that lists nothing, which takes nothing from what holds for the others.
    fn empty(upstream: &Arc<str>) -> Self {
        Self {
            upstream: Arc::clone(upstream),
            pages: Vec::new(),
            hints: Hints::ANY,
        }
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
        let mut merger = ListMerger::new(kind);
        let mut hints = None;
        for part in self.collect(call, session, kind, Asks::Client).await {
            let prefix = Prefix::new(Arc::clone(&part.upstream));
            for page in &part.pages {
                let shown = |name: &str| self.is_shown(call, &part.upstream, kind, name);
                if merger.append(&prefix, page, shown).is_err() {
                    LABELED.upstream_garbage.add(&part.upstream, 1);
                }
            }
            hints = Some(hints.map_or(part.hints, |all: Hints| all.and(part.hints)));
        }
        let list = merger.finish(None);
        if list.dropped > 0 || !list.lookalikes.is_empty() {
            tracing::warn!(
                dropped = list.dropped,
                lookalikes = ?list.lookalikes,
                "a merged list leaves items out or shows look-alikes"
            );
        }
        let mut hints = hints.unwrap_or(Hints::NONE);
        if !call.endpoint.tools.is_empty() {
            hints.scope = Scope::Private;
        }
        Ok(authored(call, list.result, hints))
    }

    /// What the session's own lists say about names that do not name their upstream.
    pub(super) async fn index(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
    ) -> Arc<Index> {
        let key = (session.key(), kind);
        if let Some(index) = self.indexes.get(&key) {
            return index;
        }
        let mut index = Index::default();
        for part in self.collect(call, session, kind, Asks::Gateway).await {
            let prefix = Prefix::new(part.upstream);
            for page in &part.pages {
                let shown = |name: &str| self.is_shown(call, prefix.upstream(), kind, name);
                if index.add(kind, &prefix, page, shown).is_err() {
                    LABELED.upstream_garbage.add(prefix.upstream(), 1);
                }
            }
        }
        let index = Arc::new(index);
        self.indexes.insert(key, Arc::clone(&index));
        index
    }

    /// Every upstream's list, in configured order, without what policy hides.
    async fn collect(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
        asks: Asks,
    ) -> Vec<Part> {
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
                    if let Ok(Err(fault)) = late_or_failed {
                        tracing::warn!(upstream = %upstream, error = %fault, "left out of a list");
                    }
                    self.await_return(session, upstream);
                    // Partial: nobody shall keep it.
                    Part {
                        hints: Hints::NONE,
                        ..Part::empty(upstream)
                    }
                }
            }
        });
        join_all(all).await
    }

    async fn list_one(
        &self,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Result<Part, Fault> {
        let declared = self.learn(session, upstream, None).await?;
        if !declares(&declared.capabilities, kind) {
            return Ok(Part::empty(upstream));
        }
        let link = self.link(session, upstream)?;
        let projection = Projection::new(declared.revision, call.revision);
        let mut part = Part::empty(upstream);
        let mut cursor = None;
        while part.pages.len() < MAX_PAGES {
            let request = self.list_request(kind, cursor.as_deref())?;
            let reply = link.call(&request, call).await?;
            let Reply::Relayed(message) = reply else {
                break;
            };
            let Some(items) = message.result_member(kind.member()) else {
                return Err(Fault::upstream(
                    FaultKind::UpstreamInvalid,
                    format!("upstream \"{upstream}\" did not list its {}", kind.member()),
                ));
            };
            let items = projection.items(kind, items).map_err(|why| {
                Fault::upstream(
                    FaultKind::UpstreamInvalid,
                    format!("upstream \"{upstream}\" sent an ambiguous list"),
                )
                .caused_by(why)
            })?;
            part.pages.push(items.into_owned());
            part.hints = part.hints.and(Hints::read(&message));
            let next = message
                .result_member("nextCursor")
                .filter(|next| *next != "null");
            // A cursor that stands still would go round for ever.
            if next.is_none() || next == cursor.as_deref() {
                break;
            }
            cursor = next.map(str::to_owned);
        }
        Ok(part)
    }

    fn is_shown(&self, call: &Call, upstream: &str, kind: ListKind, name: &str) -> bool {
        kind != ListKind::Tools
            || self
                .parts
                .policy
                .shows_tool(&call.endpoint, &call.principal, upstream, name)
    }

    fn list_request(&self, kind: ListKind, cursor: Option<&str>) -> Result<Message, Fault> {
        let params = match cursor {
            Some(cursor) => format!(r#","params":{{"cursor":{cursor}}}"#),
            None => String::new(),
        };
        let method = kind.method();
        self.reparse(format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}"{params}}}"#).into())
    }

    /// Keeps trying an upstream that was left out, and tells the session when it is there.
    pub(super) fn await_return(&self, session: &Arc<Session>, upstream: &Arc<str>) {
        let Ok(link) = self.link(session, upstream) else {
            return;
        };
        if !session.begin_waiting_for(upstream) {
            return;
        }
        let (session, upstream) = (Arc::downgrade(session), Arc::clone(upstream));
        self.parts.tasks.spawn_service(async move {
            // One that is open and only slow is not worth a notice at once.
            let mut pause = if link.declared().is_some() {
                tokio::time::sleep(RETURN_LONGEST).await;
                RETURN_LONGEST
            } else {
                RETURN_FIRST
            };
            loop {
                // A link whose session is over opens nothing.
                let opened = link.open().await.is_ok();
                let Some(session) = session.upgrade() else {
                    return;
                };
                if session.closed().is_cancelled() {
                    return;
                }
                if opened {
                    session.end_waiting_for(&upstream);
                    announce(&session);
                    return;
                }
                drop(session);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETURN_LONGEST);
            }
        });
    }
}

fn announce(session: &Session) {
    for what in ["tools", "prompts", "resources"] {
        session.tell(Notice::list_changed(what));
    }
}

fn declares(capabilities: &[u8], kind: ListKind) -> bool {
    let text = std::str::from_utf8(capabilities).unwrap_or("{}");
    json::members(text)
        .is_ok_and(|members| members.iter().any(|(name, _)| name == kind.capability()))
}
