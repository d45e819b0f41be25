//! Token requests. Only this file, `form_sender` and `token_answer` use `oauth2`: for the form, the credentials
//! in it, and parsing responses. Spec: RFC 6749 §4.1.3, §4.4, §5, §6; RFC 7523 §2.2; RFC 7636 §4.5; RFC 8707 §2.

use std::borrow::Cow;
use std::sync::atomic::AtomicU16;
use std::time::Duration;

use oauth2::basic::{
    BasicErrorResponse, BasicErrorResponseType, BasicRevocationErrorResponse,
    BasicTokenIntrospectionResponse, BasicTokenType,
};
use oauth2::{
    AuthType, AuthorizationCode, Client, ClientId, ClientSecret, EndpointNotSet, EndpointSet,
    PkceCodeVerifier, RedirectUrl, RefreshToken, RequestTokenError, Scope, StandardRevocableToken,
    TokenResponse as _, TokenUrl,
};
use tokio::time::{Instant, timeout};
use url::Url;

use super::client_key::{AssertionAudience, ClientProof};
use super::documents::{DocumentClients, DocumentError, MAX_SHOWN, ReadAnswer, is_passing};
use super::form_sender::{FormSender, SendError, readable};
use super::server_metadata::ServerMetadata;
use super::token_answer::TokenAnswer;
use crate::secret::Secret;
use crate::telemetry::redact::shown;

/// `client_assertion_type`. Spec: RFC 7523 §2.2
pub(super) const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// Time limit for both requests with an assertion, the second one with another audience: a lease on a grant counts on no more.
const BOTH_WITHIN: Duration = Duration::from_secs(10);

/// Error codes with which servers (Entra, for instance) refuse a token until the person has acted there. Spec: `OpenID`
/// Connect Core 1.0 §3.1.2.6, which has them for authorization endpoints
pub(super) const WANTS_PERSON: [&str; 3] =
    ["interaction_required", "consent_required", "login_required"];

/// One token request.
#[derive(Debug)]
pub(super) struct TokenRequest<'a> {
    pub(super) server: &'a ServerMetadata,
    pub(super) client_id: &'a str,
    pub(super) proof: &'a ClientProof,
    pub(super) scopes: &'a [String],
    /// `None` for tokens that the server itself accepts.
    pub(super) resource: Option<&'a str>,
    pub(super) grant: TokenGrant<'a>,
}

/// The grant that a token is requested with.
#[derive(Debug, Clone, Copy)]
pub(super) enum TokenGrant<'a> {
    /// `client_credentials`: the client's own access.
    Client,
    /// `authorization_code`: the access of the person who agreed. `scopes` are not sent: the authorization named them.
    Code {
        code: &'a Secret,
        verifier: &'a Secret,
        redirect_uri: &'a str,
    },
    /// `refresh_token`: the access of the person who connected the account. `scopes` are not sent: the server keeps
    /// those of the grant.
    Refresh(&'a Secret),
}

/// A token as the server issued it.
#[derive(Debug)]
pub(super) struct IssuedToken {
    pub(super) token: Secret,
    /// The next refresh token; `None` where the server issues none, or the previous one stays valid.
    pub(super) refresh: Option<Secret>,
    /// Life of the token; `None` where the server does not say.
    pub(super) lasts: Option<Duration>,
    /// The granted scopes; `None` where they are those requested.
    pub(super) scopes: Option<Vec<String>>,
    /// The ID token, which `OpenID` servers issue for a code.
    pub(super) id_token: Option<Secret>,
}

impl IssuedToken {
    /// When the token expires, milliseconds since the Unix epoch; `None` for never, or a time beyond the range.
    pub(super) fn ends(&self, now: Duration) -> Option<u64> {
        let ends = now.checked_add(self.lasts?)?;
        u64::try_from(ends.as_millis()).ok()
    }
}

/// An `oauth2` client with a token endpoint and no other endpoint.
type TokenClient<HasTokenUrl = EndpointNotSet> = Client<
    BasicErrorResponse,
    TokenAnswer,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    HasTokenUrl,
>;

/// Why a token request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    #[error("no answer to the token request")]
    Request(#[from] DocumentError),
    #[error("the token request was answered with HTTP {status}")]
    Busy {
        status: u16,
        retry_after: Option<Duration>,
    },
    #[error("the answer to the token request cannot be read (HTTP {status})")]
    Unreadable { status: u16 },
    #[error("the token request was refused: {code}{description}")]
    OAuth {
        code: &'static str,
        description: String,
    },
    #[error("the token is no Bearer token")]
    NotBearer,
    #[error("the token is none for an upstream, but a {found:?}")]
    OtherTokenType { found: String },
    #[error("the authorization server takes other proofs than the configured one: {taken}")]
    ClientAuth { taken: String },
    #[error("no assertion could be signed that the authorization server takes")]
    Assertion,
    #[error("the address {url:?} of this gateway cannot be sent")]
    RedirectUri { url: String },
}

