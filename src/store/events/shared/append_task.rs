//! `AppendTask`: appends what waits to the shared log. A session whose append fails is tried again by itself, so that
//! one failing shard of the store does not hold up the sessions of the others.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::super::{SessionKey, StreamKey};
use super::entry::LogEntry;
use super::queue::{SessionQueue, WaitingEntry};
use super::writer::{EventWriter, wake};
use crate::lock::lock;
use crate::store::calls::{CallsUnderWay, WorkStage};
use crate::store::retries::FailedWork;
use crate::store::scripts::{Script, ScriptCall, ScriptResult, elements, integer};
use crate::telemetry::metrics::COUNTERS;

static APPEND: Script = Script::new("events_append", include_str!("append.lua"));
static FORGET: Script = Script::new("events_forget", include_str!("forget.lua"));

/// Bytes of one round, beyond which no further session is added.
const BYTES: usize = 1 << 20;

/// Failing sessions beyond which those that have ended are looked for.
const MANY_FAILING: usize = 1024;

/// The task that writes for an [`EventWriter`].
pub(super) struct AppendTask<'a> {
    writer: &'a EventWriter,
    calls: CallsUnderWay<'a, AppendWork>,
    failed: FailedWork<SessionKey>,
    /// Sessions whose last append failed, those that are tried again now included.
    failing: HashSet<SessionKey>,
}

/// What a call is about.
enum AppendWork {
    Append(Append),
    /// Removes the log of an ended session. Where that fails it expires.
    Forget,
}

/// The entries that one call appends.
struct Append {
    session: SessionKey,
    queue: Arc<Mutex<SessionQueue>>,
    /// The newest waiting entry that the call settles.
    settles: u64,
    /// Number and bytes of each entry.
    entries: Vec<(u64, usize)>,
    /// How many events the entries have.
    events: u64,
}

/// Outcome of an [`Append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Appended {
    /// The log has the entries, and had this many before.
    Written {
        before: usize,
    },
    /// Another replica owns the session.
    Fenced,
    Failed,
}

impl<'a> AppendTask<'a> {
    pub(super) fn new(writer: &'a EventWriter) -> Self {
        Self {
            writer,
            calls: CallsUnderWay::new(&*writer.store),
            failed: FailedWork::new(),
            failing: HashSet::new(),
        }
    }

    /// Appends what waits, for ever. Dropped, it leaves what waits unlogged.
    pub(super) async fn run(mut self) {
        loop {
            if self.calls.begin_round() {
                let due = self.failed.take_due();
                lock(&self.writer.lists).waiting.extend(due);
                self.send_round();
            }
            let more = async {
                tokio::select! {
                    () = self.writer.work.notified() => {}
                    () = self.failed.due() => {}
                }
            };
            if let Some((AppendWork::Append(append), results)) = self.calls.next(more).await {
                let outcome = results.first().map_or(Appended::Failed, outcome);
                self.settle(&append, outcome);
            }
        }
    }

    fn send_round(&mut self) {
        let mut bytes = 0;
        while self.calls.has_room() && bytes < BYTES {
            let Some(session) = lock(&self.writer.lists).waiting.pop_front() else {
                break;
            };
            match self.append_call(session) {
                Some((call, append)) => {
                    bytes += append.entries.iter().map(|(_, bytes)| bytes).sum::<usize>();
                    self.calls.send(AppendWork::Append(append), vec![call]);
                }
                None => {
                    self.no_longer_fails(session);
                }
            }
        }
        while self.calls.has_room() {
            let Some((session, by)) = lock(&self.writer.lists).forgotten.pop_front() else {
                break;
            };
            let call = ScriptCall {
                script: &FORGET,
                keys: self.keys(session),
                args: vec![by.to_bytes().to_vec()],
            };
            self.calls.send(AppendWork::Forget, vec![call]);
        }
    }

    fn keys(&self, session: SessionKey) -> Vec<String> {
        let keys = &self.writer.keys;
        vec![keys.events(session), keys.record(session)]
    }

