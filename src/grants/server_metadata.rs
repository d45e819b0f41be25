//! `ServerMetadata`: what an authorization server publishes about itself. Spec: RFC 8414; SPEC B-02, B-03.

use serde::Deserialize;
use url::Url;

use super::client_key::AssertionAudience;
use super::discovery_error::DiscoveryError;
use super::documents::{DocumentClients, DocumentError, MAX_SHOWN};
use super::token_answer::{or_unsaid, words};
use crate::config::is_loopback;
use crate::telemetry::redact::shown;

/// The metadata of an authorization server that token requests need.
#[derive(Debug, Clone)]
pub(super) struct ServerMetadata {
    /// The issuer identifier.
    pub(super) issuer: String,
    pub(super) token_endpoint: Url,
    /// How clients may authenticate; `None` where the server does not list methods.
    pub(super) client_auth: Option<Vec<String>>,
    /// Signing algorithms for client assertions.
    pub(super) assertion_algorithms: Option<Vec<String>>,
    /// Endpoints and features for authorizations by users.
    pub(super) consent: ConsentSupport,
}

/// Endpoints and features of an authorization server for authorizations by users.
#[derive(Debug, Clone, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "members of a document, which any server combines as it likes"
)]
pub(super) struct ConsentSupport {
    /// Where a browser is sent; `None` also for a URL that no browser should open. Spec: SPEC B-16
    pub(super) authorization_endpoint: Option<Url>,
    /// Spec: RFC 7591.
    pub(super) registration_endpoint: Option<Url>,
    /// Spec: RFC 7009.
    pub(super) revocation_endpoint: Option<Url>,
    /// Whether `code_challenge_methods_supported` lists S256; `None` without that member. Spec: SPEC B-04
    pub(super) lists_s256: Option<bool>,
    /// Whether a client id may be the URL of a metadata document (CIMD). Spec: SPEC B-07
    pub(super) reads_client_documents: bool,
    /// Whether its answers carry `iss`. Spec: RFC 9207
    pub(super) names_issuer: bool,
    /// Scopes that the server lists.
    pub(super) scopes: Vec<String>,
    /// Whether the server is an `OpenID` provider.
    pub(super) is_openid: bool,
    /// Whether every client gets another subject for the same user. Spec: `OpenID` Connect Core §8
    pub(super) is_pairwise: bool,
}

impl ServerMetadata {
    /// The server of a sealed grant: `endpoint` and the client's way to authenticate are sealed with the tokens.
    pub(super) fn remembered(issuer: &str, endpoint: Url, auth_method: Option<&str>) -> Self {
        Self {
            issuer: issuer.to_owned(),
            token_endpoint: endpoint,
            client_auth: auth_method.map(|method| vec![method.to_owned()]),
            assertion_algorithms: None,
            consent: ConsentSupport::default(),
        }
    }
}

impl ServerMetadata {
    /// The `aud` of an assertion for the token endpoint.
    pub(super) fn audience(&self, audience: AssertionAudience) -> &str {
        match audience {
            AssertionAudience::Issuer => &self.issuer,
            AssertionAudience::Endpoint => self.token_endpoint.as_str(),
        }
    }

    /// Whether a server accepts client documents, accepts a client without a secret, and names itself in its answers: the
    /// document is the same client everywhere, so an answer without `iss` could be any server's.
    pub(super) fn reads_documents(&self) -> bool {
        let methods = self.client_auth.as_ref();
        self.consent.reads_client_documents
            && self.consent.names_issuer
            && methods.is_none_or(|methods| methods.iter().any(|one| one == "none"))
    }
}

/// The members that are read. Of the optional ones none makes the others unreadable: one of another type counts as unsaid.
#[derive(Debug, Deserialize)]
struct Document {
    issuer: String,
    token_endpoint: Option<String>,
    #[serde(default, deserialize_with = "words")]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default, deserialize_with = "words")]
    token_endpoint_auth_signing_alg_values_supported: Option<Vec<String>>,
    #[serde(default, deserialize_with = "or_unsaid")]
    authorization_endpoint: Option<String>,
    #[serde(default, deserialize_with = "or_unsaid")]
    registration_endpoint: Option<String>,
    #[serde(default, deserialize_with = "or_unsaid")]
    revocation_endpoint: Option<String>,
    #[serde(default, deserialize_with = "words")]
    code_challenge_methods_supported: Option<Vec<String>>,
    #[serde(default, deserialize_with = "or_unsaid")]
    client_id_metadata_document_supported: Option<bool>,
    #[serde(default, deserialize_with = "or_unsaid")]
    authorization_response_iss_parameter_supported: Option<bool>,
    #[serde(default, deserialize_with = "words")]
    scopes_supported: Option<Vec<String>>,
    #[serde(default, deserialize_with = "words")]
    subject_types_supported: Option<Vec<String>>,
}