impl TokenError {
    /// Whether the server refuses the client, or its proof.
    fn refuses_client(&self) -> bool {
        matches!(self, Self::OAuth { code, .. } if *code == "invalid_client")
    }
}

/// Requests a token. `issuer` is the configured one, whose origin is trusted.
///
/// # Errors
/// [`TokenError`], which holds no secret.
///
/// # Cancel safety
/// Dropping the future abandons the request.
pub(super) async fn request(
    clients: &DocumentClients,
    asked: &TokenRequest<'_>,
    issuer: Option<&Url>,
) -> Result<IssuedToken, TokenError> {
    let send = |audience| request_for(clients, asked, (issuer, audience));
    with_audience(asked.proof, send).await
}

/// Sends a request with an assertion for the audience that the server has last accepted. If the server refuses the client,
/// sends it once more for the other audience: a refused request has had no effect, and no error code names the audience.
pub(super) async fn with_audience<T, F>(
    proof: &ClientProof,
    send: impl Fn(AssertionAudience) -> F,
) -> Result<T, TokenError>
where
    F: Future<Output = Result<T, TokenError>>,
{
    let (audience, began) = (proof.audience(), Instant::now());
    // Both are boxed: the futures of requests are large.
    let outcome = Box::pin(send(audience)).await;
    let is_refused = outcome.as_ref().is_err_and(TokenError::refuses_client);
    let Some(other) = proof.other_audience(audience).filter(|_| is_refused) else {
        return outcome;
    };
    let left = BOTH_WITHIN.saturating_sub(began.elapsed());
    match timeout(left, Box::pin(send(other))).await {
        Ok(again) if !again.as_ref().is_err_and(TokenError::refuses_client) => {
            // Another failure does not show whether the server takes this audience.
            if again.is_ok() {
                proof.accepted(other);
            }
            again
        }
        Ok(_) | Err(_) => outcome,
    }
}

/// [`request`], with an assertion for `audience`.
async fn request_for(
    clients: &DocumentClients,
    asked: &TokenRequest<'_>,
    (issuer, audience): (Option<&Url>, AssertionAudience),
) -> Result<IssuedToken, TokenError> {
    let (client, assertion) = authenticated(asked, audience)?;
    let sender = FormSender {
        clients,
        issuer,
        status: AtomicU16::new(0),
    };
    // Spec: SPEC B-05
    let mut further: Vec<_> = asked
        .resource
        .map(|one| ("resource", one))
        .into_iter()
        .collect();
    if let Some(assertion) = &assertion {
        further.push(("client_assertion_type", ASSERTION_TYPE));
        further.push(("client_assertion", assertion.expose()));
    }
    macro_rules! send {
        ($form:expr) => {{
            let mut form = $form;
            for (name, value) in further {
                form = form.add_extra_param(name, value);
            }
            form.request_async(&sender).await
        }};
    }
    let answer = match asked.grant {
        TokenGrant::Client => {
            let scopes = asked.scopes.iter().cloned().map(Scope::new);
            send!(client.exchange_client_credentials().add_scopes(scopes))
        }
        TokenGrant::Code {
            code,
            verifier,
            redirect_uri,
        } => {
            let redirect_uri =
                RedirectUrl::new(redirect_uri.to_owned()).map_err(|_| TokenError::RedirectUri {
                    url: redirect_uri.to_owned(),
                })?;
            let code = AuthorizationCode::new(code.expose().to_owned());
            let verifier = PkceCodeVerifier::new(verifier.expose().to_owned());
            send!(
                client
                    .exchange_code(code)
                    .set_pkce_verifier(verifier)
                    .set_redirect_uri(Cow::Owned(redirect_uri))
            )
        }
        TokenGrant::Refresh(token) => {
            let token = RefreshToken::new(token.expose().to_owned());
            send!(client.exchange_refresh_token(&token))
        }
    };
    let status = sender.status.into_inner();
    let answer = answer.map_err(|error| error_of(error, status))?;
    issued(&answer)
}

