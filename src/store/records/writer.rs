//! `RecordWriter`: the task that keeps the records of this replica's sessions up to date in the shared store.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::format::TextDigest;
use super::{SessionRecord, SharedRecords};
use crate::lock::lock;
use crate::ownership::Ownership;
use crate::runtime::lifecycle::TaskSpawner;
use crate::store::events::SessionKey;
use crate::store::fenced::FencedSessions;
use crate::store::pause::RetryPause;
use crate::store::scripts::{ScriptCall, ScriptResult, integer};

/// Sessions of one round trip at most.
const SESSIONS: usize = 256;
/// Ended sessions that wait to be told at most; the records of the others expire.
const ENDED: usize = 64 * 1024;
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
    records: Arc<SharedRecords>,
    tracked: DashMap<SessionKey, TrackedSession>,
    lists: Mutex<WorkLists>,
    work: Notify,
    fenced: Arc<FencedSessions>,
}

#[derive(Debug)]
struct TrackedSession {
    source: Arc<dyn RecordSource>,
    /// Whether it stands in the list.
    is_listed: bool,
    /// Whether its record is to be written; else it is only renewed.
    is_changed: bool,
    /// When it was last written or renewed.
    written: Instant,
    /// Long texts of the record.
    texts: Vec<TextDigest>,
}

#[derive(Debug, Default)]
struct WorkLists {
    /// Sessions to be written or renewed, each once.
    waiting: VecDeque<SessionKey>,
    ended: VecDeque<EndedSession>,
}

#[derive(Debug, Clone, Copy)]
struct EndedSession {
    session: SessionKey,
    by: Ownership,
    leaves_record: bool,
}

/// What some calls of a round trip are about.
struct Planned {
    work: Work,
    /// The calls of a round trip for this work; the record's call is the last one.
    calls: Range<usize>,
}

