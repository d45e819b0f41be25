//! The configuration of upstream accounts as typed values.

use std::net::IpAddr;

use http::HeaderName;
use url::Url;

use crate::secret::Secret;

/// `[upstreams.<name>.auth]`: whose account requests use.
#[derive(Debug, Clone)]
pub enum UpstreamAuth {
    /// One of the gateway, the same for all callers.
    Gateway(AccountConfig),
    /// An account of each caller, who agrees to it once.
    User(UserAccountConfig),
    /// A key of each caller, who pastes it once.
    UserKey(UserKeyConfig),
}

impl UpstreamAuth {
    /// `kind`.
    #[must_use]
    pub fn kind(&self) -> AccountKind {
        match self {
            Self::Gateway(account) => account.kind,
            Self::User(_) => AccountKind::User,
            Self::UserKey(_) => AccountKind::UserKey,
        }
    }

    /// What callers without an account are listed.
    #[must_use]
    pub fn lists(&self) -> AccountLists {
        match self {
            Self::Gateway(_) => AccountLists::Own,
            Self::User(account) => account.lists,
            Self::UserKey(key) => key.lists,
        }
    }

    /// Whether users connect accounts of their own.
    #[must_use]
    pub fn is_of_users(&self) -> bool {
        match self {
            Self::Gateway(_) => false,
            Self::User(_) | Self::UserKey(_) => true,
        }
    }

    /// The header that carries the credential.
    #[must_use]
    pub fn header(&self) -> &HeaderName {
        match self {
            Self::Gateway(account) => &account.header,
            Self::User(account) => &account.header,
            Self::UserKey(key) => &key.header,
        }
    }
}

/// `kind = "user_key"`.
#[derive(Debug, Clone)]
pub struct UserKeyConfig {
    /// What the connect page asks for.
    pub label: String,
    /// Where one gets such a key.
    pub help: Option<Url>,
    /// The header that carries the key.
    pub header: HeaderName,
    /// What stands before the key.
    pub prefix: String,
    /// What callers without a key are listed.
    pub lists: AccountLists,
}

/// `upstreams.*.auth.lists`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountLists {
    /// Their own last lists, or what the upstream calls public.
    Own,
    /// Else the last tools of anybody.
    Common,
}

/// An account of the gateway itself.
#[derive(Debug, Clone)]
pub struct AccountConfig {
    /// How the gateway comes by a token.
    pub kind: AccountKind,
    /// The authorization server; absent: what the upstream's metadata names, or for an exchange the caller's issuer.
    pub issuer: Option<String>,
    /// The gateway at that server.
    pub client_id: String,
    /// What proves that it is that client.
    pub client_key: ClientKey,
    /// Scopes to ask for; empty: the challenge's, else those of the metadata.
    pub scopes: Vec<String>,
    /// The resource that tokens are for; absent: what the metadata says, else the upstream's URL.
    pub resource: Option<String>,
    /// `audience` of a token exchange.
    pub audience: Option<String>,
    /// The header that carries the token.
    pub header: HeaderName,
    /// What stands before the token.
    pub prefix: String,
}

/// `kind = "user"`: an account of each caller, who agrees to it at the upstream's authorization server.
#[derive(Debug, Clone)]
pub struct UserAccountConfig {
    /// The authorization server; absent: what the upstream's metadata names.
    pub issuer: Option<String>,
    /// The gateway at that server, where an operator has registered it.
    pub client: Option<ConfiguredClient>,
    /// How the gateway becomes a client of a server where nobody has registered it.
    pub registration: ClientRegistration,
    /// Scopes to ask for; empty: the challenge's, else those of the metadata.
    pub scopes: Vec<String>,
    /// The resource that tokens are for; absent: what the metadata says, else the upstream's URL.
    pub resource: Option<String>,
    /// The header that carries the token.
    pub header: HeaderName,
    /// What stands before the token.
    pub prefix: String,
    /// What is listed without an account.
    pub lists: AccountLists,
}

/// A client that an operator has registered.
#[derive(Debug, Clone)]
pub struct ConfiguredClient {
    /// `client_id`.
    pub id: String,
    /// What proves that it is that client; absent: PKCE alone.
    pub key: Option<ClientKey>,
}

/// `upstreams.*.auth.registration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRegistration {
    /// By document where the server reads these, else dynamically.
    Auto,
    /// By the URL of a document that the gateway serves (CIMD).
    Document,
    /// Dynamically. Spec: RFC 7591.
    Dynamic,
}

/// `upstreams.*.auth.kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountKind {
    /// The gateway's own account, the same for all callers.
    ClientCredentials,
    /// The caller's token, exchanged for one of the upstream. Spec: RFC 8693.
    TokenExchange,
    /// An assertion of the caller's identity provider, for a token of the upstream's server. Spec: MCP,
    /// enterprise-managed authorization.
    IdJag,
    /// A key of each caller.
    UserKey,
    /// An account of each caller.
    User,
}

impl AccountKind {
    /// Whether each caller has an account of its own.
    #[must_use]
    pub fn is_of_callers(self) -> bool {
        match self {
            Self::ClientCredentials => false,
            Self::TokenExchange | Self::IdJag | Self::User | Self::UserKey => true,
        }
    }

    /// The word for it, as in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientCredentials => "client_credentials",
            Self::TokenExchange => "token_exchange",
            Self::IdJag => "id_jag",
            Self::UserKey => "user_key",
            Self::User => "user",
        }
    }
}

/// What proves to an authorization server who asks.
#[derive(Debug, Clone)]
pub enum ClientKey {
    /// `client_secret`.
    Secret(Secret),
    /// `private_key`, PEM: it signs assertions. Spec: RFC 7523.
    PrivateKey(Secret),
}

/// `[egress]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressConfig {
    /// Where a URL that a document names may lead, besides public addresses.
    pub allow: Vec<EgressAllow>,
}

/// One item of `egress.allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EgressAllow {
    /// Addresses with these leading bits.
    Block(IpAddr, u8),
    /// A host name, in lower case, whatever it resolves to.
    Host(String),
}