/// The client with its secret; or with an assertion for the form, returned beside it.
fn authenticated(
    asked: &TokenRequest<'_>,
    audience: AssertionAudience,
) -> Result<(TokenClient<EndpointSet>, Option<Secret>), TokenError> {
    let client = TokenClient::new(ClientId::new(asked.client_id.to_owned()))
        .set_token_uri(TokenUrl::from_url(asked.server.token_endpoint.clone()));
    let is_basic = is_basic(asked.proof, asked.server)?;
    match asked.proof {
        // The client id is sent in the form.
        ClientProof::Public => Ok((client.set_auth_type(AuthType::RequestBody), None)),
        ClientProof::Secret(secret) => {
            let secret = ClientSecret::new(secret.expose().to_owned());
            let goes = if is_basic {
                AuthType::BasicAuth
            } else {
                AuthType::RequestBody
            };
            let client = client.set_client_secret(secret).set_auth_type(goes);
            Ok((client, None))
        }
        ClientProof::Key(key) => {
            let (client_id, audience) = (asked.client_id, asked.server.audience(audience));
            let taken = asked.server.assertion_algorithms.as_deref();
            let assertion = key
                .assertion(client_id, audience, taken)
                .ok_or(TokenError::Assertion)?;
            Ok((client.set_auth_type(AuthType::RequestBody), Some(assertion)))
        }
    }
}

/// The body of a successful token response.
///
/// # Errors
/// As for [`request`]: any other status, or a body that cannot be parsed.
pub(super) fn granted(answer: ReadAnswer) -> Result<Vec<u8>, TokenError> {
    let status = answer.status;
    let body = readable(answer).map_err(RequestTokenError::Request);
    let body = body.map_err(|error| error_of(error, status.as_u16()))?;
    if body.status().is_success() {
        return Ok(body.into_body());
    }
    let refusal = serde_json::from_slice(body.body());
    let refusal = refusal.map_or_else(
        |_| RequestTokenError::Other("no refusal".to_owned()),
        RequestTokenError::ServerResponse,
    );
    Err(error_of(refusal, status.as_u16()))
}

/// Converts an error of `oauth2`. Keeps only the error code and the masked description of the response.
fn error_of(error: RequestTokenError<SendError, BasicErrorResponse>, status: u16) -> TokenError {
    match error {
        RequestTokenError::ServerResponse(refusal) => {
            let Some(code) = known(refusal.error()) else {
                return TokenError::Unreadable { status };
            };
            let description = refusal
                .error_description()
                .map_or_else(String::new, |text| {
                    let text = shown(text, MAX_SHOWN).replace(char::is_control, " ");
                    format!(" ({text})")
                });
            TokenError::OAuth { code, description }
        }
        RequestTokenError::Request(SendError::Document(error)) => TokenError::Request(error),
        RequestTokenError::Request(SendError::Status {
            status,
            retry_after,
        }) if is_passing(status) => TokenError::Busy {
            status,
            retry_after,
        },
        RequestTokenError::Request(SendError::Status { status, .. }) => {
            TokenError::Unreadable { status }
        }
        RequestTokenError::Request(SendError::Answer)
        | RequestTokenError::Parse(..)
        | RequestTokenError::Other(_) => TokenError::Unreadable { status },
    }
}

/// The error codes that the RFCs define; any other code does not come from a token endpoint.
fn known(code: &BasicErrorResponseType) -> Option<&'static str> {
    Some(match code {
        BasicErrorResponseType::InvalidClient => "invalid_client",
        BasicErrorResponseType::InvalidGrant => "invalid_grant",
        BasicErrorResponseType::InvalidRequest => "invalid_request",
        BasicErrorResponseType::InvalidScope => "invalid_scope",
        BasicErrorResponseType::UnauthorizedClient => "unauthorized_client",
        BasicErrorResponseType::UnsupportedGrantType => "unsupported_grant_type",
        BasicErrorResponseType::Extension(code) if code == "invalid_target" => "invalid_target",
        // Some servers refuse an exchange with one of these two codes.
        BasicErrorResponseType::Extension(code) if code == "access_denied" => "access_denied",
        BasicErrorResponseType::Extension(code) if code == "invalid_token" => "invalid_token",
        // Keycloak refuses `offline_access` so.
        BasicErrorResponseType::Extension(code) if code == "not_allowed" => "not_allowed",
        // Names for `invalid_grant`: two of GitHub, and that of Ory Hydra for a refresh token that was used before.
        BasicErrorResponseType::Extension(code)
            if matches!(
                &**code,
                "bad_refresh_token" | "bad_verification_code" | "token_inactive"
            ) =>
        {
            "invalid_grant"
        }
        BasicErrorResponseType::Extension(code) => {
            return WANTS_PERSON.into_iter().find(|known| known == code);
        }
    })
}

