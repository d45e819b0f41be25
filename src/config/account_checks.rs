//! Checks of `[upstreams.<name>.auth]` against the rest of the file.

use super::account_types::{
    AccountConfig, AccountKind, ClientRegistration, LoginAccountConfig, TokenPlace, UpstreamAuth,
    UserAccountConfig,
};
use super::auth_types::AuthMode;
use super::report::{ReadReport, join};
use super::types::Config;
use super::units;
use super::upstream_types::{CarrierConfig, Isolation, StdioCarrier, UpstreamConfig};

/// Path segments below `/connect` that the gateway uses itself.
const RESERVED: [&str; 3] = ["callback", "login", "logout"];

/// Whether an upstream exchanges callers' tokens.
pub(super) fn exchanges_tokens(config: &Config) -> bool {
    let exchanges = |auth: &UpstreamAuth| auth.kind() == AccountKind::TokenExchange;
    let mut accounts = config.upstreams.iter().filter_map(|one| one.auth.as_ref());
    accounts.any(exchanges)
}

/// Token exchange needs callers with tokens, and an `isolation` that keeps callers apart.
fn check_exchange(
    config: &Config,
    upstream: &UpstreamConfig,
    account: &AccountConfig,
    report: &ReadReport<'_>,
) {
    let table = join("upstreams", &upstream.name);
    if upstream.isolation == Isolation::Shared {
        let what =
            format!("is \"shared\", and each caller has an account of its own in [{table}.auth]");
        let hint = "\"session\" or \"principal\"";
        report.error(&format!("{table}.isolation"), what, Some(hint));
    }
    if config.auth.mode == AuthMode::None && !report.is_wrong("auth.mode") {
        let what = "is \"token_exchange\", and with auth.mode = \"none\" callers have no tokens to exchange";
        let hint = "auth.mode = \"oauth\", or kind = \"client_credentials\" for one account of all";
        report.error(&format!("{table}.auth.kind"), what, Some(hint));
    }
    check_warm(config, upstream, report);
    if account.issuer.is_none() && config.auth.issuers.len() > 1 {
        let what = "is not said, and there are several issuers: `client_id` and its proof go to that of each caller";
        let hint = "write the `issuer` that knows this client";
        report.warning(&format!("{table}.auth.issuer"), what, Some(hint));
    }
}

/// The gateway itself starts and lists warm upstreams: there is no caller with an account.
fn check_warm(config: &Config, upstream: &UpstreamConfig, report: &ReadReport<'_>) {
    let mut warm = config.mcp.warm.iter();
    if let Some(at) = warm.position(|warm| *warm == upstream.name) {
        let what = "is reached with the accounts of callers, and there is none at the start";
        report.error(&format!("mcp.warm[{at}]"), what, Some("leave it out"));
    }
}

/// Accounts of users need known callers, and an `isolation` that keeps callers apart.
fn check_user(config: &Config, upstream: &UpstreamConfig, report: &ReadReport<'_>) {
    let table = join("upstreams", &upstream.name);
    let kind = upstream.auth.as_ref().map(|auth| auth.kind().as_str());
    let kind = kind.unwrap_or_default();
    if upstream.isolation == Isolation::Shared {
        let key = format!("{table}.isolation");
        let what =
            format!("is \"shared\", and each caller has an account of its own in [{table}.auth]");
        report.error(&key, what, Some("\"session\" or \"principal\""));
    }
    if RESERVED.contains(&&*upstream.name) {
        let what = format!(
            "has its page at a path that is taken: /connect/{} is the gateway's own",
            upstream.name
        );
        report.error(&table, what, Some("give the upstream another name"));
    }
    // Upstreams of other kinds may list something without an account, and no child is started for that.
    if kind == AccountKind::IdJag.as_str() || upstream.carrier.is_stdio() {
        check_warm(config, upstream, report);
    }
    let key = format!("{table}.auth.kind");
    let is_open = config.auth.mode == AuthMode::None && !report.is_wrong("auth.mode");
    if is_open && kind == AccountKind::IdJag.as_str() {
        let what = "is \"id_jag\", and with auth.mode = \"none\" nobody logs in whom an issuer could assert";
        let hint = "auth.mode = \"oauth\" and `connect.login`, or kind = \"user\"";
        report.error(&key, what, Some(hint));
    } else if is_open {
        let what = format!(
            "is \"{kind}\", and auth.mode is \"none\": every program on this machine uses the same account"
        );
        report.warning(&key, what, None);
    }
}

