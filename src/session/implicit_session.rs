//! An implicit session: a session that the gateway keeps for a modern client, without an id.
//!
//! Requests of a modern client stand alone on the wire, yet its upstreams may be legacy and have
//! sessions. So the calls of one binding on one endpoint with one set of capabilities share a hidden
//! session. It has no stream: messages outside calls go to the client's subscriptions. Spec: BRIDGING §1.3; SPEC M-02, M-17; DESIGN §6.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use tokio::sync::watch;

use super::subscriptions::LONGEST_URI;
use super::{Session, lock};
use crate::call::{BindingKey, Notice, Principal};
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::param_headers::ParamHeaders;
use crate::store::events::SessionKey;

/// Lifetime of a cached set of tools with parameter headers.
const TOOL_HEADERS_BELIEVED: Duration = Duration::from_secs(30);

/// Tools that have parameter headers, by name.
pub type ToolHeaders = BTreeMap<String, ParamHeaders>;

/// The key of an implicit session: its client, endpoint and capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImplicitSessionKey {
    pub(super) binding: BindingKey,
    pub(super) endpoint: Arc<str>,
    /// Hash of the capabilities as the client declares them.
    pub(super) declared: u64,
    /// Whether the session has a record, and so is the only such session of all replicas.
    pub(super) is_recorded: bool,
}

/// The record of an implicit session in the shared store, and the ownership that it names: this replica's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImplicitHome {
    /// The key of the record, equal at all replicas.
    pub record: SessionKey,
    /// The ownership of this replica.
    pub by: Ownership,
}

impl ImplicitHome {
    /// The key of the record of the implicit session of a client that declares the capabilities `declares` (JSON text).
    #[must_use]
    pub fn key(principal: &Principal, endpoint: &Endpoint, declares: &str) -> SessionKey {
        let mut context = Context::new(&SHA256);
        context.update(b"implicit session");
        context.update(principal.binding().bytes());
        context.update(&(endpoint.name.len() as u64).to_be_bytes());
        context.update(endpoint.name.as_bytes());
        context.update(declares.as_bytes());
        // The digest is longer than a key.
        let key: Option<SessionKey> = context.finish().as_ref().first_chunk().copied();
        key.unwrap_or_default()
    }
}

/// A receiver of notices that belong to no call.
pub trait NoticeListener: Send + Sync + std::fmt::Debug {
    /// Takes a notice, or leaves it when it was not asked for. Never waits.
    fn tell(&self, notice: &Notice);
}

/// The running calls and the subscriptions of an implicit session.
#[derive(Debug)]
pub struct ImplicitSession {
    /// Its key.
    pub(super) key: ImplicitSessionKey,
    /// Its record, if it has one.
    pub(super) home: Option<ImplicitHome>,
    next: AtomicU64,
    running: AtomicUsize,
    listeners: Mutex<BTreeMap<u64, Arc<dyn NoticeListener>>>,
    /// The tools of each upstream that have parameter headers.
    tool_headers: Mutex<BTreeMap<Arc<str>, LearnedTools>>,
    /// The resources that subscriptions follow or ask for, as the client spells them.
    followed: Mutex<HashMap<String, FollowCount>>,
    /// Counts task changes, once [`ImplicitSession::task_changes`] has been called.
    task_changes: OnceLock<watch::Sender<u64>>,
}

/// The tools of one upstream that have parameter headers, and the age of the implicit session when these were learned.
#[derive(Debug)]
struct LearnedTools {
    since: Duration,
    tools: Arc<ToolHeaders>,
}

/// A resource of an implicit session.
#[derive(Debug, Default)]
struct FollowCount {
    /// Live [`FollowedResource`]s.
    users: usize,
    /// Number of subscriptions.
    count: Arc<tokio::sync::Mutex<usize>>,
}

/// A resource that subscriptions of an implicit session follow or ask for; forgotten once none does.
#[derive(Debug)]
pub struct FollowedResource<'a> {
    implicit: &'a ImplicitSession,
    uri: &'a str,
    count: Arc<tokio::sync::Mutex<usize>>,
}

/// A guard that counts a running or waiting call until dropped.
#[derive(Debug)]
#[must_use = "the call is over once this is dropped"]
pub struct ImplicitSessionCall(Arc<Session>);

/// A registration of a listener; removed when dropped.
#[derive(Debug)]
#[must_use = "dropping it ends it"]
pub struct ListenerRegistration {
    session: Arc<Session>,
    number: u64,
}