enum Work {
    Write(SessionKey, Vec<TextDigest>),
    Renew(SessionKey),
    End(EndedSession),
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
        tasks.spawn_service(Arc::clone(&writer).run());
        writer
    }

    /// Has the record of a session written, and kept up to date until [`end`](Self::end), or until `source` has none.
    pub fn track(&self, session: SessionKey, source: Arc<dyn RecordSource>) {
        self.tracked.insert(
            session,
            TrackedSession {
                source,
                is_listed: false,
                is_changed: true,
                written: Instant::now(),
                texts: Vec::new(),
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
        if self.tracked.remove(&session).is_some() {
            self.list_end(EndedSession {
                session,
                by,
                leaves_record,
            });
        }
    }

    /// Stops keeping the record of a session that another replica owns, and leaves it as it is.
    pub fn leave(&self, session: SessionKey) {
        self.tracked.remove(&session);
    }

    /// Has all records written once more, after the store has lost its data: spread over `time`.
    ///
    /// # Cancel safety
    /// Records not reached yet are written when they are renewed.
    pub async fn write_again(&self, time: Duration) {
        let sessions: Vec<SessionKey> = self.tracked.iter().map(|entry| *entry.key()).collect();
        let pause = time / u32::try_from(sessions.len().max(1)).unwrap_or(u32::MAX);
        for session in sessions {
            self.change(session);
            tokio::time::sleep(pause).await;
        }
    }

    fn list(&self, session: SessionKey, tracked: &mut TrackedSession) {
        if !tracked.is_listed {
            tracked.is_listed = true;
            lock(&self.lists).waiting.push_back(session);
            self.work.notify_one();
        }
    }

    fn list_end(&self, ended: EndedSession) {
        let mut lists = lock(&self.lists);
        lists.ended.push_back(ended);
        if lists.ended.len() > ENDED {
            lists.ended.pop_front();
        }
        drop(lists);
        self.work.notify_one();
    }

    async fn run(self: Arc<Self>) {
        let mut pause = RetryPause::new();
        let period = self.records.life / (4 * RENEWAL);
        let mut next_look = Instant::now() + period;
        loop {
            if Instant::now() >= next_look {
                next_look = Instant::now() + period;
                self.list_renewals();
            }
            let (calls, planned) = self.next_round();
            if calls.is_empty() {
                drop(timeout_at(next_look, self.work.notified()).await);
                continue;
            }
            let results = self.records.store.run(calls).await;
            if self.settle(planned, &results) {
                pause.reset();
            } else {
                tokio::time::sleep(pause.next()).await;
            }
        }
    }

    /// Lists the sessions whose records are due for renewal.
    fn list_renewals(&self) {
        let now = Instant::now();
        let due = self.records.life / RENEWAL;
        for mut entry in self.tracked.iter_mut() {
            let session = *entry.key();
            if now.duration_since(entry.written) >= due {
                self.list(session, &mut entry);
            }
        }
    }

    fn next_round(&self) -> (Vec<ScriptCall>, Vec<Planned>) {
        let (mut calls, mut planned) = (Vec::new(), Vec::new());
        while planned.len() < SESSIONS {
            let Some(session) = lock(&self.lists).waiting.pop_front() else {
                break;
            };
            let first = calls.len();
            if let Some(work) = self.plan(session, &mut calls) {
                let calls = first..calls.len();
                planned.push(Planned { work, calls });
            }
        }
        let mut lists = lock(&self.lists);
        let room = SESSIONS.min(lists.ended.len());
        for ended in lists.ended.drain(..room) {
            let first = calls.len();
            calls.push(
                self.records
                    .finish(ended.session, ended.by, ended.leaves_record),
            );
            planned.push(Planned {
                work: Work::End(ended),
                calls: first..calls.len(),
            });
        }
        drop(lists);
        (calls, planned)
    }

    /// Adds the calls for a listed session.
    fn plan(&self, session: SessionKey, calls: &mut Vec<ScriptCall>) -> Option<Work> {
        let (source, is_changed, texts) = {
            let mut tracked = self.tracked.get_mut(&session)?;
            tracked.is_listed = false;
            let is_changed = std::mem::take(&mut tracked.is_changed);
            (
                Arc::clone(&tracked.source),
                is_changed,
                tracked.texts.clone(),
            )
        };
        let Some(record) = source.record() else {
            self.leave(session);
            return None;
        };
        let by = source.ownership();
        if !is_changed {
            calls.extend(self.records.renew(session, by, &texts));
            return Some(Work::Renew(session));
        }
        let (put, texts) = self
            .records
            .put(session, by, source.highest_stream(), &record);
        calls.extend(put);
        Some(Work::Write(session, texts))
    }

    /// Records the outcome of a round trip; `false` if the next one is to wait.
    fn settle(&self, planned: Vec<Planned>, results: &[ScriptResult]) -> bool {
        let mut all_done = true;
        for Planned { work, calls } in planned {
            let results = results.get(calls).unwrap_or_default();
            // A renewal says 0 for what is not there.
            let lowest = results
                .iter()
                .map(|result| result.as_ref().ok().and_then(integer));
            let lowest = lowest.min().flatten();
            all_done &= lowest.is_some();
            match (work, lowest) {
                (Work::End(_), Some(_)) => {}
                (Work::End(ended), None) => self.list_end(ended),
                (Work::Write(session, _) | Work::Renew(session), Some(-1)) => {
                    self.leave(session);
                    self.fenced.add(session);
                }
                (Work::Write(session, texts), Some(_)) => self.written(session, Some(texts)),
                (Work::Renew(session), Some(1)) => self.written(session, None),
                (Work::Write(session, _), None) | (Work::Renew(session), Some(_)) => {
                    self.change(session);
                }
                (Work::Renew(session), None) => {
                    if let Some(mut tracked) = self.tracked.get_mut(&session) {
                        self.list(session, &mut tracked);
                    }
                }
            }
        }
        all_done
    }

    fn written(&self, session: SessionKey, texts: Option<Vec<TextDigest>>) {
        if let Some(mut tracked) = self.tracked.get_mut(&session) {
            tracked.written = Instant::now();
            if let Some(texts) = texts {
                tracked.texts = texts;
            }
        }
    }
}
