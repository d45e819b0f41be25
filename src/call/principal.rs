//! Who calls: the principal, and the keys derived from it.

use std::sync::Arc;
use std::time::Duration;

use super::caller_access::CallerAccess;
use super::keys::{AccessKey, BindingKey, GATEWAY_SUBJECT, OwnerKey};
use crate::telemetry::record::CachedText;

/// A verified caller. Scopes are what this token grants, never part of the identity (DESIGN §2).
#[derive(Debug, Clone)]
pub struct Principal {
    issuer: CachedText,
    subject: CachedText,
    client: CachedText,
    scopes: Vec<String>,
    expires_at: Option<Duration>,
    owner: OwnerKey,
    binding: BindingKey,
    /// Where an upstream exchanges callers' tokens.
    access: Option<Arc<CallerAccess>>,
}

impl Principal {
    /// A caller as its token describes it; `client` is empty when the token names none and
    /// `expires_at` is time since the Unix epoch.
    #[must_use]
    pub fn new(
        issuer: &str,
        subject: &str,
        client: &str,
        scopes: Vec<String>,
        expires_at: Option<Duration>,
    ) -> Self {
        Self {
            owner: OwnerKey::of(issuer, subject),
            binding: BindingKey::of(issuer, subject, client),
            issuer: CachedText::new(issuer),
            subject: CachedText::new(subject),
            client: CachedText::new(client),
            scopes,
            expires_at,
            access: None,
        }
    }

    /// This caller, whose tokens `access` has.
    #[must_use]
    pub fn with_access(self, access: Arc<CallerAccess>) -> Self {
        Self {
            access: Some(access),
            ..self
        }
    }

    /// This caller, until `end` at the latest.
    #[must_use]
    pub fn ending_by(self, end: Option<Duration>) -> Self {
        let ends = [self.expires_at, end];
        Self {
            expires_at: ends.into_iter().flatten().min(),
            ..self
        }
    }

    /// Everybody, with `auth.mode = "none"`.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new("", "anonymous", "", Vec::new(), None)
    }

    /// The gateway itself, for sessions that no client opened.
    #[must_use]
    pub fn gateway() -> Self {
        Self::new("", GATEWAY_SUBJECT, "", Vec::new(), None)
    }

    /// Who vouches for the subject.
    #[must_use]
    pub fn issuer(&self) -> &str {
        self.issuer.as_str()
    }

    /// The subject, unique within the issuer.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.subject.as_str()
    }

    /// The OAuth client, empty when unknown.
    #[must_use]
    pub fn client(&self) -> &str {
        self.client.as_str()
    }

    /// Issuer, subject and client, for the lines of the log.
    #[must_use]
    pub fn names(&self) -> [&CachedText; 3] {
        [&self.issuer, &self.subject, &self.client]
    }

    /// What the presented token grants.
    #[must_use]
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// When the presented token expires, since the Unix epoch.
    #[must_use]
    pub fn expires_at(&self) -> Option<Duration> {
        self.expires_at
    }

    /// What the caller's tokens have in common on the endpoint with the identifier `resource`. A token for one endpoint is
    /// exchanged for no call on another: its issuer may give less for it.
    #[must_use]
    pub fn access_key(&self, resource: &str) -> AccessKey {
        AccessKey::of(
            [self.issuer(), self.subject(), self.client(), resource],
            &self.scopes,
        )
    }

    /// The caller's tokens; `None` where no upstream exchanges them.
    #[must_use]
    pub fn access(&self) -> Option<&Arc<CallerAccess>> {
        self.access.as_ref()
    }

    /// Key of what belongs to issuer + subject.
    #[must_use]
    pub fn owner(&self) -> OwnerKey {
        self.owner
    }

    /// Key of what belongs to issuer + subject + client.
    #[must_use]
    pub fn binding(&self) -> BindingKey {
        self.binding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_borders_are_part_of_the_identity() {
        let a = Principal::new("ab", "c", "", Vec::new(), None);
        let b = Principal::new("a", "bc", "", Vec::new(), None);
        assert_ne!(a.owner(), b.owner());
    }

    #[test]
    fn scopes_and_expiry_do_not_change_the_binding() {
        let a = Principal::new("i", "s", "c", vec!["x".to_owned()], None);
        let b = Principal::new("i", "s", "c", Vec::new(), Some(Duration::from_secs(9)));
        assert_eq!(a.binding(), b.binding());
        assert_eq!(a.owner(), b.owner());
    }

    #[test]
    fn the_earlier_end_counts() {
        let at = |secs: u64| Some(Duration::from_secs(secs));
        for (own, other, expected) in [
            (None, None, None),
            (None, at(5), at(5)),
            (at(5), None, at(5)),
            (at(5), at(4), at(4)),
            (at(5), at(6), at(5)),
        ] {
            let ending = Principal::new("i", "s", "c", Vec::new(), own).ending_by(other);
            assert_eq!(ending.expires_at(), expected, "{own:?} and {other:?}");
        }
    }

    #[test]
    fn another_client_shares_the_owner_but_not_the_binding() {
        let a = Principal::new("i", "s", "c1", Vec::new(), None);
        let b = Principal::new("i", "s", "c2", Vec::new(), None);
        assert_eq!(a.owner(), b.owner());
        assert_ne!(a.binding(), b.binding());
    }
}
