//! What needs more than one section to judge.

use std::collections::BTreeSet;

use url::Url;

use super::budget;
use super::nearest::nearest;
use super::report::{Report, join};
use super::types::{AuthMode, Config, Issuer};
use super::units;
use super::upstream_types::{Carrier, Era, Isolation, Transport};

/// Path segments below `/mcp` that are not free, and `mcp`, which is the merged endpoint.
const RESERVED: [&str; 5] = ["mcp", "server-card", "sse", "messages", "ws"];

/// Reports what does not fit together, and drops what has no effect.
pub(super) fn check(config: &mut Config, report: &Report<'_>) {
    check_names(config, report);
    check_references(config, report);
    check_served(config, report);
    check_addresses(config, report);
    check_paths(config, report);
    if report.has("auth.mode") && !report.is_wrong("auth.mode") {
        match config.auth.mode {
            AuthMode::OAuth => check_oauth(config, report),
            AuthMode::None => check_open(config, report),
        }
    }
    check_upstreams(config, report);
    check_children(config, report);
    budget::check(config, report);
}

fn check_names(config: &Config, report: &Report<'_>) {
    if !report.has("upstreams") {
        let hint = "for example\n    [upstreams.files]\n    command = \"…\"";
        report.error("", "no upstream is configured", Some(hint));
    }
    let upstreams = config
        .upstreams
        .iter()
        .map(|upstream| ("upstreams", &upstream.name));
    let endpoints = config.endpoints.keys().map(|name| ("endpoints", name));
    let mut taken = BTreeSet::new();
    for (table, name) in upstreams.chain(endpoints) {
        let key = join(table, name);
        if let Err(what) = units::name(name) {
            report.error(&key, what, None);
        } else if RESERVED.contains(&name.as_str()) {
            report.error(&key, "this name is reserved", None);
        } else if !taken.insert(name) {
            let hint = "upstreams and endpoints share the paths below /mcp";
            report.error(&key, "an upstream has this name already", Some(hint));
        }
    }
}