/// Checks `registration` against `public_url`: servers fetch the document there, or send browsers back.
fn check_registration(
    config: &Config,
    (upstream, account): (&UpstreamConfig, &UserAccountConfig),
    report: &ReadReport<'_>,
) {
    let public_url = &config.server.public_url;
    let table = join("upstreams", &upstream.name);
    let is_plain = public_url.scheme() != "https";
    if is_plain && !units::is_loopback(public_url) {
        let what = format!(
            "is not https, and authorization servers send the codes of [{table}.auth] to a path below it"
        );
        report.warning("server.public_url", what, Some("most of them refuse that"));
    }
    if let (Some(client), None) = (&account.client, &account.issuer) {
        let what = match &client.key {
            Some(_) => CREDENTIALS,
            None => {
                "is not said: the upstream chooses the server where the gateway is this `client_id`"
            }
        };
        warn_of_issuer(&table, what, report);
    }
    if account.registration == ClientRegistration::Document
        && (is_plain || units::is_loopback(public_url))
    {
        let key = format!("{table}.auth.registration");
        let what = "is \"cimd\", and no server can fetch a document from server.public_url";
        let hint = "a public https URL, or \"dcr\", or a `client_id`";
        report.error(&key, what, Some(hint));
    }
}

/// A child is of one caller, and has its token for as long as it runs.
fn check_child(
    upstream: &UpstreamConfig,
    stdio: &StdioCarrier,
    (kind, variable): (AccountKind, &str),
    report: &ReadReport<'_>,
) {
    let table = join("upstreams", &upstream.name);
    let inherited = stdio.inherit.iter().position(|name| name == variable);
    let keys = [
        stdio
            .env
            .contains_key(variable)
            .then(|| join("env", variable)),
        inherited.map(|at| format!("inherit[{at}]")),
    ];
    for key in keys.into_iter().flatten() {
        let what = format!("stands beside [{table}.auth], which sets the same variable");
        report.error(&format!("{table}.{key}"), what, Some("keep one of them"));
    }
    // Of the others it is told with their own checks.
    if upstream.isolation == Isolation::Shared && !kind.is_of_callers() {
        let key = format!("{table}.isolation");
        let what =
            format!("is \"shared\", and a child with the token of [{table}.auth] is one caller's");
        report.error(&key, what, Some("\"session\" or \"principal\""));
    }
    if kind != AccountKind::UserKey {
        let key = format!("{table}.auth.kind");
        let what = "puts a token that ends into the environment of children: the first call after its end starts another \
            child, which knows nothing of what the one before did";
        let hint = "for servers that remember something: kind = \"user_key\"";
        report.warning(&key, what, Some(hint));
    }
}

/// What a missing `issuer` means for a secret.
const CREDENTIALS: &str = "is not said: the upstream chooses who gets the credentials";

/// Warns that without `issuer` the client is used at the first server that the upstream names.
fn warn_of_issuer(table: &str, what: &str, report: &ReadReport<'_>) {
    let hint = "write the `issuer` that this client is registered at: it is then used at no other one, whatever the \
        upstream names";
    report.warning(&format!("{table}.auth.issuer"), what, Some(hint));
}

/// Reports tables that contradict the rest of the file.
pub(super) fn check(config: &Config, report: &ReadReport<'_>) {
    for upstream in &config.upstreams {
        let Some(account) = &upstream.auth else {
            continue;
        };
        let table = join("upstreams", &upstream.name);
        match (&upstream.carrier, account.place()) {
            (CarrierConfig::Http(http), TokenPlace::Header { name, .. }) => {
                let mut headers = http.headers.iter();
                if let Some((found, _)) = headers.find(|(found, _)| name == found.as_str()) {
                    let key = format!("{table}.headers.{found}");
                    let what = format!("stands beside [{table}.auth], which sets the same header");
                    report.error(&key, what, Some("keep one of them"));
                }
            }
            (CarrierConfig::Stdio(stdio), TokenPlace::Variable(name)) => {
                check_child(upstream, stdio, (account.kind(), name), report);
            }
            // Told where they are read.
            (CarrierConfig::Http(_), TokenPlace::Variable(_))
            | (CarrierConfig::Stdio(_), TokenPlace::Header { .. }) => {}
        }
        if account.is_of_users() {
            check_user(config, upstream, report);
        }
        if let UpstreamAuth::User(account) = account {
            check_registration(config, (upstream, account), report);
        }
        let account = match account {
            UpstreamAuth::Gateway(account)
            | UpstreamAuth::Login(LoginAccountConfig { account, .. }) => account,
            UpstreamAuth::User(_) | UpstreamAuth::UserKey(_) => continue,
        };
        if account.kind == AccountKind::TokenExchange {
            check_exchange(config, upstream, account, report);
        } else if account.issuer.is_none() {
            warn_of_issuer(&table, CREDENTIALS, report);
        }
    }
}
