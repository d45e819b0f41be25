mod adopted;
mod owners;
mod places;
mod records;

use std::sync::{Mutex, mpsc};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::call::{Call, ClientCapabilities, Notice, Reply, ServerDeclaration, UpstreamLink};
use crate::clock::TestClock;
use crate::fault::Fault;
use crate::lock::lock;
use crate::protocol::{Message, RequestId, Revision};
use crate::seal::Sealer;
use crate::session::{
    DeliveryMode, ImplicitHome, ImplicitSessionCall, ListenerRegistration, NoticeListener,
};
use crate::store::events::{LogBounds, MemoryEvents, ReplayResult, StreamKey};

pub(in crate::session) struct Fixture {
    pub(in crate::session) sessions: Arc<SessionRegistry>,
    clock: Arc<TestClock>,
}

pub(in crate::session) fn fixture(max_per_principal: usize, max_total: usize) -> Fixture {
    let clock = TestClock::at(1_000_000);
    let bounds = LogBounds {
        max_age: Duration::from_mins(5),
        per_session: 1 << 20,
        total: 1 << 20,
    };
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
        Arc::new(MemoryEvents::new(bounds)),
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
        resource: String::new(),
        metadata_url: String::new(),
        upstreams: Vec::new(),
        pure: true,
        required_scopes: Vec::new(),
        login_scopes: Vec::new(),
        audiences: Vec::new(),
        issuers: Vec::new(),
        tools: Vec::new(),
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
    let bind = |who: &str, at: &str| {
        f.sessions
            .bind(session.id(), &principal(who), &endpoint(at))
    };
    assert!(bind("alice", "files").is_some());
    assert!(bind("mallory", "files").is_none());
    assert!(bind("alice", "other").is_none());
}

// SPEC T-43, T-47.
#[tokio::test(start_paused = true)]
async fn an_id_that_was_opened_before_is_checked_as_at_first() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let bind = |id: &str, who: &str, at: &str| {
        let bound = f.sessions.bind(id, &principal(who), &endpoint(at));
        bound.is_some()
    };
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
    assert!(
        f.sessions
            .bind(session.id(), &principal("alice"), &endpoint("files"))
            .is_none()
    );
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
    assert!(
        f.sessions
            .bind(session.id(), &principal("alice"), &endpoint("files"))
            .is_none()
    );
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
    let long = session.new_stream(&RequestId::from(1), None);
    for _ in 0..1100 {
        session
            .new_stream(&RequestId::from(1), None)
            .finish(Some(Bytes::from_static(b"{}")));
    }
    let newest = session.new_stream(&RequestId::from(1), None);
    assert!(session.stream(long.number()).is_some());
    assert!(session.stream(long.number() + 1).is_none(), "the oldest");
    assert!(session.stream(newest.number() - 1).is_some());
    let kept = (long.number()..=newest.number()).filter(|number| session.stream(*number).is_some());
    assert_eq!(kept.count(), 1024);
}

// SPEC M-44, M-67: its calls have ends of their own.
#[tokio::test(start_paused = true)]
async fn a_busy_visit_that_is_over_age_ends_with_its_calls() {
    let f = fixture(10, 10);
    let (alice, files) = (principal("alice"), endpoint("files"));
    let implicit_session = || {
        let implicit_session =
            f.sessions
                .implicit_session(&alice, &files, "{}", None, (|| new("alice"), None));
        implicit_session.unwrap()
    };
    let old = implicit_session();
    let call = ImplicitSessionCall::begin(&old);
    tokio::time::advance(Duration::from_secs(601)).await;
    f.sessions.reap_once();
    assert!(!old.closed().is_cancelled(), "a call runs");
    let fresh = implicit_session();
    assert!(!Arc::ptr_eq(&old, &fresh));
    assert!(!old.closed().is_cancelled(), "a call runs");
    assert!(Arc::ptr_eq(&fresh, &implicit_session()));
    assert!(
        f.sessions
            .live_implicit_session(f.sessions.ownership(), old.key())
            .is_some()
    );
    drop(call);
    f.sessions.reap_once();
    assert!(old.closed().is_cancelled());
    assert!(!fresh.closed().is_cancelled());
    assert!(Arc::ptr_eq(&fresh, &implicit_session()));
}

// SPEC M-74: its client subscribes again.
#[tokio::test(start_paused = true)]
async fn a_visit_that_is_over_age_ends_though_somebody_subscribes() {
    let f = fixture(10, 10);
    let implicit_session = f
        .sessions
        .implicit_session(
            &principal("alice"),
            &endpoint("files"),
            "{}",
            None,
            (|| new("alice"), None),
        )
        .unwrap();
    let _subscription = implicit_session.open_stream(9).unwrap();
    tokio::time::advance(Duration::from_secs(599)).await;
    f.sessions.reap_once();
    assert!(!implicit_session.closed().is_cancelled());
    tokio::time::advance(Duration::from_secs(2)).await;
    f.sessions.reap_once();
    assert!(implicit_session.closed().is_cancelled());
}

/// A link whose `listen(false)` is slow: a listener registers meanwhile.
#[derive(Debug)]
struct Slow {
    upstream: Arc<str>,
    session: Arc<Session>,
    told: Mutex<Vec<bool>>,
    meanwhile: Mutex<Option<JoinHandle<ListenerRegistration>>>,
}

#[derive(Debug)]
struct Somebody;

impl NoticeListener for Somebody {
    fn tell(&self, _notice: &Notice) {}
}

impl UpstreamLink for Slow {
    fn upstream(&self) -> &Arc<str> {
        &self.upstream
    }

    fn call<'a>(&'a self, _: &'a Message, _: &'a Call) -> BoxFuture<'a, Result<Reply, Fault>> {
        Box::pin(ready(Err(Fault::internal("nobody calls"))))
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>> {
        Box::pin(ready(Err(Fault::internal("nobody opens"))))
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        None
    }

    fn listen(&self, wanted: bool) {
        if !wanted {
            let session = Arc::clone(&self.session);
            let (done, is_done) = mpsc::channel();
            *lock(&self.meanwhile) = Some(thread::spawn(move || {
                let listening = ListenerRegistration::of(&session, Arc::new(Somebody));
                session.tell_links();
                let _ = done.send(());
                listening
            }));
            // Wait for `tell_links` to finish, unless it waits for this `listen`.
            let _ = is_done.recv_timeout(Duration::from_millis(200));
        }
        lock(&self.told).push(wanted);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

// Spec: BRIDGING §3.4.
#[tokio::test]
async fn who_begins_to_listen_is_not_outrun_by_who_ends() {
    let f = fixture(10, 10);
    let session = f.sessions.implicit_session(
        &principal("alice"),
        &endpoint("files"),
        "{}",
        None,
        (|| new("alice"), None),
    );
    let session = session.unwrap();
    let link = Arc::new(Slow {
        upstream: "files".into(),
        session: Arc::clone(&session),
        told: Mutex::default(),
        meanwhile: Mutex::default(),
    });
    let make = || Arc::clone(&link) as _;
    drop(
        session
            .links()
            .get_or(session.closed(), &link.upstream, None, make),
    );
    let first = ListenerRegistration::of(&session, Arc::new(Somebody));
    session.tell_links();
    drop(first);
    session.tell_links();
    let meanwhile = lock(&link.meanwhile).take().unwrap();
    let _second = meanwhile.join().unwrap();
    assert_eq!(*lock(&link.told), [true, false, true]);
}
