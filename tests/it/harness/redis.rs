//! A real Redis, Debian's package: a server of its own for each test, which may stop, restart and be paused.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drawbridge::config::{RedisConfig, RedisTopology};
use drawbridge::redis_client::{RedisClient, Value, cmd};
use drawbridge::runtime::lifecycle::TaskSpawner;
use rcgen::{CertificateParams, KeyPair};
use rustix::process::Signal;
use tempfile::TempDir;

use super::kept::KeptProcess;
use super::{PATIENCE, eventually};

/// A running server; ended, with its files, when dropped.
pub(crate) struct RedisServer {
    pub(crate) port: u16,
    /// The configuration file of the server, if any.
    file: Option<PathBuf>,
    arguments: Vec<String>,
    tls: Option<Arc<RedisTls>>,
    running: Option<KeptProcess>,
    dir: TempDir,
}

/// A certificate for 127.0.0.1 that is its own authority, and its key. Servers with the same secret trust each other.
pub(crate) struct RedisTls(TempDir);

impl RedisTls {
    /// Makes both.
    pub(crate) fn new() -> Arc<Self> {
        let key = KeyPair::generate().unwrap();
        let wanted = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = wanted.self_signed(&key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
        Arc::new(Self(dir))
    }

    /// PEM file for clients.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.0.path().join("ca.pem")
    }

    /// Has a server listen on `port` with TLS alone, and speak it to others.
    fn configure(&self, command: &mut Command, port: u16) {
        let key = self.0.path().join("key.pem");
        command.args(["--port", "0", "--tls-port", &port.to_string()]);
        command.arg("--tls-cert-file").arg(self.ca_file());
        command.arg("--tls-key-file").arg(key);
        command.arg("--tls-ca-cert-file").arg(self.ca_file());
        command.args(["--tls-auth-clients", "no", "--tls-replication", "yes"]);
    }
}

/// A server without persistence and with these further arguments. `None` where Redis is not installed, except where
/// `DRAWBRIDGE_PEERS=required` makes that a failure.
pub(crate) async fn server(arguments: &[&str]) -> Option<RedisServer> {
    started(None, None, arguments).await
}

/// The same over TLS alone.
pub(crate) async fn server_over_tls(
    tls: &Arc<RedisTls>,
    arguments: &[&str],
) -> Option<RedisServer> {
    started(None, Some(tls), arguments).await
}

/// The same as a sentinel, with a configuration file that it may rewrite.
pub(crate) async fn sentinel(file: &Path, tls: Option<&Arc<RedisTls>>) -> Option<RedisServer> {
    started(Some(file), tls, &["--sentinel"]).await
}

/// A Cluster of masters without replicas, which have equal shares of the slots in their order. When one master is
/// silent, the others go on. `None` as for [`server`].
pub(crate) struct RedisCluster {
    pub(crate) nodes: Vec<RedisServer>,
}

/// Slots of a Cluster.
const SLOTS: usize = 16_384;

/// Starts a Cluster.
pub(crate) async fn cluster(masters: usize) -> Option<RedisCluster> {
    cluster_with(masters, None, &[]).await
}

/// The same, with TLS where `tls` is there, and with these further arguments for each node.
pub(crate) async fn cluster_with(
    masters: usize,
    tls: Option<&Arc<RedisTls>>,
    further: &[&str],
) -> Option<RedisCluster> {
    let mut nodes = Vec::new();
    let mut buses = Vec::new();
    for _ in 0..masters {
        let bus = free_port().to_string();
        let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-port", &bus];
        arguments.extend(["--cluster-require-full-coverage", "no"]);
        if tls.is_some() {
            arguments.extend(["--tls-cluster", "yes"]);
        }
        arguments.extend(further);
        nodes.push(started(None, tls, &arguments).await?);
        buses.push(bus);
    }
    let first = nodes.first()?.client().await;
    for (at, (node, bus)) in nodes.iter().zip(&buses).enumerate() {
        let (begin, end) = (at * SLOTS / masters, (at + 1) * SLOTS / masters - 1);
        let mut slots = cmd("CLUSTER");
        slots.arg("ADDSLOTSRANGE").arg(begin).arg(end);
        let client = node.client().await;
        client.command::<()>("slots", &slots).await.unwrap();
        let mut meet = cmd("CLUSTER");
        meet.arg("MEET").arg("127.0.0.1").arg(node.port).arg(bus);
        first.command::<()>("meet", &meet).await.unwrap();
    }
    for node in &nodes {
        let client = node.client().await;
        let mut slots = cmd("CLUSTER");
        slots.arg("SLOTS");
        eventually("each node knows all slots", async || {
            let known: Vec<Value> = client.command("slots", &slots).await.ok()?;
            (known.len() == masters).then_some(())
        })
        .await;
    }
    Some(RedisCluster { nodes })
}