impl ImplicitSession {
    pub(super) fn new(key: ImplicitSessionKey, home: Option<ImplicitHome>) -> Self {
        Self {
            key,
            home,
            next: AtomicU64::default(),
            running: AtomicUsize::default(),
            listeners: Mutex::default(),
            tool_headers: Mutex::default(),
            followed: Mutex::default(),
            task_changes: OnceLock::new(),
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    pub(super) fn is_listened_to(&self) -> bool {
        !lock(&self.listeners).is_empty()
    }

    pub(super) fn tell(&self, notice: &Notice) {
        let listeners: Vec<_> = lock(&self.listeners).values().map(Arc::clone).collect();
        for listener in listeners {
            listener.tell(notice);
        }
    }

    /// Wakes the receivers of [`task_changes`](Self::task_changes): a task of the implicit session has changed.
    pub fn task_changed(&self) {
        if let Some(changes) = self.task_changes.get() {
            changes.send_modify(|count| *count += 1);
        }
    }

    /// A counter that increases with every change of a task of the implicit session, from now on.
    pub fn task_changes(&self) -> watch::Receiver<u64> {
        self.task_changes
            .get_or_init(|| watch::Sender::new(0))
            .subscribe()
    }

    /// The tools of an upstream that have parameter headers; `None` once older than 30 seconds. `age` is the
    /// implicit session's ([`Session::age_when_used`]).
    #[must_use]
    pub fn tool_headers(&self, upstream: &str, age: Duration) -> Option<Arc<ToolHeaders>> {
        let all = lock(&self.tool_headers);
        let LearnedTools { since, tools } = all.get(upstream)?;
        (age.saturating_sub(*since) < TOOL_HEADERS_BELIEVED).then(|| Arc::clone(tools))
    }

    /// Remembers the tools of an upstream that have parameter headers, as learned when the implicit session had
    /// this `age`.
    pub fn keep_tool_headers(&self, upstream: &Arc<str>, tools: Arc<ToolHeaders>, since: Duration) {
        let learned = LearnedTools { since, tools };
        drop(lock(&self.tool_headers).insert(Arc::clone(upstream), learned));
    }

    /// Drops the cached tool headers of an upstream.
    pub fn forget_tool_headers(&self, upstream: &str) {
        drop(lock(&self.tool_headers).remove(upstream));
    }

    /// The entry for `uri`, created if absent; `None` if `max` others exist or the URI is longer than
    /// `LONGEST_URI`.
    pub fn resource<'a>(&'a self, uri: &'a str, max: usize) -> Option<FollowedResource<'a>> {
        let mut all = lock(&self.followed);
        let full = all.len() >= max && !all.contains_key(uri);
        if full || uri.len() > LONGEST_URI {
            return None;
        }
        let resource = all.entry(uri.to_owned()).or_default();
        resource.users += 1;
        Some(FollowedResource {
            implicit: self,
            uri,
            count: Arc::clone(&resource.count),
        })
    }
}

impl FollowedResource<'_> {
    /// Locks the number of subscriptions. The lock is per resource, and held while the upstream is told.
    pub async fn count(&self) -> tokio::sync::MutexGuard<'_, usize> {
        self.count.lock().await
    }
}

impl Drop for FollowedResource<'_> {
    fn drop(&mut self) {
        let mut all = lock(&self.implicit.followed);
        let Some(resource) = all.get_mut(self.uri) else {
            return;
        };
        resource.users -= 1;
        // Only live `FollowedResource`s lock `count`, and this was the last if `users` is 0.
        let is_left = resource.count.try_lock().is_ok_and(|count| *count == 0);
        if resource.users == 0 && is_left {
            all.remove(self.uri);
        }
    }
}

impl ImplicitSessionCall {
    /// Counts a call of `session`, where it is an implicit one, and keeps it alive from the call's arrival on.
    pub fn begin(session: &Arc<Session>) -> Self {
        if let Some(implicit_session) = &session.implicit {
            implicit_session.running.fetch_add(1, Ordering::AcqRel);
        }
        Self(Arc::clone(session))
    }
}

impl ListenerRegistration {
    /// Registers a listener of `session`, where it is an implicit one, until this is dropped.
    pub fn of(session: &Arc<Session>, listener: Arc<dyn NoticeListener>) -> Self {
        let mut number = 0;
        if let Some(implicit_session) = &session.implicit {
            number = implicit_session.next.fetch_add(1, Ordering::Relaxed);
            lock(&implicit_session.listeners).insert(number, listener);
        }
        Self {
            session: Arc::clone(session),
            number,
        }
    }
}

impl Drop for ImplicitSessionCall {
    fn drop(&mut self) {
        if let Some(implicit_session) = &self.0.implicit {
            implicit_session.running.fetch_sub(1, Ordering::AcqRel);
        }
        self.0.touch();
        self.0.note_rest();
    }
}

impl Drop for ListenerRegistration {
    fn drop(&mut self) {
        if let Some(implicit_session) = &self.session.implicit {
            lock(&implicit_session.listeners).remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn implicit_session() -> ImplicitSession {
        let principal = Principal::new("https://issuer", "alice", "client", Vec::new(), None);
        let key = ImplicitSessionKey {
            binding: principal.binding(),
            endpoint: "files".into(),
            declared: 0,
            is_recorded: false,
        };
        ImplicitSession::new(key, None)
    }

    #[tokio::test]
    async fn resources_are_bounded_and_forgotten_without_followers() {
        let implicit_session = implicit_session();
        let one = implicit_session.resource("a:1", 1).unwrap();
        assert!(implicit_session.resource("a:2", 1).is_none());
        let again = implicit_session.resource("a:1", 1).unwrap();
        *one.count().await += 1;
        drop((one, again));
        assert!(
            implicit_session.resource("a:2", 1).is_none(),
            "one is followed"
        );
        let one = implicit_session.resource("a:1", 1).unwrap();
        *one.count().await -= 1;
        drop(one);
        assert!(implicit_session.resource("a:2", 1).is_some());
        let longer = "a".repeat(LONGEST_URI + 1);
        assert!(implicit_session.resource(&longer, 9).is_none());
        assert!(lock(&implicit_session.followed).is_empty());
    }

    #[tokio::test]
    async fn one_resource_is_locked_without_the_others() {
        use futures_util::FutureExt;
        let implicit_session = implicit_session();
        let slow = implicit_session.resource("a:1", 9).unwrap();
        let asked = slow.count().await;
        let other = implicit_session.resource("a:2", 9).unwrap();
        assert!(other.count().now_or_never().is_some());
        let same = implicit_session.resource("a:1", 9).unwrap();
        assert!(same.count().now_or_never().is_none());
        drop(asked);
    }
}
