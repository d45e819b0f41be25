//! One connection to what `cluster.redis` names.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, RedisConnectionInfo, TlsCertificates, cmd, from_redis_value,
};
use tokio::time::timeout;

use super::failure::RedisFailure;
use super::server_info::ServerInfo;
use crate::config::{RedisConfig, RedisTopology};
use crate::secret::Secret;

/// From sending a command to its answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// For TCP, TLS and the login.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The same for one node of a Cluster: while the crate connects to a dark one, commands to all others wait. Twice as
/// long with TLS, which takes more round trips.
const NODE_WITHIN: Duration = Duration::from_millis(500);
/// From sending a command to a node of a Cluster to its answer; once more within [`ANSWER_WITHIN`].
const NODE_ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// For a connection to a Cluster: several bounds of silent nodes in a row.
const CLUSTER_WITHIN: Duration = Duration::from_secs(10);
/// After so long without an acknowledgement a node of a Cluster counts as gone.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);
/// How often the crate follows a Cluster's redirections for one command.
const REDIRECTIONS: u32 = 3;

/// A connection; clones share it.
#[derive(Clone)]
pub(super) enum RedisLink {
    /// To one server.
    Single(MultiplexedConnection),
    /// To the masters of a Cluster.
    Cluster(ClusterConnection),
}

impl fmt::Debug for RedisLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single(_) => "Single",
            Self::Cluster(_) => "Cluster",
        })
    }
}

/// Makes connections.
#[derive(Debug)]
pub(super) struct RedisConnector {
    config: RedisConfig,
}

impl RedisConnector {
    /// Whether the certificates can be read is found out here.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn new(config: &RedisConfig) -> Result<Self, RedisFailure> {
        let config = config.clone();
        let connector = Self { config };
        drop(connector.certificates()?);
        Ok(connector)
    }

    /// The certificates for one connection, with TLS. Read each time: they may have been renewed since the start.
    fn certificates(&self) -> Result<Option<TlsCertificates>, RedisFailure> {
        let read = self.config.tls.then(|| read_certificates(&self.config));
        read.transpose()
    }

    /// Host and port of each configured node, for log lines.
    pub(super) fn nodes(&self) -> String {
        let nodes = self.config.nodes.iter();
        let nodes: Vec<_> = nodes.map(|(host, port)| format!("{host}:{port}")).collect();
        nodes.join(", ")
    }

    /// Connects to a server or a Cluster that can be written to; also its `INFO`, or that of all masters.
    ///
    /// # Errors
    /// See [`RedisFailure`].
    pub(super) async fn connect(&self) -> Result<(RedisLink, Vec<ServerInfo>), RedisFailure> {
        match &self.config.topology {
            RedisTopology::Single => {
                let node = self.config.nodes.first();
                let (host, port) = node.ok_or(RedisFailure::NotConnected)?;
                self.master(host, *port).await
            }
            RedisTopology::Sentinel { master, password } => {
                let (host, port) = self.ask_sentinels(master, password.as_ref()).await?;
                self.master(&host, port).await
            }
            RedisTopology::Cluster => {
                let client = self.cluster_client()?;
                let connected = timeout(CLUSTER_WITHIN, client.get_async_connection()).await;
                let mut link = connected.map_err(|_| RedisFailure::Silent)??;
                let infos = masters(&mut link).await;
                Ok((RedisLink::Cluster(link), infos))
            }
        }
    }

    /// Connects to a server, and asks whether it is one that takes writes.
    async fn master(
        &self,
        host: &str,
        port: u16,
    ) -> Result<(RedisLink, Vec<ServerInfo>), RedisFailure> {
        let mut settings = RedisConnectionInfo::default().set_db(self.config.database);
        if let Some(user) = &self.config.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.config.password {
            settings = settings.set_password(password.expose());
        }
        let mut link = self.open(host, port, settings).await?;
        let mut ask = cmd("INFO");
        ask.arg("everything");
        let text: String = timeout(ANSWER_WITHIN, ask.query_async(&mut link))
            .await
            .map_err(|_| RedisFailure::Silent)??;
        let info = ServerInfo::read(&text)?;
        Ok((RedisLink::Single(link), vec![info]))
    }

    /// The master, as the first sentinel says that knows it. They are asked in turn: the first that answers is
    /// believed, as a client of Redis has to. Spec: Redis, "Sentinel clients".
    async fn ask_sentinels(
        &self,
        master: &str,
        password: Option<&Secret>,
    ) -> Result<(String, u16), RedisFailure> {
        let mut failure = RedisFailure::NoMaster(master.to_owned());
        for (host, port) in &self.config.nodes {
            let mut settings = RedisConnectionInfo::default();
            if let Some(password) = password {
                settings = settings.set_password(password.expose());
            }
            let asked = async {
                let mut link = self.open(host, *port, settings).await?;
                let mut ask = cmd("SENTINEL");
                ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
                let found: Option<(String, u16)> = ask.query_async(&mut link).await?;
                Ok::<_, RedisFailure>(found)
            };
            match timeout(ANSWER_WITHIN, asked).await {
                Ok(Ok(Some(found))) => return Ok(found),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => failure = error,
                Err(_) => failure = RedisFailure::Silent,
            }
        }
        Err(failure)
    }

    async fn open(
        &self,
        host: &str,
        port: u16,
        settings: RedisConnectionInfo,
    ) -> Result<MultiplexedConnection, RedisFailure> {
        let info = self.address(host, port)?.set_redis_settings(settings);
        let client = match self.certificates()? {
            Some(certificates) => Client::build_with_tls(info, certificates)?,
            None => Client::open(info)?,
        };
        // Answers have a deadline of ours, after which the connection is replaced.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(None);
        let opened = client.get_multiplexed_async_connection_with_config(&config);
        let opened = timeout(CONNECT_WITHIN, opened).await;
        Ok(opened.map_err(|_| RedisFailure::Silent)??)
    }

    fn address(&self, host: &str, port: u16) -> Result<ConnectionInfo, RedisFailure> {
        let host = host.to_owned();
        let address = if self.config.tls {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?;
        Ok(info.set_tcp_settings(tcp_settings()))
    }

    fn cluster_client(&self) -> Result<ClusterClient, RedisFailure> {
        let nodes = self.config.nodes.iter();
        let nodes: Result<Vec<_>, _> = nodes
            .map(|(host, port)| self.address(host, *port))
            .collect();
        let handshakes = if self.config.tls { 2 } else { 1 };
        let mut builder = ClusterClientBuilder::new(nodes?)
            .tcp_settings(tcp_settings().set_user_timeout(UNACKNOWLEDGED))
            .connection_timeout(NODE_WITHIN * handshakes)
            .response_timeout(NODE_ANSWER_WITHIN)
            // Ours is shorter than all attempts together.
            .overall_response_timeout(None)
            .retries(REDIRECTIONS);
        if let Some(user) = &self.config.user {
            builder = builder.username(user.clone());
        }
        if let Some(password) = &self.config.password {
            builder = builder.password(password.expose());
        }
        if let Some(certificates) = self.certificates()? {
            builder = builder.certs(certificates);
        }
        Ok(builder.build()?)
    }
}