    /// The call that appends the oldest waiting entries of a session.
    fn append_call(&self, session: SessionKey) -> Option<(ScriptCall, Append)> {
        let writer = self.writer;
        let shared = writer.queue(session)?;
        let mut queue = lock(&shared);
        if queue.stage == WorkStage::UnderWay {
            return None;
        }
        queue.stage = WorkStage::Idle;
        let waiting = queue.next();
        let ends = waiting.first().zip(waiting.last());
        let Some((first, settles)) = ends.map(|(first, last)| (first.number, last.number)) else {
            queue.is_failing = false;
            return None;
        };
        let sealed = self.sealed(session, &waiting, &mut queue);
        let (entries, events, mut contents) = sealed;
        if entries.is_empty() {
            queue.acknowledge(settles, &[], Instant::now());
            writer.list(session, &mut queue);
            // No call will tell them.
            let wakers = queue.take_wakers();
            drop(queue);
            wake(wakers);
            return None;
        }
        let bytes = entries.iter().map(|(_, bytes)| bytes).sum();
        let oldest = queue.evict(bytes, writer.bounds, Instant::now());
        let mut args = vec![
            queue.ownership.to_bytes().to_vec(),
            queue.highest_stream.to_string().into(),
            oldest.unwrap_or(first).to_string().into(),
            writer.bounds.max_age.as_millis().to_string().into(),
            queue.ownership.end_of_numbers().to_string().into(),
        ];
        args.append(&mut contents);
        queue.stage = WorkStage::UnderWay;
        drop(queue);
        let call = ScriptCall {
            script: &APPEND,
            keys: self.keys(session),
            args,
        };
        let append = Append {
            session,
            queue: shared,
            settles,
            entries,
            events,
        };
        Some((call, append))
    }

    /// Number and bytes of each entry that the local log still has, how many events they have, and what is sent of them:
    /// number and content.
    fn sealed(
        &self,
        session: SessionKey,
        waiting: &[WaitingEntry],
        queue: &mut SessionQueue,
    ) -> (Vec<(u64, usize)>, u64, Vec<Vec<u8>>) {
        let mut count = 0;
        let mut entries = Vec::with_capacity(waiting.len());
        let mut contents = Vec::with_capacity(2 * waiting.len());
        for wait in waiting {
            let at = StreamKey {
                session,
                stream: wait.stream,
            };
            let events = self.writer.local.between(at, wait.first, wait.newest);
            let all = wait.newest + 1 - wait.first;
            // Evicted meanwhile.
            let found = events.len() as u64;
            if found < all {
                COUNTERS.events_unlogged.add(all - found);
                let before = events.first().map_or(wait.newest + 1, |event| event.seq);
                queue.given_up.add(wait.stream, before - 1);
            }
            let ends_stream = events.last().is_some_and(|event| event.last);
            let entry = LogEntry {
                stream: wait.stream,
                events,
                calls: queue.calls_of((wait.stream, wait.first), ends_stream),
            };
            if let Some(sealed) = entry.seal(&self.writer.sealer, session, wait.number) {
                count += found;
                entries.push((wait.number, sealed.len()));
                contents.push(wait.number.to_string().into());
                contents.push(sealed);
            }
        }
        (entries, count, contents)
    }

    fn settle(&mut self, append: &Append, outcome: Appended) {
        let session = append.session;
        let mut queue = lock(&append.queue);
        queue.stage = WorkStage::Idle;
        match outcome {
            Appended::Written { before } => {
                let bytes: usize = append.entries.iter().map(|(_, bytes)| bytes).sum();
                COUNTERS.events_logged.add(append.events);
                COUNTERS.events_logged_bytes.add(bytes as u64);
                let lost = queue.has_lost(before);
                queue.acknowledge(append.settles, &append.entries, Instant::now());
                if lost {
                    self.writer.start_over(session, &mut queue);
                }
            }
            Appended::Fenced => {
                queue.is_fenced = true;
                queue.is_failing = false;
                drop(queue.start_over());
            }
            Appended::Failed => queue.is_failing = true,
        }
        self.writer.list(session, &mut queue);
        let wakers = queue.take_wakers();
        drop(queue);
        wake(wakers);
        match outcome {
            Appended::Written { .. } => self.works_again(session),
            Appended::Fenced => {
                self.writer.fence(session, &append.queue);
                self.works_again(session);
            }
            Appended::Failed => self.fails(session),
        }
    }

    fn fails(&mut self, session: SessionKey) {
        if self.failing.is_empty() {
            tracing::warn!("shared event log cannot be written: events go out without ids");
        }
        self.failing.insert(session);
        self.failed.add(session);
        let count = self.failing.len();
        if count > MANY_FAILING && count > 2 * self.writer.session_count() {
            self.forget_ended();
        }
        if !self.writer.store.is_reachable() {
            // No reader is to wait for a call that ends without an answer.
            self.writer.wake_all();
        }
    }

    /// Forgets failures of sessions that have ended: many come and go while the store is away.
    fn forget_ended(&mut self) {
        let writer = self.writer;
        self.failing.retain(|session| writer.owns(*session));
        let failing = &self.failing;
        self.failed.retain(|session| failing.contains(session));
    }

    /// The store took what it was told of the session: others that failed are tried now.
    fn works_again(&mut self, session: SessionKey) {
        if self.no_longer_fails(session) {
            let others = self.failed.take_all();
            lock(&self.writer.lists).waiting.extend(others);
        }
    }

