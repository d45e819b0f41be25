//! Warnings about settings that are valid but probably a mistake, each with its remedy.

use std::net::IpAddr;
use std::path::{Component, Path};

use url::Url;

use super::account_types::UpstreamAuth;
use super::report::{ReadReport, join};
use super::types::Config;
use super::units;
use super::upstream_types::{CarrierConfig, StdioCarrier, UpstreamConfig};

/// The port of OTLP over gRPC.
const OTLP_GRPC: u16 = 4317;
/// Prefix of the documents that issuers and resources publish. Spec: RFC 8615.
const WELL_KNOWN: &str = "/.well-known/";

/// Records all warnings.
pub(super) fn check(config: &Config, report: &ReadReport<'_>) {
    check_addresses(config, report);
    check_times(config, report);
    check_vault_key(config, report);
    check_replica_address(config, report);
    for upstream in &config.upstreams {
        match &upstream.carrier {
            CarrierConfig::Stdio(stdio) => check_paths(upstream, stdio, report),
            CarrierConfig::Http(http) => check_loop(config, upstream, &http.url, report),
        }
    }
}

fn check_addresses(config: &Config, report: &ReadReport<'_>) {
    let url = config.server.public_url.as_str().trim_end_matches('/');
    if let Some(base) = url.strip_suffix("/mcp") {
        let what = format!("repeats /mcp: the first endpoint is {url}/mcp");
        let hint = format!("leave /mcp out: public_url = \"{base}\" makes it {url}");
        report.warning("server.public_url", what, Some(&hint));
    }
    for (index, issuer) in config.auth.issuers.iter().enumerate() {
        if let Some((issuer, _)) = issuer.issuer.split_once(WELL_KNOWN) {
            let key = format!("auth.issuers[{index}].issuer");
            let hint = format!(
                "write what the document itself calls \"issuer\", most likely \"{issuer}\" or a path below it"
            );
            let what = "is the address of a document, not an issuer";
            report.warning(&key, what, Some(&hint));
        }
    }
    let otlp = config.telemetry.otlp_endpoint.as_ref();
    if otlp.is_some_and(|url| url.port() == Some(OTLP_GRPC)) {
        let what = "4317 is the port of OTLP over gRPC, and OTLP over HTTP is spoken here";
        let hint = "collectors listen for it on 4318";
        report.warning("telemetry.otlp_endpoint", what, Some(hint));
    }
}

/// Warns about a replica that others reach from its own machine alone, where Redis is on another one.
fn check_replica_address(config: &Config, report: &ReadReport<'_>) {
    let Some(cluster) = &config.cluster else {
        return;
    };
    let is_here = |(host, _): &(String, u16)| {
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|it| it.is_loopback())
    };
    let listens_here = cluster.listen.ip().is_loopback() && cluster.advertise.is_none();
    if listens_here && !cluster.redis.nodes.iter().any(is_here) {
        let what =
            "other replicas reach this one from its own machine alone, and Redis is on another";
        let hint = "write \"0.0.0.0:8090\" for replicas on several machines; else name the address in `advertise`";
        report.warning("cluster.listen", what, Some(hint));
    }
}

/// Warns about an upstream URL of this gateway: each call would cause another call.
fn check_loop(config: &Config, upstream: &UpstreamConfig, url: &Url, report: &ReadReport<'_>) {
    let listen = config.server.listen;
    let is_here =
        units::is_loopback(url) && (listen.ip().is_loopback() || listen.ip().is_unspecified());
    let is_own = is_here && url.port_or_known_default() == Some(listen.port());
    if is_own || is_endpoint(&config.server.public_url, url) {
        let key = format!("{}.url", join("upstreams", &upstream.name));
        let what = "leads to this gateway itself: each call would make another one";
        let hint = "write the address of the server behind it";
        report.warning(&key, what, Some(hint));
    }
}

