//! A handle names who keeps its session: one of another owner is refused like a forged one. And what is counted for a
//! principal over its sessions.

use super::*;

#[tokio::test]
async fn session_of_another_owner_is_not_bound() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let own = f.sessions.ownership();
    let sessions = |owner| f.sessions.ids.with_owner(owner, session.id(), "files");
    let bind = |id: &str| f.bind(id, "alice", "files").is_some();
    assert!(bind(&sessions(own)), "the same, sealed once more");
    for other in [Ownership { node: 1, ..own }, Ownership { epoch: 1, ..own }] {
        assert!(!bind(&sessions(other)), "{other:?}");
    }
}

#[tokio::test]
async fn connection_of_another_owner_is_not_read() {
    let f = fixture(10, 10);
    let (alice, files) = (principal("alice"), endpoint("files"));
    let (key, handle) = f.sessions.mint_connection(&alice, &files);
    let own = f.sessions.ownership();
    let sealed = |owner| {
        f.sessions
            .ids
            .with_owner(owner, &handle, "files/connection")
    };
    let read = |handle: &str| f.sessions.read_connection(handle, &alice, &files);
    assert_eq!(read(&sealed(own)), Some(key));
    assert_eq!(read(&sealed(Ownership { epoch: 1, ..own })), None);
}

#[tokio::test]
async fn implicit_session_of_another_owner_is_not_found() {
    let f = fixture(10, 10);
    let key = f.implicit(None).key();
    let own = f.sessions.ownership();
    assert!(f.sessions.live_implicit_session(own, key).is_some());
    let other = Ownership { epoch: 1, ..own };
    assert!(f.sessions.live_implicit_session(other, key).is_none());
}

#[tokio::test]
async fn id_of_another_replica_that_was_read_once_is_read_for_its_caller_alone() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let owner = Ownership { node: 1, epoch: 0 };
    let id = f.sessions.ids.with_owner(owner, session.id(), "files");
    let read = |id: &str, name: &str, at: &str| {
        let read = f.sessions.read_id(id, &principal(name), &endpoint(at));
        read.map(|read| (read.key, read.owner))
    };
    let said = Some((session.key(), owner));
    assert_eq!(read(&id, "alice", "files"), said);
    assert_eq!(read(&id, "alice", "files"), said, "as it is remembered");
    assert_eq!(read(&id, "bob", "files"), None, "another caller");
    assert_eq!(read(&id, "alice", "mail"), None, "another endpoint");
    assert_eq!(read(&id[1..], "alice", "files"), None, "another text");
    f.clock.advance(Duration::from_secs(601));
    assert_eq!(read(&id, "alice", "files"), None, "over age");
}

#[tokio::test]
async fn results_that_an_ended_session_keeps_count_for_the_next_one() {
    let f = fixture(10, 10);
    let session = f.open("alice").unwrap();
    let kept = session.results().take((6, None), 10, 100).unwrap();
    f.sessions.close(&session);
    let next = f.open("alice").unwrap();
    assert!(next.results().take((6, None), 10, 100).is_none());
    drop(kept);
    let kept = next.results().take((6, None), 10, 100).unwrap();
    f.sessions.close(&next);
    assert_eq!(f.sessions.owners().all().len(), 1);
    drop(kept);
    f.sessions.reap_once();
    assert!(f.sessions.owners().all().is_empty());
}