    /// Whether the session was failing.
    fn no_longer_fails(&mut self, session: SessionKey) -> bool {
        let was_failing = self.failing.remove(&session);
        if was_failing && self.failing.is_empty() {
            tracing::info!("shared event log is written again");
        }
        was_failing
    }
}

/// What a reply of `append.lua` says.
fn outcome(result: &ScriptResult) -> Appended {
    let Ok(reply) = result else {
        return Appended::Failed;
    };
    let mut numbers = elements(reply).iter().map(integer);
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(-1), _) => Appended::Fenced,
        (Some(_), Some(before)) => Appended::Written {
            before: usize::try_from(before).unwrap_or(0),
        },
        _ => Appended::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use futures_util::future::BoxFuture;

    use super::super::writer::SharedLogParts;
    use super::*;
    use crate::ownership::{Fence, Ownership};
    use crate::seal::Sealer;
    use crate::store::events::{Durability, EventStore as _, LogBounds, LoggedEvent};
    use crate::store::scripts::{ScriptRunner, StoreKeys};

    const AT: StreamKey = StreamKey {
        session: [9; 16],
        stream: 1,
    };

    #[derive(Debug)]
    struct Silent;

    impl ScriptRunner for Silent {
        fn run(&self, _calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
            Box::pin(pending())
        }
    }

    #[derive(Debug, Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A writer whose log in this process keeps so many bytes.
    fn writer(total: usize) -> EventWriter {
        EventWriter::new(SharedLogParts {
            bounds: LogBounds {
                total,
                ..LogBounds::ROOMY
            },
            store: Arc::new(Silent),
            keys: StoreKeys::new("test"),
            sealer: Arc::new(Sealer::new(&[]).unwrap()),
            own: Ownership::ALONE,
            fenced: Arc::default(),
            fence: Fence::default(),
        })
    }

    #[tokio::test]
    async fn reader_of_events_that_are_evicted_before_they_are_sent_goes_on() {
        let writer = writer(1);
        let mut events = [LoggedEvent::of("reply".into())];
        writer.local.append(AT, &mut events);
        writer.enqueue(AT, 1, 1);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        assert!(writer.poll_durable(AT, 1, &mut cx).is_pending());
        let call = AppendTask::new(&writer).append_call(AT.session);
        assert!(call.is_none(), "nothing is left to send");
        assert!(woken.0.load(Ordering::Relaxed));
        let durability = writer.poll_durable(AT, 1, &mut cx);
        assert_eq!(durability, Poll::Ready(Durability::Unlogged));
    }

    #[test]
    fn events_given_up_for_newer_ones_are_not_told_durable() {
        let writer = writer(1 << 20);
        let other = StreamKey { stream: 2, ..AT };
        // Entries that do not become one: two more than may wait.
        for seq in 1..=513 {
            writer.enqueue(AT, seq, seq);
            writer.enqueue(other, seq, seq);
        }
        let mut cx = Context::from_waker(Waker::noop());
        for at in [AT, other] {
            let durability = writer.poll_durable(at, 1, &mut cx);
            assert_eq!(durability, Poll::Ready(Durability::Unlogged));
            assert!(writer.poll_durable(at, 2, &mut cx).is_pending());
        }
    }

    #[test]
    fn events_evicted_before_the_log_is_written_again_are_not_told_durable() {
        let writer = writer(1);
        writer.enqueue(AT, 1, 1);
        writer.enqueue_all(AT.session);
        let mut cx = Context::from_waker(Waker::noop());
        let durability = writer.poll_durable(AT, 1, &mut cx);
        assert_eq!(durability, Poll::Ready(Durability::Unlogged));
    }

    #[test]
    fn first_events_of_an_entry_that_are_evicted_then_are_not_told_durable() {
        let writer = writer(1500);
        for seq in 1..=2 {
            // There is room for one of them.
            let mut events = [LoggedEvent::of("x".repeat(1000).into())];
            writer.local.append(AT, &mut events);
            writer.enqueue(AT, seq, seq);
        }
        writer.enqueue_all(AT.session);
        let mut cx = Context::from_waker(Waker::noop());
        let durability = writer.poll_durable(AT, 1, &mut cx);
        assert_eq!(durability, Poll::Ready(Durability::Unlogged));
        assert!(writer.poll_durable(AT, 2, &mut cx).is_pending());
    }

    #[tokio::test]
    async fn failures_of_sessions_that_have_ended_are_forgotten() {
        let writer = writer(1 << 20);
        writer.enqueue(AT, 1, 1);
        let mut task = AppendTask::new(&writer);
        task.fails(AT.session);
        for ended in 0..1024_u128 {
            task.fails(ended.to_be_bytes());
        }
        assert_eq!(task.failing.len(), 1);
        assert_eq!(task.failed.take_all(), [AT.session]);
    }
}
