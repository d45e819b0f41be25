//! `SharedLinks`: links with several sessions. Each session has a place, gets the messages outside calls, and follows
//! resources independently of the others. Spec: DESIGN §6; BRIDGING §1.3.

mod accounts;
mod followers;
mod leaving;
mod levels;
mod owners;
mod url_elicitations;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::Instant;

use self::followers::UriFollowers;
use self::levels::MemberLevels;
use self::owners::MemberOwners;
use self::url_elicitations::SharedUrlElicitations;
use super::negotiated::EraLink;
use crate::call::{
    AccessKey, Call, InputOutcome, InputRequest, LogLevel, Notice, NoticeArrival, NoticeIntake,
    NoticeKind, OwnerKey, Reply, ServerDeclaration, UpstreamLink,
};
use crate::fault::Fault;
use crate::process::holders::{HolderKey, SessionHolders};
use crate::protocol::{Message, Revision, json};
use crate::runtime::lifecycle::TaskSpawner;
use crate::sync::desired::Desired;
use crate::sync::on_drop::OnDrop;
use crate::telemetry::metrics::COUNTERS;
use crate::upstream::account::Account;
use crate::upstream::lock;

/// The key of a shared link: sessions with equal keys share one link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::upstream) struct PoolKey {
    pub(in crate::upstream) upstream: Arc<str>,
    /// [`Account::Common`] where all principals share the link.
    pub(in crate::upstream) account: Account,
    /// Scopes and client of the caller, where its tokens are exchanged.
    pub(in crate::upstream) access: Option<AccessKey>,
    pub(in crate::upstream) capabilities: u64,
    pub(in crate::upstream) offer: Revision,
}

/// All shared links.
#[derive(Debug, Clone, Default)]
pub(in crate::upstream) struct SharedLinks(Arc<DashMap<PoolKey, Arc<SharedLink>>>);

impl SharedLinks {
    /// A place for `intake`, of `owner`, at the link of `key`. A missing link is made by `make`, with an intake that
    /// fans out to all places. The link ends after `idle` without a place.
    pub(in crate::upstream) fn place(
        &self,
        key: PoolKey,
        (session, owner, intake): (HolderKey, OwnerKey, Arc<dyn NoticeIntake>),
        (idle, tasks): (Duration, &TaskSpawner),
        make: impl FnOnce(Arc<dyn NoticeIntake>, SessionHolders) -> Arc<EraLink>,
    ) -> Arc<dyn UpstreamLink> {
        let (pooled, number) = {
            let entry = self.0.entry(key.clone()).or_insert_with(|| {
                let members = Arc::new(MemberFanout::default());
                Arc::new(SharedLink {
                    link: make(Arc::clone(&members) as _, members.holders.clone()),
                    members,
                })
            });
            // Joined under the entry's lock: `close_unused` cannot end the link between lookup and join.
            (Arc::clone(&entry), entry.members.join(owner, intake))
        };
        pooled.members.holders.add(session);
        Arc::new(SharedMember {
            pooled,
            number,
            owner,
            session,
            key,
            links: self.clone(),
            idle,
            tasks: tasks.clone(),
            left: AtomicBool::new(false),
        })
    }

    /// Closes all links, until `by` at the latest.
    pub(in crate::upstream) async fn close(&self, by: Instant) {
        let pools: Vec<_> = self
            .0
            .iter()
            .map(|entry| Arc::clone(entry.value()))
            .collect();
        self.0.clear();
        let links = join_all(pools.iter().map(|pooled| pooled.link.close()));
        drop(tokio::time::timeout_at(by, links).await);
    }

    /// Ends a link, unless a session has a place at it or `key` has another link by now.
    async fn close_unused(&self, key: &PoolKey, pooled: &Arc<SharedLink>) {
        let unused = |pooled: &Arc<SharedLink>| lock(&pooled.members.intakes).is_empty();
        let removed = self.0.remove_if(key, |_, current| {
            Arc::ptr_eq(current, pooled) && unused(current)
        });
        if removed.is_some() {
            pooled.link.close().await;
        }
    }
}

/// A link with several sessions at it.
#[derive(Debug)]
struct SharedLink {
    link: Arc<EraLink>,
    members: Arc<MemberFanout>,
}

/// Fans out messages that belong to no call to every session at the link.
#[derive(Debug, Default)]
struct MemberFanout {
    owners: MemberOwners,
    next: AtomicU64,
    intakes: Mutex<HashMap<u64, Arc<dyn NoticeIntake>>>,
    /// Members that want the messages that belong to no call.
    listening: Desired<HashSet<u64>>,
    /// Members by followed URI.
    followers: Mutex<UriFollowers>,
    levels: Arc<MemberLevels>,
    url_elicitations: SharedUrlElicitations,
    /// The sessions of the members.
    holders: SessionHolders,
}

impl MemberFanout {
    fn all(&self) -> Vec<Arc<dyn NoticeIntake>> {
        lock(&self.intakes).values().map(Arc::clone).collect()
    }

