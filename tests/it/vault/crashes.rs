//! Other processes: this test program again, in a role of its own, which is killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use drawbridge::clock::SystemClock;
use drawbridge::vault::LeaseOutcome;
use futures_util::future::join_all;
use rstest::rstest;

use super::*;

const ROLE: &str = "DRAWBRIDGE_TEST_ROLE";
const PLACE: &str = "DRAWBRIDGE_TEST_PLACE";

/// Another process that does the work of `role`; killed on drop.
struct OtherProcess {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl OtherProcess {
    fn start(role: &str, place: &DatabasePlace) -> Self {
        let place = match place {
            DatabasePlace::Sqlite(path) => path.to_str().unwrap().to_owned(),
            DatabasePlace::Postgres(url) => url.expose().to_owned(),
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "vault::crashes::role",
                "--ignored",
                "--nocapture",
            ])
            .env(ROLE, role)
            .env(PLACE, place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line of its output that begins with `role:`.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "the other process has ended");
            // The test runner writes its own text without an end of line.
            if let Some((_, said)) = line.split_once("role:") {
                return said.trim().to_owned();
            }
        }
    }

    fn go(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"go\n").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "role:{text}").unwrap();
    out.flush().unwrap();
}

fn wait_for_go() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line, "go\n");
}

/// The other process. Not a test: without its variables it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "the other process of the tests in this file"]
async fn role() {
    let (Ok(role), Ok(place)) = (std::env::var(ROLE), std::env::var(PLACE)) else {
        return;
    };
    let place = if place.starts_with('/') {
        DatabasePlace::Sqlite(place.into())
    } else {
        DatabasePlace::Postgres(Secret::new(place))
    };
    let database = Database::connect(&place).await.unwrap();
    if role == "migrate" {
        let mut tx = database.begin().await.unwrap();
        let half = "CREATE TABLE grants (owner BIGINT)";
        tx.execute(half, &[]).await.unwrap();
        say("half");
        return std::future::pending().await;
    }
    let vault = Vault::new(database, ring(&["k1"]), Arc::new(SystemClock));
    let grant = vault.read_grant(&key("alice")).await.unwrap().unwrap();
    say("ready");
    wait_for_go();
    let attempts = (0..50).map(|_| {
        let (vault, version) = (vault.clone(), grant.version);
        tokio::spawn(async move { vault.leases().take(&key("alice"), version).await.unwrap() })
    });
    let outcomes = join_all(attempts).await.into_iter().map(Result::unwrap);
    let held = outcomes.filter(|outcome| matches!(outcome, LeaseOutcome::Held(_)));
    say(&held.count().to_string());
    std::future::pending::<()>().await;
}

fn now() -> u64 {
    use drawbridge::clock::Clock as _;
    SystemClock.now().as_secs()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn one_of_two_processes_holds_the_lease(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let clock = TestClock::at(now());
    let vault = db.vault(&["k1"], &clock).await;
    let version = vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    let mut others = [(); 2].map(|()| OtherProcess::start("lease", &db.place));
    for other in &mut others {
        assert_eq!(other.says(), "ready");
    }
    others.iter_mut().for_each(OtherProcess::go);
    let held = others.iter_mut().map(|other| other.says().parse::<u32>());
    assert_eq!(held.map(Result::unwrap).sum::<u32>(), 1);
    // Both are killed in the middle of the refresh: the lease ends by itself.
    others.into_iter().for_each(OtherProcess::kill);
    let lease = async || vault.leases().take(&key("alice"), version).await.unwrap();
    assert!(matches!(lease().await, LeaseOutcome::Busy(_)));
    clock.advance(2 * MINUTE);
    let LeaseOutcome::Held(lease) = lease().await else {
        panic!("the holder is dead");
    };
    let written = vault.leases().finish(&lease, &record("b")).await.unwrap();
    assert!(written.is_some());
    assert_eq!(token(&vault, &key("alice")).await.unwrap(), "access-b");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn killed_migration_leaves_nothing(#[case] backend: Backend) {
    let Some(db) = backend.database().await else {
        return;
    };
    let mut other = OtherProcess::start("migrate", &db.place);
    assert_eq!(other.says(), "half");
    other.kill();
    let vault = db.vault(&["k1"], &clock()).await;
    vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    assert!(token(&vault, &key("alice")).await.is_some());
}

/// All files of a directory, with their modes.
fn files(dir: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let files = entries.map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        (name, mode, std::fs::read(entry.path()).unwrap())
    });
    files.collect()
}

#[tokio::test]
async fn files_are_private_and_hold_no_secret() {
    let db = Backend::Sqlite.database().await.unwrap();
    let path = db.dir.path().join("test.db");
    // A file that others may read, as an operator's copy may be.
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let vault = db.vault(&["k1"], &clock()).await;
    let mark = "marked-secret-7f3a";
    let alice = key("alice");
    vault.put_grant(&alice, &record(mark)).await.unwrap();
    let version = vault
        .put_grant(&alice, &record(&format!("{mark}-2")))
        .await
        .unwrap();
    let kept = vault.lists().put(&alice, version, ("tools", mark)).await;
    assert!(kept.unwrap());
    let files = files(db.dir.path());
    let names: Vec<_> = files.iter().map(|file| file.0.as_str()).collect();
    assert!(names.contains(&"test.db-wal") && names.contains(&"test.db-shm"));
    assert!(files.iter().any(|file| file.2.len() > 4096));
    for (name, mode, bytes) in &files {
        assert_eq!(*mode, 0o600, "{name}");
        for clear in [mark, "as.test", "client-1", "Alice"] {
            let found = bytes
                .windows(clear.len())
                .any(|part| part == clear.as_bytes());
            assert!(!found, "{clear} stands in {name}");
        }
    }
}