/// Commands are written whole: waiting for more would only delay them.
fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// The `INFO` of each master of a Cluster; empty where one of them fails.
pub(super) async fn masters(link: &mut ClusterConnection) -> Vec<ServerInfo> {
    let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
    let asked = timeout(ANSWER_WITHIN, link.route_command(cmd("INFO"), all)).await;
    let texts = asked.ok().and_then(Result::ok).map(from_redis_value);
    let texts: HashMap<String, String> = texts.and_then(Result::ok).unwrap_or_default();
    let read = texts.values().map(|text| ServerInfo::read(text));
    read.filter_map(Result::ok).collect()
}

/// The certificates that `cluster.redis` names.
fn read_certificates(config: &RedisConfig) -> Result<TlsCertificates, RedisFailure> {
    let root_cert = config.ca.as_deref().map(read).transpose()?;
    let identity = config.identity.as_ref().map(|(cert, key)| {
        Ok::<_, RedisFailure>(ClientTlsConfig {
            client_cert: read(cert)?,
            client_key: read(key)?,
        })
    });
    Ok(TlsCertificates {
        root_cert,
        client_tls: identity.transpose()?,
    })
}

fn read(path: impl AsRef<Path>) -> Result<Vec<u8>, RedisFailure> {
    let path = path.as_ref();
    std::fs::read(path).map_err(|error| RedisFailure::File {
        path: PathBuf::from(path),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::redis_url;

    #[test]
    fn renewed_certificates_are_read_for_a_connection() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        std::fs::write(&ca, "former").unwrap();
        let config = RedisConfig {
            ca: Some(ca.clone()),
            ..redis_url::parse("rediss://127.0.0.1:6379").unwrap()
        };
        let connector = RedisConnector::new(&config).unwrap();
        std::fs::write(&ca, "renewed").unwrap();
        let read = connector.certificates().unwrap().unwrap();
        assert_eq!(read.root_cert.unwrap(), b"renewed");
        std::fs::remove_file(&ca).unwrap();
        let gone = connector.certificates();
        assert!(matches!(gone, Err(RedisFailure::File { .. })));
    }
}
