//! `SharedNotices`: changed lists of upstreams, as one replica learns of them and the others hear.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::pause::store_backoff;
use super::scripts::{
    Script, ScriptCall, ScriptRunner, StoreKeys, bytes, elements, integer, run_one,
};
use crate::lock::lock;
use crate::redis_client::{RedisFailure, Value};
use crate::runtime::lifecycle::TaskSpawner;

static EXCHANGE: Script = Script::new("notices_exchange", include_str!("notices/exchange.lua"));

/// How often notices of others are read.
const INTERVAL: Duration = Duration::from_millis(500);
/// Life of the notices after the last replica has read them.
const LIFE: Duration = Duration::from_mins(10);
/// Notices that are kept.
const KEPT: usize = 1024;
/// How long a change that was heard here is not told once more, as another replica has heard it as well. A time: an upstream
/// gives its notices no number, so whether two replicas were told of one change cannot be known. Nor do counts tell: a replica
/// hears a change once over each of its links. A second change within it that only the other replica hears ends the lists
/// that sessions share here, but clients are not told of it.
const HEARD: Duration = Duration::from_secs(2);
/// Notices added at once: a pending notice is unique by upstream and kind.
const ADDED: usize = 256;

/// A changed list: the upstream's name, and `tools`, `prompts` or `resources`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListChange {
    /// The configured name.
    pub upstream: String,
    /// The kind of list.
    pub what: String,
}

/// Hears what other replicas learnt.
pub trait ListChangeReceiver: Send + Sync + std::fmt::Debug {
    /// Another replica was told of a changed list.
    fn changed(&self, change: &ListChange);

    /// The same, a moment after the upstream itself has told this replica. Nearly always it is the same change, which the
    /// sessions know. It may be a second one that was not heard here, so older lists are not to be shared any more.
    fn changed_again(&self, change: &ListChange);

    /// Notices may have been missed: any list may have changed.
    fn missed(&self);
}

/// Exchanges notices with the other replicas.
#[derive(Debug)]
pub struct SharedNotices {
    store: Arc<dyn ScriptRunner>,
    keys: StoreKeys,
    /// To be added, each once.
    pending: Mutex<BTreeSet<ListChange>>,
    /// When each change was last heard here. Bounded by the number of upstreams.
    heard: Mutex<BTreeMap<ListChange, Instant>>,
    work: Notify,
}

impl SharedNotices {
    /// An exchange by a task of `tasks`, which ends when `receiver` is dropped.
    #[must_use]
    pub fn start(
        store: Arc<dyn ScriptRunner>,
        keys: StoreKeys,
        receiver: Weak<dyn ListChangeReceiver>,
        tasks: &TaskSpawner,
    ) -> Arc<Self> {
        let notices = Arc::new(Self {
            store,
            keys,
            pending: Mutex::default(),
            heard: Mutex::default(),
            work: Notify::new(),
        });
        tasks.spawn_service(Arc::clone(&notices).run(receiver));
        notices
    }

    /// Tells the other replicas of a changed list, soon and once however often it changes meanwhile. Never waits.
    pub fn publish(&self, change: ListChange) {
        lock(&self.heard).insert(change.clone(), Instant::now());
        if lock(&self.pending).insert(change) {
            self.work.notify_one();
        }
    }

    async fn run(self: Arc<Self>, receiver: Weak<dyn ListChangeReceiver>) {
        let mut backoff = store_backoff();
        let mut told = None;
        let mut position = String::new();
        let mut server = None;
        loop {
            let began = Instant::now();
            match self.exchange(&position).await {
                Ok((reply, count)) => {
                    backoff.reset();
                    if count > 0 {
                        told = Some(began);
                    }
                    let Some(receiver) = receiver.upgrade() else {
                        return;
                    };
                    let run = self.store.server_run();
                    // Another server may lack notices of the one before that were not read yet.
                    let former = server.replace(Arc::clone(&run));
                    if former.is_some_and(|former| former != run) || is_gone(&reply) {
                        receiver.missed();
                    }
                    position = self.hand_on(&reply, &*receiver).unwrap_or(position);
                }
                Err(_) => tokio::time::sleep(backoff.next_pause()).await,
            }
            // However often lists change, each change is told once in an interval.
            let more = async {
                while lock(&self.pending).is_empty() {
                    self.work.notified().await;
                }
                if let Some(told) = told {
                    sleep_until(told + INTERVAL).await;
                }
            };
            drop(timeout(INTERVAL, more).await);
        }
    }

    /// Tells what is pending, and reads on; the reply, and how much was told.
    async fn exchange(&self, position: &str) -> Result<(Value, usize), RedisFailure> {
        let own: Vec<ListChange> = lock(&self.pending).iter().take(ADDED).cloned().collect();
        let parts = [
            position.to_owned(),
            KEPT.to_string(),
            LIFE.as_millis().to_string(),
        ];
        let texts = own
            .iter()
            .map(|change| format!("{}\n{}", change.upstream, change.what));
        let call = ScriptCall {
            script: &EXCHANGE,
            keys: vec![self.keys.notices()],
            args: parts
                .into_iter()
                .chain(texts)
                .map(String::into_bytes)
                .collect(),
        };
        let reply = run_one(&*self.store, call).await?;
        // A change between the copy and now is told once more, or was told with the others.
        let mut pending = lock(&self.pending);
        for change in &own {
            pending.remove(change);
        }
        Ok((reply, own.len()))
    }

    /// Hands the notices of a reply on; where to read on.
    fn hand_on(&self, reply: &Value, receiver: &dyn ListChangeReceiver) -> Option<String> {
        let [position, _, found] = elements(reply) else {
            return None;
        };
        // However often an upstream repeats itself, its sessions are told once for each reply.
        let changes: BTreeSet<ListChange> = elements(found).iter().filter_map(change).collect();
        for change in &changes {
            if self.was_heard(change) {
                receiver.changed_again(change);
            } else {
                receiver.changed(change);
            }
        }
        String::from_utf8(bytes(position)?.to_vec()).ok()
    }

    /// Whether a change was heard here just now.
    fn was_heard(&self, change: &ListChange) -> bool {
        let heard = lock(&self.heard);
        heard.get(change).is_some_and(|at| at.elapsed() < HEARD)
    }
}

/// Whether notices before those of a reply may be gone.
fn is_gone(reply: &Value) -> bool {
    matches!(elements(reply), [_, gone, _] if integer(gone) == Some(1))
}

/// What a notice says.
fn change(notice: &Value) -> Option<ListChange> {
    let text = std::str::from_utf8(bytes(notice)?).ok()?;
    let (upstream, what) = text.split_once('\n')?;
    Some(ListChange {
        upstream: upstream.to_owned(),
        what: what.to_owned(),
    })
}

#[cfg(test)]
mod tests;
