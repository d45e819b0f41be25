//! Subscriptions of modern clients: which notifications the upstreams of an `ImplicitSession` can serve, and the end of
//! a subscription. Legacy upstreams push on the GET stream, and follow single resources on request.
//! Spec: BRIDGING §3.4; SPEC M-70 to M-75.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{self, BoxStream, FuturesUnordered, SelectAll};
use tokio::time::Instant;

use crate::call::{
    Call, ClientCapabilities, NoticeKind, Principal, ServerDeclaration, UpstreamLink,
};
use crate::fault::Fault;
use crate::outbound::{EditDepth, RequestHandler, SessionLinks, own_call};
use crate::protocol::{Era, json, rpc};
use crate::session::{Session, is_below};
use crate::tasks::{FollowedTask, Tasks};

/// How long an acknowledgement waits for the stream for changes of an upstream to open.
const HEARING_WAIT: Duration = Duration::from_secs(1);
/// Most resources followed by one `ImplicitSession`, and most URIs in one subscription.
pub const FOLLOWED: usize = 1024;
/// Concurrent `resources/subscribe` requests of one subscription to one upstream.
const AT_ONCE: usize = 64;

/// The notifications requested by a subscription, or the honoured subset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscriptionFilter {
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

impl SubscriptionFilter {
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

/// The upstreams of an implicit session that are listened to.
#[derive(Debug)]
pub struct WatchedUpstreams {
    /// The deliverable notifications, and the resources worth following.
    pub filter: SubscriptionFilter,
    /// Upstreams acknowledged before their declaration was known; some may send no change notices.
    late: Vec<WatchedUpstream>,
}

/// One upstream that is listened to.
#[derive(Debug)]
struct WatchedUpstream {
    declared: Arc<ServerDeclaration>,
    link: Arc<dyn UpstreamLink>,
    /// Whether the upstream sends change notices; `None` while unknown.
    tells: Option<bool>,
}

impl WatchedUpstream {
    fn announces(&self, what: &str) -> bool {
        self.tells != Some(false) && self.declared.tells(what)
    }

    /// Whether list notices imply resource notices (legacy). A modern upstream acknowledges each kind separately.
    fn tells_of_both(&self) -> bool {
        self.declared.revision.era() == Era::Legacy
    }
}

/// Follows lists, resources and tasks for subscriptions.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    pub(super) links: Arc<SessionLinks>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) edits: EditDepth,
    /// Whether merged endpoints tell of changed lists.
    pub(super) tells_changes: bool,
    /// Answers the gateway's own requests to follow a resource.
    pub(super) handler: Weak<dyn RequestHandler>,
}

impl Subscriptions {
    /// Listens to every upstream of an implicit session that has a listener; returns the changes that can be told.
    /// Waits for upstreams no longer than `mcp.connect_wait`: late ones join silently.
    pub(crate) async fn listen_all(
        &self,
        session: &Arc<Session>,
        asked: &SubscriptionFilter,
    ) -> WatchedUpstreams {
        session.tell_links();
        let wait = self.links.connect_wait;
        let upstreams = session.endpoint.upstreams.iter();
        let all = upstreams.map(|upstream| self.listen_one(session, upstream, asked, wait));
        let known: Vec<WatchedUpstream> = join_all(all).await.into_iter().flatten().collect();
        // A merged endpoint can always tell of changed lists, as its upstreams come and go.
        let merged = !self.links.views.is_pure(&session.endpoint);
        let tells = merged && self.tells_changes;
        let announces = |what| tells || known.iter().any(|one| one.announces(what));
        let is_deaf = |uri: &&String| {
            let owner = self.owner_of(session, uri);
            let owner = known
                .iter()
                .find(|one| Some(one.link.upstream()) == owner.as_ref());
            owner.is_some_and(|one| one.tells == Some(false) && one.tells_of_both())
        };
        let filter = SubscriptionFilter {
            tools: asked.tools && announces("tools"),
            prompts: asked.prompts && announces("prompts"),
            resources: asked.resources && announces("resources"),
            uris: asked
                .uris
                .iter()
                .filter(|uri| !is_deaf(uri))
                .cloned()
                .collect(),
            tasks: Vec::new(),
        };
        let late = known.into_iter().filter(|one| one.tells.is_none());
        WatchedUpstreams {
            filter,
            late: late.collect(),
        }
    }

