//! `SharedEvents`: the event log that all replicas can replay.
//!
//! The owner of a session numbers its events and reads them in its own log; a task appends them to the shared store
//! behind the calls, all that wait in one round trip. A reader shows events once the store has acknowledged them,
//! or without ids where it cannot be written to.

mod append_task;
mod entry;
mod given_up;
mod queue;
mod writer;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::bytes::Bytes;
use futures_util::future::BoxFuture;

use self::append_task::AppendTask;
use self::entry::LogEntry;
use self::queue::StreamCalls;
use self::writer::EventWriter;
pub use self::writer::SharedLogParts;
use super::memory::RestoredStream;
use super::{Durability, EventStore, LoggedEvent, ReplayResult, SessionKey, StreamKey};
use crate::ownership::Ownership;
use crate::protocol::{RequestId, json};
use crate::redis_client::RedisFailure;
use crate::runtime::lifecycle::TaskSpawner;
use crate::store::pause::SpreadWork;
use crate::store::scripts::{Script, ScriptCall, bytes, elements, run_one};

static REPLAY: Script = Script::new("events_replay", include_str!("shared/replay.lua"));

/// Bytes of the ids that each entry of a stream repeats at most: 50 calls of an array with UUIDs have 2 KB.
const LONGEST_CALLS: usize = 3 << 10;
/// Bytes of a request that the first entry of its stream has at most.
const LONGEST_REQUEST: usize = 16 * 1024;
/// Entries read at once.
const PAGE: usize = 256;

/// The log of a session as the shared store has it.
#[derive(Debug, Clone, Default)]
pub struct FetchedLog {
    /// Stream and events of each entry, oldest first.
    batches: Vec<(u32, Vec<LoggedEvent>)>,
    /// Number and bytes of each entry.
    kept: Vec<(u64, usize)>,
    calls: HashMap<u32, Bytes>,
    /// The request of a stream, and the number of the entry that has it.
    requests: HashMap<u32, (u64, Bytes)>,
}

impl FetchedLog {
    /// The events of a stream, oldest first.
    pub fn events(&self, stream: u32) -> impl Iterator<Item = &LoggedEvent> {
        let of_stream = self.batches.iter().filter(move |(of, _)| *of == stream);
        of_stream.flat_map(|(_, events)| events)
    }

    /// Ids of the calls of a stream; `None` where they are not known, or the stream has ended.
    #[must_use]
    pub fn calls(&self, stream: u32) -> Option<Vec<RequestId>> {
        self.calls.get(&stream).map(call_ids)
    }

    /// The request of a stream, where the replica that succeeds `owner` can make its call again.
    #[must_use]
    pub fn request(&self, stream: u32, owner: Ownership) -> Option<&Bytes> {
        let (number, request) = self.requests.get(&stream)?;
        is_logged_by(owner, *number).then_some(request)
    }
}

/// What was logged of a session by its former owner.
#[derive(Debug, Clone, Default)]
pub struct RestoredLog {
    /// The streams that are known.
    pub streams: Vec<RestoredStream>,
    /// Positions of new events are above this one, those of former owners below.
    pub floor: u64,
    /// JSON array of the ids of the calls of a stream, by its number; not known for each.
    pub calls: HashMap<u32, Bytes>,
    /// The request of the call of a stream, where the call may be made again.
    pub requests: HashMap<u32, Bytes>,
}

/// Events in this process and in a store that all replicas share.
#[derive(Debug)]
pub struct SharedEvents {
    writer: Arc<EventWriter>,
}

impl SharedEvents {
    /// A log whose events are written behind by a task of `tasks`.
    #[must_use]
    pub fn start(parts: SharedLogParts, tasks: &TaskSpawner) -> Arc<Self> {
        let writer = Arc::new(EventWriter::new(parts));
        let appending = Arc::clone(&writer);
        tasks.spawn_service(async move { AppendTask::new(&appending).run().await });
        Arc::new(Self { writer })
    }

    /// Reads the log of a session that `ownership` owns from now on, so that its streams can be resumed here: as
    /// [`fetch`](Self::fetch) and [`take_over`](Self::take_over) do.
    ///
    /// # Errors
    /// The store cannot be read; the log is to be loaded again.
    ///
    /// # Cancel safety
    /// Nothing is changed before all is read.
    pub async fn load(
        &self,
        session: SessionKey,
        ownership: Ownership,
    ) -> Result<Vec<RestoredStream>, RedisFailure> {
        let log = self.fetch(session).await?;
        Ok(self.take_over(session, ownership, log).streams)
    }

    /// Writes the log of a session from now on, as `ownership`, and keeps what another process has written of it: its
    /// streams can be resumed here. New events get positions of the ownership's epoch.
    #[must_use]
    pub fn take_over(
        &self,
        session: SessionKey,
        ownership: Ownership,
        log: FetchedLog,
    ) -> RestoredLog {
        self.writer.adopt(session, ownership, &log.kept);
        let floor = ownership.first_number();
        RestoredLog {
            streams: self.writer.local.restore(session, floor, &log.batches),
            floor,
            calls: log.calls,
            requests: requests_of_former(log.requests, ownership),
        }
    }

