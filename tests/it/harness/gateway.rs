//! The real binary as a child process.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::http::Actor;
use super::issuer::Issuer;
use super::process::{self, Process};
use super::{PATIENCE, eventually, within};

/// A running gateway. Dropping it kills it.
pub(crate) struct Gateway {
    child: Child,
    pid: u32,
    /// `http://127.0.0.1:PORT`, without a path.
    pub(crate) url: String,
    admin: String,
    log: Log,
    /// Absent with `auth.mode = "none"`.
    issuer: Option<Arc<Issuer>>,
    dir: TempDir,
}

/// Everything the process wrote, on either stream.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    /// Whether nothing is read.
    held: Arc<watch::Sender<bool>>,
}

impl Log {
    fn follow(&self, stream: impl AsyncRead + Unpin + Send + 'static) {
        let log = self.clone();
        let mut held = self.held.subscribe();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stream).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                log.lines.lock().unwrap().push(line);
                drop(held.wait_for(|held| !held).await);
            }
        });
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// The URLs of the first endpoint and of the admin port, from the event at the start.
    fn started(&self) -> Option<(String, String)> {
        let lines = self.lines.lock().unwrap();
        let line = lines.iter().find(|line| line.contains("gateway started"))?;
        if let Ok(event) = serde_json::from_str::<Value>(line) {
            let field = |name: &str| Some(event[name].as_str()?.to_owned());
            return field("url").zip(field("admin"));
        }
        let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
        let (url, admin) = field("url=").zip(field("admin="))?;
        Some((url.to_owned(), admin.to_owned()))
    }
}

/// `program`, which gets no capability.
pub(crate) fn without_capabilities(program: &str) -> std::process::Command {
    if !rustix::process::getuid().is_root() {
        return std::process::Command::new(program);
    }
    let mut command = std::process::Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", program]);
    command
}

/// A filter of system calls that lets the kernel have no Landlock (`landlock_create_ruleset`, 444), before the program of
/// the arguments: the words are those of `struct sock_filter`.
const NO_LANDLOCK: &str = "
import ctypes, os, struct, sys
words = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7fff0000)]
program = b''.join(struct.pack('HBBI', *word) for word in words)
held = ctypes.create_string_buffer(program)
class Fprog(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
fprog = Fprog(len(words), ctypes.cast(held, ctypes.c_void_p))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(fprog), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

/// The gateway's program, on a kernel without Landlock.
pub(crate) fn without_landlock() -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", NO_LANDLOCK, env!("CARGO_BIN_EXE_drawbridge")]);
    command
}

impl Gateway {
    /// Starts `serve` with this configuration and waits until `/ready` returns success.
    pub(crate) async fn start(config: &str, issuer: Option<Arc<Issuer>>) -> Self {
        let program = Command::new(env!("CARGO_BIN_EXE_drawbridge"));
        Self::start_as(program, config, issuer).await
    }

    /// The same where `soft` file descriptors may be open at first, and `hard` at most.
    pub(crate) async fn start_with_descriptors(
        config: &str,
        issuer: Option<Arc<Issuer>>,
        (soft, hard): (u64, u64),
    ) -> Self {
        let mut program = Command::new("sh");
        let script = "ulimit -S -n \"$0\" && ulimit -H -n \"$1\" && shift && exec \"$@\"";
        let numbers = [soft, hard].map(|number| number.to_string());
        program.args(["-c", script]).args(numbers);
        program.arg(env!("CARGO_BIN_EXE_drawbridge"));
        Self::start_as(program, config, issuer).await
    }

