//! Checks of `[auth]` against the listeners and scopes: settings that contradict each other, or admit more callers than
//! intended.

use url::Url;

use super::auth_types::IssuerConfig;
use super::report::{ReadReport, join};
use super::types::Config;
use super::units;
use super::upstream_types::Isolation;

/// Warns about an admin port that other machines can reach: it requires no token.
fn check_admin(config: &Config, report: &ReadReport<'_>) {
    if config.admin.listen.ip().is_unspecified() && !report.has("admin.allowed_hosts") {
        let what = "the admin port, which asks for no token, listens on every address";
        let hint = "name the address that probes use; where only they reach it, say so with \
            admin.allowed_hosts, which may be []";
        report.warning("admin.listen", what, Some(hint));
    }
}

/// Reports what an `[auth]` that requires tokens lacks, and settings that admit more callers than intended.
pub(super) fn check_oauth(config: &Config, report: &ReadReport<'_>) {
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
            let hint =
                "write the `issuer` of its own metadata, such as \"https://auth.example.com\"";
            report.error(&key, what, Some(hint));
        }
        let before = || auth.issuers.iter().take(index);
        if before().any(|before| before.issuer == issuer.issuer) {
            let hint = "one [[auth.issuers]] has all keys of an issuer";
            report.error(&key, "is listed twice", Some(hint));
        }
        let asks = |issuer: &IssuerConfig| issuer.introspection.is_some();
        if asks(issuer) && before().any(asks) {
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
    // Not in a file with errors: a rejected table may publish a scope.
    if !publishes_scope(config) && !report.has_errors() {
        let hint = "with none published, some clients ask for no scope and some for all; `login_scopes` publishes \
            scopes that no request needs";
        let what = "no endpoint requires a scope";
        report.warning("auth.required_scopes", what, Some(hint));
    }
}

/// The fault of an issuer identifier. Spec: RFC 8414 §2.
fn issuer_fault(issuer: &str) -> Option<&'static str> {
    // A URL is parsed without them, and the identifier is compared with them.
    if issuer.contains(char::is_whitespace) {
        return Some("may not have blanks or line breaks");
    }
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

/// Whether any endpoint publishes a scope, required or only for the login.
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

/// Reports settings incompatible with `mode = "none"`, and removes settings without effect there.
pub(super) fn check_open(config: &mut Config, report: &ReadReport<'_>) {
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
            let what = "must be a loopback address with auth.mode = \"none\"";
            report.error(key, what, Some(hint));
        }
    }
    // A missing URL is derived from `server.listen`, which is judged above.
    let is_given = report.has("server.public_url");
    if is_given && !units::is_loopback(&config.server.public_url) {
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
            let what = "has no effect with auth.mode = \"none\"";
            report.warning(key, what, Some("leave it out, or use mode = \"oauth\""));
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
