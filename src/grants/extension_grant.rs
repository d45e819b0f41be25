//! Token requests of extension grants, which `oauth2` does not know. Spec: RFC 6749 §4.5, §5; RFC 8693 §2.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use url::Url;

use super::client_form;
use super::client_key::{AssertionAudience, ClientProof};
use super::documents::DocumentClients;
use super::server_metadata::ServerMetadata;
use super::token_answer;
use super::token_endpoint::{self, TokenError, is_basic, with_audience};
use crate::secret::Secret;

/// The client that requests, and the server.
#[derive(Debug)]
pub(super) struct RequestingClient<'a> {
    pub(super) server: &'a ServerMetadata,
    pub(super) client_id: &'a str,
    pub(super) proof: &'a ClientProof,
    /// The origin that the operator trusts.
    pub(super) trusted: Option<&'a Url>,
}

/// A token response with a token of any type, as the server issued it.
#[derive(Debug, Deserialize)]
pub(super) struct GrantedToken {
    #[serde(rename = "access_token", deserialize_with = "secret")]
    pub(super) token: Secret,
    /// `Bearer` in any case; `N_A` for a token that cannot be used at a resource.
    pub(super) token_type: String,
    /// URN of the token type.
    #[serde(rename = "issued_token_type")]
    pub(super) issued_type: Option<String>,
    /// `None` where the server does not say.
    #[serde(
        default,
        rename = "expires_in",
        deserialize_with = "token_answer::expires_in"
    )]
    pub(super) lasts: Option<Duration>,
    /// The granted scopes; `None` where the server does not say.
    #[serde(default, rename = "scope", deserialize_with = "token_answer::granted")]
    pub(super) scopes: Option<Vec<String>>,
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    let token = token_answer::access_token(deserializer)?;
    Ok(Secret::new(token.secret().clone()))
}

/// Posts a form of `fields` and the client's proof.
///
/// # Errors
/// [`TokenError`], which holds no secret.
///
/// # Cancel safety
/// Dropping the future abandons the request.
pub(super) async fn request(
    clients: &DocumentClients,
    client: &RequestingClient<'_>,
    fields: &[(&str, &str)],
) -> Result<GrantedToken, TokenError> {
    let send = |audience| request_for(clients, client, (fields, audience));
    with_audience(client.proof, send).await
}

/// [`request`], with an assertion for `audience`.
async fn request_for(
    clients: &DocumentClients,
    client: &RequestingClient<'_>,
    (fields, audience): (&[(&str, &str)], AssertionAudience),
) -> Result<GrantedToken, TokenError> {
    let is_basic = is_basic(client.proof, client.server)?;
    let request = client_form::request(client, (is_basic, audience), fields)?;
    let answer = clients.post(request, client.trusted).await?;
    let status = answer.status.as_u16();
    let body = token_endpoint::granted(answer)?;
    serde_json::from_slice(&body).map_err(|_| TokenError::Unreadable { status })
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use http::header::AUTHORIZATION;
    use rstest::rstest;

    use super::*;
    use crate::grants::server_metadata::ConsentSupport;

    fn server(methods: Option<&[&str]>) -> ServerMetadata {
        let methods = methods.map(|methods| methods.iter().map(|one| (*one).to_owned()).collect());
        ServerMetadata {
            issuer: "https://as.test".to_owned(),
            token_endpoint: "https://as.test/token?tenant=1".parse().unwrap(),
            client_auth: methods,
            assertion_algorithms: None,
            consent: ConsentSupport::default(),
        }
    }

    fn made(server: &ServerMetadata) -> Result<http::Request<Vec<u8>>, TokenError> {
        let proof = ClientProof::Secret(Secret::new("a: secret%"));
        let client = RequestingClient {
            server,
            client_id: "c/1",
            proof: &proof,
            trusted: None,
        };
        let fields = [("grant_type", "urn:x"), ("subject_token", "a+b")];
        let how = (is_basic(&proof, server)?, proof.audience());
        client_form::request(&client, how, &fields)
    }

    #[test]
    fn secret_goes_as_basic_unless_the_server_lists_another_way() {
        let sent = made(&server(None)).unwrap();
        assert_eq!(sent.uri(), "https://as.test/token?tenant=1");
        let basic = sent.headers()[AUTHORIZATION].to_str().unwrap();
        let pair = BASE64_STANDARD
            .decode(basic.strip_prefix("Basic ").unwrap())
            .unwrap();
        assert_eq!(pair, b"c%2F1:a%3A+secret%25");
        assert_eq!(sent.body(), b"grant_type=urn%3Ax&subject_token=a%2Bb");
        let posted = made(&server(Some(&["client_secret_post"]))).unwrap();
        assert!(posted.headers().get(AUTHORIZATION).is_none());
        let body = String::from_utf8(posted.into_body()).unwrap();
        assert!(
            body.ends_with("&client_id=c%2F1&client_secret=a%3A+secret%25"),
            "{body}"
        );
        let none = made(&server(Some(&["tls_client_auth"])));
        assert!(matches!(none, Err(TokenError::ClientAuth { .. })));
    }

    #[rstest]
    #[case::number(
        r#"{"access_token":"t","token_type":"Bearer","expires_in":60,"scope":"a b"}"#,
        Some(60)
    )]
    #[case::text(
        r#"{"access_token":"t","token_type":"Bearer","expires_in":"60"}"#,
        Some(60)
    )]
    #[case::endless(r#"{"access_token":"t","token_type":"Bearer"}"#, None)]
    #[case::no_life(r#"{"access_token":"t","token_type":"Bearer","expires_in":-1}"#, None)]
    #[case::list_of_scopes(
        r#"{"access_token":"t","token_type":"Bearer","scope":["a","b"]}"#,
        None
    )]
    fn an_answer_is_read(#[case] body: &str, #[case] lasts: Option<u64>) {
        let token: GrantedToken = serde_json::from_str(body).unwrap();
        assert_eq!(token.lasts.map(|lasts| lasts.as_secs()), lasts);
        assert_eq!(token.token.expose(), "t");
        let scopes = token.scopes;
        assert_eq!(scopes.is_some(), body.contains("scope"));
        assert!(scopes.is_none_or(|scopes| scopes == ["a", "b"]));
    }

    #[rstest]
    #[case::empty(r#"{"access_token":"","token_type":"Bearer"}"#)]
    #[case::no_type(r#"{"access_token":"t"}"#)]
    #[case::page("<html>")]
    fn what_is_no_token_is_not_read(#[case] body: &str) {
        assert!(serde_json::from_str::<GrantedToken>(body).is_err());
    }
}
