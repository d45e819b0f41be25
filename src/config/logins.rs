//! `connect.login`: the issuers where people log in to open the connect pages.

use super::accounts;
use super::auth_types::AuthMode;
use super::database_types::{LoginConfig, LoginToken};
use super::declarations::ShownKey;
use super::reader::{ConfigSection, read_keys};
use super::report::{ReadReport, join};
use super::types::Config;
use super::upstream_types::UpstreamConfig;

const ABOUT: &str = "Where people log in to open the connect pages, with auth.mode = \"oauth\": one table, or a list with \
    one for each issuer. `issuer` is one of [[auth.issuers]]; `client_secret`, or `private_key` (PEM), proves that the \
    gateway is `client_id` there, with the redirect URI <public_url>/connect/callback/login. `subject_claim` is the claim of its \
    ID tokens that holds what `subject_claim` of [[auth.issuers]] holds in callers' tokens (default: that one). `token` = \
    \"access\" has an access token for an endpoint of this gateway say who it is, where the subjects of the two differ. \
    docs/operations/accounts.md";

const SHOWN: &str = "{ issuer = \"https://auth.example.com\", client_id = \"drawbridge\", client_secret = { file = \
    \"login-secret\" }, token = \"id\" }";

/// Reads `connect.login`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> Vec<LoginConfig> {
    let shown = ShownKey::Unset(SHOWN.to_owned());
    let read = s.key("login", ABOUT).inline_or_list(shown, one);
    read.into_iter().flatten().collect()
}

/// Reads one login; `None` where the table cannot be used.
fn one(t: &mut ConfigSection<'_>) -> Option<LoginConfig> {
    read_keys!(t => let {
        /// One of [[auth.issuers]].
        issuer: required("https://auth.example.com"),
        /// The gateway there.
        client_id: required("drawbridge"),
        client_key: accounts::client_key(t, true),
        /// The claim that names the subject.
        subject_claim: optional("sub"),
        /// Which token says who logged in.
        token: choice(LoginToken::Id),
    });
    if token == LoginToken::Access && subject_claim.is_some() {
        let hint = "`subject_claim` of [[auth.issuers]] is about access tokens";
        t.error("subject_claim", "is about ID tokens", Some(hint));
    }
    Some(LoginConfig {
        issuer,
        client_id,
        client_key: client_key?,
        subject_claim,
        token,
    })
}

/// Reports logins that contradict the rest of the file.
pub(super) fn check(config: &Config, report: &ReadReport<'_>) {
    let logins = &config.connect.logins;
    if config.auth.mode == AuthMode::None {
        if !logins.is_empty() {
            let what = "is not used: with auth.mode = \"none\" all callers are one principal";
            report.warning("connect.login", what, Some("leave it out"));
        }
        return;
    }
    for (index, login) in logins.iter().enumerate() {
        let key = if report.has("connect.login[0]") {
            format!("connect.login[{index}].issuer")
        } else {
            "connect.login.issuer".to_owned()
        };
        let mut known = config.auth.issuers.iter();
        if login.issuer.is_empty() || config.auth.issuers.is_empty() {
            continue;
        }
        if !known.any(|issuer| issuer.issuer == login.issuer) {
            let hint = "it has to stand in [[auth.issuers]], byte for byte: calls of the same person come with its tokens";
            report.error(&key, "unknown issuer", Some(hint));
        }
        let mut before = logins.iter().take(index);
        if before.any(|before| before.issuer == login.issuer) {
            report.error(&key, "is listed twice", Some("one login is for one issuer"));
        }
    }
    for upstream in &config.upstreams {
        check_upstream(config, upstream, report);
    }
}

/// Checks that people can log in at every issuer whose tokens reach `upstream`: otherwise some callers cannot open its
/// page.
fn check_upstream(config: &Config, upstream: &UpstreamConfig, report: &ReadReport<'_>) {
    let auth = upstream.auth.as_ref().filter(|auth| auth.is_of_users());
    let Some(kind) = auth.map(|auth| auth.kind().as_str()) else {
        return;
    };
    let key = format!("{}.auth.kind", join("upstreams", &upstream.name));
    let logins = &config.connect.logins;
    let is_missing = |issuer: &&str| !logins.iter().any(|login| login.issuer == *issuer);
    let missing: Vec<_> = (issuers_of(config, &upstream.name).into_iter())
        .filter(is_missing)
        .collect();
    // A wrong login may be the missing one.
    let (Some(first), false) = (missing.first(), report.has_wrong_below("connect.login")) else {
        return;
    };
    let what = format!(
        "is \"{kind}\", and the page that connects accounts cannot tell who opens it: there is no `connect.login` for {}",
        missing.join(", ")
    );
    let hint = format!(
        "[connect]\nlogin = {{ issuer = \"{first}\", client_id = \"…\", client_secret = {{ file = \"…\" }} }}"
    );
    report.error(&key, what, Some(&hint));
}

/// The issuers whose tokens reach `upstream`, in configured order.
fn issuers_of<'a>(config: &'a Config, upstream: &str) -> Vec<&'a str> {
    let shows = |upstreams: &[String]| upstreams.iter().any(|one| one == upstream);
    let named = config
        .endpoints
        .values()
        .filter(|endpoint| shows(&endpoint.upstreams));
    let is_direct = config
        .upstreams
        .iter()
        .any(|one| one.name == upstream && one.direct);
    let is_open = is_direct
        || config.mcp.enabled && shows(&config.mcp.upstreams)
        || named.clone().any(|endpoint| endpoint.issuers.is_empty());
    let is_accepted = |issuer: &&str| {
        is_open
            || named
                .clone()
                .any(|endpoint| endpoint.issuers.iter().any(|one| one == issuer))
    };
    let all = config.auth.issuers.iter().map(|issuer| &*issuer.issuer);
    all.filter(is_accepted).collect()
}
