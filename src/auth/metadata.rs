//! The metadata of a protected resource. Spec: RFC 9728 §2; SPEC A-01…A-05.

use bytes::Bytes;
use serde::Serialize;

use crate::config::AuthConfig;
use crate::endpoint::Endpoint;

#[derive(Serialize)]
struct ResourceMetadata<'a> {
    resource: &'a str,
    authorization_servers: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes_supported: Vec<String>,
    bearer_methods_supported: [&'static str; 1],
}

/// The metadata document of `endpoint`, as JSON. To be built once: the document depends on the
/// configuration alone, so no request can influence it. The root document is that of `/mcp`.
///
/// Issuers stand there byte for byte as configured, those of the endpoint only, in the order of
/// the configuration. Scopes are the ones to ask for at login (`login_scopes`), not a catalogue.
#[must_use]
#[expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a document of strings can be written"
)]
pub fn metadata(endpoint: &Endpoint, config: &AuthConfig) -> Bytes {
    let document = ResourceMetadata {
        resource: &endpoint.resource,
        authorization_servers: config
            .issuers
            .iter()
            .map(|issuer| issuer.issuer.as_str())
            .filter(|issuer| accepts_issuer(endpoint, issuer))
            .collect(),
        scopes_supported: endpoint.scopes_at_login(),
        bearer_methods_supported: ["header"],
    };
    let json = serde_json::to_vec(&document).expect("strings are JSON");
    json.into()
}

/// Whether tokens of `issuer` are accepted on `endpoint`.
#[must_use]
pub fn accepts_issuer(endpoint: &Endpoint, issuer: &str) -> bool {
    endpoint.issuers.is_empty() || endpoint.issuers.iter().any(|one| one == issuer)
}

#[cfg(test)]
mod tests {
    use super::super::samples::{auth, endpoint};
    use super::*;

    fn text(endpoint: &Endpoint, config: &AuthConfig) -> String {
        String::from_utf8(metadata(endpoint, config).to_vec()).expect("JSON is UTF-8")
    }

    // SPEC
    #[test]
    fn it_names_resource_issuers_scopes_and_the_header() {
        let issuers = ["https://one.test", "https://two.test/realms/x/"];
        assert_eq!(
            text(&endpoint(), &auth(&issuers)),
            "{\"resource\":\"https://gw.test/mcp\",\
             \"authorization_servers\":[\"https://one.test\",\"https://two.test/realms/x/\"],\
             \"scopes_supported\":[\"mcp:tools\"],\"bearer_methods_supported\":[\"header\"]}"
        );
    }

    #[test]
    fn an_endpoint_names_only_the_issuers_it_accepts() {
        let mut endpoint = endpoint();
        endpoint.issuers = vec!["https://two.test".to_owned()];
        let text = text(&endpoint, &auth(&["https://one.test", "https://two.test"]));
        assert!(text.contains("[\"https://two.test\"]"), "{text}");
    }

    // Spec: RFC 9728 §2.
    #[test]
    fn the_login_scopes_are_published() {
        let mut endpoint = endpoint();
        endpoint.login_scopes = vec!["mcp:admin".to_owned()];
        let text = text(&endpoint, &auth(&["https://one.test"]));
        let scopes = "\"scopes_supported\":[\"mcp:tools\",\"mcp:admin\"]";
        assert!(text.contains(scopes), "{text}");
    }

    #[test]
    fn no_scopes_are_published_where_none_are_needed() {
        let mut endpoint = endpoint();
        endpoint.required_scopes.clear();
        assert!(!text(&endpoint, &auth(&["https://one.test"])).contains("scopes"));
    }
}
