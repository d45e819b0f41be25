//! The contents of sealed records. A later release may add members; this release ignores them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time_of;
use crate::call::OwnerKey;
use crate::config::TokenPlace;
use crate::secret::Secret;

/// The principal and the upstream of an account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GrantKey {
    /// Issuer and subject of the principal.
    pub owner: OwnerKey,
    /// Name of the upstream.
    pub upstream: Arc<str>,
}

impl GrantKey {
    /// The account of `owner` at `upstream`.
    #[must_use]
    pub fn new(owner: OwnerKey, upstream: &str) -> Self {
        Self {
            owner,
            upstream: Arc::from(upstream),
        }
    }
}

/// Origin of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GrantKind {
    /// A principal's authorization at the upstream's authorization server.
    User,
    /// A key that a principal pasted.
    UserKey,
    /// A principal's login at its own issuer, for `id_jag`.
    Login,
}

/// Where the token is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenPlacement {
    /// In a header of requests to the upstream.
    Header {
        /// Name of the header.
        name: String,
        /// Text before the token.
        prefix: String,
    },
    /// In an environment variable of a child.
    Variable(String),
    /// Not sent: the token only obtains other tokens.
    None,
}

impl TokenPlacement {
    /// What is kept of `place`.
    #[must_use]
    pub fn of(place: &TokenPlace) -> Self {
        match place {
            TokenPlace::Header { name, prefix } => Self::Header {
                name: name.to_string(),
                prefix: prefix.clone(),
            },
            TokenPlace::Variable(name) => Self::Variable(name.clone()),
        }
    }
}

/// The tokens that a principal has granted, and everything that decides where they are sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantRecord {
    /// Origin of the grant.
    pub kind: GrantKind,
    /// The authorization server; empty for a pasted key.
    pub issuer: String,
    /// The token endpoint, for refreshes.
    #[serde(default)]
    pub token_endpoint: Option<String>,
    /// The revocation endpoint.
    #[serde(default)]
    pub revocation_endpoint: Option<String>,
    /// The resource that the token is for.
    pub resource: String,
    /// Client id of the registration that obtained the grant.
    #[serde(default)]
    pub client_id: Option<String>,
    /// How that registration authenticates at the token endpoint.
    #[serde(default)]
    pub auth_method: Option<String>,
    /// Where the token is sent.
    pub placement: TokenPlacement,
    /// The granted scopes.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// The scopes that the person was asked for; empty in records of earlier releases.
    #[serde(default)]
    pub requested: Vec<String>,
    /// Name of the account at the upstream, if known.
    #[serde(default)]
    pub account: Option<String>,
    /// The token that is sent to the upstream.
    #[serde(default, with = "secret_text")]
    pub access_token: Option<Secret>,
    /// When the access token expires, milliseconds since the Unix epoch.
    #[serde(default)]
    pub access_ends: Option<u64>,
    /// The token that obtains the next access token.
    #[serde(default, with = "secret_text")]
    pub refresh_token: Option<Secret>,
}

impl GrantRecord {
    /// The scopes that the next authorization repeats: `requested`, or `scopes` where `requested` is empty.
    #[must_use]
    pub fn repeated_scopes(&self) -> &[String] {
        if self.requested.is_empty() {
            &self.scopes
        } else {
            &self.requested
        }
    }

    /// Whether revoking a token of one may end the other: both have the same registration, and are not known to be of
    /// two accounts.
    pub(super) fn may_share_its_end_with(&self, other: &Self) -> bool {
        let are_two =
            matches!((&self.account, &other.account), (Some(one), Some(two)) if one != two);
        self.issuer == other.issuer && self.client_id == other.client_id && !are_two
    }
}

/// The sealed contents of a grant: the record, and the vault's own state.
#[derive(Debug, Serialize)]
pub(super) struct SealedGrant<'a> {
    #[serde(flatten)]
    pub(super) record: &'a GrantRecord,
    #[serde(flatten)]
    pub(super) state: ConnectionState,
}

/// An opened [`SealedGrant`].
#[derive(Debug, Deserialize)]
pub(super) struct OpenedGrant {
    #[serde(flatten)]
    pub(super) record: GrantRecord,
    #[serde(flatten)]
    pub(super) state: ConnectionState,
}

