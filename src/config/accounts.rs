//! `[upstreams.<name>.auth]` and `[egress]`.

use url::Url;

use super::account_types::{
    AccountConfig, AccountKind, AccountLists, ClientKey, ClientRegistration, ConfiguredClient,
    EgressAllow, EgressConfig, LoginAccountConfig, TokenPlace, UpstreamAuth, UserAccountConfig,
    UserKeyConfig,
};
use super::entry::quote;
use super::files;
use super::reader::{ConfigSection, read_keys};
use super::report::join;
use super::source;
use super::token_place;
use super::units;
use super::words::ConfigWord;
use crate::secret::Secret;

/// The description of the table in the reference.
pub(super) const ABOUT: &str = "The account that its requests use. Without this table they carry `headers` alone, and \
    a child has `env` alone. docs/operations/accounts.md";

/// Reads `[upstreams.<name>.auth]`; `None` where the table cannot be used. `is_child`: the upstream is started by `command`.
pub(super) fn read(s: &mut ConfigSection<'_>, is_child: bool) -> Option<UpstreamAuth> {
    read_keys!(s => let {
        /// "client_credentials": the gateway's own account, one for all callers. "token_exchange": each caller's own,
        /// for which the authorization server exchanges the caller's token (RFC 8693). "id_jag": each caller's own, for
        /// which the issuer of `connect.login` asserts who the caller is (enterprise-managed authorization), once the
        /// caller has logged in. "user": each caller's own, who agrees to it once at the upstream's authorization
        /// server. "user_key": a key of each caller, who pastes it once. The last three on the page
        /// /connect/<upstream>.
        kind: required_choice(AccountKind::ClientCredentials),
    });
    if !s.has("kind") && !s.is_recording() {
        let known = AccountKind::WORDS.iter().map(|(word, _)| quote(word));
        let known: Vec<_> = known.collect();
        s.error("", "`kind` is required", Some(&known.join(" or ")));
    }
    let place = token_place::read(s, is_child);
    let with_server = s.is_recording() || kind != Some(AccountKind::UserKey);
    let server = with_server.then(|| server(s, kind, is_child));
    let with_key = s.is_recording() || kind == Some(AccountKind::UserKey);
    let key = with_key.then(|| user_key(s));
    let is_connected = |kind| {
        matches!(
            kind,
            AccountKind::IdJag | AccountKind::User | AccountKind::UserKey
        )
    };
    let with_lists = s.is_recording() || kind.is_some_and(is_connected);
    let lists = if with_lists {
        lists(s)
    } else {
        AccountLists::Own
    };
    let (kind, place) = (kind?, place?);
    Some(match kind {
        AccountKind::UserKey => {
            let (label, help) = key?;
            UpstreamAuth::UserKey(UserKeyConfig {
                label,
                help,
                place,
                lists,
            })
        }
        AccountKind::User => {
            let server = server?;
            UpstreamAuth::User(UserAccountConfig {
                issuer: server.issuer,
                client: server.client_id.map(|id| ConfiguredClient {
                    id,
                    key: server.client_key,
                }),
                registration: server.registration,
                scopes: server.scopes,
                resource: server.resource,
                place,
                lists,
            })
        }
        AccountKind::ClientCredentials | AccountKind::TokenExchange => {
            UpstreamAuth::Gateway(server?.account(kind, place)?)
        }
        AccountKind::IdJag => UpstreamAuth::Login(LoginAccountConfig {
            account: server?.account(kind, place)?,
            lists,
        }),
    })
}

/// Reads the keys that only `user_key` has: the label, and the URL where users create a key.
fn user_key(s: &mut ConfigSection<'_>) -> (String, Option<Url>) {
    read_keys!(s => let {
        /// With "user_key": what the page asks for.
        label: text("Paste a personal access token"),
        /// With "user_key": where one gets such a key; the page links to it.
        help: url("https://tracker.example.net/settings/tokens"),
    });
    (label, help)
}

/// Reads `lists`.
fn lists(s: &mut ConfigSection<'_>) -> AccountLists {
    read_keys!(s =>
        /// With "id_jag", "user" and "user_key": what a caller without an account is listed after its own last lists
        /// and those that the upstream calls public. "own": the one tool that connects. "common": the last tools of
        /// anybody, which all callers may then see.
        lists: choice(AccountLists::Own))
}

/// Keys about the authorization server and the gateway's client there.
struct ServerKeys {
    issuer: Option<String>,
    client_id: Option<String>,
    client_key: Option<ClientKey>,
    registration: ClientRegistration,
    scopes: Vec<String>,
    resource: Option<String>,
    audience: Option<String>,
}

impl ServerKeys {
    /// The account of a client that an operator has registered; `None` where that is incomplete.
    fn account(self, kind: AccountKind, place: TokenPlace) -> Option<AccountConfig> {
        Some(AccountConfig {
            kind,
            issuer: self.issuer,
            client_id: self.client_id?,
            client_key: self.client_key?,
            scopes: self.scopes,
            resource: self.resource,
            audience: self.audience,
            place,
        })
    }
}

