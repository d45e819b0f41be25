//! What in `[upstreams.<name>.auth]` does not fit the rest of the file.

use super::account_types::{AccountConfig, AccountKind, UpstreamAuth};
use super::report::{ReadReport, join};
use super::types::{AuthMode, Config};
use super::upstream_types::{CarrierConfig, Isolation, UpstreamConfig};

/// Whether an upstream exchanges callers' tokens.
pub(super) fn exchanges_tokens(config: &Config) -> bool {
    let exchanges = |auth: &UpstreamAuth| auth.kind() == AccountKind::TokenExchange;
    let mut accounts = config.upstreams.iter().filter_map(|one| one.auth.as_ref());
    accounts.any(exchanges)
}

/// An exchange needs callers with tokens, and an upstream that sees callers apart.
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
    if let Some(at) = config
        .mcp
        .warm
        .iter()
        .position(|warm| *warm == upstream.name)
    {
        let what = "is reached with the accounts of callers, and there is none at the start";
        report.error(&format!("mcp.warm[{at}]"), what, Some("leave it out"));
    }
    if account.issuer.is_none() && config.auth.issuers.len() > 1 {
        let what = "is not said, and there are several issuers: `client_id` and its proof go to that of each caller";
        let hint = "write the `issuer` that knows this client";
        report.warning(&format!("{table}.auth.issuer"), what, Some(hint));
    }
}

/// A key is of one caller: who calls must be known, and the upstream must see callers apart.
fn check_user_key(config: &Config, upstream: &UpstreamConfig, report: &ReadReport<'_>) {
    let table = join("upstreams", &upstream.name);
    if upstream.isolation == Isolation::Shared {
        let key = format!("{table}.isolation");
        let what = format!("is \"shared\", and each caller has a key of its own in [{table}.auth]");
        report.error(&key, what, Some("\"session\" or \"principal\""));
    }
    let key = format!("{table}.auth.kind");
    if config.auth.mode == AuthMode::OAuth {
        let what = "is \"user_key\", and with auth.mode = \"oauth\" the page that takes keys cannot tell who opens it";
        report.error(&key, what, Some("auth.mode = \"none\""));
    } else {
        let what = "is \"user_key\", and auth.mode is \"none\": every program on this machine uses the same key";
        report.warning(&key, what, None);
    }
}

/// What does not fit the rest of the file.
pub(super) fn check(config: &Config, report: &ReadReport<'_>) {
    for upstream in &config.upstreams {
        let Some(account) = &upstream.auth else {
            continue;
        };
        let table = join("upstreams", &upstream.name);
        if let CarrierConfig::Http(http) = &upstream.carrier
            && let Some((name, _)) = http
                .headers
                .iter()
                .find(|(name, _)| account.header() == name.as_str())
        {
            let key = format!("{table}.headers.{name}");
            let what = format!("stands beside [{table}.auth], which sets the same header");
            report.error(&key, what, Some("keep one of them"));
        }
        if let UpstreamAuth::UserKey(_) = account {
            check_user_key(config, upstream, report);
        }
        let UpstreamAuth::Gateway(account) = account else {
            continue;
        };
        if account.kind == AccountKind::TokenExchange {
            check_exchange(config, upstream, account, report);
        } else if account.issuer.is_none() {
            let hint = "write the `issuer` that these credentials are of: they then go to no other one, whatever the \
                upstream names";
            let key = format!("{table}.auth.issuer");
            let what = "is not said: the upstream chooses who gets the credentials";
            report.warning(&key, what, Some(hint));
        }
    }
}
