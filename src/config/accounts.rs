//! `[upstreams.<name>.auth]` and `[egress]`.

use http::{HeaderName, HeaderValue};
use url::Url;

use super::account_types::{AccountConfig, AccountKind, ClientKey, EgressAllow, EgressConfig};
use super::carriers;
use super::reader::ConfigSection;
use super::report::{ReadReport, join};
use super::types::{AuthMode, Config};
use super::units;
use super::upstream_types::{CarrierConfig, Isolation, UpstreamConfig};
use crate::secret::Secret;

/// The meaning of the table, for the reference.
pub(super) const ABOUT: &str = "The account that its requests use. Without this table they carry `headers` alone. For \
    upstreams that are reached by `url`. docs/operations/accounts.md";

/// Reads `[upstreams.<name>.auth]`; `None` where it cannot be used.
pub(super) fn read(s: &mut ConfigSection<'_>) -> Option<AccountConfig> {
    let kinds = [AccountKind::ClientCredentials, AccountKind::TokenExchange];
    let kind = s
        .key(
            "kind",
            "\"client_credentials\": the gateway's own account, one for all callers. \"token_exchange\": each caller's \
             own, for which the authorization server exchanges the caller's token (RFC 8693).",
        )
        .required_choice(
            "client_credentials",
            &kinds.map(|kind| (kind.as_str(), kind)),
        );
    if !s.has("kind") && !s.is_recording() {
        let known = kinds.map(|kind| format!("\"{}\"", kind.as_str()));
        s.error("", "`kind` is required", Some(&known.join(" or ")));
    }
    let issuer = issuer(s);
    let client_id = s
        .key("client_id", "The gateway at that server.")
        .required("drawbridge");
    let client_key = client_key(s);
    let scopes = s
        .key(
            "scopes",
            "Scopes to ask for; no others then. Empty: those that the upstream's challenge names, else its \
             metadata; a call that needs more has them added.",
        )
        .list(&[], units::scope);
    let resource = s
        .key(
            "resource",
            "The resource that tokens are for (RFC 8707). Default: what its metadata says, else its URL.",
        )
        .optional("https://tracker.example.net/mcp");
    if let Some(Err(what)) = resource.as_deref().map(resource_url) {
        s.error("resource", what, None);
    }
    let audience = audience(s, kind);
    let header = header(s);
    let prefix = s
        .key("prefix", "What stands before the token.")
        .text("Bearer ");
    if HeaderValue::try_from(prefix.as_str()).is_err() {
        s.error("prefix", "holds characters that no header can carry", None);
    }
    Some(AccountConfig {
        kind: kind?,
        issuer,
        client_id,
        client_key: client_key?,
        scopes,
        resource,
        audience,
        header: header?,
        prefix,
    })
}

fn issuer(s: &mut ConfigSection<'_>) -> Option<String> {
    let issuer = s
        .key(
            "issuer",
            "The authorization server's identifier, byte for byte as in its metadata: what is below goes to no other \
             one. Default: what the upstream's metadata names; with \"token_exchange\" the issuer of the caller's \
             token.",
        )
        .optional("https://auth.example.com");
    let what = match issuer.as_deref().map(units::web_url) {
        Some(Ok(url)) if url.scheme() == "https" || units::is_loopback(&url) => None,
        Some(Ok(_)) => Some("must be https; plain http is for loopback hosts only".to_owned()),
        Some(Err(what)) => Some(what),
        None => None,
    };
    if let Some(what) = what {
        s.error("issuer", what, None);
    }
    issuer
}

fn audience(s: &mut ConfigSection<'_>, kind: Option<AccountKind>) -> Option<String> {
    let audience = s
        .key(
            "audience",
            "With \"token_exchange\": sent as `audience`, for servers that do not go by `resource`. Keycloak wants a \
             client id of its realm here.",
        )
        .optional("tracker");
    let is_sent = kind.is_none_or(|kind| kind == AccountKind::TokenExchange);
    if audience.is_some() && !is_sent && !s.is_recording() {
        let hint = "leave it out; `resource` says what tokens are for";
        s.error("audience", "is for kind = \"token_exchange\"", Some(hint));
    }
    audience
}

