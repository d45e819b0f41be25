//! `[cluster]`.

use std::path::PathBuf;
use std::time::Duration;

use super::cluster_types::{ClusterConfig, RedisConfig, RedisTopology, ReplicaTls, ReplicaTrust};
use super::database_types::DatabaseUrl;
use super::declarations::ShownKey;
use super::files;
use super::reader::{ConfigSection, read_keys};
use super::redis_url;
use super::report::{ReadReport, join};
use super::types::Config;
use super::units;
use crate::secret::Secret;

/// The description of the table in the reference.
pub(super) const ABOUT: &str = "Several gateways as one: each takes any request, and passes those of another's sessions on \
    to it. All have the same file but for `listen` and `advertise`. Needs Redis 6.2 or newer, and `[keys] seal`. Without \
    this table there is one gateway.";

/// The least length of `cluster.secret`, in bytes.
const MIN_SECRET_BYTES: usize = 32;
/// Bounds of `cluster.lease`.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
const LONGEST_LEASE: Duration = Duration::from_mins(5);
/// The longest `cluster.prefix`.
const MAX_PREFIX: usize = 64;

/// Reads `[cluster]`; `None` where the table cannot be used.
pub(super) fn read(s: &mut ConfigSection<'_>) -> Option<ClusterConfig> {
    read_keys!(s => let {
        redis: redis(s),
        /// Where other replicas reach this one, over TLS 1.3. Not for clients.
        listen: address("127.0.0.1:8090"),
        advertise: advertise(s),
        trust: trust(s),
        /// What every key in Redis begins with, followed by a colon. Gateways of one prefix are one cluster.
        prefix: text("drawbridge"),
        /// How long a replica counts as alive after its last heartbeat, from 1s to 5m; heartbeats come three times as
        /// often. Longer: Redis may be away for longer; shorter: a lost replica is noticed earlier.
        lease: duration("5s"),
    });
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if prefix.is_empty() || prefix.len() > MAX_PREFIX || !prefix.chars().all(fits) {
        let what = "must be 1 to 64 letters, digits, hyphens, underscores, points and colons";
        s.error("prefix", what, None);
    }
    if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) {
        s.error("lease", "must be from 1s to 5m", None);
    }
    Some(ClusterConfig {
        redis: redis?,
        listen,
        advertise,
        trust: trust?,
        prefix,
        lease,
    })
}

fn redis(s: &mut ConfigSection<'_>) -> Option<RedisConfig> {
    let key = s.key(
        "redis",
        "The Redis that all replicas share: redis://, rediss:// (TLS), redis+sentinel://user:pw@h:26379,h:26379/mymaster/0, \
         redis+cluster://h:6379,h:6379, and rediss+… of both. Or { url = \"…\", password = { file = \"…\" }, sentinel_password \
         = …, ca = \"…\", cert = \"…\", key = \"…\" }. Its policy has to be noeviction.",
    );
    let example = "\"redis://127.0.0.1:6379\"";
    key.document(
        "URL or table, required",
        ShownKey::Example(example.to_owned()),
    );
    if !s.has("redis") {
        if !s.is_recording() {
            let hint = format!("for example redis = {example}");
            s.error("redis", "is required", Some(&hint));
        }
        return None;
    }
    if !key.is_text() {
        return key.table(redis_table).flatten();
    }
    let read = redis_url::parse(key.secret()?.expose());
    read.map_err(|what| s.error("redis", what, None)).ok()
}

fn redis_table(t: &mut ConfigSection<'_>) -> Option<RedisConfig> {
    let url = t.key("url", "The URL.").secret();
    // Empty text counts as missing.
    let is_given = |secret: &Secret| !secret.expose().is_empty();
    let password = t.key("password", "Password.").secret().filter(is_given);
    let sentinel_password = t.key("sentinel_password", "Of the sentinels.").secret();
    let sentinel_password = sentinel_password.filter(is_given);
    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| t.key(name, "PEM file.").path(""));
    let Some(url) = url else {
        if !t.has("url") {
            let hint = Some("for example url = \"rediss://redis.internal:6379\"");
            t.error("url", "is required", hint);
        }
        return None;
    };
    let mut config = match redis_url::parse(url.expose()) {
        Ok(config) => config,
        Err(what) => {
            t.error("url", what, None);
            return None;
        }
    };
    if password.is_some() {
        config.password = password;
    }
    match (&mut config.topology, sentinel_password) {
        (RedisTopology::Sentinel { password, .. }, given) => *password = given,
        (_, Some(_)) => t.error("sentinel_password", "is for redis+sentinel:// only", None),
        (_, None) => {}
    }
    if (ca.is_some() || cert.is_some() || key.is_some()) && !config.tls {
        let hint = Some("begin `url` with rediss");
        t.error("", "has certificates and a URL without TLS", hint);
    }
    if let Some(path) = &ca {
        files::usable(t, "ca", path, files::anchors);
    }
    config.ca = ca;
    config.identity = match (cert, key) {
        (Some(cert), Some(key)) => {
            files::check_pair(t, &cert, &key);
            Some((cert, key))
        }
        (None, None) => None,
        // An unreadable path was reported when its key was read.
        _ if ["cert", "key"]
            .iter()
            .any(|name| t.report.is_wrong(&join(&t.path, name))) =>
        {
            None
        }
        _ => {
            let hint = Some("name both files, or neither");
            t.error("", "`cert` and `key` belong together", hint);
            None
        }
    };
    Some(config)
}