fn check_references(config: &Config, report: &Report<'_>) {
    let names: Vec<&str> = config
        .upstreams
        .iter()
        .map(|upstream| &*upstream.name)
        .collect();
    let refer = |key: &str, name: &str| {
        // One that stands there with mistakes of its own is not missing.
        if !names.contains(&name) && !report.has(&join("upstreams", name)) {
            let hint = nearest(name, &names).map(|near| format!("did you mean \"{near}\"?"));
            report.error(
                key,
                format!("there is no upstream \"{name}\""),
                hint.as_deref(),
            );
        }
    };
    let refer_all = |key: &str, list: &[String]| {
        for (index, name) in list.iter().enumerate() {
            let at = format!("{key}[{index}]");
            refer(&at, name);
            if list.iter().take(index).any(|before| before == name) {
                report.error(&at, format!("\"{name}\" is listed twice"), None);
            }
        }
    };
    if report.has("mcp.upstreams") {
        refer_all("mcp.upstreams", &config.mcp.upstreams);
    }
    refer_all("mcp.warm", &config.mcp.warm);
    for (index, rule) in config.auth.tool_scopes.iter().enumerate() {
        refer_all(
            &format!("auth.tool_scopes[{index}].upstreams"),
            &rule.upstreams,
        );
    }
    for (name, endpoint) in &config.endpoints {
        let key = join("endpoints", name);
        refer_all(&format!("{key}.upstreams"), &endpoint.upstreams);
        for (index, tool) in endpoint.tools.iter().enumerate() {
            let at = format!("{key}.tools[{index}]");
            match tool.split_once(':') {
                Some((upstream, pattern)) if !pattern.is_empty() => {
                    if !endpoint.upstreams.iter().any(|shown| shown == upstream) {
                        report.error(&at, format!("\"{upstream}\" is not shown here"), None);
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
            if !config
                .auth
                .issuers
                .iter()
                .any(|known| &known.issuer == issuer)
            {
                let hint = "it has to stand in [[auth.issuers]], byte for byte";
                report.error(
                    &format!("{key}.issuers[{index}]"),
                    "unknown issuer",
                    Some(hint),
                );
            }
        }
    }
}

fn check_addresses(config: &Config, report: &Report<'_>) {
    let public_url = &config.server.public_url;
    let is_said = !report.is_wrong("server.public_url");
    if is_said && public_url.scheme() != "https" && !units::is_loopback(public_url) {
        let hint = "tokens would travel in the clear; a proxy in front may end TLS";
        report.error(
            "server.public_url",
            "must be https unless it is loopback",
            Some(hint),
        );
    }
    if public_url.query().is_some() {
        report.error("server.public_url", "may not have a query", None);
    }
    let (public, admin) = (config.server.listen, config.admin.listen);
    let overlap = public.ip() == admin.ip()
        || public.is_ipv4() == admin.is_ipv4()
            && (public.ip().is_unspecified() || admin.ip().is_unspecified());
    let is_said = !report.is_wrong("server.listen") && !report.is_wrong("admin.listen");
    if is_said && overlap && public.port() == admin.port() && public.port() != 0 {
        report.error("admin.listen", "is the address of server.listen", None);
    }
}

/// A gateway without an endpoint answers everything with 404.
fn check_served(config: &Config, report: &Report<'_>) {
    let merged = config.mcp.enabled && !config.mcp.upstreams.is_empty();
    let direct = config.upstreams.iter().any(|upstream| upstream.direct);
    let nothing = !merged && !direct && config.endpoints.is_empty();
    // Upstreams with mistakes may be those that are shown.
    if nothing && !config.upstreams.is_empty() && !report.has_errors() {
        let hint = "`direct` of an upstream, [mcp] and [endpoints.<name>] say what is served";
        report.error("upstreams", "no endpoint shows any of them", Some(hint));
    }
}

/// Further transports have paths of their own, and room below them for the names of endpoints.
fn check_paths(config: &Config, report: &Report<'_>) {
    let server = &config.server;
    let mut taken = vec![("/mcp", "the MCP endpoints"), ("/.well-known", "metadata")];
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
            report.error(key, format!("collides with {other}: {whose}"), None);
        }
        taken.push((path, key));
    }
}

/// Who reaches the admin port needs no token.
fn check_admin(config: &Config, report: &Report<'_>) {
    if config.admin.listen.ip().is_unspecified() && !report.has("admin.allowed_hosts") {
        let what = "the admin port, which asks for no token, listens on every address";
        let hint = "name the address that probes use; where only they reach it, say so with \
            admin.allowed_hosts, which may be []";
        report.warning("admin.listen", what, Some(hint));
    }
}

fn check_oauth(config: &Config, report: &Report<'_>) {
    check_admin(config, report);
    let auth = &config.auth;
    if auth.issuers.is_empty() && !report.has("auth.issuers") {
        let hint = "[[auth.issuers]]\nissuer = \"https://auth.example.com\"";
        report.error("auth", "mode = \"oauth\" needs an issuer", Some(hint));
    }
    for (index, issuer) in auth.issuers.iter().enumerate() {
        let key = format!("auth.issuers[{index}].issuer");
        if report.is_wrong(&key) {
            continue;
        }
        if let Some(what) = issuer_fault(&issuer.issuer) {
            report.error(&key, what, None);
        }
        if auth
            .issuers
            .iter()
            .take(index)
            .any(|before| before.issuer == issuer.issuer)
        {
            report.error(&key, "is listed twice", None);
        }
        let asks = |issuer: &&Issuer| issuer.introspection.is_some();
        if asks(&issuer) && auth.issuers.iter().take(index).any(|one| asks(&one)) {
            let hint = "an opaque token does not say whose it is, and must not be shown to others";
            let key = format!("auth.issuers[{index}].introspection");
            report.error(&key, "another issuer has this already", Some(hint));
        }
        if !issuer.audiences.is_empty() {
            let key = format!("auth.issuers[{index}].audiences");
            let hint = "`audiences` of an endpoint or an upstream keeps them apart";
            let what = "a token for one endpoint is accepted on every other";
            report.warning(&key, what, Some(hint));
        }
    }
    // A file with mistakes may name one after all.
    if !publishes_scope(config) && !report.has_errors() {
        let hint = "with none published, some clients ask for no scope and some for all; `login_scopes` publishes \
            scopes that no request needs";
        report.warning(
            "auth.required_scopes",
            "no endpoint requires a scope",
            Some(hint),
        );
    }
}

/// What is wrong with an issuer identifier. Spec: RFC 8414 §2.
fn issuer_fault(issuer: &str) -> Option<&'static str> {
    let Ok(url) = Url::parse(issuer) else {
        return Some("is not a URL");
    };
    match url.scheme() {
        "https" => {}
        "http" if units::is_loopback(&url) => {}
        _ => return Some("must be https; plain http is for loopback hosts only"),
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Some("may not have a query or a fragment");
    }
    (!url.username().is_empty() || url.password().is_some()).then_some("may not hold credentials")
}