    fn join(&self, owner: OwnerKey, intake: Arc<dyn NoticeIntake>) -> u64 {
        self.owners.join(owner);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.intakes).insert(number, intake);
        number
    }

    /// Removes a member; returns the URIs without another follower.
    fn leave(&self, member: u64) -> Vec<String> {
        lock(&self.intakes).remove(&member);
        self.url_elicitations.leave(member);
        lock(&self.followers).leave(member)
    }
}

impl NoticeIntake for MemberFanout {
    fn opened(&self, upstream: &Arc<str>, declared: &Arc<ServerDeclaration>) {
        for member in self.all() {
            member.opened(upstream, declared);
        }
    }

    fn heard(&self, upstream: &Arc<str>, lists: &[&'static str], is_late: bool) {
        for member in self.all() {
            member.heard(upstream, lists, is_late);
        }
    }

    fn notice(&self, upstream: &Arc<str>, notice: Notice, arrival: NoticeArrival) {
        // The owner of the notice is unknown, and it may quote another user's input. Spec: BRIDGING §3.5.
        if self.owners.are_several() && matches!(notice.kind, NoticeKind::Log | NoticeKind::Other) {
            return COUNTERS.notices_unread.add(1);
        }
        let concerned = self.url_elicitations.over(&notice);
        let members: Vec<_> = {
            let intakes = lock(&self.intakes);
            let wanting = intakes.iter().filter(|(member, _)| {
                let is_concerned = concerned.as_ref().is_none_or(|all| all.contains(member));
                is_concerned && self.levels.admits(**member, &notice)
            });
            wanting.map(|(_, intake)| Arc::clone(intake)).collect()
        };
        for member in members {
            member.notice(upstream, notice.clone(), arrival);
        }
    }

    fn list_changed(&self, upstream: &Arc<str>, what: &'static str) {
        // One for all: it is the same change.
        if let Some(member) = self.all().first() {
            member.list_changed(upstream, what);
        }
    }

    fn task_changed(&self, upstream: &Arc<str>, status: &Message, call: Option<u64>) {
        for member in self.all() {
            member.task_changed(upstream, status, call);
        }
    }

    fn question(
        &self,
        _upstream: &Arc<str>,
        _question: InputRequest,
    ) -> BoxFuture<'_, InputOutcome> {
        let refusal = "the question names no call, and several sessions share the upstream";
        Box::pin(std::future::ready(InputOutcome::CannotAsk(
            refusal.to_owned(),
        )))
    }

    fn serves_several_owners(&self) -> bool {
        self.owners.are_several()
    }
}

/// One session's place at a shared link.
#[derive(Debug)]
struct SharedMember {
    pooled: Arc<SharedLink>,
    number: u64,
    owner: OwnerKey,
    session: HolderKey,
    key: PoolKey,
    links: SharedLinks,
    idle: Duration,
    tasks: TaskSpawner,
    /// Whether the place was left.
    left: AtomicBool,
}

impl SharedMember {
    async fn subscribe(
        &self,
        uri: Cow<'_, str>,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, Fault> {
        let (link, members) = (&self.pooled.link, &self.pooled.members);
        let uri = &*uri;
        let Some(is_new) = lock(&members.followers).follow(uri, self.number, self.owner) else {
            return Ok(too_many());
        };
        let joining = is_new.then(|| {
            OnDrop::new(|| {
                lock(&members.followers).unfollow(uri, self.number);
            })
        });
        let reply = link.call(request, call).await;
        let is_refused = reply.as_ref().map_or(true, |reply| reply.error().is_some());
        match joining {
            Some(joining) if !is_refused => joining.disarm(),
            joining => drop(joining),
        }
        let has_left = |mut followers: MutexGuard<'_, UriFollowers>| {
            !followers.follows(uri, self.number) && followers.unfollow(uri, self.number)
        };
        if !is_refused && has_left(lock(&members.followers)) {
            // The session ended during the request, and no other member follows the resource.
            link.unsubscribe(uri).await;
        }
        reply
    }

    /// Sets this member's level; the upstream gets the most verbose level of all members.
    ///
    /// # Cancel safety
    /// The upstream may or may not have got the level; the next `set_level` settles that.
    async fn set_level(
        &self,
        level: LogLevel,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, Fault> {
        let levels = &self.pooled.members.levels;
        let mut told = levels.told.lock().await;
        let before = levels.want(self.number, Some(level));
        let wanted = levels.most_verbose();
        if *told == Some(wanted) {
            return Ok(Reply::Result(Bytes::from_static(b"{}")));
        }
        let word = json::quote(wanted.as_str());
        let bytes = request.edit().param("level", word.as_str()).finish();
        let request = Message::parse(bytes, json::MAX_DEPTH).map_err(Fault::internal)?;
        let reply = self.pooled.link.call(&request, call).await;
        if reply.as_ref().is_ok_and(|reply| reply.error().is_none()) {
            *told = Some(wanted);
        } else {
            levels.want(self.number, before);
        }
        reply
    }
}

/// The error for a subscription beyond the bounds of `UriFollowers`.
fn too_many() -> Reply {
    Reply::Error(Bytes::from_static(
        br#"{"code":-32602,"message":"too many subscriptions"}"#,
    ))
}

