//! `[upstreams.<name>.auth]` and `[egress]`.

use http::{HeaderName, HeaderValue};
use url::Url;

use super::account_types::{AccountConfig, AccountKind, ClientKey, EgressAllow, EgressConfig};
use super::carriers;
use super::reader::ConfigSection;
use super::report::{ReadReport, join};
use super::types::Config;
use super::units;
use super::upstream_types::CarrierConfig;
use crate::secret::Secret;

/// The meaning of the table, for the reference.
pub(super) const ABOUT: &str = "The account that its requests use. Without this table they carry `headers` alone. For \
    upstreams that are reached by `url`. docs/operations/accounts.md";

/// Reads `[upstreams.<name>.auth]`; `None` where it cannot be used.
pub(super) fn read(s: &mut ConfigSection<'_>) -> Option<AccountConfig> {
    let kinds = [AccountKind::ClientCredentials];
    let kind = s
        .key(
            "kind",
            "\"client_credentials\": the gateway's own account, one for all callers.",
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
        header: header?,
        prefix,
    })
}

fn issuer(s: &mut ConfigSection<'_>) -> Option<String> {
    let issuer = s
        .key(
            "issuer",
            "The authorization server's identifier, byte for byte as in its metadata: what is below goes to no other \
             one. Default: what the upstream's metadata names.",
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
        if account.issuer.is_none() {
            let hint = "write the `issuer` that these credentials are of: they then go to no other one, whatever the \
                upstream names";
            let key = format!("{table}.auth.issuer");
            let what = "is not said: the upstream chooses who gets the credentials";
            report.warning(&key, what, Some(hint));
        }
    }
}