/// Whether clients of any endpoint are told of a scope, needed or only to be asked for at login.
fn publishes_scope(config: &Config) -> bool {
    let (auth, mcp) = (&config.auth, &config.mcp);
    let endpoints = config.endpoints.values();
    let endpoints = endpoints.flat_map(|one| [&one.required_scopes, &one.login_scopes]);
    let upstreams = config.upstreams.iter();
    let upstreams = upstreams.flat_map(|one| [&one.required_scopes, &one.login_scopes]);
    [&auth.required_scopes, &auth.login_scopes]
        .into_iter()
        .chain([&mcp.required_scopes, &mcp.login_scopes])
        .chain(endpoints)
        .chain(upstreams)
        .any(|scopes| !scopes.is_empty())
}

fn check_open(config: &mut Config, report: &Report<'_>) {
    if !report.has("stdio.max_children_per_principal") {
        config.stdio.max_children_per_principal = config.stdio.max_children;
    }
    let hint = "or use mode = \"oauth\"";
    // Spec: SPEC T-05.
    for (key, listen) in [
        ("server.listen", config.server.listen),
        ("admin.listen", config.admin.listen),
    ] {
        if !listen.ip().is_loopback() {
            report.error(
                key,
                "must be a loopback address with auth.mode = \"none\"",
                Some(hint),
            );
        }
    }
    if !units::is_loopback(&config.server.public_url) {
        let what = "must be a loopback URL with auth.mode = \"none\"";
        report.error("server.public_url", what, Some(hint));
    }
    for key in [
        "auth.required_scopes",
        "auth.issuers",
        "auth.tool_scopes",
        "auth.scope_implies",
        "mcp.required_scopes",
    ] {
        if report.has(key) {
            report.warning(key, "has no effect with auth.mode = \"none\"", None);
        }
    }
    config.auth.required_scopes.clear();
    config.auth.tool_scopes.clear();
    config.auth.scope_implies.clear();
    config.mcp.required_scopes.clear();
    for endpoint in config.endpoints.values_mut() {
        endpoint.required_scopes.clear();
    }
    for upstream in &mut config.upstreams {
        upstream.required_scopes.clear();
        if upstream.isolation == Isolation::Principal {
            let key = format!("{}.isolation", join("upstreams", &upstream.name));
            let what = "without authentication everybody is one principal: all callers share it";
            report.warning(&key, what, Some("isolation = \"session\" keeps them apart"));
        }
    }
}

fn check_upstreams(config: &Config, report: &Report<'_>) {
    for upstream in &config.upstreams {
        if upstream.restartable {
            let key = format!("{}.restartable", join("upstreams", &upstream.name));
            let what = "has no effect in this version, which has one replica";
            report.warning(&key, what, None);
        }
        if let Carrier::Http(http) = &upstream.carrier
            && http.transport == Transport::Sse
            && matches!(upstream.era, Era::Modern | Era::Revision("2026-07-28"))
        {
            let key = format!("{}.transport", join("upstreams", &upstream.name));
            let hint = "HTTP+SSE is of the legacy era; use \"streamable\", or leave `era` out";
            report.error(&key, "does not fit `era`", Some(hint));
        }
        if let Carrier::Http(http) = &upstream.carrier
            && http.url.scheme() == "http"
            && !units::is_loopback(&http.url)
        {
            let key = format!("{}.url", join("upstreams", &upstream.name));
            report.warning(
                &key,
                "plain http: what is sent can be read on the way",
                None,
            );
        }
    }
}

/// A session of an endpoint needs a child of each stdio upstream that it shows.
fn check_children(config: &Config, report: &Report<'_>) {
    let stdio = &config.stdio;
    let (key, most) = if stdio.max_children_per_principal <= stdio.max_children {
        let key = "stdio.max_children_per_principal";
        (key, stdio.max_children_per_principal)
    } else {
        ("stdio.max_children", stdio.max_children)
    };
    let is_child = |name: &&String| {
        let named = config.upstreams.iter().find(|one| one.name == **name);
        named.is_some_and(|upstream| matches!(upstream.carrier, Carrier::Stdio(_)))
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
