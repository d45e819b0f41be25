//! `RecordTask`: writes, renews and ends records in the shared store. What fails is tried again by itself, so that one
//! failing shard of the store does not hold up the records of the others.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::format::TextDigest;
use super::shared::EndedSession;
use super::writer::RecordWriter;
use crate::lock::lock;
use crate::store::calls::{CallsUnderWay, WorkStage};
use crate::store::events::SessionKey;
use crate::store::retries::FailedWork;
use crate::store::scripts::{ScriptCall, ScriptResult, integer};

/// The task that writes for a [`RecordWriter`].
pub(super) struct RecordTask<'a> {
    writer: &'a RecordWriter,
    calls: CallsUnderWay<'a, RecordWork>,
    failed: FailedWork<RecordKey>,
    /// Records whose last call failed, those that are tried again now included.
    failing: HashSet<RecordKey>,
}

/// The record of a session that lives, or of one that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RecordKey {
    Live(SessionKey),
    Ended(SessionKey),
}

/// What some calls are about; the record's call is the last one.
enum RecordWork {
    Write(SessionKey, Vec<TextDigest>),
    Renew(SessionKey),
    End(EndedSession),
}

impl RecordWork {
    fn key(&self) -> RecordKey {
        match self {
            Self::Write(session, _) | Self::Renew(session) => RecordKey::Live(*session),
            Self::End(ended) => RecordKey::Ended(ended.session),
        }
    }
}

impl<'a> RecordTask<'a> {
    pub(super) fn new(writer: &'a RecordWriter) -> Self {
        Self {
            writer,
            calls: CallsUnderWay::new(writer.store()),
            failed: FailedWork::new(),
            failing: HashSet::new(),
        }
    }

    /// Writes what is listed, for ever.
    pub(super) async fn run(mut self) {
        let period = self.writer.look_period();
        let mut next_look = Instant::now() + period;
        loop {
            if Instant::now() >= next_look {
                next_look = Instant::now() + period;
                self.writer.list_renewals();
            }
            if self.calls.begin_round() {
                let due = self.failed.take_due();
                self.list_again(due);
                self.send_round();
            }
            let more = async {
                tokio::select! {
                    () = self.writer.work.notified() => {}
                    () = self.failed.due() => {}
                    () = sleep_until(next_look) => {}
                }
            };
            if let Some((work, results)) = self.calls.next(more).await {
                self.settle(work, &results);
            }
        }
    }

    fn list_again(&self, keys: impl IntoIterator<Item = RecordKey>) {
        let mut lists = lock(&self.writer.lists);
        for key in keys {
            match key {
                RecordKey::Live(session) => lists.waiting.push_back(session),
                RecordKey::Ended(session) => lists.ended.push_back(session),
            }
        }
    }

    fn send_round(&mut self) {
        while self.calls.has_room() {
            let Some(session) = lock(&self.writer.lists).waiting.pop_front() else {
                break;
            };
            match self.plan(session) {
                Some((work, calls)) => self.calls.send(work, calls),
                None => {
                    self.failing.remove(&RecordKey::Live(session));
                }
            }
        }
        while self.calls.has_room() {
            let Some(ended) = self.writer.next_ended() else {
                break;
            };
            let call = self.writer.finish(ended);
            self.calls.send(RecordWork::End(ended), vec![call]);
        }
    }

    /// The calls for a listed session.
    fn plan(&self, session: SessionKey) -> Option<(RecordWork, Vec<ScriptCall>)> {
        let (source, is_changed, texts) = {
            let mut tracked = self.writer.tracked.get_mut(&session)?;
            if tracked.stage == WorkStage::UnderWay {
                return None;
            }
            tracked.stage = WorkStage::Idle;
            let is_changed = std::mem::take(&mut tracked.is_changed);
            let source = Arc::clone(&tracked.source);
            (source, is_changed, tracked.texts.clone())
        };
        let Some(record) = source.record() else {
            self.writer.leave(session);
            return None;
        };
        if let Some(mut tracked) = self.writer.tracked.get_mut(&session) {
            tracked.stage = WorkStage::UnderWay;
            tracked.tag = Some(record.tag);
        }
        let (records, by) = (&self.writer.records, source.ownership());
        if !is_changed {
            let calls = records.renew(session, by, &texts);
            return Some((RecordWork::Renew(session), calls));
        }
        let (calls, texts) = records.put(session, by, source.highest_stream(), &record);
        Some((RecordWork::Write(session, texts), calls))
    }

    fn settle(&mut self, work: RecordWork, results: &[ScriptResult]) {
        // A renewal says 0 for what is not there.
        let lowest = results
            .iter()
            .map(|result| result.as_ref().ok().and_then(integer));
        let lowest = lowest.min().flatten();
        let key = work.key();
        match (work, lowest) {
            (RecordWork::End(ended), Some(_)) => self.writer.told(ended.session),
            (RecordWork::End(_), None) => {}
            (RecordWork::Write(session, _) | RecordWork::Renew(session), Some(-1)) => {
                self.writer.leave(session);
                self.writer.fenced.add(session);
            }
            (RecordWork::Write(session, texts), Some(_)) => {
                self.writer.written(session, Some(texts));
            }
            (RecordWork::Renew(session), Some(1)) => self.writer.written(session, None),
            (RecordWork::Renew(session), Some(_)) => {
                self.writer.unsettled(session, true, false);
            }
            (RecordWork::Write(session, _), None) => self.writer.unsettled(session, true, true),
            (RecordWork::Renew(session), None) => self.writer.unsettled(session, false, true),
        }
        if lowest.is_none() {
            self.failing.insert(key);
            self.failed.add(key);
        } else if self.failing.remove(&key) {
            let others = self.failed.take_all();
            self.list_again(others);
        }
    }
}
