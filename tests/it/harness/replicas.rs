//! Three gateways as one: a Redis of their own, and nginx in front that gives each request to the next of them.

use std::sync::atomic::{AtomicU16, Ordering};

use super::nginx::Nginx;
use super::redis::{self, RedisServer};
use super::{Gateway, Setup, eventually};

/// How many there are.
const REPLICAS: u8 = 3;
/// `cluster.secret`, and the key of `keys.seal`.
pub(crate) const SECRET: &str = "0123456789abcdefghijklmnopqrstuvwxyz";
/// The shortest lease that leaves a busy machine time for heartbeats.
pub(crate) const LEASE: std::time::Duration = std::time::Duration::from_secs(2);

/// Three replicas with one configuration.
pub(crate) struct Replicas<M> {
    /// Of nginx, without a path.
    pub(crate) url: String,
    /// The oldest process first.
    running: Vec<(Place, Gateway)>,
    make: M,
    nginx: Nginx,
    pub(crate) redis: RedisServer,
}

/// Where a replica listens, also after a restart.
pub(crate) struct Place {
    /// For nginx.
    public: String,
    /// For the other replicas.
    internal: String,
}

impl<M: Fn() -> Setup> Replicas<M> {
    /// Starts all that is needed, each replica with the configuration that `make` gives. `None` where Redis or nginx is
    /// not installed.
    pub(crate) async fn start(make: M) -> Option<Self> {
        let redis = redis::server(&[]).await?;
        let address = || format!("127.0.0.1:{}", steady_port());
        let places: Vec<Place> = (0..REPLICAS)
            .map(|_| Place {
                public: address(),
                internal: address(),
            })
            .collect();
        let port = steady_port();
        let addresses: Vec<String> = places.iter().map(|place| place.public.clone()).collect();
        let nginx = Nginx::start(port, &addresses).await?;
        let mut replicas = Self {
            url: format!("http://127.0.0.1:{port}"),
            running: Vec::new(),
            make,
            nginx,
            redis,
        };
        for place in places {
            let gateway = replicas.begin(&place).await;
            replicas.running.push((place, gateway));
        }
        replicas.settled().await;
        Some(replicas)
    }

    async fn begin(&self, place: &Place) -> Gateway {
        let tables = format!(
            "[keys]\nseal = [{{ id = \"k1\", key = \"{SECRET}\" }}]\n[cluster]\nredis = \"{}\"\n\
             listen = \"{}\"\nsecret = \"{SECRET}\"\nlease = \"{}s\"\n",
            self.redis.url(),
            place.internal,
            LEASE.as_secs()
        );
        let setup = (self.make)()
            .listen(&place.public)
            .server(&format!("public_url = \"{}\"", self.url))
            .toml(&tables);
        match self.running.first() {
            Some((_, first)) if first.has_issuer() => setup.trusting(first).start().await,
            _ => setup.start().await,
        }
    }

    /// Waits until all replicas know each other.
    pub(crate) async fn settled(&self) {
        for gateway in self.gateways() {
            eventually("replicas know each other", async || {
                let known = gateway.metric("drawbridge_cluster_replicas", "").await;
                ((known - f64::from(REPLICAS)).abs() < 0.5).then_some(())
            })
            .await;
        }
    }

    /// The replicas that run.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = &Gateway> {
        self.running.iter().map(|(_, gateway)| gateway)
    }

    /// The sum of a metric over the replicas that run.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> f64 {
        let mut sum = 0.0;
        for gateway in self.gateways() {
            sum += gateway.metric(name, labels).await;
        }
        sum
    }

    /// A token of `name` for these paths.
    pub(crate) fn token(&self, name: &str, paths: &[&str]) -> String {
        let audiences: Vec<String> = paths
            .iter()
            .map(|path| format!("{}{path}", self.url))
            .collect();
        let (_, first) = &self.running[0];
        first.issuer().mint(name, &audiences, "mcp:tools")
    }

    /// The address that nginx knows the oldest process by: the next one to be killed.
    pub(crate) fn oldest(&self) -> &str {
        &self.running[0].0.public
    }

    /// `kill -9` of the oldest process; where it was, for [`Self::replace`].
    pub(crate) async fn kill_oldest(&mut self) -> Place {
        let (place, oldest) = self.running.remove(0);
        oldest.kill().await;
        place
    }

    /// Starts a replica where another one was killed.
    pub(crate) async fn replace(&mut self, place: Place) {
        let gateway = self.begin(&place).await;
        self.running.push((place, gateway));
    }

    /// Stops all; fails if one does not exit with success or leaves a process behind.
    pub(crate) async fn stop(self) {
        for (_, gateway) in self.running {
            gateway.stop().await;
        }
        drop(self.nginx);
        drop(self.redis);
    }
}

/// A free port outside the kernel's range for client sockets, so that a killed gateway can listen there again.
fn steady_port() -> u16 {
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 16_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests run in processes of their own, or in one.
    let own = u16::try_from(std::process::id() % 499).unwrap() * 31;
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(own) % COUNT;
        let port = FIRST + next;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
