//! Grants: kept, replaced, removed; rows that do not open; keys that are lost or rotated; other processes.

use drawbridge::database::SqlValue;
use drawbridge::vault::GrantState;
use rstest::rstest;

use super::*;

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn grant_comes_back_as_it_was_put(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let vault = db.vault(&["k1"], &clock()).await;
    assert!(vault.read_grant(&key("alice")).await.unwrap().is_none());
    let version = vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    let grant = vault.read_grant(&key("alice")).await.unwrap().unwrap();
    assert_eq!(grant.version, version);
    let expected = record("a");
    assert_eq!(format!("{:?}", grant.record), format!("{expected:?}"));
    assert_eq!(token(&vault, &key("alice")).await.unwrap(), "access-a");
    let refresh = grant.record.refresh_token.unwrap();
    assert_eq!(refresh.expose(), "refresh-a");
    assert!(vault.read_grant(&key("bob")).await.unwrap().is_none());
    assert_eq!(
        vault.upstreams_of(owner("alice")).await.unwrap(),
        ["tracker"]
    );
    assert!(vault.remove_grant(&key("alice")).await.unwrap());
    assert!(!vault.remove_grant(&key("alice")).await.unwrap());
    assert!(vault.read_grant(&key("alice")).await.unwrap().is_none());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn moved_swapped_or_edited_row_does_not_open(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let vault = db.vault(&["k1"], &clock()).await;
    let raw = db.open().await;
    let (alice, mallory) = (key("alice"), key("mallory"));
    let owner_of = |key: &GrantKey| SqlValue::from(key.owner.bytes());
    let again = async || {
        raw.execute("DELETE FROM grants", &[]).await.unwrap();
        vault.put_grant(&alice, &record("a")).await.unwrap();
        vault.put_grant(&mallory, &record("m")).await.unwrap();
        assert!(token(&vault, &alice).await.is_some());
    };
    // Mallory's row is given Alice's content, with and without her version.
    for text in [
        "UPDATE grants SET sealed = (SELECT sealed FROM grants WHERE owner = $2) WHERE owner = $1",
        "UPDATE grants SET (sealed, version) = (SELECT sealed, version FROM grants WHERE owner = $2) WHERE owner = $1",
    ] {
        again().await;
        let values = [owner_of(&mallory), owner_of(&alice)];
        assert_eq!(raw.execute(text, &values).await.unwrap(), 1);
        assert_eq!(token(&vault, &mallory).await, None, "{text}");
    }
    // Alice's row becomes Mallory's.
    again().await;
    let gone = "DELETE FROM grants WHERE owner = $1";
    raw.execute(gone, &[owner_of(&mallory)]).await.unwrap();
    let moved = "UPDATE grants SET owner = $1 WHERE owner = $2";
    let values = [owner_of(&mallory), owner_of(&alice)];
    assert_eq!(raw.execute(moved, &values).await.unwrap(), 1);
    assert_eq!(token(&vault, &mallory).await, None);
    // It becomes one of another upstream, of another version, of no key.
    for text in [
        "UPDATE grants SET upstream = 'evil' WHERE owner = $1",
        "UPDATE grants SET version = version + 1 WHERE owner = $1",
        "UPDATE grants SET key_id = 'none' WHERE owner = $1",
    ] {
        again().await;
        assert_eq!(raw.execute(text, &[owner_of(&alice)]).await.unwrap(), 1);
        let evil = GrantKey::new(alice.owner, "evil");
        assert_eq!(token(&vault, &alice).await, None, "{text}");
        assert_eq!(token(&vault, &evil).await, None, "{text}");
    }
    // Connecting again goes on as if nothing were there.
    vault.put_grant(&alice, &record("new")).await.unwrap();
    assert_eq!(token(&vault, &alice).await.unwrap(), "access-new");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn lost_key_means_not_connected(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let before = db.vault(&["k1"], &clock()).await;
    before.put_grant(&key("alice"), &record("a")).await.unwrap();
    let vault = db.vault(&["other"], &clock()).await;
    vault.listing().report_missing_keys().await.unwrap();
    assert!(vault.grant(&key("alice")).await.unwrap().is_none());
    let listed = vault.listing().page(None).await.unwrap();
    assert!(matches!(listed[0].state, GrantState::Unreadable));
    vault.put_grant(&key("alice"), &record("b")).await.unwrap();
    assert_eq!(token(&vault, &key("alice")).await.unwrap(), "access-b");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn refusal_that_a_wrong_clock_noted_is_ignored(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let is_refused = async |ahead: Duration| {
        let wrong = TestClock::at(START + ahead.as_secs());
        let other = db.vault(&["k1"], &wrong).await;
        let version = other.put_grant(&key("alice"), &record("a")).await.unwrap();
        let noted = other.mark_refused(&key("alice"), version, true).await;
        assert!(noted.unwrap());
        let vault = db.vault(&["k1"], &clock()).await;
        let grant = vault.read_grant(&key("alice")).await.unwrap().unwrap();
        assert!(other.counts_as_refused(&grant));
        vault.counts_as_refused(&grant)
    };
    assert!(!is_refused(60 * MINUTE).await);
    assert!(is_refused(MINUTE / 2).await, "as clocks may differ");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn pages_list_each_grant_once(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let vault = db.vault(&["k1"], &clock()).await;
    let raw = db.open().await;
    let row = "INSERT INTO grants (owner, upstream, version, key_id, sealed, lease, lease_ends, made, used) \
               VALUES ($1, $2, 1, 'k', $1, $1, 0, 0, 0)";
    // Three for each owner: the first page, of 500, ends between two of the same one.
    for number in 0..170 {
        for upstream in ["mail", "tracker", "wiki"] {
            let owner = owner(&format!("user {number}"));
            let values = [owner.bytes().into(), upstream.into()];
            raw.execute(row, &values).await.unwrap();
        }
    }
    let mut listed: Vec<GrantKey> = Vec::new();
    loop {
        let page = vault.listing().page(listed.last()).await.unwrap();
        if page.is_empty() {
            break;
        }
        listed.extend(page.into_iter().map(|grant| grant.key));
    }
    assert_eq!(listed.len(), 510);
    let place = |key: &GrantKey| (*key.owner.bytes(), Arc::clone(&key.upstream));
    assert!(listed.is_sorted_by(|one, next| place(one) < place(next)));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn changes_are_followed_while_upkeep_takes_long(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let (here, there) = (
        db.vault(&["k1"], &clock).await,
        db.vault(&["k1"], &clock).await,
    );
    there.put_grant(&key("unused"), &record("a")).await.unwrap();
    clock.advance(2 * DAY);
    here.poll_changes().await.unwrap();
    let mut changes = here.changes();
    // The sweep tells of the unused grant, and gets no further until the end of the test.
    let (told, mut hears) = tokio::sync::mpsc::channel(1);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = std::sync::Mutex::new(ended);
    let keeping = tokio::spawn(here.clone().keep(DAY, move |_| {
        told.try_send(()).unwrap();
        // The tasks that are queued on this thread go on elsewhere.
        tokio::task::block_in_place(|| ended.lock().unwrap().recv().unwrap_err());
    }));
    let following = tokio::spawn(here.clone().follow_changes());
    hears.recv().await.unwrap();
    there.put_grant(&key("alice"), &record("b")).await.unwrap();
    let followed = async { while changes.recv().await.unwrap() != key("alice") {} };
    let followed = tokio::time::timeout(Duration::from_secs(5), followed).await;
    drop(end);
    followed.expect("the change of the other process");
    keeping.abort();
    following.abort();
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn rotation_frees_the_old_key(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let old = db.vault(&["k1"], &clock()).await;
    let count = 205;
    for n in 0..count {
        let key = key(&format!("user {n}"));
        old.put_grant(&key, &record(&n.to_string())).await.unwrap();
    }
    let one = old.read_grant(&key("user 1")).await.unwrap().unwrap();
    let kept = old
        .lists()
        .put(&one.key, one.version, ("tools", "[]"))
        .await;
    assert!(kept.unwrap());
    old.remove_grant(&key("user 0")).await.unwrap();
    let lost = db.vault(&["lost"], &clock()).await;
    lost.put_grant(&key("zoe"), &record("z")).await.unwrap();
    let both = db.vault(&["k2", "k1"], &clock()).await;
    let result = both.rotate().await.unwrap();
    // Grants, one list, and the two tokens of the removed grant.
    assert_eq!((result.resealed, result.left), (count - 1 + 1 + 2, 1));
    assert!(!result.is_complete());
    both.remove_grant(&key("zoe")).await.unwrap();
    let result = both.rotate().await.unwrap();
    assert_eq!(result.resealed, 0);
    assert!(result.is_complete());
    let new = db.vault(&["k2"], &clock()).await;
    for n in 1..count {
        let token = token(&new, &key(&format!("user {n}"))).await;
        assert_eq!(token.unwrap(), format!("access-{n}"));
    }
    let list = new.lists().get(&key("user 1"), "tools").await.unwrap();
    assert_eq!(list.as_deref(), Some("[]"));
    assert_eq!(new.revocations().due(10).await.unwrap().len(), 2);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn change_reaches_other_processes(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let (here, there) = (
        db.vault(&["k1"], &clock()).await,
        db.vault(&["k1"], &clock()).await,
    );
    there.poll_changes().await.unwrap();
    here.put_grant(&key("alice"), &record("a")).await.unwrap();
    here.put_grant(&key("bob"), &record("b")).await.unwrap();
    there.poll_changes().await.unwrap();
    assert!(there.cached_grant(&key("alice")).is_none());
    assert!(there.grant(&key("alice")).await.unwrap().is_some());
    assert!(there.grant(&key("bob")).await.unwrap().is_some());
    assert!(there.grant(&key("carol")).await.unwrap().is_none());
    assert!(there.cached_grant(&key("alice")).unwrap().is_some());
    assert!(there.cached_grant(&key("carol")).unwrap().is_none());
    let mut changes = there.changes();
    here.remove_grant(&key("alice")).await.unwrap();
    here.put_grant(&key("carol"), &record("c")).await.unwrap();
    there.poll_changes().await.unwrap();
    assert_eq!(changes.recv().await.unwrap(), key("alice"));
    assert_eq!(changes.recv().await.unwrap(), key("carol"));
    assert!(there.grant(&key("alice")).await.unwrap().is_none());
    assert!(there.grant(&key("carol")).await.unwrap().is_some());
    assert!(there.cached_grant(&key("bob")).unwrap().is_some());
    // An own change is announced at once, and not again when the counter shows it.
    let mut own = here.changes();
    here.put_grant(&key("dave"), &record("d")).await.unwrap();
    assert_eq!(own.recv().await.unwrap(), key("dave"));
    here.poll_changes().await.unwrap();
    here.put_grant(&key("erin"), &record("e")).await.unwrap();
    here.put_grant(&key("dave"), &record("d")).await.unwrap();
    here.poll_changes().await.unwrap();
    assert_eq!(own.recv().await.unwrap(), key("erin"));
    assert_eq!(own.recv().await.unwrap(), key("dave"));
    assert!(own.try_recv().is_err());
    there.poll_changes().await.unwrap();
    assert!(there.grant(&key("carol")).await.unwrap().is_some());
    // The changes are swept before this process has read them: all cached grants are dropped.
    here.remove_grant(&key("bob")).await.unwrap();
    let raw = db.open().await;
    raw.execute("DELETE FROM changes", &[]).await.unwrap();
    let mut told = there.changes();
    there.poll_changes().await.unwrap();
    assert!(there.cached_grant(&key("carol")).is_none());
    // Connections that outlast a call are told of each dropped grant.
    let told: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).collect();
    assert!(
        told.contains(&key("bob")) && told.contains(&key("carol")),
        "{told:?}"
    );
    assert!(there.grant(&key("bob")).await.unwrap().is_none());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn unused_grant_is_forgotten_and_revoked(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    vault.put_grant(&key("idle"), &record("i")).await.unwrap();
    vault.put_grant(&key("busy"), &record("b")).await.unwrap();
    clock.advance(100 * DAY);
    let busy = vault.grant(&key("busy")).await.unwrap().unwrap();
    vault.touch(&busy);
    vault.flush_used().await.unwrap();
    clock.advance(100 * DAY);
    assert_eq!(vault.sweep(201 * DAY).await.unwrap().forgotten, 0);
    assert_eq!(vault.sweep(180 * DAY).await.unwrap().forgotten, 1);
    assert_eq!(token(&vault, &key("idle")).await, None);
    assert!(token(&vault, &key("busy")).await.is_some());
    assert_eq!(vault.revocations().due(10).await.unwrap().len(), 2);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn ten_thousand_grants_are_read_when_used(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let vault = db.vault(&["k1"], &clock()).await;
    vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    let raw = db.open().await;
    let bytes = if backend == Backend::Sqlite {
        "BLOB"
    } else {
        "BYTEA"
    };
    let copy = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) \
         INSERT INTO grants SELECT CAST(substr('00000000000000000000000000000000', 1, 27) || \
         CAST(10000 + i AS TEXT) AS {bytes}), upstream, version, key_id, sealed, lease, lease_ends, made, used \
         FROM grants, n"
    );
    raw.execute(Box::leak(copy.into_boxed_str()), &[])
        .await
        .unwrap();
    let again = db.vault(&["k1"], &clock()).await;
    let started = std::time::Instant::now();
    again.listing().report_missing_keys().await.unwrap();
    again.poll_changes().await.unwrap();
    assert!(again.grant(&key("alice")).await.unwrap().is_some());
    assert!(started.elapsed() < Duration::from_secs(1));
}