impl UpstreamLink for SharedMember {
    fn upstream(&self) -> &Arc<str> {
        self.pooled.link.upstream()
    }

    fn call<'a>(
        &'a self,
        request: &'a Message,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, Fault>> {
        match (request.method(), request.param_str("uri")) {
            (Some("resources/subscribe"), Some(uri)) => {
                Box::pin(self.subscribe(uri, request, call))
            }
            // The upstream gets only the first subscription and the last unsubscription.
            (Some("resources/unsubscribe"), Some(uri))
                if !lock(&self.pooled.members.followers).unfollow(&uri, self.number) =>
            {
                let done = Reply::Result(Bytes::from_static(b"{}"));
                Box::pin(std::future::ready(Ok(done)))
            }
            (Some("logging/setLevel"), _) => {
                let level = request.param_str("level");
                match level.and_then(|word| LogLevel::parse(&word)) {
                    Some(level) => Box::pin(self.set_level(level, request, call)),
                    None => self.pooled.link.call(request, call),
                }
            }
            _ => {
                let filtered = self.pooled.members.levels.filtered(self.number, call);
                match self.noting(filtered.as_ref().unwrap_or(call)).or(filtered) {
                    None => self.pooled.link.call(request, call),
                    Some(call) => Box::pin(self.call_noting(request, call)),
                }
            }
        }
    }

    fn notify(&self, message: Bytes) -> BoxFuture<'_, ()> {
        self.pooled.link.notify(message)
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>> {
        self.pooled.link.open()
    }

    fn prepare(&self) -> BoxFuture<'_, ()> {
        self.pooled.link.prepare()
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        self.pooled.link.declared()
    }

    fn listen(&self, wanted: bool) {
        let change = |members: &mut HashSet<u64>| {
            // A place that was left wants nothing, even if `listen(true)` comes late.
            if wanted && !self.left.load(Ordering::Relaxed) {
                members.insert(self.number);
            } else {
                members.remove(&self.number);
            }
        };
        let SharedLink { link, members } = &*self.pooled;
        let listen = |members: &HashSet<u64>| link.listen(!members.is_empty());
        members.listening.set_and_apply(change, listen);
    }

    fn notice_feed(&self) -> Option<u64> {
        self.pooled.link.notice_feed()
    }

    fn wait_until_live(&self) -> BoxFuture<'_, bool> {
        self.pooled.link.wait_until_live()
    }

    /// Leaves the link, which ends after `idle` without a place.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.leave())
    }
}

#[cfg(test)]
mod tests {
    use dashmap::try_result::TryResult;

    use super::*;
    use crate::call::Principal;
    use crate::sync::event_number::EventNumber;

    /// A member, and the numbers of the notices that it was told of.
    #[derive(Debug, Default)]
    struct Told(Mutex<Vec<EventNumber>>);

    impl NoticeIntake for Told {
        fn opened(&self, _: &Arc<str>, _: &Arc<ServerDeclaration>) {}

        fn heard(&self, _: &Arc<str>, _: &[&'static str], _: bool) {}

        fn notice(&self, _: &Arc<str>, _: Notice, arrival: NoticeArrival) {
            lock(&self.0).push(arrival.number);
        }

        fn task_changed(&self, _: &Arc<str>, _: &Message, _: Option<u64>) {}

        fn question(&self, _: &Arc<str>, _: InputRequest) -> BoxFuture<'_, InputOutcome> {
            unreachable!("only notices")
        }
    }

    // A list that one member requests after the notice is new enough for all.
    #[test]
    fn notice_has_one_number_for_all_members() {
        let members = MemberFanout::default();
        let all = ["alice", "bob"].map(|name| {
            let told = Arc::new(Told::default());
            let owner = Principal::new("issuer", name, "", Vec::new(), None).owner();
            members.join(owner, Arc::clone(&told) as _);
            told
        });
        let arrival = NoticeArrival::now(None);
        members.notice(&"up".into(), Notice::list_changed("tools"), arrival);
        for told in all {
            assert_eq!(*lock(&told.0), [arrival.number]);
        }
    }

    impl SharedLinks {
        pub(in crate::upstream) fn len(&self) -> usize {
            self.0.len()
        }

        /// Whether `join`, which takes a place at the only link, holds the link's entry meanwhile.
        pub(in crate::upstream) fn is_entry_held_by(&self, join: impl FnOnce() + Send) -> bool {
            let (key, pooled) = {
                let entry = self.0.iter().next().unwrap();
                (entry.key().clone(), Arc::clone(entry.value()))
            };
            std::thread::scope(|scope| {
                let members = lock(&pooled.members.intakes);
                scope.spawn(join);
                let until = std::time::Instant::now() + Duration::from_secs(10);
                let is_held = loop {
                    if matches!(self.0.try_get(&key), TryResult::Locked)
                        && matches!(self.0.try_get(&key), TryResult::Locked)
                    {
                        std::thread::yield_now();
                        if matches!(self.0.try_get(&key), TryResult::Locked) {
                            break true;
                        }
                    }
                    if std::time::Instant::now() > until {
                        break false;
                    }
                };
                drop(members);
                is_held
            })
        }
    }
}
