//! Sessions taken over from a replica that is lost. Spec: DESIGN §8.1; `docs/adr/0027`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::time::Instant;

use super::SessionRegistry;
use super::made::{NewSession, SessionIdentity};
use crate::call::{ClientCapabilities, Principal};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::fault::told::error_object;
use crate::ownership::Ownership;
use crate::protocol::{Message, RequestId, json, rpc};
use crate::session::record::SessionRecorder;
use crate::session::{
    DeliveryMode, EventStream, ImplicitHome, ImplicitSession, ImplicitSessionKey, LostCall,
    Session, SessionId, lock,
};
use crate::store::events::{ReplayResult, RestoredLog, StreamKey};
use crate::store::records::SessionRecord;

/// A session that this replica owns from now on.
#[derive(Debug)]
pub struct AdoptedSession {
    /// The id that the client sends.
    pub id: String,
    /// The contents of the id.
    pub handle: SessionId,
    /// The ownership of this replica.
    pub by: Ownership,
    /// The client that uses it.
    pub principal: Arc<Principal>,
    /// The endpoint that it belongs to.
    pub endpoint: Arc<Endpoint>,
    /// The record of the former owner.
    pub record: SessionRecord,
    /// The highest stream with an event that was shown to the client.
    pub highest_stream: u32,
    /// Its event log, which this replica writes by now.
    pub log: RestoredLog,
    /// The key of an implicit session; `handle` has the key of its record.
    pub implicit: Option<ImplicitSessionKey>,
}

impl AdoptedSession {
    /// Puts the session into the registry of this replica. Calls that ran get an error on their streams, which says that
    /// their outcome is unknown, but for those that are [made again](Session::take_lost_call). Tasks that the former owner
    /// ran have failed with that error. Caps make room as for a new session, but refuse nothing: in all replicas together
    /// the session is not new. An implicit session that lives here by now stays.
    pub fn rebuild(self, registry: &SessionRegistry) -> Arc<Session> {
        let Self {
            by,
            handle,
            mut record,
            log,
            implicit,
            ..
        } = self;
        let home = implicit.as_ref().map(|_| ImplicitHome {
            record: handle.key,
            by,
        });
        if home.is_some() {
            // Its subscriptions ended with the connections of its client, and its tasks have failed, as their handles say.
            record.subscriptions.clear();
            record.tasks.clear();
        }
        let owner = registry.owners.enter(self.principal.owner());
        let new = NewSession {
            principal: self.principal,
            endpoint: self.endpoint,
            revision: record.revision,
            capabilities: ClientCapabilities::from(&record.capabilities),
            client_info: record.client_info,
            delivery: DeliveryMode::Streams,
        };
        let highest = log.streams.iter().map(|one| one.stream).max();
        let highest = highest.unwrap_or(0).max(self.highest_stream);
        let age = registry.clock.now().saturating_sub(record.opened);
        let recorder = registry.records.get().map(|writer| {
            let recorder = SessionRecorder::new(writer, &registry.leaving, (by, record.opened));
            let recorder = recorder.adopted(handle.owner, record.upstreams);
            Box::new(recorder.at_home(home.map(|home| home.record)))
        });
        let identity = SessionIdentity {
            // The handle of a task names its implicit session by this key, which no other session may have.
            key: home.map_or(handle.key, |_| rand::random()),
            id: self.id,
            tag: record.tag,
            by,
            recorder,
            implicit_session: implicit.map(|key| ImplicitSession::new(key, home)),
            is_opening: false,
            next_stream: highest + 1,
            started: Instant::now().checked_sub(age).unwrap_or_else(Instant::now),
        };
        let session = identity.make(new, &owner, registry);
        session.touch();
        session
            .initialized
            .store(record.is_initialized, Ordering::Release);
        session.subscriptions.take_over(&record.subscriptions);
        if let Some(level) = record.level {
            session.levels.want(level);
        }
        for lost in session.tasks.take_over(&record.tasks, &registry.clock) {
            registry
                .tasks
                .spawn_service(lost.expire(Arc::clone(&session)));
        }
        restore_streams(&session, &log);
        let spare = {
            let mut sessions = lock(&owner.sessions);
            // The former owner's part may still be counted, so only this replica's sessions are held against the quota.
            let most = registry.settings.max_per_principal;
            let spare = registry.make_room(&sessions, most).ok().flatten();
            registry.enter(&mut sessions, &session, None);
            spare
        };
        registry.entered(&session, spare);
        let present = registry.implicit_sessions.enter(&session);
        if !Arc::ptr_eq(&present, &session) {
            registry.close(&session);
        }
        present
    }
}

