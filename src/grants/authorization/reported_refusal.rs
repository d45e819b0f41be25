//! Refusals of scopes, from servers and from persons. A server may show its refusal on a page of its own, as Google and GitLab do:
//! the gateway hears of it from the person alone.
//!
//! What the person says counts as the same refusal brought back by the browser, which the person could as well have made up.
//! So it has the same remedies and the same bounds; an attempt that was merely left has none.

use super::Authorizer;
use super::callback::CallbackRefusal;
use super::unfinished::AskedScopes;
use crate::grants::documents::MAX_SHOWN;
use crate::telemetry::redact::shown;
use crate::vault::GrantKey;

impl Authorizer {
    /// Whether the person of `key` can say that the server refused `scopes`: the last attempt asked for these, the browser
    /// has not come back, and the next attempt would differ.
    pub(super) async fn may_be_refused(&self, key: &GrantKey, scopes: &[String]) -> bool {
        let Some(asked) = self.unfinished.get(key) else {
            return false;
        };
        asked.scopes == scopes
            && (self.choice.may_note(&self.account, &self.gateway, &asked)
                || self.offline.may_note(scopes) && !self.lasts(key).await)
    }

    /// Notes that the server refused the scopes of the last attempt of `key`, as its person says.
    pub(super) async fn note_reported(&self, key: &GrantKey) {
        let Some(asked) = self.unfinished.ended(key) else {
            return;
        };
        let refusal = CallbackRefusal::Denied("invalid_scope");
        let refusal = self.noted((key, &asked), refusal).await;
        let error: &(dyn std::error::Error + 'static) = &refusal;
        tracing::warn!(
            upstream = %self.account.upstream, owner = %key.owner, error,
            issuer = shown(&asked.issuer, MAX_SHOWN).into_owned(), scopes = asked.scopes.join(" "),
            "user says that the authorization server refused the scopes of the last attempt"
        );
    }

    /// The refusal of an authorization, noted where the next registration should name the scopes, or `offline_access` may be
    /// what is refused. The latter not where the user has an account with a refresh token: one without would take its place.
    pub(super) async fn noted(
        &self,
        (key, asked): (&GrantKey, &AskedScopes),
        refusal: CallbackRefusal,
    ) -> CallbackRefusal {
        let refused = (asked, refusal);
        let refusal = self.choice.noted(&self.account, &self.gateway, refused);
        if self.lasts(key).await {
            return refusal;
        }
        self.offline.note(key, &asked.scopes, refusal)
    }

    /// Whether the user of `key` has an account with a refresh token.
    async fn lasts(&self, key: &GrantKey) -> bool {
        let kept = self.account.vault.grant(key).await;
        kept.is_ok_and(|grant| {
            grant.is_some_and(|grant| {
                self.account.is_ours(&grant.record) && grant.record.refresh_token.is_some()
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use url::Url;

    use super::super::{GatewayClient, client_choice};
    use super::*;
    use crate::call::Principal;

    const DOCUMENT: &str = "https://gw.test/connect/client.json";

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[rstest]
    #[case::registered("a", "a", "registered", true)]
    #[case::registered_offline("a offline_access", "a offline_access", "registered", true)]
    #[case::document("a", "a", DOCUMENT, false)]
    #[case::document_offline("a offline_access", "a offline_access", DOCUMENT, true)]
    #[case::other_scopes("a", "a b", "registered", false)]
    #[case::no_scopes("", "", "registered", false)]
    #[tokio::test]
    async fn refusal_is_told_once_and_where_the_next_attempt_differs(
        #[case] asked: &str,
        #[case] scopes: &str,
        #[case] client_id: &str,
        #[case] expected: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let account = client_choice::tests::account(&dir, "auto").await;
        let gateway = GatewayClient::new(&Url::parse("https://gw.test").unwrap());
        let authorizer = Authorizer::new(account, Arc::new(gateway));
        let key = GrantKey::new(Principal::anonymous().owner(), "up");
        let may_be_refused = async || {
            let scopes = authorizer.offline.leave_out(&key, list(scopes));
            authorizer.may_be_refused(&key, &scopes).await
        };
        assert!(!may_be_refused().await);
        let begun = || {
            let asked = AskedScopes {
                issuer: "https://as.test".to_owned(),
                client_id: client_id.to_owned(),
                scopes: authorizer.offline.leave_out(&key, list(asked)),
            };
            authorizer.unfinished.begun(&key, asked);
        };
        begun();
        assert_eq!(may_be_refused().await, expected);
        assert!(authorizer.unfinished.ended(&key).is_some());
        assert!(!may_be_refused().await);
        begun();
        authorizer.note_reported(&key).await;
        assert!(!may_be_refused().await);
        begun();
        assert!(!may_be_refused().await);
    }
}
