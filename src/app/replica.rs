//! Joining the cluster: the internal listener, its address as others know it, the digest of the configuration.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use aws_lc_rs::digest::{SHA256, digest};
use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::listening;
use crate::clock::SystemClock;
use crate::cluster::Cluster;
use crate::config::{ClusterConfig, Config, HttpServerConfig};
use crate::digest::hex;
use crate::downstream::listener::{Listener, ReservedAddress};
use crate::downstream::{McpService, SessionHandOver};
use crate::runtime::lifecycle::TaskSpawner;
use crate::runtime::workers::Workers;

/// Headers that replicas add to a request.
const OWN_HEADERS: usize = 1024;
/// Idle time after which a connection of another replica is closed here. Its sender closes it after 30 s.
const IDLE: Duration = Duration::from_mins(1);
/// How long answers to other replicas may take once the internal listener ends.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of the digest.
const DIGEST: usize = 8;

/// Joins the cluster and binds the internal listener; `None` without `[cluster]`.
pub(super) async fn join(
    config: &Config,
    tasks: &TaskSpawner,
) -> anyhow::Result<Option<(Arc<Cluster>, Listener)>> {
    let Some(settings) = &config.cluster else {
        return Ok(None);
    };
    let internal = internal_listener(&config.server, settings.listen);
    let reserved = ReservedAddress::bind(settings.listen);
    let reserved = reserved.map_err(|error| listening::refused("cluster.listen", error))?;
    let address = match &settings.advertise {
        Some(address) => address.clone(),
        None => own_address(settings, reserved.local_addr()).await?,
    };
    let who = (address, config_digest(config));
    let cluster = Cluster::join(settings, who, &SystemClock, tasks).await?;
    // Peers that ask meanwhile are refused: a silent replica might reach Redis.
    let listener = Listener::on(reserved, &internal, config.limits.headers + OWN_HEADERS)?;
    let listener = listener.for_replicas(Arc::clone(&cluster))?;
    Ok(Some((cluster, listener)))
}

/// The internal listener is served like the public one, but over TLS of its own, and without proxies.
fn internal_listener(server: &HttpServerConfig, listen: SocketAddr) -> HttpServerConfig {
    HttpServerConfig {
        listen,
        tls: None,
        trusted_proxies: Vec::new(),
        connections_per_address: None,
        exchanges_per_principal: None,
        idle_timeout: server.idle_timeout.max(IDLE),
        ..server.clone()
    }
}

/// Serves the internal listener where there is one, checks `cluster.advertise`, and hands sessions over in a drain. The
/// listener's tasks have a spawner of their own, as it serves until [`leave`]: while this replica drains, others still pass
/// on what its sessions are sent.
pub(super) fn serve(
    joined: Option<(&Arc<Cluster>, Listener)>,
    service: &Arc<McpService>,
    (tasks, workers): (&TaskSpawner, &Workers),
) -> (Option<TaskSpawner>, Option<Arc<SessionHandOver>>) {
    let Some((cluster, internal)) = joined else {
        return (None, None);
    };
    let replicas = service.replica_service(Arc::clone(cluster));
    let serving = TaskSpawner::new();
    serving.spawn(internal.run(replicas, serving.clone(), workers.clone()));
    tasks.spawn_service(Arc::clone(cluster).check_own_address());
    let hand_over = service.session_hand_over();
    if let Some(hand_over) = &hand_over {
        tasks.spawn_service(Arc::clone(hand_over).run());
    }
    (Some(serving), hand_over)
}

/// At the end of the drain: ends the calls that run still, and gives up the sessions that are left, `until` then at the
/// latest.
pub(super) async fn finish_calls(
    service: &McpService,
    hand_over: Option<Arc<SessionHandOver>>,
    until: Instant,
) {
    let given_up = async {
        if let Some(hand_over) = hand_over {
            hand_over.finish(until).await;
        }
    };
    tokio::join!(service.cut_calls_off(until), given_up);
}

