//! `RecordTask`: writes, renews and ends records in the shared store. What fails is tried again by itself, so that one
//! failing shard of the store does not hold up the records of the others.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::RecordSource;
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
    Write(SessionKey, Arc<dyn RecordSource>, Vec<TextDigest>),
    Renew(SessionKey, Arc<dyn RecordSource>),
    End(EndedSession),
}

impl RecordWork {
    fn key(&self) -> RecordKey {
        match self {
            Self::Write(session, ..) | Self::Renew(session, _) => RecordKey::Live(*session),
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
                self.look();
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

    /// Lists records that are due for renewal, and forgets failures of sessions that are not kept any more, and of ends that
    /// are not to be told any more: another session has the key, or too many waited.
    fn look(&mut self) {
        let writer = self.writer;
        writer.list_renewals();
        self.failing.retain(|key| match key {
            RecordKey::Live(session) => writer.tracked.contains_key(session),
            RecordKey::Ended(session) => writer.is_untold(session),
        });
        let failing = &self.failing;
        self.failed.retain(|key| failing.contains(key));
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
            let call = self.writer.records.finish(&ended);
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
            self.writer.leave_source(session, &source);
            return None;
        };
        {
            let mut tracked = self.writer.tracked.get_mut(&session)?;
            if !tracked.is_of(&source) {
                // The session that is tracked by now is listed itself.
                return None;
            }
            tracked.stage = WorkStage::UnderWay;
            tracked.tag = Some(record.tag);
        }
        let (records, by) = (&self.writer.records, source.ownership());
        if !is_changed {
            let calls = records.renew(session, by, &texts);
            return Some((RecordWork::Renew(session, source), calls));
        }
        let (calls, texts) = records.put(session, by, source.highest_stream(), &record);
        Some((RecordWork::Write(session, source, texts), calls))
    }

    /// Applies the results of a round of calls. Results for a session that was given up and adopted again meanwhile are
    /// ignored: they are about its former ownership.
    fn settle(&mut self, work: RecordWork, results: &[ScriptResult]) {
        // A renewal says 0 for what is not there.
        let lowest = results
            .iter()
            .map(|result| result.as_ref().ok().and_then(integer));
        let lowest = lowest.min().flatten();
        let key = work.key();
        match (work, lowest) {
            (RecordWork::End(ended), Some(_)) => self.writer.told(&ended),
            (RecordWork::End(_), None) => {}
            (
                RecordWork::Write(session, source, _) | RecordWork::Renew(session, source),
                Some(-1),
            ) => {
                if self.writer.leave_source(session, &source) {
                    self.writer.fenced.add(session, source.ownership());
                }
            }
            (RecordWork::Write(session, source, texts), Some(_)) => {
                self.writer.written((session, &source), Some(texts));
            }
            (RecordWork::Renew(session, source), Some(1)) => {
                self.writer.written((session, &source), None);
            }
            (RecordWork::Renew(session, source), Some(_)) => {
                self.writer.unsettled((session, &source), true, false);
            }
            (RecordWork::Write(session, source, _), None) => {
                self.writer.unsettled((session, &source), true, true);
            }
            (RecordWork::Renew(session, source), None) => {
                self.writer.unsettled((session, &source), false, true);
            }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::*;
    use crate::ownership::Ownership;
    use crate::redis_client::{RedisFailure, Value};
    use crate::runtime::lifecycle::TaskSpawner;
    use crate::seal::Sealer;
    use crate::store::fenced::FencedSessions;
    use crate::store::records::{SessionRecord, SharedRecords, tests};
    use crate::store::scripts::{ScriptRunner, StoreKeys};

    const SESSION: SessionKey = [9; 16];
    const FIRST: Ownership = Ownership { node: 1, epoch: 0 };
    /// After another replica has had the session.
    const AGAIN: Ownership = Ownership { node: 1, epoch: 2 };

    /// A store that answers a call about a record when the test says so, and one about a text at once.
    #[derive(Debug, Default)]
    struct Waiting(Mutex<Vec<(&'static str, oneshot::Sender<i64>)>>);

    impl Waiting {
        /// Lets the task run, and takes the calls that wait by then.
        async fn calls(&self) -> Vec<(&'static str, oneshot::Sender<i64>)> {
            sleep(Duration::from_millis(50)).await;
            self.calls_at_once().await
        }

        /// The same while the round of the first call lasts.
        async fn calls_at_once(&self) -> Vec<(&'static str, oneshot::Sender<i64>)> {
            sleep(Duration::from_millis(1)).await;
            std::mem::take(&mut *lock(&self.0))
        }
    }

    impl ScriptRunner for Waiting {
        fn run(&self, calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
            let mut answers = Vec::new();
            for call in calls {
                let (send, answer) = oneshot::channel();
                match call.script.name() {
                    "record_text" => send.send(1).unwrap(),
                    name => lock(&self.0).push((name, send)),
                }
                answers.push(answer);
            }
            Box::pin(async move {
                let mut results = Vec::new();
                for answer in answers {
                    results.push(Ok(Value::Int(answer.await.unwrap())));
                }
                results
            })
        }
    }

    #[derive(Debug)]
    struct Source(Ownership);

    impl RecordSource for Source {
        fn ownership(&self) -> Ownership {
            self.0
        }

        fn highest_stream(&self) -> u32 {
            1
        }

        fn record(&self) -> Option<SessionRecord> {
            Some(tests::record())
        }
    }

    fn writer() -> (Arc<Waiting>, Arc<RecordWriter>, Arc<FencedSessions>) {
        let store = Arc::new(Waiting::default());
        let records = SharedRecords::new(
            Arc::clone(&store) as _,
            StoreKeys::new("test"),
            Arc::new(Sealer::new(&[]).unwrap()),
            Duration::from_hours(1),
        );
        let fenced = Arc::new(FencedSessions::default());
        let tasks = TaskSpawner::new();
        let writer = RecordWriter::start(Arc::new(records), Arc::clone(&fenced), &tasks);
        (store, writer, fenced)
    }

    /// The one call that waits.
    fn only(calls: Vec<(&'static str, oneshot::Sender<i64>)>, name: &str) -> oneshot::Sender<i64> {
        let [(found, answer)] = <[_; 1]>::try_from(calls).unwrap();
        assert_eq!(found, name);
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn refused_write_of_a_session_does_not_end_the_one_that_was_adopted_again() {
        let (store, writer, fenced) = writer();
        writer.track(SESSION, Arc::new(Source(FIRST)));
        let former = only(store.calls().await, "record_put");
        writer.leave(SESSION);
        writer.track(SESSION, Arc::new(Source(AGAIN)));
        let next = only(store.calls().await, "record_put");
        former.send(-1).unwrap();
        assert!(store.calls().await.is_empty());
        assert_eq!(fenced.next().now_or_never(), None);
        next.send(1).unwrap();
        writer.change(SESSION);
        let refused = only(store.calls().await, "record_put");
        refused.send(-1).unwrap();
        let given_up = fenced.next().await;
        assert_eq!(given_up, (SESSION, AGAIN), "its own refusal counts");
    }

    #[tokio::test(start_paused = true)]
    async fn written_record_of_a_session_says_nothing_of_the_one_that_was_adopted_again() {
        let (store, writer, _fenced) = writer();
        writer.track(SESSION, Arc::new(Source(FIRST)));
        let former = only(store.calls().await, "record_put");
        writer.leave(SESSION);
        writer.track(SESSION, Arc::new(Source(AGAIN)));
        let next = only(store.calls().await, "record_put");
        former.send(1).unwrap();
        writer.change(SESSION);
        assert!(store.calls().await.is_empty(), "its own is under way");
        next.send(1).unwrap();
        only(store.calls().await, "record_put").send(1).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn answer_to_an_end_leaves_the_end_of_a_later_session_to_be_told() {
        let (store, writer, _fenced) = writer();
        writer.track(SESSION, Arc::new(Source(FIRST)));
        only(store.calls().await, "record_put").send(1).unwrap();
        writer.end(SESSION, FIRST, true);
        let former = only(store.calls_at_once().await, "record_finish");
        writer.track(SESSION, Arc::new(Source(AGAIN)));
        writer.end(SESSION, AGAIN, true);
        former.send(-1).unwrap();
        only(store.calls().await, "record_finish").send(1).unwrap();
        assert!(store.calls().await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_was_adopted_again_is_not_given_up_for_its_former_ownership() {
        let (store, writer, _fenced) = writer();
        writer.track(SESSION, Arc::new(Source(AGAIN)));
        only(store.calls().await, "record_put").send(1).unwrap();
        let given_up = writer.give_up(SESSION, FIRST).now_or_never();
        assert!(!given_up.unwrap().unwrap());
        assert!(store.calls().await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_end_that_is_not_told_any_more_is_forgotten() {
        let (_store, writer, _fenced) = writer();
        let mut task = RecordTask::new(&writer);
        writer.track(SESSION, Arc::new(Source(FIRST)));
        writer.end(SESSION, FIRST, true);
        let ended = writer.next_ended().unwrap();
        task.settle(RecordWork::End(ended), &[Err(RedisFailure::Silent)]);
        task.look();
        assert_eq!(task.failing.len(), 1, "it is tried again");
        writer.track(SESSION, Arc::new(Source(AGAIN)));
        task.look();
        assert!(task.failing.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_renewal_of_a_session_that_is_not_kept_is_forgotten() {
        let (_store, writer, _fenced) = writer();
        let mut task = RecordTask::new(&writer);
        let source: Arc<dyn RecordSource> = Arc::new(Source(FIRST));
        writer.track(SESSION, Arc::clone(&source));
        let renewal = RecordWork::Renew(SESSION, source);
        task.settle(renewal, &[Err(RedisFailure::Silent)]);
        task.look();
        assert_eq!(task.failing.len(), 1, "it is tried again");
        writer.leave(SESSION);
        task.look();
        assert!(task.failing.is_empty());
        assert!(task.failed.take_all().is_empty());
    }
}
