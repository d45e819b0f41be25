mod adopted;
mod arrays;
mod call_permits;
mod implicit;
mod listening;
mod owners;
mod records;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::call::ClientCapabilities;
use crate::clock::TestClock;
use crate::protocol::{RequestId, Revision};
use crate::seal::Sealer;
use crate::session::{DeliveryMode, ImplicitHome};
use crate::store::events::{LogBounds, MemoryEvents, ReplayResult, StreamKey};

pub(in crate::session) struct Fixture {
    pub(in crate::session) sessions: Arc<SessionRegistry>,
    clock: Arc<TestClock>,
}

pub(in crate::session) fn fixture(max_per_principal: usize, max_total: usize) -> Fixture {
    let events = Arc::new(MemoryEvents::new(LogBounds::ROOMY));
    fixture_over(events, max_per_principal, max_total)
}

/// The same over another store of events.
fn fixture_over(
    events: Arc<dyn EventStore>,
    max_per_principal: usize,
    max_total: usize,
) -> Fixture {
    let clock = TestClock::at(1_000_000);
    let settings = SessionSettings {
        idle: Duration::from_mins(1),
        absolute: Duration::from_mins(10),
        max_per_principal,
        max_total,
        hold_question: Duration::from_secs(10),
    };
    let sealer = Arc::new(Sealer::new(&[]).unwrap());
    let sessions = SessionRegistry::new(
        SessionIds::new(sealer, Ownership::ALONE),
        settings,
        events,
        Arc::clone(&clock) as _,
        TaskSpawner::new(),
    );
    Fixture { sessions, clock }
}

impl Fixture {
    /// Opens a session whose `initialize` is over at once.
    pub(in crate::session) fn open(&self, subject: &str) -> Result<Arc<Session>, SessionRefused> {
        let opening = self.sessions.open(new(subject), None)?;
        Ok(Arc::clone(opening.session()))
    }

    /// The implicit session of alice on the endpoint "files".
    fn implicit(&self, home: Option<ImplicitHome>) -> Arc<Session> {
        let (alice, files) = (principal("alice"), endpoint("files"));
        let new = (|| new("alice"), None);
        let sessions = &self.sessions;
        let session = sessions.implicit_session(&alice, &files, "{}", home, new);
        session.unwrap()
    }

    fn bind(&self, id: &str, who: &str, at: &str) -> Option<Arc<Session>> {
        self.sessions.bind(id, &principal(who), &endpoint(at))
    }
}

pub(super) fn principal(subject: &str) -> Arc<Principal> {
    Arc::new(Principal::new(
        "https://issuer",
        subject,
        "client",
        Vec::new(),
        None,
    ))
}

pub(super) fn endpoint(name: &str) -> Arc<Endpoint> {
    Arc::new(Endpoint {
        name: name.into(),
        path: format!("/mcp/{name}"),
        upstreams: Vec::new(),
        ..Endpoint::unreachable(&"files".into())
    })
}

pub(in crate::session) fn new(subject: &str) -> NewSession {
    NewSession {
        delivery: DeliveryMode::Streams,
        principal: principal(subject),
        endpoint: endpoint("files"),
        revision: Revision::V2025_11_25,
        capabilities: ClientCapabilities::none(),
        client_info: Bytes::from_static(b"{}"),
    }
}

// SPEC T-47.
#[tokio::test]
async fn a_session_binds_for_its_own_principal_on_its_own_endpoint_only() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    assert!(f.bind(session.id(), "alice", "files").is_some());
    assert!(f.bind(session.id(), "mallory", "files").is_none());
    assert!(f.bind(session.id(), "alice", "other").is_none());
}

// SPEC T-43, T-47.
#[tokio::test(start_paused = true)]
async fn an_id_that_was_opened_before_is_checked_as_at_first() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let bind = |id: &str, who: &str, at: &str| f.bind(id, who, at).is_some();
    let id = session.id();
    assert!(bind(id, "alice", "files"));
    assert_eq!(f.sessions.known.len(), 1);
    assert!(bind(id, "alice", "files"));
    assert!(!bind(id, "mallory", "files"));
    assert!(!bind(id, "alice", "other"));
    assert!(!bind(&id[1..], "alice", "files"));
    f.sessions.close(&session);
    assert!(!bind(id, "alice", "files"));
    assert_eq!(f.sessions.known.len(), 0);

    let idle = f.open("alice").unwrap();
    assert!(bind(idle.id(), "alice", "files"));
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(!bind(idle.id(), "alice", "files"));

    let over_age = f.open("alice").unwrap();
    assert!(bind(over_age.id(), "alice", "files"));
    f.clock.advance(Duration::from_secs(601));
    assert!(!bind(over_age.id(), "alice", "files"));
}

