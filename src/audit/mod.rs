//! Audit log: one record per call that policy decided, allowed or refused, and one per event of an account at an
//! upstream.
//!
//! Records are enqueued in a bounded queue and written elsewhere, as one line each on the tracing
//! target `audit`; the request path never waits. Dropped records are counted (SPEC O-04).

mod account;
mod line;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

pub use self::account::{AccountEvent, AccountRecord};
use crate::call::{Call, Principal};
use crate::clock::SharedClock;
use crate::lock::lock;
use crate::protocol::methods;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::COUNTERS;
use crate::telemetry::request_tag::{self, RequestTag};
use crate::telemetry::trace::TraceId;

/// Records that wait at once; more are dropped and counted.
const CAPACITY: usize = 16 * 1024;
/// Records that the queue has room for before it grows, at most: 170 bytes each.
const KEPT_CAPACITY: usize = 1024;
/// How long records gather before they are written together.
const GATHER: Duration = Duration::from_millis(50);

/// Bytes that are kept of a text that a caller chose.
const MAX_TEXT: usize = 256;

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditOutcome {
    /// The upstream answered with a result.
    Ok,
    /// The upstream answered with a JSON-RPC error.
    Error,
    /// No answer arrived, or the caller stopped waiting.
    Failed,
    /// A rule refused the call, which never reached the upstream.
    Denied,
}

/// The audit record of one call. Holds no payload and no secret.
#[derive(Debug)]
pub struct AuditRecord {
    principal: Arc<Principal>,
    endpoint: Arc<str>,
    upstream: Arc<str>,
    method: Cow<'static, str>,
    name: Option<Box<str>>,
    outcome: AuditOutcome,
    rule: Option<Box<str>>,
    reason: Option<Box<str>>,
    tag: Option<RequestTag>,
    trace: Option<TraceId>,
}

impl AuditRecord {
    /// The record of `call` to `upstream`. `name` is the tool, prompt or URI as the upstream spells it, cut
    /// to 256 bytes; `rule` is the rule that refused the call. Without a rule the call counts as failed until
    /// [`PendingRecord::end`].
    #[must_use]
    pub fn new(call: &Call, upstream: &Arc<str>, name: Option<&str>, rule: Option<&str>) -> Self {
        let method = call.message.method().unwrap_or_default();
        Self {
            principal: Arc::clone(&call.principal),
            endpoint: Arc::clone(&call.endpoint.name),
            upstream: Arc::clone(upstream),
            method: methods::lookup(method).map_or_else(
                || Cow::Owned(cut(method).to_owned()),
                |known| Cow::Borrowed(known.name),
            ),
            name: name.map(|name| cut(name).into()),
            outcome: match rule {
                Some(_) => AuditOutcome::Denied,
                None => AuditOutcome::Failed,
            },
            rule: rule.map(Into::into),
            reason: None,
            tag: request_tag::current(),
            trace: call.trace.trace_id(),
        }
    }
}

/// The first [`MAX_TEXT`] bytes, or a few less: whole characters only.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT))
        .unwrap_or(text)
}

/// The record of a running call.
#[derive(Debug)]
pub struct PendingRecord<'a> {
    sink: &'a AuditSink,
    call: &'a Call,
    record: Option<AuditRecord>,
}

impl PendingRecord<'_> {
    /// Says how the call ended. What failed is recorded with the reason why it was cancelled, when
    /// one was given (SPEC C-12): 256 bytes of it.
    pub fn end(mut self, outcome: AuditOutcome) {
        if let Some(record) = &mut self.record {
            record.outcome = outcome;
        }
    }
}

impl Drop for PendingRecord<'_> {
    fn drop(&mut self) {
        if let Some(mut record) = self.record.take() {
            if record.outcome == AuditOutcome::Failed {
                record.reason = self.call.link.cancel_reason().map(|why| cut(why).into());
            }
            self.sink.record(record);
        }
    }
}

/// A record in the queue. Those of accounts are rare, and take no more room than those of calls.
#[derive(Debug)]
enum QueuedRecord {
    Call(AuditRecord),
    Account(Box<AccountRecord>),
}

/// Takes records from any thread. Clones share one queue.
#[derive(Debug, Clone)]
pub struct AuditSink(Arc<AuditQueue>);

#[derive(Debug)]
struct AuditQueue {
    /// Each with the time it was recorded at, since the Unix epoch.
    waiting: Mutex<VecDeque<(Duration, QueuedRecord)>>,
    some: Notify,
    clock: SharedClock,
}

impl AuditSink {
    /// Starts the writer. Needs a Tokio runtime.
    #[must_use]
    pub fn start(clock: SharedClock, tasks: &TaskSpawner) -> Self {
        let sink = Self::idle(clock);
        let writer = sink.clone();
        tasks.spawn_service(async move {
            loop {
                writer.0.some.notified().await;
                sleep(GATHER).await;
                writer.flush();
            }
        });
        sink
    }

    /// A sink whose records are written by [`flush`](Self::flush) alone.
    #[must_use]
    pub fn idle(clock: SharedClock) -> Self {
        Self(Arc::new(AuditQueue {
            waiting: Mutex::default(),
            some: Notify::new(),
            clock,
        }))
    }

    /// Holds the record of `call`, which is about to run, and takes it when the call has ended,
    /// however that comes about.
    #[must_use = "the record is taken when this is dropped"]
    pub fn begin<'a>(&'a self, call: &'a Call, record: AuditRecord) -> PendingRecord<'a> {
        PendingRecord {
            sink: self,
            call,
            record: Some(record),
        }
    }

    /// Takes the record of one call, without waiting; drops and counts it when the queue is full.
    pub fn record(&self, record: AuditRecord) {
        self.enqueue(QueuedRecord::Call(record));
    }

    /// Takes the record of an event of an account, as [`record`](Self::record) does.
    pub fn account(&self, record: AccountRecord) {
        self.enqueue(QueuedRecord::Account(Box::new(record)));
    }

    fn enqueue(&self, record: QueuedRecord) {
        let now = self.0.clock.now();
        let is_first = {
            let mut waiting = self.lock();
            if waiting.len() >= CAPACITY {
                drop(waiting);
                COUNTERS.audit_dropped.add(1);
                return;
            }
            waiting.push_back((now, record));
            waiting.len() == 1
        };
        if is_first {
            self.0.some.notify_one();
        }
    }

    /// Writes all that waits. For the end: the writer does it by itself until it is stopped.
    pub fn flush(&self) {
        let waiting = {
            let mut waiting = self.lock();
            // About as many come until the next time.
            let next = VecDeque::with_capacity(waiting.len().min(KEPT_CAPACITY));
            std::mem::replace(&mut *waiting, next)
        };
        for (at, record) in &waiting {
            line::write(*at, record);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Duration, QueuedRecord)>> {
        lock(&self.0.waiting)
    }
}

#[cfg(test)]
mod tests;
