//! Checks that need more than one section of the configuration.

use std::collections::BTreeSet;

use super::access;
use super::account_checks;
use super::auth_types::AuthMode;
use super::budget;
use super::cluster;
use super::database;
use super::logins;
use super::nearest::nearest;
use super::report::{ReadReport, join};
use super::types::Config;
use super::units;
use super::upstream_types::{CarrierConfig, EraPin, TransportKind};

/// Reserved path segments below `/mcp`, and `mcp`, which names the merged endpoint.
const RESERVED: [&str; 5] = ["mcp", "server-card", "sse", "messages", "ws"];

/// Reports contradictions between sections, and drops settings without effect.
pub(super) fn check(config: &mut Config, report: &ReadReport<'_>) {
    check_names(config, report);
    check_references(config, report);
    check_served(config, report);
    check_public_url(config, report);
    check_addresses(config, report);
    check_paths(config, report);
    if report.has("auth.mode") && !report.is_wrong("auth.mode") {
        match config.auth.mode {
            AuthMode::OAuth => access::check_oauth(config, report),
            AuthMode::None => access::check_open(config, report),
        }
    }
    check_upstreams(config, report);
    check_children(config, report);
    config.auth.keeps_tokens = account_checks::exchanges_tokens(config);
    account_checks::check(config, report);
    budget::check(config, report);
    database::check(config, report);
    cluster::check(config, report);
    logins::check(config, report);
}

fn check_names(config: &Config, report: &ReadReport<'_>) {
    if !report.has("upstreams") {
        let hint = "for example\n    [upstreams.files]\n    command = \"…\"";
        report.error("", "no upstream is configured", Some(hint));
    }
    let upstreams = config.upstreams.iter();
    let upstreams = upstreams.map(|upstream| ("upstreams", &upstream.name));
    let endpoints = config.endpoints.keys().map(|name| ("endpoints", name));
    let mut taken = BTreeSet::new();
    for (table, name) in upstreams.chain(endpoints) {
        let key = join(table, name);
        if let Err(what) = units::name(name) {
            report.error(&key, what, None);
        } else if RESERVED.contains(&name.as_str()) {
            let hint = format!("choose another one; reserved are {}", RESERVED.join(", "));
            report.error(&key, "this name is reserved", Some(&hint));
        } else if !taken.insert(name) {
            let hint = "upstreams and endpoints share the paths below /mcp";
            report.error(&key, "an upstream has this name already", Some(hint));
        }
    }
}

fn check_references(config: &Config, report: &ReadReport<'_>) {
    let upstreams = config.upstreams.iter();
    let names: Vec<&str> = upstreams.map(|upstream| &*upstream.name).collect();
    let refer = |key: &str, name: &str| {
        // An upstream rejected for its own errors is reported there, not as missing here.
        if !names.contains(&name) && !report.has(&join("upstreams", name)) {
            let hint = nearest(name, &names).map(|near| format!("did you mean \"{near}\"?"));
            let what = format!("there is no upstream \"{name}\"");
            report.error(key, what, hint.as_deref());
        }
    };
    let refer_all = |key: &str, list: &[String]| {
        for (index, name) in list.iter().enumerate() {
            let at = format!("{key}[{index}]");
            refer(&at, name);
            if list.iter().take(index).any(|before| before == name) {
                let hint = Some("write it once");
                report.error(&at, format!("\"{name}\" is listed twice"), hint);
            }
        }
    };
    if report.has("mcp.upstreams") {
        refer_all("mcp.upstreams", &config.mcp.upstreams);
    }
    refer_all("mcp.warm", &config.mcp.warm);
    for (index, rule) in config.auth.tool_scopes.iter().enumerate() {
        let key = format!("auth.tool_scopes[{index}].upstreams");
        refer_all(&key, &rule.upstreams);
    }
    for (name, endpoint) in &config.endpoints {
        let key = join("endpoints", name);
        refer_all(&format!("{key}.upstreams"), &endpoint.upstreams);
        for (index, tool) in endpoint.tools.iter().enumerate() {
            let at = format!("{key}.tools[{index}]");
            match tool.split_once(':') {
                Some((upstream, pattern)) if !pattern.is_empty() => {
                    if !endpoint.upstreams.iter().any(|shown| shown == upstream) {
                        let hint = format!("list it in {key}.upstreams, or leave the pattern out");
                        let what = format!("\"{upstream}\" is not shown here");
                        report.error(&at, what, Some(&hint));
                    }
                }
                _ => report.error(
                    &at,
                    "expected upstream:pattern, such as \"files:read_*\"",
                    None,
                ),
            }
        }
        for (index, issuer) in endpoint.issuers.iter().enumerate() {
            let mut known = config.auth.issuers.iter();
            if !known.any(|known| known.issuer == *issuer) {
                let hint = Some("it has to stand in [[auth.issuers]], byte for byte");
                report.error(&format!("{key}.issuers[{index}]"), "unknown issuer", hint);
            }
        }
    }
}