// SPEC T-45.
#[tokio::test]
async fn a_closed_session_is_unknown() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    f.sessions.close(&session);
    assert!(f.bind(session.id(), "alice", "files").is_none());
    assert!(f.sessions.is_empty());
    assert!(session.closed().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn at_the_principals_cap_its_least_recently_used_session_makes_room() {
    let f = fixture(2, 10);
    let first = f.open("alice").unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let second = f.open("alice").unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    first.touch();
    let third = f.open("alice").unwrap();
    assert!(second.closed().is_cancelled());
    assert!(!first.closed().is_cancelled() && !third.closed().is_cancelled());
}

#[tokio::test]
async fn a_busy_session_never_makes_room_and_strangers_sessions_neither() {
    let f = fixture(1, 2);
    let busy = f.open("alice").unwrap();
    let _stream = busy.open_stream(8).unwrap();
    assert_eq!(f.open("alice").unwrap_err(), SessionRefused::Principal);
    let _bob = f.open("bob").unwrap();
    assert_eq!(f.open("carol").unwrap_err(), SessionRefused::Total);
    assert!(!busy.closed().is_cancelled());
}

// SPEC O-01: else the session that is opened next is missing in the caps.
#[tokio::test]
async fn reaper_keeps_the_owner_that_a_request_has_found() {
    let f = fixture(10, 10);
    let key = principal("alice").owner();
    let found = f.sessions.owners.enter(key);
    f.sessions.reap_once();
    assert!(Arc::ptr_eq(&found, &f.sessions.owners.enter(key)));
    drop(found);
    f.sessions.reap_once();
    assert_eq!(f.sessions.owners.all().len(), 0);
}

// SPEC T-50.
#[tokio::test(start_paused = true)]
async fn idle_sessions_expire_and_open_streams_keep_them() {
    let f = fixture(10, 10);
    let idle = f.open("alice").unwrap();
    let used = f.open("alice").unwrap();
    let stream = used.open_stream(8).unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    f.sessions.reap_once();
    assert!(idle.closed().is_cancelled());
    assert!(!used.closed().is_cancelled());
    drop(stream);
    tokio::time::advance(Duration::from_secs(61)).await;
    f.sessions.reap_once();
    assert!(used.closed().is_cancelled());
    assert_eq!(f.sessions.owners.all().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_kept_while_it_is_initialized() {
    let f = fixture(1, 10);
    let opening = f.sessions.open(new("alice"), None).unwrap();
    let session = Arc::clone(opening.session());
    tokio::time::advance(Duration::from_secs(61)).await;
    f.sessions.reap_once();
    assert!(!session.closed().is_cancelled(), "not expired");
    assert_eq!(f.open("alice").unwrap_err(), SessionRefused::Principal);
    drop(opening);
    tokio::time::advance(Duration::from_secs(59)).await;
    f.sessions.reap_once();
    assert!(!session.closed().is_cancelled(), "idle from its end on");
    f.open("alice").unwrap();
    assert!(session.closed().is_cancelled());
}

#[tokio::test]
async fn an_over_age_id_is_refused_before_any_look_up() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    f.clock.advance(Duration::from_secs(601));
    assert!(f.bind(session.id(), "alice", "files").is_none());
}

#[tokio::test]
async fn a_running_id_cannot_be_used_again() {
    use super::super::NoRoom;
    use crate::protocol::RequestId;
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let begin = |id: &str| {
        let id = RequestId::parse(id).unwrap();
        session.begin_call(id, Arc::default())
    };
    let call = begin("1").unwrap();
    assert_eq!(begin("1").unwrap_err(), NoRoom::IdInUse);
    assert!(begin("\"1\"").is_ok());
    call.end();
    let next = begin("1").unwrap();
    call.end();
    assert_eq!(begin("1").unwrap_err(), NoRoom::IdInUse, "of the next one");
    next.end();
    assert!(begin("1").is_ok());
}

#[tokio::test]
async fn a_call_that_goes_on_keeps_no_finished_streams_after_it() {
    let f = fixture(1, 1);
    let session = f.open("alice").unwrap();
    let long = session.new_stream(&[RequestId::from(1)], None);
    for _ in 0..1100 {
        session
            .new_stream(&[RequestId::from(1)], None)
            .finish(Some(Bytes::from_static(b"{}")));
    }
    let newest = session.new_stream(&[RequestId::from(1)], None);
    assert!(session.stream(long.number()).is_some());
    assert!(session.stream(long.number() + 1).is_none(), "the oldest");
    assert!(session.stream(newest.number() - 1).is_some());
    let kept = (long.number()..=newest.number()).filter(|number| session.stream(*number).is_some());
    assert_eq!(kept.count(), 1024);
}