    /// Reads the log of a session as it stands in the shared store.
    ///
    /// # Errors
    /// The store cannot be read.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn fetch(&self, session: SessionKey) -> Result<FetchedLog, RedisFailure> {
        let writer = &self.writer;
        let mut log = FetchedLog::default();
        let mut newest = 0;
        loop {
            let page = self.page(session, newest).await?;
            let is_last = page.len() < PAGE;
            for (number, sealed) in page {
                newest = number;
                log.kept.push((number, sealed.len()));
                // Unread entries, of a key that left the ring, count as evicted.
                if let Some(entry) = LogEntry::open(&writer.sealer, session, number, &sealed) {
                    if let Some(request) = request_in(&entry.calls) {
                        log.requests.insert(entry.stream, (number, request));
                    }
                    if !entry.calls.is_empty() {
                        log.calls.insert(entry.stream, entry.calls);
                    }
                    log.batches.push((entry.stream, entry.events));
                }
            }
            if is_last {
                return Ok(log);
            }
        }
    }

    /// Entries after the number `after`, oldest first, with their numbers.
    async fn page(
        &self,
        session: SessionKey,
        after: u64,
    ) -> Result<Vec<(u64, Vec<u8>)>, RedisFailure> {
        let call = ScriptCall {
            script: &REPLAY,
            keys: vec![self.writer.keys.events(session)],
            args: vec![after.to_string().into(), PAGE.to_string().into()],
        };
        let reply = run_one(&*self.writer.store, call).await?;
        let (entries, _) = elements(&reply).as_chunks::<2>();
        let entry = |[number, sealed]: &[_; 2]| {
            let number = std::str::from_utf8(bytes(number)?).ok()?.parse().ok()?;
            Some((number, bytes(sealed)?.to_vec()))
        };
        Ok(entries.iter().filter_map(entry).collect())
    }

    /// Waits until the shared log has all events that a session of this replica has had so far; `false` where it cannot be
    /// written to.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn flush(&self, session: SessionKey) -> bool {
        poll_fn(|cx| self.writer.poll_written(session, cx)).await
    }

    /// Enqueues all events that this process keeps once more, after the store has lost its data: the sessions one
    /// after the other, spread over `time`.
    ///
    /// # Cancel safety
    /// Sessions not reached yet are written with their next event.
    pub async fn write_again(&self, time: Duration) {
        let sessions = self.writer.sessions();
        let mut spread = SpreadWork::new(sessions.len(), time);
        for session in sessions {
            self.writer.enqueue_all(session);
            spread.pause().await;
        }
    }
}

/// JSON array of the ids that have room in [`LONGEST_CALLS`]; `None` for none. A longer id is most likely no id: its stream
/// ends without an error for it.
fn array_of(ids: &[RequestId]) -> Option<Bytes> {
    let mut calls = String::from("[");
    for id in ids {
        let id = id.to_string();
        let comma = if calls.len() > 1 { "," } else { "" };
        if calls.len() + comma.len() + id.len() < LONGEST_CALLS {
            calls.push_str(comma);
            calls.push_str(&id);
        }
    }
    calls.push(']');
    (calls.len() > 2).then(|| calls.into())
}

/// What the first entry of a stream says of its call that may be made again: its id and its request. Releases that know of
/// ids alone skip the request.
fn with_request(id: &RequestId, request: &Bytes) -> Bytes {
    let mut calls = format!("[{id},").into_bytes();
    calls.extend_from_slice(request);
    calls.push(b']');
    calls.into()
}

/// The request in what an entry says of the calls of its stream.
fn request_in(calls: &Bytes) -> Option<Bytes> {
    let text = std::str::from_utf8(calls).ok()?;
    let elements = json::elements(text).ok()?;
    let request = elements
        .into_iter()
        .find(|element| element.starts_with('{'))?;
    // A copy, which does not hold the whole entry.
    Some(Bytes::copy_from_slice(request.as_bytes()))
}

/// The ids in what an entry says of the calls of its stream.
fn call_ids(calls: &Bytes) -> Vec<RequestId> {
    let text = std::str::from_utf8(calls).unwrap_or_default();
    let elements = json::elements(text).unwrap_or_default();
    elements.into_iter().filter_map(RequestId::parse).collect()
}

/// Whether `owner`, and no owner before, has logged the entry with this number.
fn is_logged_by(owner: Ownership, number: u64) -> bool {
    number > owner.first_number()
}

/// The requests that the owner right before `by` has logged. A call that was repeated once already is left out: the call
/// itself may be the reason that its replicas end.
fn requests_of_former(requests: HashMap<u32, (u64, Bytes)>, by: Ownership) -> HashMap<u32, Bytes> {
    let former = Ownership {
        epoch: by.epoch.saturating_sub(1),
        ..by
    };
    let logged = requests.into_iter();
    logged
        .filter(|(_, (number, _))| is_logged_by(former, *number))
        .map(|(stream, (_, request))| (stream, request))
        .collect()
}

