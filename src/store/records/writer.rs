//! `RecordWriter`: the sessions of this replica whose records its task keeps up to date in the shared store.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::format::TextDigest;
use super::record_task::RecordTask;
use super::shared::EndedSession;
use super::{SessionRecord, SharedRecords};
use crate::lock::lock;
use crate::ownership::Ownership;
use crate::redis_client::RedisFailure;
use crate::runtime::lifecycle::TaskSpawner;
use crate::store::calls::{CallsUnderWay, WorkStage};
use crate::store::events::SessionKey;
use crate::store::fenced::FencedSessions;
use crate::store::pause::SpreadWork;
use crate::store::scripts::{ScriptRunner, integer};

/// Ended sessions that wait to be told at most; the records of the others expire.
const ENDED: usize = 64 * 1024;
/// Sessions that the store is asked about at once.
const ASKED_AT_ONCE: usize = 256;
/// A record is renewed when this part of its life is over.
const RENEWAL: u32 = 4;

/// A session, as the writer sees it.
pub trait RecordSource: Send + Sync + std::fmt::Debug {
    /// Ownership of the session by this replica.
    fn ownership(&self) -> Ownership;

    /// The highest stream that the session has opened.
    fn highest_stream(&self) -> u32;

    /// The record as of now; `None` once the session is gone.
    fn record(&self) -> Option<SessionRecord>;
}

/// Writes and renews records behind the calls: none of its methods waits.
#[derive(Debug)]
pub struct RecordWriter {
    pub(super) records: Arc<SharedRecords>,
    pub(super) tracked: DashMap<SessionKey, TrackedSession>,
    pub(super) lists: Mutex<WorkLists>,
    pub(super) work: Notify,
    pub(super) fenced: Arc<FencedSessions>,
}

/// A session whose record is kept up to date.
#[derive(Debug)]
pub(super) struct TrackedSession {
    pub(super) source: Arc<dyn RecordSource>,
    /// Where the writing or renewing of its record is.
    pub(super) stage: WorkStage,
    /// Whether the last call failed: the task lists the session again.
    is_failing: bool,
    /// Whether its record is to be written; else it is only renewed.
    pub(super) is_changed: bool,
    /// When it was last written or renewed.
    written: Instant,
    /// Long texts of the record.
    pub(super) texts: Vec<TextDigest>,
    /// The session's tag, once its record was to be written.
    pub(super) tag: Option<u64>,
}

impl TrackedSession {
    /// Whether it is the session of `source`, and no other one under the same key.
    pub(super) fn is_of(&self, source: &Arc<dyn RecordSource>) -> bool {
        Arc::ptr_eq(&self.source, source)
    }
}

/// What the task is to do.
#[derive(Debug, Default)]
pub(super) struct WorkLists {
    /// Sessions to be written or renewed, each once.
    pub(super) waiting: VecDeque<SessionKey>,
    /// Ended sessions to be told, each once.
    pub(super) ended: VecDeque<SessionKey>,
    /// Ended sessions whose end the store has not acknowledged.
    untold: HashMap<SessionKey, EndedSession>,
}

impl RecordWriter {
    /// A writer whose task is one of `tasks`; `fenced` is told of sessions that another replica owns.
    #[must_use]
    pub fn start(
        records: Arc<SharedRecords>,
        fenced: Arc<FencedSessions>,
        tasks: &TaskSpawner,
    ) -> Arc<Self> {
        let writer = Arc::new(Self {
            records,
            tracked: DashMap::new(),
            lists: Mutex::default(),
            work: Notify::new(),
            fenced,
        });
        let writing = Arc::clone(&writer);
        tasks.spawn_service(async move { RecordTask::new(&writing).run().await });
        writer
    }

    /// Has the record of a session written, and kept up to date until [`end`](Self::end), or until `source` has none. An
    /// end of an earlier session under this key that the store was not told of is forgotten: it would end this one.
    pub fn track(&self, session: SessionKey, source: Arc<dyn RecordSource>) {
        lock(&self.lists).untold.remove(&session);
        self.tracked.insert(
            session,
            TrackedSession {
                source,
                stage: WorkStage::Idle,
                is_failing: false,
                is_changed: true,
                written: Instant::now(),
                texts: Vec::new(),
                tag: None,
            },
        );
        self.change(session);
    }

    /// Has the record of a tracked session written once more.
    pub fn change(&self, session: SessionKey) {
        if let Some(mut tracked) = self.tracked.get_mut(&session) {
            tracked.is_changed = true;
            self.list(session, &mut tracked);
        }
    }