fn issued(answer: &TokenAnswer) -> Result<IssuedToken, TokenError> {
    if *answer.token_type() != BasicTokenType::Bearer {
        return Err(TokenError::NotBearer);
    }
    let scopes = answer.scopes();
    let refresh = answer.refresh_token();
    Ok(IssuedToken {
        token: Secret::new(answer.access_token().secret().clone()),
        refresh: refresh.map(|token| Secret::new(token.secret().clone())),
        lasts: answer.expires_in(),
        scopes: scopes.map(|scopes| scopes.iter().map(|scope| scope.to_string()).collect()),
        id_token: (answer.id_token()).map(|token| Secret::new(token.secret().clone())),
    })
}

/// Whether the client's proof is sent as HTTP Basic; else in the form. Without a list a server counts as accepting every
/// method. Spec: RFC 8414 §2
///
/// # Errors
/// The server does not accept the proof.
pub(super) fn is_basic(proof: &ClientProof, server: &ServerMetadata) -> Result<bool, TokenError> {
    let listed = server.client_auth.as_deref();
    let takes = |method: &str| listed.is_none_or(|methods| methods.iter().any(|one| one == method));
    match proof {
        ClientProof::Public => Ok(false),
        ClientProof::Secret(_) if takes("client_secret_basic") => Ok(true),
        ClientProof::Secret(_) if takes("client_secret_post") => Ok(false),
        ClientProof::Key(_) if takes("private_key_jwt") => Ok(false),
        ClientProof::Secret(_) | ClientProof::Key(_) => {
            let all = listed.unwrap_or_default().join(", ");
            Err(TokenError::ClientAuth {
                taken: shown(&all, MAX_SHOWN).into_owned(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientKey;

    #[tokio::test(start_paused = true)]
    async fn both_audiences_are_tried_within_ten_seconds() {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = ClientKey::PrivateKey(Secret::new(pair.serialize_pem()));
        let proof = ClientProof::new(&key).unwrap();
        for (secs, is_found) in [(7, false), (1, true)] {
            let answer = |audience| async move {
                tokio::time::sleep(Duration::from_secs(secs)).await;
                match audience {
                    AssertionAudience::Endpoint => Ok(()),
                    AssertionAudience::Issuer => Err(TokenError::OAuth {
                        code: "invalid_client",
                        description: String::new(),
                    }),
                }
            };
            let began = Instant::now();
            assert_eq!(with_audience(&proof, answer).await.is_ok(), is_found);
            assert!(began.elapsed() < BOTH_WITHIN + Duration::from_secs(1));
        }
        assert_eq!(proof.audience(), AssertionAudience::Endpoint);
    }

    #[tokio::test]
    async fn failure_of_another_kind_teaches_no_audience() {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = ClientKey::PrivateKey(Secret::new(pair.serialize_pem()));
        let proof = ClientProof::new(&key).unwrap();
        let answer = |audience| async move {
            match audience {
                AssertionAudience::Endpoint => Err::<(), _>(TokenError::Busy {
                    status: 503,
                    retry_after: None,
                }),
                AssertionAudience::Issuer => Err(TokenError::OAuth {
                    code: "invalid_client",
                    description: String::new(),
                }),
            }
        };
        let outcome = with_audience(&proof, answer).await;
        assert!(
            matches!(outcome, Err(TokenError::Busy { status: 503, .. })),
            "{outcome:?}"
        );
        assert_eq!(proof.audience(), AssertionAudience::Issuer);
    }

    #[test]
    fn life_beyond_every_calendar_has_no_end() {
        let lasting = |lasts| IssuedToken {
            token: Secret::new("token"),
            refresh: None,
            lasts,
            scopes: None,
            id_token: None,
        };
        let now = Duration::from_secs(1);
        assert_eq!(lasting(Some(now)).ends(now), Some(2000));
        assert_eq!(lasting(Some(Duration::MAX)).ends(now), None);
        let seconds = Duration::from_secs(u64::MAX);
        assert_eq!(lasting(Some(seconds)).ends(now), None);
        assert_eq!(lasting(None).ends(now), None);
    }

    #[test]
    fn error_names_the_status_of_an_answer_that_is_no_document() {
        let page = RequestTokenError::Other("no JSON".to_owned());
        let error = error_of(page, 403);
        assert!(matches!(error, TokenError::Unreadable { status: 403 }));
    }
}
