//! The typed values of `[auth]`: issuers, accepted tokens, scopes of endpoints and tools.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::words::{ConfigWord, word_enum};
use crate::secret::Secret;

/// `[auth]`.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// Whether callers need a token.
    pub mode: AuthMode,
    /// Scopes of every endpoint that names none.
    pub required_scopes: Vec<String>,
    /// Scopes that clients request at login, on every endpoint that names none.
    pub login_scopes: Vec<String>,
    /// Trusted issuers.
    pub issuers: Vec<IssuerConfig>,
    /// Scopes that individual tools require.
    pub tool_scopes: Vec<ToolScope>,
    /// Scopes that imply further scopes.
    pub scope_implies: Vec<ScopeImplies>,
    /// Whether callers' tokens are kept in memory, since an upstream exchanges them.
    pub keeps_tokens: bool,
}

/// `[[auth.scope_implies]]`.
#[derive(Debug, Clone)]
pub struct ScopeImplies {
    /// The implying scope.
    pub scope: String,
    /// Implied scopes, transitively.
    pub implies: Vec<String>,
}

word_enum! {
    /// `auth.mode`.
    pub enum AuthMode {
        /// Every request carries a bearer token.
        OAuth = "oauth",
        /// All callers are the principal `anonymous`; loopback only.
        None = "none",
    }
}

/// `[[auth.issuers]]`.
#[derive(Debug, Clone)]
pub struct IssuerConfig {
    /// The issuer identifier, compared byte for byte.
    pub issuer: String,
    /// File with fixed keys, instead of discovery.
    pub jwks_file: Option<PathBuf>,
    /// Audiences accepted on every endpoint.
    pub audiences: Vec<String>,
    /// The claim that identifies the subject; `sub` by default.
    pub subject_claim: Option<String>,
    /// Introspection of tokens at the issuer, if enabled.
    pub introspection: Option<IntrospectionConfig>,
}

/// `introspection` of `[[auth.issuers]]`.
#[derive(Debug, Clone)]
pub struct IntrospectionConfig {
    /// The introspection endpoint; found by discovery when absent.
    pub endpoint: Option<Url>,
    /// The gateway's client id at the issuer.
    pub client_id: String,
    /// Its client secret.
    pub client_secret: Secret,
    /// How both are sent.
    pub auth_method: IntrospectionAuth,
    /// Which tokens are introspected.
    pub tokens: IntrospectedTokens,
    /// How long an answer is cached.
    pub max_age: Duration,
}

word_enum! {
    /// `introspection.auth_method`.
    pub enum IntrospectionAuth {
        /// As the issuer's metadata wants it; `Basic` where the endpoint is configured.
        Auto = "auto",
        /// In the header `Authorization` (HTTP Basic).
        Basic = "client_secret_basic",
        /// In the form.
        Post = "client_secret_post",
    }
}

word_enum! {
    /// `introspection.tokens`.
    pub enum IntrospectedTokens {
        /// Only tokens that are not JWTs.
        Opaque = "opaque",
        /// JWTs too, after their signature was verified.
        All = "all",
    }
}

/// `[[auth.tool_scopes]]`.
#[derive(Debug, Clone)]
pub struct ToolScope {
    /// Tool name patterns (`*` matches any run), as the upstream spells them.
    pub tools: Vec<String>,
    /// The upstreams that the rule applies to; empty means all.
    pub upstreams: Vec<String>,
    /// Required scopes; all of them.
    pub scopes: Vec<String>,
}
