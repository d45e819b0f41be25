//! `GatewayClient`: the gateway as a client of authorization servers: its redirect URIs, and its metadata document
//! (CIMD).
//!
//! Each client has a redirect URI of its own: that of the upstream with a configured client, of the issuer with a
//! registration, of the document. An answer of another server than the one asked thus arrives at another URI (mix-up,
//! RFC 9700 §4.4).

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};
use url::Url;

use crate::config::is_loopback;
use crate::egress;

/// The client name shown by servers.
const NAME: &str = "Drawbridge";
/// Path of the redirect URI of the document's client.
const OF_DOCUMENT: &str = "/connect/callback/document";
/// Bytes of an issuer's digest in the redirect URI of a registration.
const ISSUER_LEN: usize = 16;

/// The gateway as a client, the same for all upstreams.
#[derive(Debug)]
pub struct GatewayClient {
    home: Url,
    /// `public_url` without a slash at its end.
    base: String,
    /// The URL of the document, if servers can fetch it.
    document: Option<Url>,
    fetches: AtomicU64,
}

impl GatewayClient {
    /// The gateway at `public_url`. Servers can fetch its document only from a public https URL.
    #[must_use]
    pub fn new(public_url: &Url) -> Self {
        let base = public_url.as_str().trim_end_matches('/');
        let document = Url::parse(&format!("{base}/connect/client.json")).ok();
        Self {
            document: document
                .filter(|url| url.scheme() == "https" && egress::check_url(url).is_ok()),
            base: base.to_owned(),
            home: public_url.clone(),
            fetches: AtomicU64::new(0),
        }
    }

    /// The URL of `path` at this gateway.
    #[must_use]
    pub fn url_of(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The redirect URI of the client configured for `upstream`.
    pub(super) fn redirect_of_upstream(&self, upstream: &str) -> String {
        self.url_of(&format!("/connect/{upstream}/callback"))
    }

    /// The redirect URI of the client that `issuer` registered.
    pub(super) fn redirect_of_registration(&self, issuer: &str) -> String {
        let digest = digest(&SHA256, issuer.as_bytes());
        let start = digest.as_ref().get(..ISSUER_LEN).unwrap_or_default();
        let tag = BASE64_URL_SAFE_NO_PAD.encode(start);
        self.url_of(&format!("/connect/callback/{tag}"))
    }

    /// The redirect URI of the document's client. Any server accepts that client: only `iss` says whose answer it is.
    pub(super) fn redirect_of_document(&self) -> String {
        self.url_of(OF_DOCUMENT)
    }

    /// Whether only programs on this machine can reach the gateway.
    pub(super) fn is_loopback(&self) -> bool {
        is_loopback(&self.home)
    }

    /// The document's URL as client id; `None` where servers cannot fetch it.
    pub(super) fn document_id(&self) -> Option<&str> {
        self.document.as_ref().map(Url::as_str)
    }

    /// How often the document was fetched.
    pub(super) fn fetches(&self) -> u64 {
        self.fetches.load(Ordering::Relaxed)
    }

    /// The client metadata document as JSON text, and counts a fetch. `None` without a public https URL.
    // Spec: SPEC B-08
    #[must_use]
    pub fn document(&self) -> Option<String> {
        let id = self.document_id()?;
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let mut document = self.metadata("none", "web", &self.redirect_of_document());
        document.insert("client_id".to_owned(), id.into());
        serde_json::to_string(&document).ok()
    }

    /// The client metadata that servers get, as document or in a registration.
    pub(super) fn metadata(
        &self,
        auth_method: &str,
        application_type: &str,
        redirect_uri: &str,
    ) -> Map<String, Value> {
        let members = [
            ("client_name", json!(NAME)),
            ("client_uri", json!(self.home.as_str())),
            ("redirect_uris", json!([redirect_uri])),
            (
                "grant_types",
                json!(["authorization_code", "refresh_token"]),
            ),
            ("response_types", json!(["code"])),
            ("token_endpoint_auth_method", json!(auth_method)),
            // Spec: SPEC B-09
            ("application_type", json!(application_type)),
        ];
        let members = members.into_iter();
        members
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // SPEC B-08
    #[test]
    fn document_names_its_own_url() {
        let gateway = GatewayClient::new(&Url::parse("https://mcp.example.com/tools/").unwrap());
        let document: Value = serde_json::from_str(&gateway.document().unwrap()).unwrap();
        assert_eq!(
            document["client_id"],
            "https://mcp.example.com/tools/connect/client.json"
        );
        assert_eq!(
            document["redirect_uris"],
            json!(["https://mcp.example.com/tools/connect/callback/document"])
        );
        assert_eq!(gateway.fetches(), 1);
    }

    // RFC 9700 §4.4.2.2
    #[test]
    fn each_client_has_a_redirect_uri_of_its_own() {
        let gateway = GatewayClient::new(&Url::parse("https://gw.test/").unwrap());
        let all = [
            gateway.redirect_of_document(),
            gateway.redirect_of_upstream("one"),
            gateway.redirect_of_upstream("two"),
            gateway.redirect_of_registration("https://as.test"),
            gateway.redirect_of_registration("https://evil.test"),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert!(
            all.iter()
                .all(|url| url.starts_with("https://gw.test/connect/"))
        );
    }

    #[rstest]
    #[case::plain("http://mcp.example.com")]
    #[case::loopback("https://127.0.0.1:8443")]
    #[case::localhost("https://localhost")]
    #[case::private("https://10.1.2.3")]
    fn document_needs_a_public_url(#[case] public_url: &str) {
        let gateway = GatewayClient::new(&Url::parse(public_url).unwrap());
        assert_eq!(gateway.document(), None);
    }
}