fn client_key(s: &mut ConfigSection<'_>) -> Option<ClientKey> {
    let secret = s
        .key("client_secret", "Its secret there; or `private_key`.")
        .optional_secret("{ file = \"client-secret\" }");
    let key = s
        .key(
            "private_key",
            "Instead: a private key, PEM (RSA, P-256, P-384 or Ed25519), that signs assertions (private_key_jwt, RFC \
             7523); the server knows the public one.",
        )
        .optional_secret("{ file = \"client-key.pem\" }");
    let present = |secret: Option<Secret>| secret.filter(|secret| !secret.expose().is_empty());
    match (present(secret), present(key)) {
        (Some(secret), None) => Some(ClientKey::Secret(secret)),
        (None, Some(key)) => Some(ClientKey::PrivateKey(key)),
        (Some(_), Some(_)) => {
            s.error(
                "private_key",
                "stands beside `client_secret`",
                Some("keep one of them"),
            );
            None
        }
        (None, None) => {
            let is_wrong = |name| s.report.is_wrong(&join(&s.path, name));
            if !s.is_recording() && !is_wrong("client_secret") && !is_wrong("private_key") {
                let hint = "client_secret = \"${SECRET}\" or { file = \"…\" }";
                s.error("", "needs `client_secret` or `private_key`", Some(hint));
            }
            None
        }
    }
}

fn header(s: &mut ConfigSection<'_>) -> Option<HeaderName> {
    let name = s
        .key("header", "The header that carries the token.")
        .text("Authorization");
    match HeaderName::try_from(name.as_str()) {
        Ok(name) if carriers::is_own(name.as_str()) => {
            s.error("header", "is set by the gateway itself", None);
            None
        }
        Ok(name) => Some(name),
        Err(_) => {
            let hint = "letters, digits and hyphens, as in Authorization";
            s.error("header", "not a header name", Some(hint));
            None
        }
    }
}

/// An absolute URI without a fragment. Spec: RFC 8707 §2
fn resource_url(text: &str) -> Result<(), String> {
    match Url::parse(text) {
        Ok(url) if url.fragment().is_none() => Ok(()),
        Ok(_) => Err("may not have a fragment".to_owned()),
        Err(_) => Err("expected an absolute URI, such as the upstream's URL".to_owned()),
    }
}

/// Reads `[egress]`.
pub(super) fn egress(s: &mut ConfigSection<'_>) -> EgressConfig {
    EgressConfig {
        allow: s
            .key(
                "allow",
                "Where addresses lead that documents of upstreams with an account name (metadata, token endpoints), \
                 besides public https ones and the origins that stand in this file: addresses, blocks, host names. \
                 Plain http to loopback ones alone. For example [\"10.0.0.0/8\", \"keycloak.internal\"].",
            )
            .list(&[], allowed),
    }
}

fn allowed(text: &str) -> Result<EgressAllow, String> {
    let wanted =
        || "expected an address, a block or a host name: no scheme, no port, no path".to_owned();
    if let Ok(block) = units::cidr(text) {
        let (address, length) = block.split_once('/').ok_or_else(wanted)?;
        let address = address.parse().map_err(|_| wanted())?;
        return Ok(EgressAllow::Block(
            address,
            length.parse().map_err(|_| wanted())?,
        ));
    }
    let host = units::host(text)?;
    let is_name = host
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if is_name && host.contains(|c: char| c.is_ascii_alphabetic()) {
        Ok(EgressAllow::Host(host.trim_end_matches('.').to_owned()))
    } else {
        Err(wanted())
    }
}

/// Whether an upstream exchanges callers' tokens.
pub(super) fn exchanges_tokens(config: &Config) -> bool {
    let exchanges = |account: &AccountConfig| account.kind == AccountKind::TokenExchange;
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
                .find(|(name, _)| account.header == name.as_str())
        {
            let key = format!("{table}.headers.{name}");
            let what = format!("stands beside [{table}.auth], which sets the same header");
            report.error(&key, what, Some("keep one of them"));
        }
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