fn advertise(s: &mut ConfigSection<'_>) -> Option<String> {
    let advertise = read_keys!(s =>
        /// Host and port by which other replicas reach `listen`. Default: its address; where that is unspecified, the
        /// address from which this host reaches Redis.
        advertise: optional("10.0.0.7:8090"))?;
    let port = advertise
        .rsplit_once(':')
        .map(|(_, port)| port.parse::<u16>());
    if units::host(&advertise).is_err() || !matches!(port, Some(Ok(1..))) {
        let hint = Some("for example \"10.0.0.7:8090\", or \"gateway-1.internal:8090\"");
        s.error("advertise", "expected a host and a port", hint);
    }
    Some(advertise)
}

fn trust(s: &mut ConfigSection<'_>) -> Option<ReplicaTrust> {
    let shown = ShownKey::Unset(
        "{ ca = \"replicas.pem\", cert = \"replica.pem\", key = \"replica-key.pem\" }".to_owned(),
    );
    read_keys!(s => let {
        /// What replicas know each other by, the same for all: 32 bytes of random text at least. Each makes a
        /// certificate at its start and vouches for it with the secret, which is never sent. Or `tls`.
        secret: optional_secret("{ file = \"cluster.secret\" }"),
        /// Instead: certificates of your own, PEM files. A replica is believed that shows one of `ca`, for the host of
        /// its `advertise`; each is client and server. Read at the start.
        tls: inline(shown, tls),
    });
    match (secret, tls) {
        (Some(secret), None) => {
            if secret.expose().len() < MIN_SECRET_BYTES {
                let hint = Some("make one with: openssl rand -base64 32");
                s.error("secret", "is shorter than 32 bytes", hint);
            }
            Some(ReplicaTrust::Secret(secret))
        }
        (None, Some(tls)) => Some(ReplicaTrust::Tls(tls)),
        (Some(_), Some(_)) => {
            s.error("tls", "stands beside `secret`", Some("keep one of them"));
            None
        }
        (None, None) => {
            if !s.has("secret") && !s.has("tls") && !s.is_recording() {
                let hint = Some("for example secret = { file = \"cluster.secret\" }");
                s.error("", "needs `secret` or `tls`", hint);
            }
            None
        }
    }
}

fn tls(t: &mut ConfigSection<'_>) -> ReplicaTls {
    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| files::required_pem(t, name));
    files::usable(t, "ca", &ca, files::anchors);
    let is_named = |path: &PathBuf| !path.as_os_str().is_empty();
    if is_named(&cert) && is_named(&key) {
        files::check_pair(t, &cert, &key);
    }
    ReplicaTls { ca, cert, key }
}

/// Reports settings that several replicas need and that are missing.
pub(super) fn check(config: &Config, report: &ReadReport<'_>) {
    let Some(cluster) = &config.cluster else {
        return;
    };
    let has_seal = !config.keys.seal.is_empty() || report.has("keys.seal[0]");
    if !has_seal {
        let hint =
            "for example seal = [{ id = \"k1\", file = \"seal.key\" }], the same for every replica";
        report.error("keys.seal", "is required with [cluster]", Some(hint));
    }
    for (key, other) in [
        ("server.listen", config.server.listen),
        ("admin.listen", config.admin.listen),
    ] {
        if units::overlap(cluster.listen, other) {
            let what = format!("is the address of {key}");
            report.error("cluster.listen", what, Some("give it another port"));
        }
    }
    let with_account = config.upstreams.iter().find(|one| one.auth.is_some());
    let Some(upstream) = with_account else {
        return;
    };
    let whose = format!(
        "is required with [cluster] where an upstream has accounts ({})",
        join("upstreams", &upstream.name)
    );
    if config.keys.vault.is_empty() && !report.has("keys.vault[0]") {
        let hint = "for example vault = [{ id = \"k1\", file = \"vault.key\" }], the same for every replica";
        report.error("keys.vault", whose.as_str(), Some(hint));
    }
    let is_postgres = matches!(config.database.url, DatabaseUrl::Postgres(_));
    if !is_postgres && !report.is_wrong("database.url") {
        let hint = "url = \"postgres://user:password@host/name\"";
        report.error("database.url", format!("PostgreSQL {whose}"), Some(hint));
    }
}

#[cfg(test)]
mod tests;
