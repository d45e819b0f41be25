//! Dynamic registration: the gateway describes itself to a server and gets a client id. Spec: RFC 7591 §3; SPEC B-09

use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use serde::Deserialize;
use url::Url;

use super::super::client_key::ClientProof;
use super::super::documents::{DocumentClients, DocumentError, MAX_SHOWN, is_passing};
use super::super::server_metadata::ServerMetadata;
use super::super::token_answer;
use super::super::token_endpoint::{TokenError, TokenGrant, TokenRequest};
use super::super::user_account::UserAccount;
use super::gateway_client::GatewayClient;
use super::proof_key;
use crate::clock::{Clock as _, SystemClock};
use crate::secret::Secret;
use crate::telemetry::redact::shown;
use crate::vault::RegistrationRecord;

/// How a registered client can authenticate, the preferred method first.
const OUR_METHODS: [&str; 3] = ["client_secret_basic", "client_secret_post", "none"];

/// Why a registration failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    /// No answer, or the egress rules forbid the endpoint.
    #[error("no answer to the registration")]
    Request(#[source] DocumentError),
    /// The server refused.
    #[error("the registration was refused with HTTP {status}{said}")]
    Refused {
        /// Status of the answer.
        status: u16,
        /// Error code and description after a colon, masked; empty without them.
        said: String,
        /// Whether a retry may succeed.
        may_pass: bool,
    },
    /// The answer is not a valid registration.
    #[error("the answer to the registration cannot be read")]
    Unreadable,
}

impl RegistrationError {
    /// Whether a retry may succeed.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Request(error) => error.may_pass(),
            Self::Refused { may_pass, .. } => *may_pass,
            Self::Unreadable => false,
        }
    }
}

/// The registration response, RFC 7591 §3.2.1.
#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<String>,
    /// Since the Unix epoch. Zero, for never, and what is no time count as unsaid.
    #[serde(default, deserialize_with = "token_answer::expires_in")]
    client_secret_expires_at: Option<Duration>,
    token_endpoint_auth_method: Option<String>,
    /// The scopes that the client may ask for.
    #[serde(default, deserialize_with = "token_answer::or_unsaid")]
    scope: Option<String>,
}

#[derive(Deserialize)]
struct RefusedRegistration {
    error: Option<String>,
    error_description: Option<String>,
}

/// Registers `gateway` at `endpoint` of `issuer`. `taken`: the client authentication methods that the server lists;
/// `trusted`: the configured issuer; `scopes`: what `scope` of the registration names, which has none if they are empty.
///
/// # Errors
/// [`RegistrationError`].
///
/// # Cancel safety
/// Dropping the future abandons the request; the server may have registered the gateway.
pub(super) async fn register(
    clients: &DocumentClients,
    gateway: &GatewayClient,
    (issuer, endpoint): (&str, &Url),
    (taken, trusted): (Option<&[String]>, Option<&Url>),
    scopes: &[String],
) -> Result<RegistrationRecord, RegistrationError> {
    let method = auth_method(taken);
    let first = post(
        clients,
        gateway,
        (issuer, endpoint, trusted),
        (method, "web", scopes),
    )
    .await;
    let answer = match first {
        // Servers refuse loopback addresses for `web` clients. Spec: OpenID Connect Registration 1.0 §2
        Err(RegistrationError::Refused {
            may_pass: false, ..
        }) if gateway.is_loopback() => {
            post(
                clients,
                gateway,
                (issuer, endpoint, trusted),
                (method, "native", scopes),
            )
            .await?
        }
        other => other?,
    };
    read(&answer, issuer, gateway, scopes).ok_or(RegistrationError::Unreadable)
}

/// The authentication method: a secret where the server accepts one, so that another program cannot use the client id.
fn auth_method(taken: Option<&[String]>) -> &'static str {
    let is_taken =
        |method: &&&'static str| taken.is_none_or(|taken| taken.iter().any(|one| one == **method));
    OUR_METHODS.iter().find(is_taken).unwrap_or(&"none")
}