/// The vault's own state of a grant, beside its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionState {
    /// Connection number: the number of the change by which a person connected the account. Refreshes keep it;
    /// connecting another account changes it.
    #[serde(default)]
    pub connection: i64,
    /// When the upstream last refused the credential, milliseconds since the Unix epoch; `None` once it was accepted
    /// again.
    #[serde(default)]
    pub refused: Option<u64>,
}

/// A grant as stored in the database.
#[derive(Debug)]
pub struct StoredGrant {
    /// The principal and the upstream.
    pub key: GrantKey,
    /// The opened record.
    pub record: GrantRecord,
    /// Number of the change that wrote the row: two contents never have the same version.
    pub version: i64,
    /// Connection number, and whether the upstream refused the credential.
    pub state: ConnectionState,
    /// When a person connected the account, milliseconds since the Unix epoch.
    pub(super) made: i64,
    /// When this process last saw a call use the grant, milliseconds since the Unix epoch.
    pub(super) used: AtomicI64,
}

impl StoredGrant {
    /// When a person connected the account, and when this process last saw a call use it; since the Unix epoch.
    #[must_use]
    pub fn times(&self) -> (Duration, Duration) {
        (
            time_of(self.made),
            time_of(self.used.load(Ordering::Relaxed)),
        )
    }
}

/// A client registration at an authorization server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegistrationRecord {
    /// The authorization server where the registration is valid, and nowhere else (SPEC B-10).
    pub issuer: String,
    /// The client id.
    pub client_id: String,
    /// The client secret, if any.
    #[serde(default, with = "secret_text")]
    pub client_secret: Option<Secret>,
    /// The client's method of authentication at the token endpoint.
    pub auth_method: String,
    /// The redirect URI. A registration cannot be used with another.
    #[serde(default)]
    pub redirect_uri: Option<String>,
    /// When the secret expires, milliseconds since the Unix epoch.
    #[serde(default)]
    pub secret_ends: Option<u64>,
    /// The scopes that the registration named and the server did not strike; empty where it named none.
    #[serde(default)]
    pub scopes: Vec<String>,
}

/// An authorization waiting for its callback.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PendingRecord {
    /// The upstream of the account.
    pub upstream: String,
    /// The authorization server that must answer.
    pub issuer: String,
    /// The endpoint where the code is redeemed.
    pub token_endpoint: String,
    /// The endpoint where the grant can be revoked.
    #[serde(default)]
    pub revocation_endpoint: Option<String>,
    /// The requested resource.
    pub resource: String,
    /// Client id of the registration.
    pub client_id: String,
    /// How that registration authenticates at the token endpoint.
    #[serde(default)]
    pub auth_method: Option<String>,
    /// Whether the answer must carry `iss` (RFC 9207).
    #[serde(default)]
    pub names_issuer: bool,
    /// The redirect URI where the answer must arrive.
    pub redirect_uri: String,
    /// The requested scopes.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// The PKCE verifier.
    #[serde(default, with = "secret_text")]
    pub verifier: Option<Secret>,
    /// The nonce of an ID token.
    #[serde(default, with = "secret_text")]
    pub nonce: Option<Secret>,
    /// Digest of the cookie that the browser must send with the callback.
    pub cookie_digest: String,
    /// The program whose call asked, shown on the page.
    #[serde(default)]
    pub program: Option<String>,
}

/// A token to be revoked at its server (RFC 7009).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RevocationRecord {
    /// The upstream that the token was for.
    #[serde(default)]
    pub upstream: String,
    /// Digest of the principal whose token it was; `None` in records of earlier releases.
    #[serde(default)]
    pub owner: Option<[u8; 32]>,
    /// The authorization server.
    pub issuer: String,
    /// The revocation endpoint.
    pub endpoint: String,
    /// Client id of the registration that the token was issued to.
    #[serde(default)]
    pub client_id: Option<String>,
    /// How that registration authenticates.
    #[serde(default)]
    pub auth_method: Option<String>,
    /// The token.
    #[serde(default, with = "secret_text")]
    pub token: Option<Secret>,
    /// `refresh_token` or `access_token`.
    pub hint: String,
}

/// Serialises a secret as text, inside records that are sealed.
mod secret_text {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use crate::secret::Secret;

    #[expect(
        clippy::ref_option,
        reason = "serde calls it with a reference to the member"
    )]
    pub(super) fn serialize<S: Serializer>(
        secret: &Option<Secret>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(Secret::expose).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Secret>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        Ok(text.map(Secret::new))
    }
}
