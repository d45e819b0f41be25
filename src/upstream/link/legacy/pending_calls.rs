//! `PendingCalls`: our requests on a connection whose replies have not come yet. Spec: BRIDGING §2.3, §3.5; DESIGN §6;
//! `docs/adr/0009`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::pending_reply::PendingReply;
use super::related::RelatedQuestion;
use crate::budget::ReplyShare;
use crate::call::DownstreamLink;
use crate::protocol::Message;
use crate::sync::fast_maps::FastMap;
use crate::upstream::carrier::{AskedClient, LinkSettings};
use crate::upstream::deadlines::{CallActivity, PausedClock, PipeClocks, StoppedClocks};
use crate::upstream::error::LinkError;
use crate::upstream::link::abandoned_calls::GivenUp;
use crate::upstream::lock;

/// A call with the link to its client.
pub(super) type AskedCall = (Arc<dyn DownstreamLink>, Arc<PendingReply>);

/// The requests of one connection, by our ids.
#[derive(Debug)]
pub(super) struct PendingCalls {
    next_id: AtomicU64,
    by_id: Mutex<FastMap<u64, Arc<PendingReply>>>,
    /// Their idle clocks, on a pipe.
    clocks: Arc<PipeClocks>,
    /// Calls that may become tasks, dropped before their reply.
    pub(super) given_up: GivenUp<()>,
}

impl PendingCalls {
    /// None; ids begin after `first`, and after 1, which the handshake had.
    pub(super) fn after(first: u64) -> Self {
        Self {
            next_id: AtomicU64::new(first + 2),
            by_id: Mutex::default(),
            clocks: Arc::default(),
            given_up: GivenUp::default(),
        }
    }

    /// The id of the next request of ours, which is its progress token too.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether one of our requests had this id, which is its progress token too.
    pub(super) fn has_used(&self, id: u64) -> bool {
        id < self.next_id.load(Ordering::Relaxed)
    }

    /// Adds a request that is about to be sent.
    pub(super) fn insert(&self, call: &Arc<PendingReply>) {
        lock(&self.by_id).insert(call.id, Arc::clone(call));
    }

    /// Lets the idle clock of a request stand still with those of its pipe.
    pub(super) fn begin_clock(&self, activity: &Arc<CallActivity>) {
        self.clocks.begin(activity);
    }

    pub(super) fn remove(&self, id: u64) {
        lock(&self.by_id).remove(&id);
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<PendingReply>> {
        lock(&self.by_id).get(&id).map(Arc::clone)
    }

    pub(super) fn is_awaited(&self, id: u64) -> bool {
        lock(&self.by_id).contains_key(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.by_id).is_empty()
    }

    /// Takes the sender of the reply to the request `id`, if still pending.
    pub(super) fn take_reply(
        &self,
        id: u64,
    ) -> Option<oneshot::Sender<Result<Message, LinkError>>> {
        let pending = self.get(id)?;
        lock(&pending.reply).take()
    }

    /// Fails the request `id`, if still pending.
    pub(super) fn fail(&self, id: u64, error: LinkError) {
        if let Some(waiting) = self.take_reply(id) {
            drop(waiting.send(Err(error)));
        }
    }

    /// Fails all requests, as the connection is lost.
    pub(super) fn fail_all(&self, last_words: Option<&str>) {
        let waiting: Vec<_> = lock(&self.by_id)
            .values()
            .filter_map(|pending| lock(&pending.reply).take())
            .collect();
        for reply in waiting {
            drop(reply.send(Err(LinkError::Lost {
                last_words: last_words.map(str::to_owned),
            })));
        }
    }

    /// Ready when no request is pending.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn until_unused(&self) {
        loop {
            let over: Vec<_> = {
                let pending = lock(&self.by_id);
                pending.values().map(|call| call.over.clone()).collect()
            };
            if over.is_empty() {
                return;
            }
            for over in over {
                over.cancelled().await;
            }
        }
    }

    /// Stops the idle clocks while nothing is read.
    pub(super) fn stop_clocks(&self) -> StoppedClocks {
        self.clocks.stop(|| {
            let pending = lock(&self.by_id);
            let activities = pending.values().map(|call| Arc::clone(&call.activity));
            activities.collect::<Vec<_>>()
        })
    }

    /// The share of the first call that takes room for its reply.
    pub(super) fn reply_share(&self) -> Option<ReplyShare> {
        let pending = lock(&self.by_id);
        let mut calls = pending.values();
        calls.find_map(|call| Some(call.reply_room()?.share.clone()))
    }

    /// The number of the call that a notice names in its parameter `name`.
    pub(super) fn named(
        &self,
        message: &Message,
        name: &str,
        is_named: impl Fn(&PendingReply, &str) -> bool,
    ) -> Option<u64> {
        let id = message.param_str(name)?;
        let pending = lock(&self.by_id);
        let mut named = pending.values().filter(|call| is_named(call, &id));
        named.next()?.number()
    }

    /// The newest call of a client that a message without a call may belong to: the only one, unless the gateway
    /// `guesses`.
    pub(super) fn newest(&self, guesses: bool) -> Option<Arc<PendingReply>> {
        let pending = lock(&self.by_id);
        let talked_of = pending.values().filter(|p| p.is_talked_of);
        let one = guesses || talked_of.clone().count() == 1;
        let calls = talked_of.filter(|p| p.link.is_some() && one);
        calls.max_by_key(|p| p.id).map(Arc::clone)
    }

    /// The call that a question belongs to: the one that waits for its task, the one on whose stream
    /// it came, or, where calls take turns, the only one that runs whose client may be asked, or the
    /// oldest one where all are one client's and the upstream asks for the first time (ADR 9). Over
    /// HTTP there are no turns, as a question has the stream of its call: on the GET stream it is
    /// refused where several run.
    pub(super) fn asked_call(
        &self,
        settings: &LinkSettings,
        origin: Option<u64>,
        related: Option<&RelatedQuestion>,
    ) -> Option<AskedCall> {
        let pending = lock(&self.by_id);
        let waits = related.and_then(|related| {
            let mut waiting = pending.values();
            waiting.find(|call| call.task.as_ref() == Some(&related.task))
        });
        let call = match origin {
            _ if waits.is_some() => waits,
            Some(id) => pending.get(&id),
            None if settings.unattributed == AskedClient::Call => {
                let mut askable = pending.values().filter(|call| call.may_be_asked);
                if settings.exclusive {
                    // All of them are one client's; one that is asked already waits for its answer.
                    askable.min_by_key(|call| (call.activity.is_paused(), call.id))
                } else {
                    let only = askable.next();
                    only.filter(|_| askable.next().is_none())
                }
            }
            None => None,
        }?;
        Some((call.link.clone()?, Arc::clone(call)))
    }

    /// Holds the clocks of the calls that run now for a question that names none, and says which of them
    /// it may be of: it is void once all of those are over. What a task asks is of no call, and a
    /// client tells of its roots outside calls, too.
    pub(super) fn may_have_asked(
        &self,
        method: &str,
        related: Option<&RelatedQuestion>,
    ) -> (Vec<PausedClock>, Vec<CancellationToken>) {
        let pending = lock(&self.by_id);
        let paused = pending.values().map(|call| call.activity.pause()).collect();
        let mut askers = Vec::new();
        if method != "roots/list" && related.is_none() {
            let askable = pending.values().filter(|call| call.may_be_asked);
            askers.extend(askable.map(|call| call.over.clone()));
        }
        (paused, askers)
    }
}