    /// Stops keeping the record of a session, and has it say that the session is over. Without `leaves_record` it is
    /// removed: for a session that no client can name.
    pub fn end(&self, session: SessionKey, by: Ownership, leaves_record: bool) {
        if let Some((_, tracked)) = self.tracked.remove(&session) {
            self.list_end(EndedSession {
                session,
                by,
                leaves_record,
                tag: tracked.tag,
            });
        }
    }

    /// The tracked sessions that another replica owns by now, or that are over, which are not tracked any more, with their
    /// ownership here; `None` where the store cannot be asked about each.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn lost(&self) -> Option<Vec<(SessionKey, Ownership)>> {
        let tracked = self.tracked.iter();
        let all: Vec<_> = tracked
            .map(|entry| (*entry.key(), Arc::clone(&entry.source)))
            .collect();
        let mut lost = Vec::new();
        for some in all.chunks(ASKED_AT_ONCE) {
            let calls = some.iter().flat_map(|(session, source)| {
                self.records.renew(*session, source.ownership(), &[])
            });
            let results = self.store().run(calls.collect()).await;
            for (at, asked) in some.iter().enumerate() {
                if integer(results.get(at)?.as_ref().ok()?)? == -1 {
                    lost.push(asked);
                }
            }
        }
        // One that was given up and adopted again meanwhile stays.
        let left = lost
            .into_iter()
            .filter(|(session, source)| self.leave_source(*session, source));
        let with_owner = left.map(|(session, source)| (*session, source.ownership()));
        Some(with_owner.collect())
    }

    /// Gives a tracked session up, with its record as of now: any replica may then adopt the session. The caller
    /// [leaves](Self::leave) it then. `false` if another replica owns the session, if it is over, or not tracked as that of
    /// `by`: it may have been given up before, and adopted again.
    ///
    /// # Errors
    /// As for [`SharedRecords::give_up`].
    ///
    /// # Cancel safety
    /// As after an error that is uncertain.
    pub async fn give_up(&self, session: SessionKey, by: Ownership) -> Result<bool, RedisFailure> {
        let source = self.tracked.get(&session);
        let source = source.map(|tracked| Arc::clone(&tracked.source));
        let source = source.filter(|source| source.ownership() == by);
        let Some((source, record)) = source.and_then(|source| {
            let record = source.record()?;
            Some((source, record))
        }) else {
            return Ok(false);
        };
        let highest = source.highest_stream();
        self.records.give_up(session, by, highest, &record).await
    }

    /// Has the record of a session that this replica has adopted as `by`, and does not keep, say that the session is over.
    /// `leaves_record` is as for [`end`](Self::end).
    pub fn end_adopted(&self, session: SessionKey, by: Ownership, leaves_record: bool) {
        self.list_end(EndedSession {
            session,
            by,
            leaves_record,
            tag: None,
        });
    }

    /// Stops keeping the record of a session that another replica owns, and leaves it as it is.
    pub fn leave(&self, session: SessionKey) {
        self.tracked.remove(&session);
    }

    /// Stops keeping the record of a session as long as it is kept for `source`; whether it was.
    pub(super) fn leave_source(&self, session: SessionKey, source: &Arc<dyn RecordSource>) -> bool {
        let left = self
            .tracked
            .remove_if(&session, |_, tracked| tracked.is_of(source));
        left.is_some()
    }

    /// Has all records written once more, after the store has lost its data: spread over `time`.
    ///
    /// # Cancel safety
    /// Records not reached yet are written when they are renewed.
    pub async fn write_again(&self, time: Duration) {
        let sessions: Vec<SessionKey> = self.tracked.iter().map(|entry| *entry.key()).collect();
        let mut spread = SpreadWork::new(sessions.len(), time);
        for session in sessions {
            self.change(session);
            spread.pause().await;
        }
    }

    fn list(&self, session: SessionKey, tracked: &mut TrackedSession) {
        if tracked.stage == WorkStage::Idle && !tracked.is_failing {
            tracked.stage = WorkStage::Listed;
            lock(&self.lists).waiting.push_back(session);
            self.work.notify_one();
        }
    }

    fn list_end(&self, ended: EndedSession) {
        let mut lists = lock(&self.lists);
        // The record may be removed once more by a caller that does not know the session.
        let former = lists.untold.get(&ended.session).map(|former| former.tag);
        let tag = ended.tag.or(former.flatten());
        let ended = EndedSession { tag, ..ended };
        lists.untold.insert(ended.session, ended);
        if former.is_none() {
            lists.ended.push_back(ended.session);
        }
        if lists.untold.len() > ENDED
            && let Some(oldest) = lists.ended.pop_front()
        {
            lists.untold.remove(&oldest);
        }
        drop(lists);
        self.work.notify_one();
    }

    /// Has the store say of all sessions that have ended here that they are over, and waits `within` for it. For the end
    /// of the process, when the task has been dropped.
    ///
    /// # Cancel safety
    /// The records of sessions that were not reached expire.
    pub async fn flush(&self, within: Duration) {
        let mut left: Vec<EndedSession> = lock(&self.lists).untold.values().copied().collect();
        let mut calls = CallsUnderWay::new(self.store());
        let told = async {
            loop {
                if calls.begin_round() {
                    while calls.has_room()
                        && let Some(ended) = left.pop()
                    {
                        calls.send(ended, vec![self.records.finish(&ended)]);
                    }
                }
                if calls.is_empty() {
                    return;
                }
                // A round that is over has calls of former rounds only where there is nothing more to send.
                if let Some((ended, results)) = calls.next(pending()).await
                    && results.iter().all(Result::is_ok)
                {
                    self.told(&ended);
                }
            }
        };
        drop(timeout(within, told).await);
        let sessions = lock(&self.lists).untold.len();
        if sessions > 0 {
            tracing::debug!(sessions, "records do not say that sessions are over");
        }
    }

    pub(super) fn store(&self) -> &dyn ScriptRunner {
        &*self.records.store
    }

    /// How often records are looked at that are due for renewal.
    pub(super) fn look_period(&self) -> Duration {
        self.records.life / (4 * RENEWAL)
    }

    /// Lists the sessions whose records are due for renewal.
    pub(super) fn list_renewals(&self) {
        let now = Instant::now();
        let due = self.records.life / RENEWAL;
        for mut entry in self.tracked.iter_mut() {
            let session = *entry.key();
            if now.duration_since(entry.written) >= due {
                self.list(session, &mut entry);
            }
        }
    }

    /// Takes the next ended session from the list. It counts as untold until [`told`](Self::told).
    pub(super) fn next_ended(&self) -> Option<EndedSession> {
        let mut lists = lock(&self.lists);
        loop {
            let session = lists.ended.pop_front()?;
            if let Some(ended) = lists.untold.get(&session) {
                return Some(*ended);
            }
        }
    }

    /// Whether the end of a session is still to be told to the store.
    pub(super) fn is_untold(&self, session: &SessionKey) -> bool {
        lock(&self.lists).untold.contains_key(session)
    }

    /// The store says that the session is over. A later session under the same key that has ended since is told next.
    pub(super) fn told(&self, ended: &EndedSession) {
        let mut lists = lock(&self.lists);
        let untold = lists.untold.get(&ended.session);
        if untold.is_some_and(|untold| untold == ended) {
            lists.untold.remove(&ended.session);
        } else if untold.is_some() && !lists.ended.contains(&ended.session) {
            lists.ended.push_back(ended.session);
            self.work.notify_one();
        }
    }

    /// The record of the session of `source` is in the store, with these long texts if it was not only renewed.
    pub(super) fn written(
        &self,
        (session, source): (SessionKey, &Arc<dyn RecordSource>),
        texts: Option<Vec<TextDigest>>,
    ) {
        let tracked = self.tracked.get_mut(&session);
        if let Some(mut tracked) = tracked.filter(|tracked| tracked.is_of(source)) {
            (tracked.stage, tracked.is_failing) = (WorkStage::Idle, false);
            tracked.written = Instant::now();
            if let Some(texts) = texts {
                tracked.texts = texts;
            }
            if tracked.is_changed {
                self.list(session, &mut tracked);
            }
        }
    }

    /// The record is to be written or renewed once more: at once, or where its call failed when the task tries again.
    pub(super) fn unsettled(
        &self,
        (session, source): (SessionKey, &Arc<dyn RecordSource>),
        is_changed: bool,
        is_failing: bool,
    ) {
        let tracked = self.tracked.get_mut(&session);
        if let Some(mut tracked) = tracked.filter(|tracked| tracked.is_of(source)) {
            (tracked.stage, tracked.is_failing) = (WorkStage::Idle, is_failing);
            tracked.is_changed |= is_changed;
            self.list(session, &mut tracked);
        }
    }
}
