//! Token exchange: a caller's token for one of the upstream. Spec: RFC 8693 §2; RFC 8707 §2.

use serde::Deserialize;

use super::documents::{DocumentClients, MAX_SHOWN};
use super::extension_grant::{self, GrantedToken, RequestingClient};
use super::token_claims::{self, Audience};
use super::token_endpoint::{IssuedToken, TokenError};
use crate::secret::Secret;
use crate::telemetry::redact::shown;

/// The grant type.
pub(super) const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
pub(super) const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

/// A token to exchange, and the resource that the new token is for.
#[derive(Debug)]
pub(super) struct ExchangeRequest<'a> {
    pub(super) subject: &'a Secret,
    pub(super) resource: &'a str,
    /// Sent only where configured.
    pub(super) audience: Option<&'a str>,
    pub(super) scopes: &'a [String],
}

/// Exchanges a token.
///
/// # Errors
/// [`TokenError`], which holds no secret.
///
/// # Cancel safety
/// Dropping the future abandons the request.
pub(super) async fn request(
    clients: &DocumentClients,
    client: &RequestingClient<'_>,
    asked: &ExchangeRequest<'_>,
) -> Result<IssuedToken, TokenError> {
    let scope = asked.scopes.join(" ");
    let mut fields = vec![
        ("grant_type", TOKEN_EXCHANGE),
        ("subject_token", asked.subject.expose()),
        ("subject_token_type", ACCESS_TOKEN),
        ("requested_token_type", ACCESS_TOKEN),
        // Spec: SPEC B-05
        ("resource", asked.resource),
    ];
    if !scope.is_empty() {
        fields.push(("scope", &scope));
    }
    if let Some(audience) = asked.audience {
        fields.push(("audience", audience));
    }
    issued(extension_grant::request(clients, client, &fields).await?)
}

/// The token, unless its type is one that upstreams do not accept.
pub(super) fn issued(granted: GrantedToken) -> Result<IssuedToken, TokenError> {
    let is_access = |kind: &str| kind == ACCESS_TOKEN || kind == JWT;
    if let Some(kind) = granted
        .issued_type
        .as_deref()
        .filter(|kind| !is_access(kind))
    {
        return Err(TokenError::OtherTokenType {
            found: shown(kind, MAX_SHOWN).into_owned(),
        });
    }
    if !granted.token_type.eq_ignore_ascii_case("bearer") {
        return Err(TokenError::NotBearer);
    }
    Ok(IssuedToken {
        token: granted.token,
        // No refresh token: each exchange presents the caller's current token.
        refresh: None,
        id_token: None,
        lasts: granted.lasts,
        scopes: granted.scopes,
    })
}

/// The `aud` of a token that is a JWT; `None` for other tokens. Nothing is verified: the result is only logged.
pub(super) fn audiences(token: &Secret) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Claims {
        aud: Option<Audience>,
    }
    let claims: Claims = token_claims::claims(token)?;
    Some(claims.aud.map_or_else(Vec::new, Audience::into_list))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use rstest::rstest;

    use super::*;

    fn jwt(claims: &str) -> Secret {
        Secret::new(format!(
            "e30.{}.c2ln",
            BASE64_URL_SAFE_NO_PAD.encode(claims)
        ))
    }

    #[test]
    fn audiences_of_a_jwt_are_read() {
        assert_eq!(audiences(&jwt(r#"{"aud":"a"}"#)).unwrap(), ["a"]);
        assert_eq!(audiences(&jwt(r#"{"aud":["a","b"]}"#)).unwrap(), ["a", "b"]);
        assert!(audiences(&jwt("{}")).unwrap().is_empty());
    }

    #[rstest]
    #[case::opaque("opaque")]
    #[case::two_parts("e30.e30")]
    #[case::encrypted("a.b.c.d.e")]
    #[case::no_json("e30.YWJj.x")]
    fn other_tokens_have_no_readable_audience(#[case] token: &str) {
        assert_eq!(audiences(&Secret::new(token)), None);
    }

    #[rstest]
    #[case::unsaid(None, "bearer", true)]
    #[case::access(Some(ACCESS_TOKEN), "Bearer", true)]
    #[case::jwt(Some(JWT), "Bearer", true)]
    #[case::refresh(
        Some("urn:ietf:params:oauth:token-type:refresh_token"),
        "Bearer",
        false
    )]
    #[case::not_applicable(Some(ACCESS_TOKEN), "N_A", false)]
    fn only_access_tokens_are_taken(
        #[case] kind: Option<&str>,
        #[case] token_type: &str,
        #[case] is_taken: bool,
    ) {
        let granted = GrantedToken {
            token: Secret::new("t"),
            token_type: token_type.to_owned(),
            issued_type: kind.map(str::to_owned),
            lasts: None,
            scopes: None,
        };
        assert_eq!(issued(granted).is_ok(), is_taken);
    }
}