impl Document {
    fn consent(&self) -> ConsentSupport {
        let url = |text: Option<&str>| Url::parse(text?).ok();
        let for_browsers =
            |url: &Url| url.scheme() == "https" || url.scheme() == "http" && is_loopback(url);
        let methods = self.code_challenge_methods_supported.as_deref();
        let subjects = self.subject_types_supported.as_deref().unwrap_or_default();
        ConsentSupport {
            authorization_endpoint: url(self.authorization_endpoint.as_deref())
                .filter(for_browsers),
            registration_endpoint: url(self.registration_endpoint.as_deref()),
            revocation_endpoint: url(self.revocation_endpoint.as_deref()),
            lists_s256: methods.map(|methods| methods.iter().any(|one| one == "S256")),
            reads_client_documents: self.client_id_metadata_document_supported == Some(true),
            names_issuer: self.authorization_response_iss_parameter_supported == Some(true),
            scopes: self.scopes_supported.clone().unwrap_or_default(),
            // Spec: OpenID Connect Discovery 1.0 §3: a member that OpenID providers must publish.
            is_openid: self.subject_types_supported.is_some(),
            is_pairwise: !subjects.is_empty() && subjects.iter().all(|one| one == "pairwise"),
        }
    }
}

/// Fetches the metadata of `issuer`; `configured` is the configured issuer, whose origin is trusted.
///
/// # Errors
/// The most informative error of the URLs tried.
///
/// # Cancel safety
/// Dropping the future abandons the request.
pub(super) async fn fetch(
    clients: &DocumentClients,
    issuer: &str,
    configured: Option<&Url>,
) -> Result<ServerMetadata, DiscoveryError> {
    let base = Url::parse(issuer).map_err(|_| DiscoveryError::Issuer {
        issuer: shown(issuer, MAX_SHOWN).into_owned(),
    })?;
    let mut failure: Option<DiscoveryError> = None;
    for url in places(&base) {
        match read(clients, issuer, configured, url).await {
            Ok(metadata) => return Ok(metadata),
            // The other URLs are on the same host, which does not answer or is forbidden.
            Err(
                error @ DiscoveryError::Fetch {
                    source: DocumentError::Transport(_) | DocumentError::Refused(_),
                    ..
                },
            ) => return Err(error),
            Err(error) => {
                if failure
                    .as_ref()
                    .is_none_or(|before| weight(before) <= weight(&error))
                {
                    failure = Some(error);
                }
            }
        }
    }
    // Every issuer has at least one URL.
    Err(failure.unwrap_or_else(|| DiscoveryError::Issuer {
        issuer: shown(issuer, MAX_SHOWN).into_owned(),
    }))
}

async fn read(
    clients: &DocumentClients,
    issuer: &str,
    configured: Option<&Url>,
    url: Url,
) -> Result<ServerMetadata, DiscoveryError> {
    let document = match clients.get(&url, configured).await {
        Ok(document) => document,
        Err(source) => return Err(DiscoveryError::Fetch { url, source }),
    };
    let metadata: Document = match serde_json::from_slice(&document) {
        Ok(metadata) => metadata,
        Err(source) => return Err(DiscoveryError::Document { url, source }),
    };
    // Spec: RFC 8414 §3.3: identical, or not used at all; SPEC B-03
    if metadata.issuer != issuer {
        return Err(DiscoveryError::OtherIssuer {
            url,
            found: shown(&metadata.issuer, MAX_SHOWN).into_owned(),
            expected: issuer.to_owned(),
        });
    }
    let endpoint = metadata.token_endpoint.as_deref().map(Url::parse);
    let Some(Ok(token_endpoint)) = endpoint else {
        return Err(DiscoveryError::NoTokenEndpoint { url });
    };
    if let Err(refusal) = clients.check(&token_endpoint, configured) {
        return Err(DiscoveryError::Fetch {
            url: token_endpoint,
            source: DocumentError::Refused(refusal),
        });
    }
    Ok(ServerMetadata {
        consent: metadata.consent(),
        issuer: metadata.issuer,
        token_endpoint,
        client_auth: metadata.token_endpoint_auth_methods_supported,
        assertion_algorithms: metadata.token_endpoint_auth_signing_alg_values_supported,
    })
}