/// Whether `url` is an endpoint below `public_url`.
fn is_endpoint(public_url: &Url, url: &Url) -> bool {
    let base = public_url.path().trim_end_matches('/');
    let below = url.path().strip_prefix(base);
    let is_path = |rest: &str| rest == "/mcp" || rest.starts_with("/mcp/");
    url.origin() == public_url.origin() && below.is_some_and(is_path)
}

/// Warns about times that are never reached because another one ends the same thing earlier.
fn check_times(config: &Config, report: &ReadReport<'_>) {
    let (server, sessions) = (&config.server, &config.sessions);
    let mut pairs = vec![
        (
            ("server", "drain_linger", server.drain_linger),
            ("drain", server.drain),
        ),
        (
            ("sessions", "idle", sessions.idle),
            ("absolute", sessions.absolute),
        ),
    ];
    let upstreams = config.upstreams.iter();
    let tables: Vec<String> = upstreams.map(|one| join("upstreams", &one.name)).collect();
    for (upstream, table) in config.upstreams.iter().zip(&tables) {
        let total = ("total_timeout", upstream.total_timeout);
        pairs.push(((table, "idle_timeout", upstream.idle_timeout), total));
        pairs.push(((table, "connect_timeout", upstream.connect_timeout), total));
    }
    for ((table, name, time), (other, end)) in pairs {
        let key = format!("{table}.{name}");
        if report.has(&key) && time > end {
            let what = format!("is longer than `{other}`, which ends it first");
            let hint = format!("make it shorter, or `{other}` longer");
            report.warning(&key, what, Some(&hint));
        }
    }
}

/// Warns about keys of users' accounts that children can read: they run as the user that the gateway runs as, and
/// Landlock hides no files from them.
fn check_vault_key(config: &Config, report: &ReadReport<'_>) {
    let mut auths = config.upstreams.iter().filter_map(|one| one.auth.as_ref());
    let programs = config.upstreams.iter().filter(|one| one.carrier.is_stdio());
    let programs: Vec<&str> = programs.map(|one| &*one.name).collect();
    if programs.is_empty() || !auths.any(UpstreamAuth::is_of_users) {
        return;
    }
    let (key, place) = match config.keys.vault_in_file {
        Some(index) => (format!("keys.vault[{index}]"), "is in a file"),
        None if config.keys.vault.is_empty() => (
            "keys.vault".to_owned(),
            "is not set, and the key of users' accounts is then the file vault.key in the state directory",
        ),
        None => return,
    };
    let what = format!(
        "{place}: the programs of stdio upstreams ({}) run as the gateway's user and can read it, and an SQLite file with \
         the accounts, too",
        programs.join(", ")
    );
    let hint = "give the key by a variable, which they cannot read: vault = [{ id = \"k1\", key = \"${VAULT_KEY}\" }]. \
         docs/operations/backups.md says how to replace a key that is in use";
    report.warning(&key, what, Some(hint));
}

/// Warns about paths that only a shell would expand.
fn check_paths(upstream: &UpstreamConfig, stdio: &StdioCarrier, report: &ReadReport<'_>) {
    let table = join("upstreams", &upstream.name);
    let has_home = |path: &Path| {
        path.components()
            .any(|part| matches!(part, Component::Normal(name) if name == "~" || name == "$HOME"))
    };
    let mut keys = Vec::new();
    if has_home(Path::new(&stdio.command)) {
        keys.push(format!("{table}.command"));
    }
    if stdio.cwd.as_deref().is_some_and(has_home) {
        keys.push(format!("{table}.cwd"));
    }
    for (index, argument) in stdio.args.iter().enumerate() {
        let starts = |word: &str| argument == word || argument.starts_with(&format!("{word}/"));
        if starts("~") || starts("$HOME") {
            keys.push(format!("{table}.args[{index}]"));
        }
    }
    for key in keys {
        let what = "is taken as it is written: no shell reads `~` and `$HOME` here";
        let hint = "write the whole path, or ${HOME} for the home of the gateway itself";
        report.warning(&key, what, Some(hint));
    }
}
