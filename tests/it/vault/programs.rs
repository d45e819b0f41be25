//! The programs that used a grant, and how many grants can be used.

use drawbridge::vault::{GrantCounts, MAX_PROGRAMS};
use rstest::rstest;

use super::*;

async fn names(vault: &Vault, key: &GrantKey) -> Vec<String> {
    let programs = vault.programs().list(key).await.unwrap();
    let name = |name: Option<String>| name.unwrap_or_else(|| "all others".to_owned());
    (programs.into_iter().map(|program| name(program.name))).collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn first_use_of_a_program_is_told_once(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let (vault, other) = (
        db.vault(&["k1"], &clock).await,
        db.vault(&["k1"], &clock).await,
    );
    let (alice, bob) = (key("alice"), key("bob"));
    let programs = vault.programs();
    assert!(!programs.note(&alice, "editor").await.unwrap(), "no grant");
    for key in [&alice, &bob] {
        vault.put_grant(key, &record("a")).await.unwrap();
    }
    assert!(programs.note(&alice, "editor").await.unwrap());
    assert!(programs.note(&bob, "editor").await.unwrap());
    clock.advance(MINUTE);
    assert!(programs.note(&alice, "shell\0\n").await.unwrap());
    clock.advance(MINUTE);
    assert!(!other.programs().note(&alice, "editor").await.unwrap());
    assert_eq!(names(&vault, &alice).await, ["editor", "shell  "]);
    let all = programs.list(&alice).await.unwrap();
    let start = Duration::from_secs(START);
    assert_eq!(all[0].first, start);
    assert_eq!(all[0].used, start + 2 * MINUTE);
    // Another connection, and another account perhaps: each program uses it for the first time.
    vault.put_grant(&alice, &record("b")).await.unwrap();
    assert!(names(&vault, &alice).await.is_empty());
    assert!(programs.note(&alice, "editor").await.unwrap());
    assert_eq!(names(&vault, &bob).await, ["editor"]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn programs_are_bounded_and_end_with_their_grant(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    let alice = key("alice");
    let version = vault.put_grant(&alice, &record("a")).await.unwrap();
    let programs = vault.programs();
    let long = "é".repeat(1000);
    assert!(programs.note(&alice, &long).await.unwrap());
    assert_eq!(names(&vault, &alice).await[0].chars().count(), 80);
    for number in 1..MAX_PROGRAMS {
        clock.advance(MINUTE);
        let name = format!("program {number}");
        assert!(programs.note(&alice, &name).await.unwrap());
    }
    // A name that changes with each call is told of once, and evicts none.
    for number in 0..3 {
        clock.advance(MINUTE);
        let is_first = programs.note(&alice, &format!("random {number}")).await;
        assert_eq!(is_first.unwrap(), number == 0);
    }
    let all = names(&vault, &alice).await;
    assert_eq!(i64::try_from(all.len()).unwrap(), MAX_PROGRAMS + 1);
    assert_eq!((&*all[0], &*all[1]), ("all others", "program 31"));
    assert!(!programs.note(&alice, &long).await.unwrap());
    // What has not been used for long makes room.
    clock.advance(91 * DAY);
    assert!(!programs.note(&alice, "program 7").await.unwrap());
    assert!(programs.note(&alice, "late").await.unwrap());
    let mut left = names(&vault, &alice).await;
    left.sort_unstable();
    assert_eq!(left, ["all others", "late", "program 7"]);
    assert!(vault.end_grant(&alice, version).await.unwrap());
    assert!(names(&vault, &alice).await.is_empty());
    vault.put_grant(&alice, &record("a")).await.unwrap();
    assert!(programs.note(&alice, "editor").await.unwrap());
    assert!(vault.remove_grant(&alice).await.unwrap());
    assert!(names(&vault, &alice).await.is_empty());
    // What a program of the schema before leaves behind.
    let raw = db.open().await;
    let left = "INSERT INTO grant_programs (owner, upstream, program, made, used) VALUES ($1, 'gone', 'editor', 1, 1)";
    raw.execute(left, &[alice.owner.bytes().into()])
        .await
        .unwrap();
    vault.sweep(DAY).await.unwrap();
    let rows = raw.fetch("SELECT 1 FROM grant_programs", &[]).await;
    assert!(rows.unwrap().is_empty());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn grants_are_counted_by_upstream_and_state(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = clock();
    let vault = db.vault(&["k1"], &clock).await;
    assert!(vault.census().is_none());
    let other = GrantKey::new(owner("alice"), "wiki");
    let unrefreshable = GrantRecord {
        refresh_token: None,
        ..record("e")
    };
    let refused = vault.put_grant(&key("refused"), &record("r")).await;
    let refused = refused.unwrap();
    for (key, record) in [
        (&key("alice"), &record("a")),
        (&key("ended"), &unrefreshable),
        (&key("damaged"), &record("d")),
        (&other, &record("o")),
    ] {
        vault.put_grant(key, record).await.unwrap();
    }
    let marked = vault.mark_refused(&key("refused"), refused, true).await;
    assert!(marked.unwrap());
    let raw = db.open().await;
    let edited = "UPDATE grants SET version = version + 1000 WHERE owner = $1";
    let damaged = [owner("damaged").bytes().into()];
    assert_eq!(raw.execute(edited, &damaged).await.unwrap(), 1);
    // All access tokens have ended by then; those of the other accounts can be refreshed.
    clock.advance(Duration::from_hours(1));
    vault.count().await.unwrap();
    let census = vault.census().unwrap();
    let expected = GrantCounts {
        connected: 1,
        refused: 1,
        ended: 1,
        unreadable: 1,
    };
    assert_eq!(census["tracker"], expected);
    let one = GrantCounts {
        connected: 1,
        ..GrantCounts::default()
    };
    assert_eq!(census["wiki"], one);
    assert_eq!(census.len(), 2);
}
