//! The order in which upstreams are told whether a client listens.

use std::sync::{Mutex, mpsc};
use std::thread::{self, JoinHandle};

use futures_util::future::{BoxFuture, ready};

use super::*;
use crate::call::{Call, Notice, Reply, ServerDeclaration, UpstreamLink};
use crate::fault::Fault;
use crate::lock::lock;
use crate::protocol::Message;
use crate::session::{ListenerRegistration, NoticeListener};

/// A link whose `listen(false)` is slow: a listener registers meanwhile.
#[derive(Debug)]
struct SlowLink {
    upstream: Arc<str>,
    session: Arc<Session>,
    told: Mutex<Vec<bool>>,
    meanwhile: Mutex<Option<JoinHandle<ListenerRegistration>>>,
}

/// A listener that ignores all notices.
#[derive(Debug)]
struct IdleListener;

impl NoticeListener for IdleListener {
    fn tell(&self, _notice: &Notice) {}
}

impl UpstreamLink for SlowLink {
    fn upstream(&self) -> &Arc<str> {
        &self.upstream
    }

    fn call<'a>(&'a self, _: &'a Message, _: &'a Call) -> BoxFuture<'a, Result<Reply, Fault>> {
        Box::pin(ready(Err(Fault::internal("not called"))))
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>> {
        Box::pin(ready(Err(Fault::internal("not opened"))))
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        None
    }

    fn listen(&self, wanted: bool) {
        if !wanted {
            let session = Arc::clone(&self.session);
            let (done, is_done) = mpsc::channel();
            *lock(&self.meanwhile) = Some(thread::spawn(move || {
                let listening = ListenerRegistration::of(&session, Arc::new(IdleListener));
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
async fn slow_end_of_listening_does_not_undo_a_new_listener() {
    let f = fixture(10, 10);
    let session = f.implicit(None);
    let link = Arc::new(SlowLink {
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
    let first = ListenerRegistration::of(&session, Arc::new(IdleListener));
    session.tell_links();
    drop(first);
    session.tell_links();
    let meanwhile = lock(&link.meanwhile).take().unwrap();
    let _second = meanwhile.join().unwrap();
    assert_eq!(*lock(&link.told), [true, false, true]);
}
