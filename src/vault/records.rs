//! The records that are sealed. A later release may add members, which this one ignores.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time_of;
use crate::call::OwnerKey;
use crate::config::UserKeyConfig;
use crate::secret::Secret;

/// Whose account, and where.
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

/// How a grant came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GrantKind {
    /// OAuth of a principal at the upstream's authorization server.
    User,
    /// A key that a principal pasted.
    UserKey,
    /// The login of a principal at its own issuer, for `id_jag`.
    Login,
}

/// Where the token goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenPlacement {
    /// A header of requests to the upstream.
    Header {
        /// Its name.
        name: String,
        /// Put before the token.
        prefix: String,
    },
    /// A variable in the environment of a child.
    Variable(String),
    /// Nowhere: it only gets other tokens.
    None,
}

impl TokenPlacement {
    /// Where a pasted key goes.
    #[must_use]
    pub fn of_key(config: &UserKeyConfig) -> Self {
        Self::Header {
            name: config.header.to_string(),
            prefix: config.prefix.clone(),
        }
    }
}

/// What a principal has granted: tokens, and everything that decides where they are sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantRecord {
    /// How it came to be.
    pub kind: GrantKind,
    /// The authorization server; empty for a pasted key.
    pub issuer: String,
    /// Where it is refreshed.
    #[serde(default)]
    pub token_endpoint: Option<String>,
    /// Where it is revoked.
    #[serde(default)]
    pub revocation_endpoint: Option<String>,
    /// The resource that the token is for.
    pub resource: String,
    /// The registration that it was made with.
    #[serde(default)]
    pub client_id: Option<String>,
    /// How that registration authenticates at the token endpoint.
    #[serde(default)]
    pub auth_method: Option<String>,
    /// Where the token goes.
    pub placement: TokenPlacement,
    /// Scopes as granted.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// Name of the account at the upstream, where known.
    #[serde(default)]
    pub account: Option<String>,
    /// What is sent to the upstream.
    #[serde(default, with = "secret_text")]
    pub access_token: Option<Secret>,
    /// When it ends, milliseconds since the Unix epoch.
    #[serde(default)]
    pub access_ends: Option<u64>,
    /// What gets the next one.
    #[serde(default, with = "secret_text")]
    pub refresh_token: Option<Secret>,
}

impl GrantRecord {
    /// Whether the server may take both for one grant: they have the same registration, and are not known to be of two
    /// accounts.
    pub(super) fn may_share_its_end_with(&self, other: &Self) -> bool {
        let are_two =
            matches!((&self.account, &other.account), (Some(one), Some(two)) if one != two);
        self.issuer == other.issuer && self.client_id == other.client_id && !are_two
    }
}

/// What is sealed of a grant: the record, and what the vault itself knows.
#[derive(Debug, Serialize)]
pub(super) struct SealedGrant<'a> {
    #[serde(flatten)]
    pub(super) record: &'a GrantRecord,
    #[serde(flatten)]
    pub(super) state: ConnectionState,
}

/// A [`SealedGrant`] that was opened.
#[derive(Debug, Deserialize)]
pub(super) struct OpenedGrant {
    #[serde(flatten)]
    pub(super) record: GrantRecord,
    #[serde(flatten)]
    pub(super) state: ConnectionState,
}

/// What the vault knows of a grant besides its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionState {
    /// Number of the change by which a person connected the account. A refresh keeps it: it changes with the account.
    #[serde(default)]
    pub connection: i64,
    /// When the upstream last refused what is sent, milliseconds since the Unix epoch; `None` once it took it again.
    #[serde(default)]
    pub refused: Option<u64>,
}

/// A grant as the database has it.
#[derive(Debug)]
pub struct StoredGrant {
    /// Whose, and where.
    pub key: GrantKey,
    /// The opened record.
    pub record: GrantRecord,
    /// Number of the change that wrote it: never the same for two contents.
    pub version: i64,
    /// The connection that it belongs to, and whether it was refused.
    pub state: ConnectionState,
    /// When a person connected it, milliseconds since the Unix epoch.
    pub(super) made: i64,
    /// When it was used last as far as this process knows, milliseconds since the Unix epoch.
    pub(super) used: AtomicI64,
}

impl StoredGrant {
    /// When a person connected it, and when a call used it last as far as this process knows, since the Unix epoch.
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
    /// The authorization server that knows it, and no other (SPEC B-10).
    pub issuer: String,
    /// The client id.
    pub client_id: String,
    /// The secret, if it has one.
    #[serde(default, with = "secret_text")]
    pub client_secret: Option<Secret>,
    /// How it authenticates at the token endpoint.
    pub auth_method: String,
    /// Where its answers go. A registration is of no use for another place.
    #[serde(default)]
    pub redirect_uri: Option<String>,
    /// When the secret ends, milliseconds since the Unix epoch.
    #[serde(default)]
    pub secret_ends: Option<u64>,
}

/// An authorization that waits for its callback.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PendingRecord {
    /// The upstream that it is for.
    pub upstream: String,
    /// The authorization server that has to answer.
    pub issuer: String,
    /// Where the code is redeemed.
    pub token_endpoint: String,
    /// Where the grant can be revoked.
    #[serde(default)]
    pub revocation_endpoint: Option<String>,
    /// The resource asked for.
    pub resource: String,
    /// The registration that asks.
    pub client_id: String,
    /// How that registration authenticates at the token endpoint.
    #[serde(default)]
    pub auth_method: Option<String>,
    /// Whether the answer has to name its issuer (RFC 9207).
    #[serde(default)]
    pub names_issuer: bool,
    /// Where the answer must arrive.
    pub redirect_uri: String,
    /// Scopes asked for.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// The PKCE verifier.
    #[serde(default, with = "secret_text")]
    pub verifier: Option<Secret>,
    /// The nonce of an ID token.
    #[serde(default, with = "secret_text")]
    pub nonce: Option<Secret>,
    /// Digest of the cookie that the browser must bring back.
    pub cookie_digest: String,
    /// The program that asked, for the page.
    #[serde(default)]
    pub program: Option<String>,
}

/// A token that its server has still to forget (RFC 7009).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RevocationRecord {
    /// The upstream that the token was for.
    #[serde(default)]
    pub upstream: String,
    /// The authorization server.
    pub issuer: String,
    /// Where to say it.
    pub endpoint: String,
    /// The registration that the token was given to.
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

/// A secret as text, inside records that are sealed.
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