fn server(s: &mut ConfigSection<'_>, kind: Option<AccountKind>, is_child: bool) -> ServerKeys {
    read_keys!(s => let {
        issuer: issuer(s),
        /// The gateway at that server. Without it, with "user" alone, it becomes a client by itself: `registration`.
        client_id: optional("drawbridge"),
    });
    let is_user = kind == Some(AccountKind::User);
    // For kind `user` the client may be a public one, without secret or key.
    let client_key = client_key(s, kind.is_some() && !is_user);
    let is_wrong = s.report.is_wrong(&join(&s.path, "client_id"));
    if client_id.is_none() && !is_wrong && !s.is_recording() {
        if kind.is_some_and(|kind| kind != AccountKind::User) {
            let hint = Some("for example client_id = \"drawbridge\"");
            s.error("client_id", "is required", hint);
        } else if client_key.is_some() {
            let hint = Some("say whose it is, or take it out");
            s.error("client_id", "is missing beside a secret or key", hint);
        }
    }
    let registration = (s.is_recording() || is_user).then(|| registration(s));
    read_keys!(s => let {
        /// Scopes to ask for; no others then. Empty: those that the upstream's challenge names, else its metadata; a
        /// call that needs more has them added.
        scopes: list(units::scope),
        /// The resource that tokens are for (RFC 8707). Default: what its metadata says, else its URL.
        resource: optional("https://tracker.example.net/mcp"),
        audience: audience(s, kind),
    });
    if let Some(Err(what)) = resource.as_deref().map(resource_url) {
        s.error("resource", what, None);
    }
    if is_child {
        let has_issuer = issuer.is_some() || kind == Some(AccountKind::TokenExchange);
        need_server(s, has_issuer, resource.is_some());
    }
    ServerKeys {
        issuer,
        client_id,
        client_key,
        registration: registration.unwrap_or(ClientRegistration::Auto),
        scopes,
        resource,
        audience,
    }
}

fn registration(s: &mut ConfigSection<'_>) -> ClientRegistration {
    read_keys!(s =>
        /// With "user" and without `client_id`: how the gateway becomes a client. "cimd": by the URL of a document that
        /// it serves, which needs a public https `public_url`. "dcr": dynamically (RFC 7591). "auto": the first of
        /// these that the server has.
        registration: choice(ClientRegistration::Auto))
}

/// Requires `issuer` and `resource` in the table of a child: a program has no metadata with them.
fn need_server(s: &ConfigSection<'_>, has_issuer: bool, has_resource: bool) {
    let is_wrong = |name| s.report.is_wrong(&join(&s.path, name));
    if !has_issuer && !is_wrong("issuer") {
        let what = "is required: a program does not name the server of its tokens";
        s.error("issuer", what, Some("issuer = \"https://…\""));
    }
    if !has_resource && !is_wrong("resource") {
        let what = "is required: a program does not say what its tokens are for";
        let hint = "the URL of the service that the program calls";
        s.error("resource", what, Some(hint));
    }
}

fn issuer(s: &mut ConfigSection<'_>) -> Option<String> {
    read_keys!(s => let {
        /// The authorization server's identifier, byte for byte as in its metadata: what is below goes to no other one.
        /// Default: what the upstream's metadata names; with "token_exchange" the issuer of the caller's token.
        issuer: optional("https://auth.example.com"),
    });
    let has_blanks = issuer
        .as_deref()
        .is_some_and(|text| text.contains(char::is_whitespace));
    let what = match issuer.as_deref().map(units::web_url) {
        Some(Ok(_)) if has_blanks => Some("may not have blanks or line breaks".to_owned()),
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
    read_keys!(s => let {
        /// With "token_exchange": sent as `audience`, for servers that do not go by `resource`. Keycloak wants a client
        /// id of its realm here.
        audience: optional("tracker"),
    });
    let is_sent = kind.is_none_or(|kind| kind == AccountKind::TokenExchange);
    if audience.is_some() && !is_sent && !s.is_recording() {
        let hint = "leave it out; `resource` says what tokens are for";
        s.error("audience", "is for kind = \"token_exchange\"", Some(hint));
    }
    audience
}

/// Reads `client_secret` or `private_key`; `is_needed`: one of the two is required.
pub(super) fn client_key(s: &mut ConfigSection<'_>, is_needed: bool) -> Option<ClientKey> {
    read_keys!(s => let {
        /// Its secret there; or `private_key`.
        client_secret: optional_secret("{ file = \"client-secret\" }"),
        /// Instead: a private key, PEM (RSA, P-256, P-384 or Ed25519), that signs assertions (private_key_jwt, RFC
        /// 7523); the server knows the public one.
        private_key: optional_secret("{ file = \"client-key.pem\" }"),
    });
    let present = |secret: Option<Secret>| secret.filter(|secret| !secret.expose().is_empty());
    let key = present(private_key);
    if key
        .as_ref()
        .is_some_and(|key| !source::is_placeholder(key) && !files::is_signing_key(key))
    {
        let what =
            "is no private key in PKCS #8 (\"BEGIN PRIVATE KEY\") for RSA, P-256, P-384 or Ed25519";
        let hint =
            "openssl pkcs8 -topk8 -nocrypt -in key.pem writes a key of another form in this one";
        s.error("private_key", what, Some(hint));
    }
    match (present(client_secret), key) {
        (Some(secret), None) => Some(ClientKey::Secret(secret)),
        (None, Some(key)) => Some(ClientKey::PrivateKey(key)),
        (Some(_), Some(_)) => {
            let hint = Some("keep one of them");
            s.error("private_key", "stands beside `client_secret`", hint);
            None
        }
        (None, None) => {
            let is_wrong = |name| s.report.is_wrong(&join(&s.path, name));
            let is_needed = is_needed && !s.is_recording();
            if is_needed && !is_wrong("client_secret") && !is_wrong("private_key") {
                let hint = "client_secret = \"${SECRET}\" or { file = \"…\" }";
                s.error("", "needs `client_secret` or `private_key`", Some(hint));
            }
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
    read_keys!(s => EgressConfig {
        /// Where addresses lead that documents of upstreams with an account, and of issuers, name (metadata, keys,
        /// token endpoints), besides public https ones and the origins that stand in this file: addresses, blocks, host
        /// names. Plain http to loopback ones alone. For example ["10.0.0.0/8", "keycloak.internal"].
        allow: list(allowed),
    })
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
