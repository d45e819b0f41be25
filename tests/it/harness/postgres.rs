//! A real `PostgreSQL`, Debian's package: one server while any test of this process uses it, a database for each test.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use drawbridge::database::{Database, DatabasePlace};
use drawbridge::secret::Secret;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::PATIENCE;

/// A running server; ended, with its files, when the last test drops it.
pub(crate) struct PostgresServer {
    port: u16,
    process: Pid,
    keeper: Option<JoinHandle<()>>,
    dir: TempDir,
}

static SERVER: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// An empty database of its own. `None` where `PostgreSQL` is not installed, except where `DRAWBRIDGE_PEERS=required`
/// makes that a failure.
pub(crate) async fn database() -> Option<(Arc<PostgresServer>, DatabasePlace)> {
    let Some(programs) = programs() else {
        let is_required =
            std::env::var_os("DRAWBRIDGE_PEERS").is_some_and(|value| value == "required");
        assert!(!is_required, "no PostgreSQL; run tests/setup/install.py");
        eprintln!("SKIPPED: PostgreSQL is not installed; run tests/setup/install.py");
        return None;
    };
    let server = tokio::task::spawn_blocking(move || {
        let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(PostgresServer::start(&programs));
            *shared = Arc::downgrade(&server);
            server
        })
    });
    let server = server.await.unwrap();
    let name = format!("test{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    let admin = Database::connect(&server.place("postgres")).await.unwrap();
    // Statements are static text.
    let create = Box::leak(format!("CREATE DATABASE {name}").into_boxed_str());
    admin.execute(create, &[]).await.unwrap();
    admin.close().await;
    let place = server.place(&name);
    Some((server, place))
}

/// The directory of `initdb` and `postgres`.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .filter(|bin| bin.join("initdb").is_file())
        .collect();
    found.sort();
    found.pop()
}

/// A port without a listener.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Runs a program of `PostgreSQL`. These programs refuse to run as root: root runs them as the user `nobody`.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]);
    }
    command.arg(program).current_dir("/").stdin(Stdio::null());
    command
}

impl PostgresServer {
    fn start(programs: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            let owned = Command::new("chown").arg("nobody").arg(dir.path()).status();
            assert!(owned.unwrap().success());
        }
        let data = dir.path().join("data");
        let made = unprivileged(&programs.join("initdb"))
            .args([
                "--no-sync",
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
            ])
            .args(["--locale=C", "--pgdata"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        let port = free_port();
        let mut command = unprivileged(&programs.join("postgres"));
        command.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "max_connections=200",
        ] {
            command.args(["-c", setting]);
        }
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        // The signal at the parent's death comes when the thread ends that has started it.
        let (told, hears) = std::sync::mpsc::channel();
        let keeper = std::thread::spawn(move || {
            let mut child = command.spawn().unwrap();
            told.send(child.id()).unwrap();
            child.wait().unwrap();
        });
        let id = i32::try_from(hears.recv().unwrap()).unwrap();
        let server = Self {
            port,
            process: Pid::from_raw(id).unwrap(),
            keeper: Some(keeper),
            dir,
        };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let deadline = std::time::Instant::now() + PATIENCE;
            while let Err(error) = Database::connect(&self.place("postgres")).await {
                let log = std::fs::read_to_string(self.dir.path().join("log"));
                let is_late = std::time::Instant::now() > deadline;
                assert!(!is_late, "{error:?}\n{}", log.unwrap_or_default());
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
    }

    fn place(&self, database: &str) -> DatabasePlace {
        let url = format!("postgres://postgres@127.0.0.1:{}/{database}", self.port);
        DatabasePlace::Postgres(Secret::new(url))
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // SIGQUIT: at once, children included.
        rustix::process::kill_process(self.process, Signal::QUIT).ok();
        if let Some(keeper) = self.keeper.take() {
            drop(keeper.join());
        }
    }
}