async fn post(
    clients: &DocumentClients,
    gateway: &GatewayClient,
    (issuer, endpoint, trusted): (&str, &Url, Option<&Url>),
    (method, application_type, scopes): (&str, &str, &[String]),
) -> Result<Vec<u8>, RegistrationError> {
    let redirect_uri = gateway.redirect_of_registration(issuer);
    let mut body = gateway.metadata(method, application_type, &redirect_uri);
    if !scopes.is_empty() {
        body.insert("scope".to_owned(), scopes.join(" ").into());
    }
    let body = serde_json::to_vec(&body).map_err(|_| RegistrationError::Unreadable)?;
    let json = HeaderValue::from_static("application/json");
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = (endpoint.as_str().parse()).map_err(|_| RegistrationError::Unreadable)?;
    request.headers_mut().insert(CONTENT_TYPE, json.clone());
    request.headers_mut().insert(ACCEPT, json);
    let answer = clients.post(request, trusted).await;
    let answer = answer.map_err(RegistrationError::Request)?;
    if answer.status.is_success() {
        return Ok(answer.body);
    }
    let status = answer.status.as_u16();
    Err(RegistrationError::Refused {
        status,
        said: said(&answer.body),
        may_pass: is_passing(status),
    })
}

/// Error code and description of a refusal, masked, on one line.
fn said(body: &[u8]) -> String {
    let Ok(refused) = serde_json::from_slice::<RefusedRegistration>(body) else {
        return String::new();
    };
    let parts = [refused.error, refused.error_description];
    let text: Vec<String> = parts.into_iter().flatten().collect();
    if text.is_empty() {
        return String::new();
    }
    let text = shown(&text.join(", "), MAX_SHOWN).replace(char::is_control, " ");
    format!(": {text}")
}

fn read(
    answer: &[u8],
    issuer: &str,
    gateway: &GatewayClient,
    scopes: &[String],
) -> Option<RegistrationRecord> {
    let registered: Registered = serde_json::from_slice(answer).ok()?;
    let secret = registered.client_secret.filter(|text| !text.is_empty());
    let method = registered.token_endpoint_auth_method.unwrap_or_else(|| {
        // Spec: RFC 7591 §2, the default.
        let default = match secret {
            Some(_) => "client_secret_basic",
            None => "none",
        };
        default.to_owned()
    });
    let needs_secret = method != "none";
    // The document's URL is a client id at every server: a registration must not have it.
    let is_document = gateway.document_id() == Some(&*registered.client_id);
    let is_known = OUR_METHODS.contains(&&*method);
    if registered.client_id.is_empty()
        || is_document
        || !is_known
        || needs_secret && secret.is_none()
    {
        return None;
    }
    // Without a secret nothing ends.
    let ends = registered.client_secret_expires_at.filter(|_| needs_secret);
    let allowed = registered.scope.as_deref();
    let is_allowed = |scope: &&String| {
        allowed.is_none_or(|allowed| allowed.split_whitespace().any(|one| one == **scope))
    };
    Some(RegistrationRecord {
        issuer: issuer.to_owned(),
        client_id: registered.client_id,
        client_secret: secret.filter(|_| needs_secret).map(Secret::new),
        auth_method: method,
        redirect_uri: Some(gateway.redirect_of_registration(issuer)),
        secret_ends: ends.and_then(|ends| u64::try_from(ends.as_millis()).ok()),
        scopes: scopes.iter().filter(is_allowed).cloned().collect(),
    })
}

/// Whether `server` refuses the client of a registration, asked with a code that it has not given.
pub(super) async fn is_forgotten(
    account: &UserAccount,
    server: &ServerMetadata,
    known: &RegistrationRecord,
) -> bool {
    let endpoint = server.token_endpoint.clone();
    let server = ServerMetadata::remembered(&known.issuer, endpoint, Some(&known.auth_method));
    let proof = known.client_secret.clone();
    let proof = proof.map_or(ClientProof::Public, ClientProof::Secret);
    let (code, verifier) = (Secret::new("none"), proof_key::verifier());
    let asked = TokenRequest {
        server: &server,
        client_id: &known.client_id,
        proof: &proof,
        scopes: &[],
        resource: None,
        grant: TokenGrant::Code {
            code: &code,
            verifier: &verifier,
            redirect_uri: known.redirect_uri.as_deref().unwrap_or_default(),
        },
    };
    let answer = account.ask(&asked).await;
    matches!(
        answer,
        Err(TokenError::OAuth {
            code: "invalid_client",
            ..
        })
    )
}