impl RedisCluster {
    /// The configuration that names all nodes.
    pub(crate) fn config(&self) -> RedisConfig {
        let address = |node: &RedisServer| ("127.0.0.1".to_owned(), node.port);
        RedisConfig {
            topology: RedisTopology::Cluster,
            nodes: self.nodes.iter().map(address).collect(),
            ..self.nodes[0].config()
        }
    }

    /// A handle once it is connected, with keys that begin with `test:`.
    pub(crate) async fn client(&self) -> RedisClient {
        let client = RedisClient::start(&self.config(), "test", &TaskSpawner::new()).unwrap();
        eventually("the Cluster is connected", async || {
            client.is_connected().then_some(())
        })
        .await;
        client
    }

    /// The position of the node that has a key.
    pub(crate) async fn place_of(&self, key: &str) -> usize {
        let client = self.nodes[0].client().await;
        let mut slot = cmd("CLUSTER");
        slot.arg("KEYSLOT").arg(key);
        let slot: usize = client.command("slot", &slot).await.unwrap();
        let nodes = self.nodes.len();
        (0..nodes)
            .find(|at| slot < (at + 1) * SLOTS / nodes)
            .unwrap()
    }
}

async fn started(
    file: Option<&Path>,
    tls: Option<&Arc<RedisTls>>,
    arguments: &[&str],
) -> Option<RedisServer> {
    let is_there = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| dir.join("redis-server").is_file())
    });
    if !is_there {
        let is_required =
            std::env::var_os("DRAWBRIDGE_PEERS").is_some_and(|value| value == "required");
        assert!(!is_required, "no Redis; run tests/setup/install.py");
        eprintln!("SKIPPED: Redis is not installed; run tests/setup/install.py");
        return None;
    }
    let mut server = RedisServer {
        port: free_port(),
        file: file.map(Path::to_owned),
        arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
        tls: tls.map(Arc::clone),
        running: None,
        dir: tempfile::tempdir().unwrap(),
    };
    server.start().await;
    Some(server)
}

/// A port without a listener.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl RedisServer {
    /// Starts it, with the data of the last time where it keeps any, and waits until it listens.
    pub(crate) async fn start(&mut self) {
        let running = KeptProcess::start("redis-server", |command| {
            command.args(&self.file);
            command.args(["--bind", "127.0.0.1"]);
            match &self.tls {
                Some(tls) => tls.configure(command, self.port),
                None => drop(command.args(["--port", &self.port.to_string()])),
            }
            command.args(["--daemonize", "no", "--dir"]).arg(self.dir());
            if self.file.is_none() {
                command.args(["--save", "", "--appendonly", "no"]);
            }
            command.args(&self.arguments).stdin(Stdio::null());
            let log = std::fs::File::create(self.dir().join("log")).unwrap();
            command.stdout(log).stderr(Stdio::null());
        });
        self.running = Some(running);
        let deadline = Instant::now() + PATIENCE;
        let address = ("127.0.0.1", self.port);
        while tokio::net::TcpStream::connect(address).await.is_err() {
            let log = std::fs::read_to_string(self.dir().join("log"));
            assert!(Instant::now() < deadline, "{}", log.unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Its files.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a signal, such as STOP and CONT.
    pub(crate) fn signal(&self, signal: Signal) {
        self.running.as_ref().unwrap().signal(signal);
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// The value of `cluster.redis` for it.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its configuration as read from [`Self::url`].
    pub(crate) fn config(&self) -> RedisConfig {
        RedisConfig {
            topology: RedisTopology::Single,
            nodes: vec![("127.0.0.1".to_owned(), self.port)],
            database: 0,
            user: None,
            password: None,
            tls: self.tls.is_some(),
            ca: self.tls.as_ref().map(|tls| tls.ca_file()),
            identity: None,
        }
    }

    /// A connected handle with keys that begin with `test:`.
    pub(crate) async fn client(&self) -> RedisClient {
        connected(&self.config()).await
    }
}

/// A connected handle with keys that begin with `test:`.
pub(crate) async fn connected(config: &RedisConfig) -> RedisClient {
    let client = RedisClient::start(config, "test", &TaskSpawner::new()).unwrap();
    eventually("Redis is connected", async || {
        let answer = client.command::<String>("ping", &cmd("PING")).await;
        answer.is_ok().then_some(())
    })
    .await;
    client
}