/// After all sessions have ended: gives the lease up, and ends the internal listener after `linger`. Requests of other
/// replicas that arrive within `linger` are answered.
pub(super) async fn leave(joined: Option<(Arc<Cluster>, TaskSpawner)>, linger: Duration) {
    if let Some((cluster, internal)) = joined {
        cluster.leave().await;
        internal.shut_down(linger + ANSWER_WITHIN).await;
    }
}

/// The address of the listener; if unspecified, the local address of a connection to Redis.
async fn own_address(settings: &ClusterConfig, listen: SocketAddr) -> anyhow::Result<String> {
    if !listen.ip().is_unspecified() {
        return Ok(listen.to_string());
    }
    let any = match listen {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let found = async {
        let socket = UdpSocket::bind(any).await?;
        let node = settings.redis.nodes.first().context("no Redis")?;
        // Sends nothing: the system chooses the address of the route.
        socket.connect((&*node.0, node.1)).await?;
        anyhow::Ok(socket.local_addr()?.ip())
    };
    let found = found
        .await
        .context("set cluster.advertise: the address of this host is unknown")?;
    Ok(SocketAddr::new(found, listen.port()).to_string())
}

/// Digest of what all replicas have to have in common. Secrets are not part of it: `Debug` does not show them.
fn config_digest(config: &Config) -> String {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let mut common = config.clone();
    common.warnings.clear();
    common.server.move_to(nowhere);
    common.admin.listen = nowhere;
    // These follow the machine where nothing is said.
    (common.server.threads, common.server.max_connections) = (0, 0);
    if let Some(cluster) = &mut common.cluster {
        (cluster.listen, cluster.advertise) = (nowhere, None);
    }
    let digest = digest(&SHA256, format!("{common:?}").as_bytes());
    let bytes = digest.as_ref();
    hex(bytes.get(..DIGEST).unwrap_or(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn digest_of(server: &str, rest: &str) -> String {
        let text = format!(
            "[server]\n{server}public_url = \"https://a.test\"\n[auth]\nmode = \"oauth\"\n[[auth.issuers]]\nissuer = \
             \"https://i.test\"\n[upstreams.a]\ncommand = \"x\"\n{rest}"
        );
        config_digest(&parse(&text, "g.toml", &|_| None).unwrap())
    }

    #[test]
    fn addresses_are_no_difference_and_upstreams_are() {
        let one = digest_of("", "");
        assert_eq!(
            one,
            digest_of("listen = \"10.0.0.7:8080\"\nthreads = 7\n", "")
        );
        assert_ne!(one, digest_of("", "[upstreams.b]\ncommand = \"y\"\n"));
    }

    #[test]
    fn public_url_is_a_difference_where_it_is_configured() {
        let digest_of = |server: &str| {
            let text = format!(
                "[server]\n{server}\n[auth]\nmode = \"none\"\n[upstreams.a]\ncommand = \"x\"\n"
            );
            config_digest(&parse(&text, "g.toml", &|_| None).unwrap())
        };
        let one = digest_of("listen = \"127.0.0.1:8080\"");
        assert_eq!(one, digest_of("listen = \"127.0.0.1:8081\""));
        assert_ne!(one, digest_of("public_url = \"http://localhost:8080\""));
    }

    // A connection that its owner closes first may break under a request.
    #[test]
    fn connections_of_replicas_stay_open_longer_than_replicas_keep_them() {
        let text = "[server]\nidle_timeout = \"2s\"\n[auth]\nmode = \"none\"\n[upstreams.a]\ncommand = \"x\"\n";
        let config = parse(text, "g.toml", &|_| None).unwrap();
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let internal = internal_listener(&config.server, listen);
        assert!(internal.idle_timeout > Duration::from_secs(30));
        assert_eq!(internal.listen, listen);
    }

    #[test]
    fn secrets_are_no_part_of_the_digest() {
        let key = |text: &str| format!("[keys]\nseal = [{{ id = \"a\", key = \"{text}\" }}]\n");
        let (one, two) = ("a".repeat(32), "b".repeat(32));
        assert_eq!(digest_of("", &key(&one)), digest_of("", &key(&two)));
    }
}