    /// The same where it kills itself at `point` (`runtime::fault_point`).
    pub(crate) async fn start_doomed(
        config: &str,
        issuer: Option<Arc<Issuer>>,
        point: &str,
    ) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_drawbridge"));
        program.env("DRAWBRIDGE_FAULT_POINT", point);
        Self::start_as(program, config, issuer).await
    }

    /// The same with a variable in its environment.
    pub(crate) async fn start_with_variable(config: &str, (name, value): (&str, &str)) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_drawbridge"));
        program.env(name, value);
        Self::start_as(program, config, None).await
    }

    /// The same without capabilities, which root has.
    pub(crate) async fn start_without_capabilities(config: &str) -> Self {
        let program = without_capabilities(env!("CARGO_BIN_EXE_drawbridge"));
        Self::start_as(program.into(), config, None).await
    }

    /// The same on a kernel without Landlock.
    pub(crate) async fn start_without_landlock(config: &str) -> Self {
        Self::start_as(without_landlock(), config, None).await
    }

    async fn start_as(mut program: Command, config: &str, issuer: Option<Arc<Issuer>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gateway.toml");
        std::fs::write(&file, config).unwrap();
        let mut child = program
            .arg("serve")
            .arg("--config")
            .arg(&file)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = Log::default();
        log.follow(child.stdout.take().unwrap());
        log.follow(child.stderr.take().unwrap());
        let started = Instant::now();
        let (url, admin) = loop {
            if let Some(urls) = log.started() {
                break urls;
            }
            let exited = child.try_wait().unwrap();
            assert!(
                exited.is_none() && started.elapsed() < PATIENCE,
                "the gateway did not start ({exited:?}):\n{config}\n{}",
                log.lines().join("\n")
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let url: url::Url = url.parse().unwrap();
        let base = url.origin().ascii_serialization();
        let pid = child.id().unwrap();
        let gateway = Self {
            child,
            pid,
            url: base,
            admin,
            log,
            issuer,
            dir,
        };
        eventually("/ready", async || {
            gateway
                .admin_text("/ready")
                .await
                .is_some_and(|(status, _)| status == 200)
                .then_some(())
        })
        .await;
        gateway
    }

    /// Somebody without a token.
    pub(crate) fn anonymous(&self) -> Actor {
        Actor::new(&self.url, None)
    }

    /// An actor whose token is valid for every endpoint, with the scope `mcp:tools`; without authentication, an actor
    /// without a token.
    pub(crate) fn principal(&self, name: &str) -> Actor {
        let token = self.issuer.as_ref().map(|issuer| {
            let audience = |path: &str| format!("{}{path}", self.url);
            let endpoints = self.endpoints();
            let audiences: Vec<String> = endpoints.iter().map(|path| audience(path)).collect();
            issuer.mint(name, &audiences, "mcp:tools")
        });
        Actor::new(&self.url, token)
    }

    /// Somebody with this token.
    pub(crate) fn bearer(&self, token: &str) -> Actor {
        Actor::new(&self.url, Some(token.to_owned()))
    }

    /// The issuer that [`Self::principal`] uses.
    pub(crate) fn issuer(&self) -> &Issuer {
        self.issuer
            .as_deref()
            .expect("a gateway with authentication")
    }

    /// Whether it asks for tokens.
    pub(crate) fn has_issuer(&self) -> bool {
        self.issuer.is_some()
    }

    /// The same, for a second gateway.
    pub(crate) fn shared_issuer(&self) -> Arc<Issuer> {
        Arc::clone(self.issuer.as_ref().expect("a gateway with authentication"))
    }

    /// The paths that the configuration gives rise to, `/mcp` first.
    fn endpoints(&self) -> Vec<String> {
        let config = std::fs::read_to_string(self.dir.path().join("gateway.toml")).unwrap();
        let config: toml::Table = config.parse().unwrap();
        let names = ["upstreams", "endpoints"]
            .into_iter()
            .filter_map(|table| config.get(table));
        let names = names.flat_map(|table| table.as_table().unwrap().keys());
        std::iter::once("/mcp".to_owned())
            .chain(names.map(|name| format!("/mcp/{name}")))
            .collect()
    }

    /// Host and port where it listens.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Host and port of the admin port.
    pub(crate) fn admin_address(&self) -> &str {
        self.admin.trim_start_matches("http://")
    }

    /// Status and body of a path on the admin port, if it answers.
    pub(crate) async fn admin_text(&self, path: &str) -> Option<(u16, String)> {
        let answer = Actor::new(&self.admin, None).try_get(path).await.ok()?;
        Some((answer.status(), answer.text().await))
    }

    /// One sample of `/metrics`: the sum over all series of `name` whose labels contain `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> f64 {
        let (_, text) = self
            .admin_text("/metrics")
            .await
            .expect("the admin port answers");
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(series, _)| series.split('{').next() == Some(name) && series.contains(labels))
            .filter_map(|(_, value)| value.parse::<f64>().ok())
            .sum()
    }

    /// Whether to leave the gateway's output unread from now on, except for one more line.
    pub(crate) fn hold_output(&self, hold: bool) {
        self.log.held.send_replace(hold);
    }

    /// The lines logged until now.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    /// The log lines that are JSON objects.
    pub(crate) fn log_records(&self) -> Vec<Value> {
        self.log
            .lines()
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Living processes below the gateway.
    pub(crate) fn children(&self) -> Vec<Process> {
        process::descendants(self.pid)
    }

    /// Sends a signal to the gateway alone.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the process to end; its exit code, `None` after a signal.
    pub(crate) async fn exit(&mut self) -> Option<i32> {
        within("the gateway's exit", self.child.wait())
            .await
            .unwrap()
            .code()
    }

    /// Stops it politely; fails if it does not exit with success or leaves a process behind.
    pub(crate) async fn stop(mut self) {
        let family = self.children();
        self.signal(Signal::TERM);
        assert_eq!(self.exit().await, Some(0), "exit code");
        nothing_left(&family).await;
    }

    /// `kill -9`; fails if a process is left behind.
    pub(crate) async fn kill(mut self) {
        let family = self.children();
        self.signal(Signal::KILL);
        self.exit().await;
        nothing_left(&family).await;
    }
}

/// Fails unless these processes have all ended.
pub(crate) async fn nothing_left(family: &[Process]) {
    eventually("no process is left over", async || {
        family
            .iter()
            .all(|process| !process::is_alive(*process))
            .then_some(())
    })
    .await;
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- log of the gateway ---\n{}",
                self.log.lines().join("\n")
            );
        }
    }
}