/// Puts the streams of the log in place. An unfinished stream belongs to calls that were running: it ends here, unless its
/// call is made again.
fn restore_streams(session: &Session, log: &RestoredLog) {
    let has_standalone = log.streams.iter().any(|restored| restored.stream == 0);
    if !has_standalone {
        session.standalone.restore_without_events(log.floor);
    }
    for restored in &log.streams {
        if restored.stream == 0 {
            session.standalone.restore(*restored);
            continue;
        }
        let key = StreamKey {
            session: session.key,
            stream: restored.stream,
        };
        let stream = EventStream::restored(key, Arc::clone(&session.events), *restored);
        if !restored.is_finished {
            let calls = log.calls.get(&restored.stream).map(Bytes::as_ref);
            let open = open_calls(session, key, calls.unwrap_or_default());
            let request = log.requests.get(&restored.stream);
            let again = request.and_then(|request| lost_call(&stream, request, &open));
            match (again, &session.recorder) {
                (Some((id, call)), Some(recorder)) => {
                    session.events.note_calls(key, &[id], None);
                    recorder.lost_calls.add(call);
                }
                _ => end_calls(&stream, &open),
            }
        }
        lock(&session.streams).insert(restored.stream, stream);
    }
}

/// The call of a stream that is made again, as its request is known and has no reply.
fn lost_call(
    stream: &Arc<EventStream>,
    request: &Bytes,
    open: &[RequestId],
) -> Option<(RequestId, LostCall)> {
    let request = Message::parse(request.clone(), json::MAX_DEPTH).ok()?;
    let id = request.id().and_then(RequestId::parse)?;
    let stream = Arc::clone(stream);
    (*open == [id.clone()]).then_some((id, LostCall { stream, request }))
}

/// The calls of a stream that have no reply on it; `calls` is a JSON array of their ids.
fn open_calls(session: &Session, at: StreamKey, calls: &[u8]) -> Vec<RequestId> {
    let text = std::str::from_utf8(calls).unwrap_or_default();
    let mut open: Vec<RequestId> = json::elements(text)
        .unwrap_or_default()
        .into_iter()
        .filter_map(RequestId::parse)
        .collect();
    let (ReplayResult::Events(events) | ReplayResult::Evicted(events)) =
        session.events.after(at, 0, usize::MAX)
    else {
        return Vec::new();
    };
    for event in events {
        let message = Message::parse(event.payload, json::MAX_DEPTH);
        let reply = message.ok().filter(|message| message.method().is_none());
        let answered = reply.and_then(|reply| reply.id().and_then(RequestId::parse));
        open.retain(|id| Some(id) != answered.as_ref());
    }
    open
}

/// Ends a stream with an error for each of the calls `open`.
fn end_calls(stream: &EventStream, open: &[RequestId]) {
    let error = error_object(&Fault::outcome_unknown("call"));
    let error = std::str::from_utf8(&error).unwrap_or_default();
    let errors: Vec<Bytes> = { open.iter() }
        .map(|id| rpc::response(id, "error", error).into())
        .collect();
    let Some((last, before)) = errors.split_last() else {
        return stream.finish(None);
    };
    for error in before {
        stream.put(error.clone());
    }
    stream.finish(Some(last.clone()));
}
