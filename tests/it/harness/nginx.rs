//! Debian's nginx in front of several gateways, as in `deploy/compose`: each request goes to the next gateway, also within
//! one session.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::PATIENCE;
use super::kept::KeptProcess;
use super::peers::root;

/// Debian's package has it where the PATH of a user does not lead.
const PROGRAM: &str = "/usr/sbin/nginx";
/// The header of its answers that names the replica which has taken the request.
pub(crate) const ENTRY: &str = "x-entry";

/// A running nginx; ended, with its files, when dropped.
pub(crate) struct Nginx {
    _process: KeptProcess,
    dir: TempDir,
}

impl Nginx {
    /// Starts it on `port` in front of these addresses, and waits until it listens. `None` where nginx is not installed,
    /// except where `DRAWBRIDGE_PEERS=required` makes that a failure.
    pub(crate) async fn start(port: u16, replicas: &[String]) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            let is_required =
                std::env::var_os("DRAWBRIDGE_PEERS").is_some_and(|value| value == "required");
            assert!(!is_required, "no {PROGRAM}; run tests/setup/install.py");
            eprintln!("SKIPPED: nginx is not installed; run tests/setup/install.py");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, configuration(dir.path(), port, replicas)).unwrap();
        let process = KeptProcess::start(PROGRAM, |command| {
            command.arg("-c").arg(&file).arg("-p").arg(dir.path());
            command.arg("-e").arg(dir.path().join("error.log"));
            command.stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null());
        });
        let nginx = Self {
            _process: process,
            dir,
        };
        let deadline = Instant::now() + PATIENCE;
        while tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_err()
        {
            assert!(Instant::now() < deadline, "{}", nginx.errors());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Some(nginx)
    }

    /// What it has complained about.
    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("error.log")).unwrap_or_default()
    }
}

/// The server of `deploy/compose/nginx.conf`, with these replicas and this port. A replica that refuses a connection is
/// asked again for the next request: it may have come back.
fn configuration(dir: &Path, port: u16, replicas: &[String]) -> String {
    let shipped = std::fs::read_to_string(root().join("deploy/compose/nginx.conf")).unwrap();
    let mut server = String::new();
    for line in shipped.lines() {
        let word = line.trim_start();
        if word.starts_with("server 127.0.0.1:") {
            continue;
        }
        if word.starts_with("listen ") {
            writeln!(server, "listen 127.0.0.1:{port};").unwrap();
            writeln!(server, "add_header {ENTRY} $upstream_addr always;").unwrap();
            continue;
        }
        writeln!(server, "{line}").unwrap();
        if word.starts_with("upstream ") {
            for replica in replicas {
                writeln!(server, "server {replica} max_fails=0;").unwrap();
            }
        }
    }
    let dir = dir.display();
    let mut places = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(places, "{kind}_temp_path {dir}/{kind};").unwrap();
    }
    format!(
        "daemon off;\nmaster_process off;\npid {dir}/pid;\nworker_rlimit_nofile 8192;\n\
         events {{ worker_connections 4096; }}\nhttp {{\naccess_log off;\n{places}{server}}}\n"
    )
}
