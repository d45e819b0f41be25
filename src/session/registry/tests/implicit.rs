//! The end of implicit sessions that are over age.

use super::*;
use crate::session::ImplicitSessionCall;

// SPEC M-44, M-67: running calls have time limits of their own.
#[tokio::test(start_paused = true)]
async fn over_age_implicit_session_ends_with_its_calls() {
    let f = fixture(10, 10);
    let old = f.implicit(None);
    let call = ImplicitSessionCall::begin(&old);
    tokio::time::advance(Duration::from_secs(601)).await;
    f.sessions.reap_once();
    assert!(!old.closed().is_cancelled(), "a call runs");
    let fresh = f.implicit(None);
    assert!(!Arc::ptr_eq(&old, &fresh));
    assert!(!old.closed().is_cancelled(), "a call runs");
    assert!(Arc::ptr_eq(&fresh, &f.implicit(None)));
    assert!(
        f.sessions
            .live_implicit_session(f.sessions.ownership(), old.key())
            .is_some()
    );
    drop(call);
    f.sessions.reap_once();
    assert!(old.closed().is_cancelled());
    assert!(!fresh.closed().is_cancelled());
    assert!(Arc::ptr_eq(&fresh, &f.implicit(None)));
}

// SPEC M-74: its client subscribes again.
#[tokio::test(start_paused = true)]
async fn over_age_implicit_session_ends_despite_a_subscription() {
    let f = fixture(10, 10);
    let implicit_session = f.implicit(None);
    let _subscription = implicit_session.open_stream(9).unwrap();
    tokio::time::advance(Duration::from_secs(599)).await;
    f.sessions.reap_once();
    assert!(!implicit_session.closed().is_cancelled());
    tokio::time::advance(Duration::from_secs(2)).await;
    f.sessions.reap_once();
    assert!(implicit_session.closed().is_cancelled());
}