impl EventStore for SharedEvents {
    fn append(&self, at: StreamKey, events: &mut [LoggedEvent]) {
        self.writer.local.append(at, events);
        if let (Some(first), Some(newest)) = (events.first(), events.last()) {
            self.writer.enqueue(at, first.seq, newest.seq);
        }
    }

    fn note_calls(&self, at: StreamKey, ids: &[RequestId], request: Option<&Bytes>) {
        let Some(calls) = array_of(ids) else {
            return;
        };
        let request = request.filter(|request| request.len() <= LONGEST_REQUEST);
        let first = match ids {
            [id] => request.map(|request| with_request(id, request)),
            _ => None,
        };
        self.writer.note_calls(at, StreamCalls::new(calls, first));
    }

    fn poll_durable(&self, at: StreamKey, seq: u64, cx: &mut Context<'_>) -> Poll<Durability> {
        self.writer.poll_durable(at, seq, cx)
    }

    fn recall(&self, at: StreamKey, _seq: u64) -> Option<BoxFuture<'_, u64>> {
        if self.writer.owns(at.session) {
            return None;
        }
        Some(Box::pin(async move {
            // A log that cannot be read has nothing to resume.
            let streams = self.load(at.session, self.writer.own).await;
            let streams = streams.unwrap_or_default();
            let found = streams.iter().find(|restored| restored.stream == at.stream);
            found.map_or(0, |restored| restored.newest)
        }))
    }

    /// In this process alone: in the shared log an older notice of the same kind is left, if it is there already.
    fn replace(&self, at: StreamKey, seq: u64, payload: Bytes) -> bool {
        self.writer.local.replace(at, seq, payload)
    }

    fn after(&self, at: StreamKey, seq: u64, limit: usize) -> ReplayResult {
        self.writer.local.after(at, seq, limit)
    }

    fn forget(&self, session: SessionKey) {
        self.writer.local.forget(session);
        self.writer.forget(session);
    }

    fn sweep(&self) {
        self.writer.local.sweep();
        self.writer.sweep();
    }

    fn size(&self) -> (usize, usize) {
        self.writer.local.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_was_logged_before_the_former_owner_is_not_made_again() {
        let owner = |epoch| Ownership { node: 1, epoch };
        let of = |epoch| (owner(epoch).first_number() + 1, Bytes::from_static(b"{}"));
        let requests = HashMap::from([(3, of(1)), (4, of(2))]);
        let made_again = requests_of_former(requests, owner(3));
        assert_eq!(made_again.into_keys().collect::<Vec<_>>(), [4]);
        let first = requests_of_former(HashMap::from([(3, of(0))]), owner(1));
        assert_eq!(first.len(), 1);
    }

    #[test]
    fn fetched_log_says_which_calls_a_stream_has_and_which_is_made_again() {
        let owner = |epoch| Ownership { node: 1, epoch };
        let log = FetchedLog {
            calls: HashMap::from([
                (3, Bytes::from_static(br#"[5,{"id":5}]"#)),
                (4, "[1,\"a\"]".into()),
            ]),
            requests: HashMap::from([(3, (owner(1).first_number() + 1, "{}".into()))]),
            ..FetchedLog::default()
        };
        assert_eq!(log.calls(3).unwrap(), [RequestId::from(5)]);
        let both = [RequestId::from(1), RequestId::parse("\"a\"").unwrap()];
        assert_eq!(log.calls(4).unwrap(), both);
        assert_eq!(log.calls(5), None);
        assert!(log.request(3, owner(1)).is_some());
        assert_eq!(log.request(3, owner(2)), None, "made again already");
        assert_eq!(log.request(4, owner(1)), None);
    }

    #[test]
    fn ids_of_an_array_are_named_as_far_as_there_is_room() {
        let [short, text] = ["1", "\"a\""].map(|id| RequestId::parse(id).unwrap());
        let long = RequestId::parse(&format!("\"{}\"", "x".repeat(LONGEST_CALLS - 4)));
        let long = long.unwrap();
        assert_eq!(array_of(&[short.clone(), text]).unwrap(), r#"[1,"a"]"#);
        assert_eq!(
            array_of(std::slice::from_ref(&long)).unwrap().len(),
            LONGEST_CALLS
        );
        assert_eq!(array_of(&[short, long]).unwrap(), "[1]");
        assert_eq!(array_of(&[]), None);
    }

    #[test]
    fn request_of_a_call_is_read_beside_its_id() {
        let request = Bytes::from_static(br#"{"id":5,"method":"tools/call"}"#);
        let calls = with_request(&RequestId::from(5), &request);
        assert_eq!(request_in(&calls), Some(request));
        assert_eq!(request_in(&Bytes::from_static(b"[5]")), None);
    }
}