/// Ranks the error of one URL by how informative it is: a missing document says least.
fn weight(error: &DiscoveryError) -> u8 {
    match error {
        DiscoveryError::Fetch { source, .. } if source.is_absent() => 0,
        DiscoveryError::Fetch { .. } => 1,
        DiscoveryError::Document { .. } => 2,
        _ => 3,
    }
}

/// The URLs where the metadata of an issuer may be, in the order of trying. Spec: RFC 8414 §3, `OpenID` Connect
/// Discovery 1.0 §4; SPEC B-02
#[must_use]
pub fn places(issuer: &Url) -> Vec<Url> {
    const OAUTH: &str = "/.well-known/oauth-authorization-server";
    const OPENID: &str = "/.well-known/openid-configuration";
    let path = issuer.path().trim_end_matches('/');
    let mut paths = vec![format!("{OAUTH}{path}"), format!("{OPENID}{path}")];
    if !path.is_empty() {
        paths.push(format!("{path}{OPENID}"));
    }
    let at = |path: &String| {
        let mut url = issuer.clone();
        url.set_path(path);
        url.set_query(None);
        url.set_fragment(None);
        url
    };
    paths.iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn consent(members: &Value) -> ConsentSupport {
        let mut document = json!({"issuer": "https://as.test"});
        for (name, value) in members.as_object().unwrap() {
            document[name] = value.clone();
        }
        serde_json::from_value::<Document>(document)
            .unwrap()
            .consent()
    }

    #[rstest]
    #[case::not_said(json!({}), false)]
    #[case::listed(json!({"code_challenge_methods_supported": ["plain", "S256"]}), false)]
    #[case::plain_alone(json!({"code_challenge_methods_supported": ["plain"]}), true)]
    #[case::empty(json!({"code_challenge_methods_supported": []}), false)]
    fn server_that_lists_pkce_without_s256_refuses_it(
        #[case] members: Value,
        #[case] refuses: bool,
    ) {
        assert_eq!(consent(&members).lists_s256 == Some(false), refuses);
    }

    #[rstest]
    #[case(json!({}), false)]
    #[case(json!({"subject_types_supported": ["pairwise"]}), true)]
    #[case(json!({"subject_types_supported": ["public", "pairwise"]}), false)]
    #[case(json!({"subject_types_supported": []}), false)]
    fn pairwise_server_is_one_that_has_nothing_else(
        #[case] members: Value,
        #[case] is_pairwise: bool,
    ) {
        assert_eq!(consent(&members).is_pairwise, is_pairwise);
    }

    #[test]
    fn member_of_another_type_hides_no_other_one() {
        let consent = consent(&json!({
            "authorization_endpoint": "https://as.test/auth",
            "registration_endpoint": false,
            "revocation_endpoint": {},
            "code_challenge_methods_supported": ["S256"],
            "client_id_metadata_document_supported": "yes",
            "authorization_response_iss_parameter_supported": null,
            "scopes_supported": "a b",
            "subject_types_supported": [7],
            "token_endpoint_auth_methods_supported": 7,
        }));
        assert!(consent.authorization_endpoint.is_some());
        assert_eq!(consent.lists_s256, Some(true));
        assert_eq!(consent.scopes, ["a", "b"]);
        assert!(consent.registration_endpoint.is_none() && consent.revocation_endpoint.is_none());
        assert!(!consent.reads_client_documents && !consent.names_issuer && !consent.is_openid);
    }

    // SPEC B-16
    #[rstest]
    #[case("javascript:alert(1)", false)]
    #[case("data:text/html,x", false)]
    #[case("http://as.test/auth", false)]
    #[case("/auth", false)]
    #[case("http://127.0.0.1:8080/auth", true)]
    #[case("https://as.test/auth", true)]
    fn browsers_are_sent_to_web_pages_alone(#[case] endpoint: &str, #[case] is_kept: bool) {
        let consent = consent(&json!({"authorization_endpoint": endpoint}));
        assert_eq!(consent.authorization_endpoint.is_some(), is_kept);
    }
}
