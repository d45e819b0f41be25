//! The configuration of upstream accounts as typed values.

use std::net::IpAddr;

use http::HeaderName;
use url::Url;

use super::words::{ConfigWord, word_enum};
use crate::secret::Secret;

/// `[upstreams.<name>.auth]`: the account whose credentials requests carry.
#[derive(Debug, Clone)]
pub enum UpstreamAuth {
    /// An account of the gateway, common to all callers, or accounts of callers that are got by the callers' own tokens.
    Gateway(AccountConfig),
    /// An account of each caller, whose kept login its identity provider asserts.
    Login(LoginAccountConfig),
    /// An account of each caller, connected once by agreeing at the authorization server.
    User(UserAccountConfig),
    /// A key of each caller, pasted once.
    UserKey(UserKeyConfig),
}

impl UpstreamAuth {
    /// `kind`.
    #[must_use]
    pub fn kind(&self) -> AccountKind {
        match self {
            Self::Gateway(account) => account.kind,
            Self::Login(_) => AccountKind::IdJag,
            Self::User(_) => AccountKind::User,
            Self::UserKey(_) => AccountKind::UserKey,
        }
    }

    /// The lists shown to callers without an account.
    #[must_use]
    pub fn lists(&self) -> AccountLists {
        match self {
            Self::Gateway(_) => AccountLists::Own,
            Self::Login(account) => account.lists,
            Self::User(account) => account.lists,
            Self::UserKey(key) => key.lists,
        }
    }

    /// Whether users connect accounts of their own.
    #[must_use]
    pub fn is_of_users(&self) -> bool {
        match self {
            Self::Gateway(_) => false,
            Self::Login(_) | Self::User(_) | Self::UserKey(_) => true,
        }
    }

    /// Where the credential goes.
    #[must_use]
    pub fn place(&self) -> &TokenPlace {
        match self {
            Self::Gateway(account) | Self::Login(LoginAccountConfig { account, .. }) => {
                &account.place
            }
            Self::User(account) => &account.place,
            Self::UserKey(key) => &key.place,
        }
    }
}

/// Where a token or key goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenPlace {
    /// A header of every request.
    Header {
        /// Its name.
        name: HeaderName,
        /// What stands before the token.
        prefix: String,
    },
    /// This variable in the environment of a child.
    Variable(String),
}

/// `kind = "user_key"`.
#[derive(Debug, Clone)]
pub struct UserKeyConfig {
    /// Label of the field on the connect page.
    pub label: String,
    /// Where users create such a key.
    pub help: Option<Url>,
    /// Where the key goes.
    pub place: TokenPlace,
    /// The lists shown to callers without a key.
    pub lists: AccountLists,
}

word_enum! {
    /// `upstreams.*.auth.lists`.
    pub enum AccountLists {
        /// The caller's own last lists, or lists that the upstream marks as public.
        Own = "own",
        /// As [`Own`](Self::Own), else the tools that any caller was listed last.
        Common = "common",
    }
}

/// An account of the gateway itself.
#[derive(Debug, Clone)]
pub struct AccountConfig {
    /// How the gateway obtains tokens.
    pub kind: AccountKind,
    /// The authorization server; absent: what the upstream's metadata names, or for an exchange the caller's issuer.
    pub issuer: Option<String>,
    /// The gateway's client id at that server.
    pub client_id: String,
    /// Secret or key of this client.
    pub client_key: ClientKey,
    /// Scopes to request; empty: those of the challenge, else those of the metadata.
    pub scopes: Vec<String>,
    /// Resource of the tokens; absent: the one in the metadata, else the upstream's URL.
    pub resource: Option<String>,
    /// `audience` of a token exchange.
    pub audience: Option<String>,
    /// Where the token goes.
    pub place: TokenPlace,
}

/// `kind = "id_jag"`: an account of each caller, for which its identity provider asserts who logged in.
#[derive(Debug, Clone)]
pub struct LoginAccountConfig {
    /// The gateway at the upstream's authorization server.
    pub account: AccountConfig,
    /// The lists of callers without a login.
    pub lists: AccountLists,
}

/// `kind = "user"`: an account of each caller, connected by agreeing at the upstream's authorization server.
#[derive(Debug, Clone)]
pub struct UserAccountConfig {
    /// The authorization server; absent: what the upstream's metadata names.
    pub issuer: Option<String>,
    /// The gateway's client at that server, if an operator has registered one.
    pub client: Option<ConfiguredClient>,
    /// How the gateway becomes a client of a server where it is not registered.
    pub registration: ClientRegistration,
    /// Scopes to request; empty: those of the challenge, else those of the metadata.
    pub scopes: Vec<String>,
    /// Resource of the tokens; absent: the one in the metadata, else the upstream's URL.
    pub resource: Option<String>,
    /// Where the token goes.
    pub place: TokenPlace,
    /// The lists shown to callers without an account.
    pub lists: AccountLists,
}

/// A client that an operator has registered at the server.
#[derive(Debug, Clone)]
pub struct ConfiguredClient {
    /// `client_id`.
    pub id: String,
    /// Secret or key of this client; absent: a public client with PKCE.
    pub key: Option<ClientKey>,
}

word_enum! {
    /// `upstreams.*.auth.registration`.
    pub enum ClientRegistration {
        /// By metadata document where the server accepts these, else dynamically.
        Auto = "auto",
        /// By the URL of a document that the gateway serves (CIMD).
        Document = "cimd",
        /// Dynamically. Spec: RFC 7591.
        Dynamic = "dcr",
    }
}

word_enum! {
    /// `upstreams.*.auth.kind`.
    pub enum AccountKind {
        /// The gateway's own account, the same for all callers.
        ClientCredentials = "client_credentials",
        /// The caller's token, exchanged for one of the upstream. Spec: RFC 8693.
        TokenExchange = "token_exchange",
        /// An assertion of the caller's identity provider, exchanged for a token at the upstream's server. Spec: MCP,
        /// enterprise-managed authorization.
        IdJag = "id_jag",
        /// An account of each caller, at the upstream's authorization server.
        User = "user",
        /// A key of each caller, pasted on the connect page.
        UserKey = "user_key",
    }
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

    /// The kind as written in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.word()
    }
}

/// How the gateway authenticates as a client of an authorization server.
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
    /// Destinations allowed for URLs that documents name, besides public addresses.
    pub allow: Vec<EgressAllow>,
}

/// One item of `egress.allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EgressAllow {
    /// Addresses with these leading bits.
    Block(IpAddr, u8),
    /// A host name in lower case, with any address that it resolves to.
    Host(String),
}