/// Whether a registration has the present redirect URI, and a secret that outlasts the authorization.
pub(super) fn is_usable(record: &RegistrationRecord, redirect_uri: &str) -> bool {
    /// An authorization waits for ten minutes; five are spare.
    const MARGIN: u64 = 15 * 60 * 1000;
    let now = u64::try_from(SystemClock.now().as_millis()).unwrap_or(u64::MAX);
    let ends = record.secret_ends.unwrap_or(u64::MAX);
    record.redirect_uri.as_deref() == Some(redirect_uri) && ends > now.saturating_add(MARGIN)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn gateway() -> GatewayClient {
        GatewayClient::new(&Url::parse("https://gw.test").unwrap())
    }

    #[rstest]
    #[case::unsaid(None, "client_secret_basic")]
    #[case::basic(Some(&["none", "client_secret_basic"][..]), "client_secret_basic")]
    #[case::post(Some(&["none", "client_secret_post"][..]), "client_secret_post")]
    #[case::public(Some(&["none", "private_key_jwt"][..]), "none")]
    fn client_gets_a_secret_where_the_server_takes_one(
        #[case] taken: Option<&[&str]>,
        #[case] expected: &str,
    ) {
        let taken = taken.map(|taken| {
            taken
                .iter()
                .map(|one| (*one).to_owned())
                .collect::<Vec<_>>()
        });
        assert_eq!(auth_method(taken.as_deref()), expected);
    }

    #[rstest]
    #[case::public(
        r#"{"client_id": "c", "token_endpoint_auth_method": "none"}"#,
        Some("none")
    )]
    #[case::public_by_default(r#"{"client_id": "c"}"#, Some("none"))]
    #[case::secret_by_default(
        r#"{"client_id": "c", "client_secret": "s", "client_secret_expires_at": 0}"#,
        Some("client_secret_basic")
    )]
    #[case::without_the_secret(
        r#"{"client_id": "c", "token_endpoint_auth_method": "client_secret_post"}"#,
        None
    )]
    // RFC 7591 §3.2.1: the server may register another method than it was asked for
    #[case::method_that_we_lack(
        r#"{"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": "client_secret_jwt"}"#,
        None
    )]
    #[case::no_id(r#"{"client_id": ""}"#, None)]
    #[case::the_document(r#"{"client_id": "https://gw.test/connect/client.json"}"#, None)]
    #[case::no_json("<html>", None)]
    fn answer_says_how_the_client_proves_itself(
        #[case] answer: &str,
        #[case] method: Option<&str>,
    ) {
        let read = read(answer.as_bytes(), "https://as.test", &gateway(), &[]);
        assert_eq!(read.map(|record| record.auth_method).as_deref(), method);
    }

    // RFC 7591 §3.2.1: the answer holds the metadata as the server has registered it
    #[rstest]
    #[case::unsaid("null", &["a", "b"])]
    #[case::all("\"b a\"", &["a", "b"])]
    #[case::less("\"a c\"", &["a"])]
    #[case::none("\"\"", &[])]
    fn registration_has_the_scopes_that_the_server_left(
        #[case] scope: &str,
        #[case] expected: &[&str],
    ) {
        let answer = format!(r#"{{"client_id": "c", "scope": {scope}}}"#);
        let named = ["a".to_owned(), "b".to_owned()];
        let record = read(answer.as_bytes(), "https://as.test", &gateway(), &named).unwrap();
        assert_eq!(record.scopes, expected);
    }

    #[rstest]
    #[case::number("1800000000", Some(1_800_000_000_000))]
    #[case::fraction("1800000000.5", Some(1_800_000_000_500))]
    #[case::text("\"1800000000\"", Some(1_800_000_000_000))]
    #[case::never("0", None)]
    #[case::no_time("\"never\"", None)]
    #[case::null("null", None)]
    fn secret_of_a_registration_ends_when_the_server_says(
        #[case] ends: &str,
        #[case] expected: Option<u64>,
    ) {
        let answer = format!(
            r#"{{"client_id": "c", "client_secret": "s", "client_secret_expires_at": {ends}}}"#
        );
        let record = read(answer.as_bytes(), "https://as.test", &gateway(), &[]).unwrap();
        assert_eq!(record.secret_ends, expected);
        let answer = format!(r#"{{"client_id": "c", "client_secret_expires_at": {ends}}}"#);
        let record = read(answer.as_bytes(), "https://as.test", &gateway(), &[]).unwrap();
        assert_eq!(record.secret_ends, None);
    }
}
