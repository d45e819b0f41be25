//! Subscriptions of modern clients: what of them the upstreams of a visit can serve, and the end of
//! it. Legacy upstreams push when they are listened to, and follow single resources when asked.
//! Spec: BRIDGING §3.4; SPEC M-70 to M-75.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{self, BoxStream, SelectAll};
use tokio::time::Instant;

use super::Relay;
use super::naming::Resolved;
use super::nobody::own_call;
use crate::call::{Call, ClientCapabilities, Declared, NoticeKind, Principal, UpstreamLink};
use crate::fault::Fault;
use crate::protocol::json;
use crate::session::{Session, is_below};

/// How long an acknowledgement waits for the stream for changes of an upstream to open.
const HEARING_WAIT: Duration = Duration::from_secs(1);
/// Resources that one visit follows, and how many one subscription may name.
pub const FOLLOWED: usize = 1024;
/// Resources of one upstream that one subscription asks for at once.
const AT_ONCE: usize = 64;

/// What a subscription asks for, or what of it is honoured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// `toolsListChanged`
    pub tools: bool,
    /// `promptsListChanged`
    pub prompts: bool,
    /// `resourcesListChanged`
    pub resources: bool,
    /// `resourceSubscriptions`, as the client spells them.
    pub uris: Vec<String>,
    /// `taskIds`, as the client knows them.
    pub tasks: Vec<String>,
}

impl Filter {
    /// Whether a notice is asked for: a list, or a resource at or below one that is named.
    #[must_use]
    pub fn wants(&self, kind: &NoticeKind) -> bool {
        match kind {
            NoticeKind::ListChanged { what: "tools" } => self.tools,
            NoticeKind::ListChanged { what: "prompts" } => self.prompts,
            NoticeKind::ListChanged { .. } => self.resources,
            NoticeKind::ResourceUpdated { uri } => {
                self.uris.iter().any(|asked| is_below(asked, uri))
            }
            _ => false,
        }
    }
}

impl Relay {
    /// Listens to every upstream of a visit that has a listener; which changes of lists can be told.
    /// Waits for upstreams no longer than `mcp.connect_wait`: late ones join silently.
    pub async fn listen_all(&self, session: &Arc<Session>, asked: &Filter) -> Filter {
        session.tell_links();
        let wait = self.parts.settings.mcp.connect_wait;
        let upstreams = session.endpoint.upstreams.iter();
        let all = upstreams.map(|upstream| self.listen_one(session, upstream, asked, wait));
        let known = join_all(all).await;
        // Whose upstreams come and go can always say that something has changed.
        let merged = !self.is_pure(&session.endpoint);
        let announces = |what| {
            let mut heard = known.iter().flatten();
            merged || heard.any(|declared| declared.announces(what))
        };
        Filter {
            tools: asked.tools && announces("tools"),
            prompts: asked.prompts && announces("prompts"),
            resources: asked.resources && announces("resources"),
            uris: Vec::new(),
            tasks: Vec::new(),
        }
    }

    /// Listens to one upstream; what it declares, unless its changes cannot be heard.
    async fn listen_one(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        asked: &Filter,
        wait: Duration,
    ) -> Option<Arc<Declared>> {
        let link = self.link(session, upstream).ok()?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let opening = Arc::clone(&link);
        self.parts.tasks.spawn_service(async move {
            drop(sender.send(opening.open().await));
        });
        let opened = tokio::time::timeout(wait, receiver).await;
        let declared = opened.ok()?.ok()?.ok()?;
        let lists = [
            (asked.tools, "tools"),
            (asked.prompts, "prompts"),
            (asked.resources, "resources"),
        ];
        let needed = lists
            .into_iter()
            .any(|(asked, what)| asked && declared.announces(what));
        if needed || !asked.uris.is_empty() {
            return is_heard(&*link).await.then_some(declared);
        }
        None
    }

