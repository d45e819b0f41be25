//! Processes for one run: stub upstream, nginx, gateway; all on loopback, all ended with the run.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::client::{Caller, Target};
use crate::keys::{ISSUER, Issuer, SCOPE};

/// How long a process may take to be ready.
const START: Duration = Duration::from_secs(15);
/// How long nginx may take to end.
const STOP: Duration = Duration::from_secs(2);

/// A directory of the run, removed at its end unless the run failed.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) issuer: Issuer,
}

impl Place {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("drill-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let issuer = Issuer::new()?;
        issuer.write_key_set(&dir.join("keys.json"))?;
        Ok(Self { dir, issuer })
    }

    /// Removes the directory.
    pub(crate) fn clean(self) -> anyhow::Result<()> {
        std::fs::remove_dir_all(&self.dir).context("cannot remove the run's directory")
    }

    /// Starts `command`; its stderr goes to a log file.
    pub(crate) fn run(&self, name: &str, command: &mut Command) -> anyhow::Result<Running> {
        let log = self.dir.join(format!("{name}.log"));
        let stderr = std::fs::File::create(&log).context("cannot make a log file")?;
        let child = command
            .stdin(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Running {
            child,
            name: name.to_owned(),
            log,
        })
    }
}

/// A process of the run, killed when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process id")?, signal).context("cannot send a signal")
    }

    /// Waits for the exit; `None` when it does not come in time.
    pub(crate) fn wait(&mut self, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let end = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() > end {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM to a running process and waits up to `STOP` for its exit.
    pub(crate) fn end(&mut self) {
        // The number of a process that has ended may be another's.
        if matches!(self.child.try_wait(), Ok(None)) && self.signal(Signal::TERM).is_ok() {
            self.wait(STOP).map(drop).unwrap_or_default();
        }
    }

    /// What the process prints first, one line of JSON; its standard output has to be a pipe.
    pub(crate) fn first_line(&mut self) -> anyhow::Result<Value> {
        let stdout = self.child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("{} did not start", self.name))
    }

    /// Waits until somebody listens at `addr`.
    pub(crate) fn until_listening(&mut self, addr: SocketAddr) -> anyhow::Result<()> {
        let end = Instant::now() + START;
        while TcpStream::connect(addr).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended early ({status}):\n{}", self.name, self.log());
            }
            if Instant::now() > end {
                bail!("{} does not listen at {addr}:\n{}", self.name, self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Last 20 lines of the process's stderr.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(20)..)
            .unwrap_or_default()
            .join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `kill` fails if the process has already exited.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// A loopback address with a port that was free a moment ago.
pub(crate) fn free_addr() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// A stub upstream over HTTP.
#[derive(Debug)]
pub(crate) struct Stub {
    pub(crate) process: Running,
    pub(crate) url: String,
}

impl Stub {
    pub(crate) fn start(place: &Place, binary: &Path, options: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(binary);
        command
            .args(["http", "--until-eof"])
            .args(options)
            .stdout(Stdio::piped());
        let name = ["stub", &options.concat()].concat();
        let mut process = place.run(&name, &mut command)?;
        let ready = process.first_line()?;
        let url = ready
            .get("url")
            .and_then(Value::as_str)
            .context("no url")?
            .to_owned();
        Ok(Self { process, url })
    }
}

/// nginx as a plain reverse proxy with one worker.
#[derive(Debug)]
pub(crate) struct Nginx {
    master: Running,
    pub(crate) worker: u32,
    /// In the order of its upstreams.
    urls: Vec<String>,
    /// Takes telemetry and forgets it.
    pub(crate) sink: String,
}

impl Nginx {
    pub(crate) fn start(place: &Place, upstreams: &[&Target]) -> anyhow::Result<Self> {
        let sink = free_addr()?;
        let dir = place.dir.display();
        let (mut servers, mut urls) = (String::new(), Vec::new());
        for (number, upstream) in upstreams.iter().enumerate() {
            let addr = free_addr()?;
            urls.push(format!("http://{addr}{}", upstream.path));
            write!(
                servers,
                "  upstream stub{number} {{ server {}; keepalive 1024; keepalive_requests 1000000000; }}\n  \
                 server {{\n    listen {addr};\n    location / {{\n      proxy_pass http://stub{number};\n      \
                 proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off;\n    }}\n  }}\n",
                upstream.addr
            )?;
        }
        let config = format!(
            "user root; worker_processes 1; daemon off; pid {dir}/nginx.pid;\n\
             error_log {dir}/nginx-error.log warn;\n\
             events {{ worker_connections 8192; }}\n\
             http {{\n  access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;\n  \
             fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n  \
             keepalive_requests 1000000000;\n{servers}  \
             server {{ listen {sink}; location / {{ return 200; }} }}\n}}\n"
        );
        let file = place.dir.join("nginx.conf");
        std::fs::write(&file, config)?;
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(&place.dir)
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null());
        let mut master = place.run("nginx", &mut command)?;
        master.until_listening(sink)?;
        let end = Instant::now() + START;
        let worker = loop {
            if let Some(worker) = crate::watch::descendants(master.pid()).pop() {
                break worker.pid;
            }
            if Instant::now() > end {
                bail!("nginx has no worker:\n{}", master.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        Ok(Self {
            master,
            worker,
            urls,
            sink: format!("http://{sink}"),
        })
    }

    /// URL of upstream `number` through nginx.
    pub(crate) fn url(&self, number: usize) -> anyhow::Result<&str> {
        let url = self.urls.get(number).context("no such upstream of nginx")?;
        Ok(url)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGKILL of the nginx master would leave its worker behind, so ask it to exit.
        self.master.end();
    }
}

/// How a gateway is to be run.
#[derive(Debug, Clone)]
pub(crate) struct GatewayPlan<'a> {
    pub(crate) binary: &'a Path,
    /// Names its files.
    pub(crate) name: &'a str,
    /// Worker threads.
    pub(crate) threads: usize,
    /// Further lines of `[server]`.
    pub(crate) server: String,
    /// `[upstreams.*]` tables.
    pub(crate) upstreams: String,
    /// Further tables, such as `[limits]` and `[sessions]`.
    pub(crate) tables: String,
    /// A program, with its options, that runs the gateway; empty for none.
    pub(crate) under: Vec<String>,
}

impl<'a> GatewayPlan<'a> {
    /// A gateway named `gateway` with two worker threads and no further lines of `[server]`, run by nothing else.
    pub(crate) fn new(binary: &'a Path, upstreams: String, tables: String) -> Self {
        Self {
            binary,
            name: "gateway",
            threads: 2,
            server: String::new(),
            upstreams,
            tables,
            under: Vec::new(),
        }
    }
}

/// A running gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) process: Running,
    pub(crate) origin: String,
    pub(crate) admin: SocketAddr,
}

/// The configuration file of a planned gateway and where it will listen.
pub(crate) fn configure(
    place: &Place,
    plan: &GatewayPlan<'_>,
) -> anyhow::Result<(PathBuf, SocketAddr, SocketAddr)> {
    let (addr, admin) = (free_addr()?, free_addr()?);
    let text = format!(
        "[server]\nlisten = \"{addr}\"\nthreads = {}\n{}\n\n[admin]\nlisten = \"{admin}\"\n\n\
         [auth]\nmode = \"oauth\"\nrequired_scopes = [\"{SCOPE}\"]\n\
         [[auth.issuers]]\nissuer = \"{ISSUER}\"\njwks_file = \"{}\"\n\n{}\n{}\n",
        plan.threads,
        plan.server,
        place.dir.join("keys.json").display(),
        plan.upstreams,
        plan.tables,
    );
    let file = place.dir.join(format!("{}.toml", plan.name));
    std::fs::write(&file, text)?;
    Ok((file, addr, admin))
}

/// The command that serves `config`.
pub(crate) fn serve(plan: &GatewayPlan<'_>, config: &Path) -> Command {
    let mut command = match plan.under.split_first() {
        Some((program, options)) => {
            let mut command = Command::new(program);
            command.args(options).arg(plan.binary);
            command
        }
        None => Command::new(plan.binary),
    };
    command
        .arg("serve")
        .arg("--config")
        .arg(config)
        .stdout(Stdio::null());
    command
}

impl Gateway {
    pub(crate) fn start(place: &Place, plan: &GatewayPlan<'_>) -> anyhow::Result<Self> {
        let (file, addr, admin) = configure(place, plan)?;
        let mut process = place.run(plan.name, &mut serve(plan, &file))?;
        process.until_listening(addr)?;
        process.until_listening(admin)?;
        Ok(Self {
            process,
            origin: format!("http://{addr}"),
            admin,
        })
    }

    /// A caller of the pure endpoint of `upstream`.
    pub(crate) fn caller(
        &self,
        place: &Place,
        upstream: &str,
        subject: &str,
    ) -> anyhow::Result<Caller> {
        caller_of(place, &self.origin, upstream, subject)
    }
}

/// A caller of the pure endpoint of `upstream` of the gateway that clients know by the URL `origin`.
pub(crate) fn caller_of(
    place: &Place,
    origin: &str,
    upstream: &str,
    subject: &str,
) -> anyhow::Result<Caller> {
    let url = format!("{origin}/mcp/{upstream}");
    let audiences = [url.clone(), format!("{origin}/mcp")];
    let token = place.issuer.token(subject, &audiences)?;
    Ok(Caller {
        token: Some(Arc::from(token)),
        ..Caller::anonymous(Target::parse(&url)?)
    })
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // A killed gateway does not write its profile counters (`make profile`), so ask it to exit.
        self.process.end();
    }
}