    /// Resolves when an acknowledged notification cannot be delivered: a late upstream declared no change
    /// notices. List changes are always deliverable on a merged endpoint.
    pub(crate) fn until_undeliverable(
        &self,
        session: &Session,
        heard: WatchedUpstreams,
        honoured: &SubscriptionFilter,
    ) -> impl Future<Output = ()> + Send + 'static {
        let pure = self.links.views.is_pure(&session.endpoint);
        let lists = pure && (honoured.tools || honoured.prompts || honoured.resources);
        let owners = honoured.uris.iter().map(|uri| self.owner_of(session, uri));
        let owners: HashSet<Arc<str>> = owners.flatten().collect();
        let late = heard.late.into_iter();
        let concerned =
            late.filter(|one| lists || one.tells_of_both() && owners.contains(one.link.upstream()));
        let mut waiting: FuturesUnordered<_> = concerned
            .map(|one| async move { one.link.wait_until_live().await })
            .collect();
        async move {
            while let Some(tells) = waiting.next().await {
                if !tells {
                    return;
                }
            }
            std::future::pending::<()>().await;
        }
    }

    /// The upstream of a resource, if the URI alone identifies one (without the index).
    fn owner_of(&self, session: &Session, uri: &str) -> Option<Arc<str>> {
        if self.links.views.is_pure(&session.endpoint) {
            return session.endpoint.upstreams.first().map(Arc::clone);
        }
        self.links.views.prefixes.resolve_uri(uri).upstream()
    }

    /// Opens the change notices of one upstream; `None` if the upstream is missing or the filter needs none.
    async fn listen_one(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        asked: &SubscriptionFilter,
        wait: Duration,
    ) -> Option<WatchedUpstream> {
        let link = self.links.link(session, upstream).ok()?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let opening = Arc::clone(&link);
        self.links.spawner.spawn_service(async move {
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
            .any(|(asked, what)| asked && declared.tells(what));
        if !needed && asked.uris.is_empty() {
            return None;
        }
        let tells = is_heard(&*link).await;
        // The upstream may speak the other era by now.
        let declared = link.declared().unwrap_or(declared);
        Some(WatchedUpstream {
            declared,
            link,
            tells,
        })
    }

    /// Follows resources for one more subscription of an implicit session; yields each URI whose upstream accepts, as
    /// its answer arrives, until the deadline `until`. A silent upstream delays no other URI.
    /// Spec: SPEC G-03, M-75.
    pub(crate) fn follow_all<'a>(
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
        let implicit_session = session.implicit_session();
        let Some(resource) =
            implicit_session.and_then(|implicit_session| implicit_session.resource(uri, FOLLOWED))
        else {
            return false;
        };
        let mut count = resource.count().await;
        if *count == 0 {
            let call = self.own_call(principal, session, "resources/subscribe", uri);
            let (Ok(call), Some(handler)) = (call, self.handler.upgrade()) else {
                return false;
            };
            let reply = handler.handle(&call, session).await;
            if reply.map_or(true, |reply| reply.error().is_some()) {
                return false;
            }
        }
        *count += 1;
        true
    }

    /// Begins to follow a task; `None` if the client has no such task, or the upstream does not return its state.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub(crate) async fn follow_task(
        &self,
        principal: &Arc<Principal>,
        session: &Arc<Session>,
        id: &str,
    ) -> Option<FollowedTask> {
        self.tasks.follow(principal, session, id).await
    }

    /// Ends one subscription to `uris`; the last subscription to a URI unsubscribes upstream.
    pub(crate) async fn leave(
        &self,
        principal: &Arc<Principal>,
        session: &Arc<Session>,
        uris: &[String],
    ) {
        let leaving = self.beside(uris, move |uri| {
            Box::pin(self.leave_one(principal, session, uri))
        });
        leaving.for_each(std::future::ready).await;
        session.tell_links();
    }

    async fn leave_one(&self, principal: &Arc<Principal>, session: &Arc<Session>, uri: &str) {
        let implicit_session = session.implicit_session();
        let Some(resource) = implicit_session
            .and_then(|implicit_session| implicit_session.resource(uri, usize::MAX))
        else {
            return;
        };
        let mut count = resource.count().await;
        let is_last = *count == 1;
        *count = count.saturating_sub(1);
        if !is_last {
            return;
        }
        let call = self.own_call(principal, session, "resources/unsubscribe", uri);
        if let (Ok(call), Some(handler)) = (call, self.handler.upgrade())
            && let Err(failure) = handler.handle(&call, session).await
        {
            tracing::debug!(?failure, "cannot unsubscribe from a resource");
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
            let upstream = self.links.views.prefixes.resolve_uri(uri).upstream();
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
        let params = json::object([("uri", json::quote(uri))]);
        let text = rpc::request(0, method, Some(&params));
        let message = self.edits.parse(text.into())?;
        Ok(own_call(
            principal,
            session,
            message,
            ClientCapabilities::none(),
        ))
    }
}

/// Waits until change notices of an upstream can arrive: its stream for them takes a moment to open,
/// and some upstreams have none (SPEC M-75). `None` if the stream is late. The notices count as
/// deliverable then (BRIDGING §3.4): a kind that the acknowledgement leaves out could not be told
/// for as long as the subscription lasts.
async fn is_heard(link: &dyn UpstreamLink) -> Option<bool> {
    let heard = tokio::time::timeout(HEARING_WAIT, link.wait_until_live());
    heard.await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPEC M-71.
    #[test]
    fn a_filter_wants_what_it_names_and_what_is_below() {
        let filter = SubscriptionFilter {
            tools: true,
            uris: vec!["file:///a".to_owned()],
            ..SubscriptionFilter::default()
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