    /// Follows resources for one more subscription of a visit: those that its upstreams let it follow,
    /// as they are known, until the moment when it waits no longer. Who does not answer holds up
    /// nobody else. Spec: SPEC G-03, M-75.
    pub fn follow_all<'a>(
        &'a self,
        principal: &'a Arc<Principal>,
        session: &'a Arc<Session>,
        uris: &'a [String],
        until: Instant,
    ) -> BoxStream<'a, &'a str> {
        let all = self.beside(uris, move |uri| {
            Box::pin(async move {
                let following = self.follow(principal, session, uri);
                let followed = tokio::time::timeout_at(until, following).await;
                followed.unwrap_or(false).then_some(uri)
            })
        });
        all.filter_map(std::future::ready).boxed()
    }

    async fn follow(&self, principal: &Arc<Principal>, session: &Arc<Session>, uri: &str) -> bool {
        let visit = session.visit();
        let Some(resource) = visit.and_then(|visit| visit.resource(uri, FOLLOWED)) else {
            return false;
        };
        let mut count = resource.count().await;
        if *count == 0 {
            let call = self.own_call(principal, session, "resources/subscribe", uri);
            let Ok(call) = call else { return false };
            let reply = self.handle(&call, session).await;
            if reply.map_or(true, |reply| reply.error().is_some()) {
                return false;
            }
        }
        *count += 1;
        true
    }

    /// One subscription is over that followed `uris`; with the last one nothing is listened to.
    pub async fn leave(&self, principal: &Arc<Principal>, session: &Arc<Session>, uris: &[String]) {
        let leaving = self.beside(uris, move |uri| {
            Box::pin(self.leave_one(principal, session, uri))
        });
        leaving.for_each(std::future::ready).await;
        session.tell_links();
    }

    async fn leave_one(&self, principal: &Arc<Principal>, session: &Arc<Session>, uri: &str) {
        let visit = session.visit();
        let Some(resource) = visit.and_then(|visit| visit.resource(uri, usize::MAX)) else {
            return;
        };
        let mut count = resource.count().await;
        let is_last = *count == 1;
        *count = count.saturating_sub(1);
        if !is_last {
            return;
        }
        let call = self.own_call(principal, session, "resources/unsubscribe", uri);
        if let Ok(call) = call
            && let Err(failure) = self.handle(&call, session).await
        {
            tracing::debug!(?failure, "a resource is still followed");
        }
    }

    /// Does `work` for each resource: a few of one upstream at once, and the upstreams beside each
    /// other.
    fn beside<'a, T: Send + 'a>(
        &self,
        uris: &'a [String],
        work: impl Fn(&'a str) -> BoxFuture<'a, T> + Copy + Send + 'a,
    ) -> SelectAll<BoxStream<'a, T>> {
        let mut lanes: HashMap<Option<Arc<str>>, Vec<&'a str>> = HashMap::new();
        for uri in uris {
            let upstream = match self.prefixes.resolve_uri(uri) {
                Resolved::Exact { upstream, .. } => Some(upstream),
                Resolved::NeedsIndex | Resolved::Unknown => None,
            };
            lanes.entry(upstream).or_default().push(uri);
        }
        stream::select_all(lanes.into_values().map(|uris| {
            let works = stream::iter(uris).map(work);
            works.buffer_unordered(AT_ONCE).boxed()
        }))
    }

    fn own_call(
        &self,
        principal: &Arc<Principal>,
        session: &Arc<Session>,
        method: &str,
        uri: &str,
    ) -> Result<Call, Fault> {
        let uri = json::quote(uri);
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{{"uri":{uri}}}}}"#);
        let message = self.reparse(text.into())?;
        Ok(own_call(
            principal,
            session,
            message,
            ClientCapabilities::none(),
        ))
    }
}

/// Waits until changes can be heard from an upstream: its stream for them takes a moment to open,
/// and some have none (SPEC M-75). One that is late is taken at its word, and joins silently
/// (BRIDGING §3.4): what an acknowledgement leaves out is not told for as long as it lasts.
async fn is_heard(link: &dyn UpstreamLink) -> bool {
    let heard = tokio::time::timeout(HEARING_WAIT, link.until_heard());
    heard.await.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPEC M-71.
    #[test]
    fn a_filter_wants_what_it_names_and_what_is_below() {
        let filter = Filter {
            tools: true,
            uris: vec!["file:///a".to_owned()],
            ..Filter::default()
        };
        let changed = |what| NoticeKind::ListChanged { what };
        let updated = |uri: &str| NoticeKind::ResourceUpdated {
            uri: uri.to_owned(),
        };
        assert!(filter.wants(&changed("tools")));
        assert!(!filter.wants(&changed("prompts")));
        assert!(filter.wants(&updated("file:///a/b")));
        assert!(!filter.wants(&updated("file:///ab")));
        assert!(!filter.wants(&NoticeKind::Log));
    }
}