fn check_public_url(config: &Config, report: &ReadReport<'_>) {
    let (public_url, listen) = (&config.server.public_url, config.server.listen);
    let is_derived = !report.has("server.public_url");
    let is_open = config.auth.mode == AuthMode::None;
    if is_derived && is_open && !listen.ip().is_loopback() {
        // `access::check_open` refuses `listen`, from which the URL is derived.
        return;
    }
    if is_derived && listen.ip().is_unspecified() {
        report.error(
            "server.public_url",
            format!("is required, as listen = \"{listen}\" names no address"),
            Some("write the URL that clients use, such as \"https://mcp.example.com\""),
        );
    }
    let is_said = !report.is_wrong("server.public_url");
    if is_said && public_url.scheme() != "https" && !units::is_loopback(public_url) {
        let hint = Some("tokens would travel in the clear; a proxy in front may end TLS");
        let what = "must be https unless it is loopback";
        report.error("server.public_url", what, hint);
    }
    if public_url.query().is_some() {
        let hint = "end it with the path that a proxy in front strips, or with the host";
        report.error("server.public_url", "may not have a query", Some(hint));
    }
}

fn check_addresses(config: &Config, report: &ReadReport<'_>) {
    let (public, admin) = (config.server.listen, config.admin.listen);
    let is_said = !report.is_wrong("server.listen") && !report.is_wrong("admin.listen");
    if is_said && units::overlap(public, admin) {
        let hint = Some("give it another port, such as \"127.0.0.1:9090\"");
        report.error("admin.listen", "is the address of server.listen", hint);
    }
}

/// Reports a gateway without an endpoint, which would answer every request with 404.
fn check_served(config: &Config, report: &ReadReport<'_>) {
    let merged = config.mcp.enabled && !config.mcp.upstreams.is_empty();
    let direct = config.upstreams.iter().any(|upstream| upstream.direct);
    let nothing = !merged && !direct && config.endpoints.is_empty();
    // With errors no verdict is possible: a rejected upstream may be the one that an endpoint shows.
    if nothing && !config.upstreams.is_empty() && !report.has_errors() {
        let hint = "`direct` of an upstream, [mcp] and [endpoints.<name>] say what is served";
        report.error("upstreams", "no endpoint shows any of them", Some(hint));
    }
}

/// Checks the paths of the further transports against each other and those of endpoints.
fn check_paths(config: &Config, report: &ReadReport<'_>) {
    let server = &config.server;
    let mut taken = vec![("/mcp", "the MCP endpoints"), ("/.well-known", "metadata")];
    if config.has_user_accounts() {
        taken.push(("/connect", "the pages where people connect accounts"));
    }
    let sse = server.sse.as_ref().map(|sse| {
        [
            ("server.sse.path", &sse.stream),
            ("server.sse.messages", &sse.messages),
        ]
    });
    let socket = server
        .websocket
        .as_ref()
        .map(|path| ("server.websocket.path", path));
    for (key, path) in sse.into_iter().flatten().chain(socket) {
        let below = |a: &str, b: &str| {
            a.strip_prefix(b)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let other = taken
            .iter()
            .find(|(other, _)| below(path, other) || below(other, path));
        if let Some((other, whose)) = other {
            let hint = Some("choose a path that is not below the other one");
            report.error(key, format!("collides with {other}: {whose}"), hint);
        }
        taken.push((path, key));
    }
}

fn check_upstreams(config: &Config, report: &ReadReport<'_>) {
    for upstream in &config.upstreams {
        let table = join("upstreams", &upstream.name);
        if upstream.restartable && config.cluster.is_none() {
            let what = "has no effect without [cluster]";
            report.warning(&format!("{table}.restartable"), what, Some("leave it out"));
        }
        let CarrierConfig::Http(http) = &upstream.carrier else {
            continue;
        };
        let is_modern = matches!(
            upstream.era,
            EraPin::Modern | EraPin::Revision("2026-07-28")
        );
        if http.transport == TransportKind::Sse && is_modern {
            let hint = "HTTP+SSE is of the legacy era; use \"streamable\", or leave `era` out";
            let key = format!("{table}.transport");
            report.error(&key, "does not fit `era`", Some(hint));
        }
        if http.url.scheme() == "http" && !units::is_loopback(&http.url) {
            let hint = "write https://, or ws:// as wss://, if the upstream speaks TLS";
            let what = "plain http: what is sent can be read on the way";
            report.warning(&format!("{table}.url"), what, Some(hint));
        }
    }
}

/// Checks the caps on children: a session of an endpoint needs one for each stdio upstream that it shows.
fn check_children(config: &Config, report: &ReadReport<'_>) {
    let stdio = &config.stdio;
    let (key, most) = if stdio.max_children_per_principal <= stdio.max_children {
        let key = "stdio.max_children_per_principal";
        (key, stdio.max_children_per_principal)
    } else {
        ("stdio.max_children", stdio.max_children)
    };
    let is_child = |name: &&String| {
        let named = config.upstreams.iter().find(|one| one.name == **name);
        named.is_some_and(|upstream| matches!(upstream.carrier, CarrierConfig::Stdio(_)))
    };
    let merged = ("/mcp".to_owned(), &config.mcp.upstreams);
    let merged = config.mcp.enabled.then_some(merged);
    let named = config.endpoints.iter();
    let named = named.map(|(name, endpoint)| (format!("/mcp/{name}"), &endpoint.upstreams));
    for (path, upstreams) in merged.into_iter().chain(named) {
        let count = upstreams.iter().filter(is_child).count();
        if count > most {
            let what = format!(
                "{path} shows {count} stdio upstreams, and one caller may have {most} children: {} are \
                 left out",
                count - most
            );
            let hint = "a session needs one child of each; raise the cap, or show fewer";
            report.warning(key, what, Some(hint));
        }
    }
}
