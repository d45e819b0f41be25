//! `UpstreamLogin`: which issuer an upstream wants tokens of. Its challenge names a document, and the document the
//! issuer.
//!
//! The document is for the operator's log alone. It is fetched in the background, once an hour at most, from the
//! upstream's own origin or a public https address, without our credentials. Spec: RFC 9728 §3, §5.1.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, StatusCode};
use reqwest::{Certificate, Client, Proxy};
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use crate::config::HttpCarrier;
use crate::egress::{self, EgressRules};
use crate::lock::lock;
use crate::telemetry::redact::shown;

/// How often the document is fetched at most.
const EVERY: Duration = Duration::from_hours(1);
/// For the document, connecting included.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The largest document that is read, in bytes.
const MAX_DOCUMENT: usize = 16 * 1024;
/// The longest challenge that is looked at, and the longest address of a document, in bytes.
const MAX_CHALLENGE: usize = 4 * 1024;
/// Bytes of the issuer's name that are shown.
const MAX_ISSUER: usize = 128;

/// The login that one upstream asks for, and the issuer that its metadata names.
#[derive(Debug)]
pub struct UpstreamLogin {
    url: Url,
    ca_file: Option<PathBuf>,
    proxy: Option<Url>,
    /// Whether `headers` has a token already.
    pub(in crate::upstream) sends_token: bool,
    /// Whether the gateway gets its tokens itself.
    pub(in crate::upstream) has_account: bool,
    state: Mutex<LoginState>,
}

#[derive(Debug, Default)]
struct LoginState {
    /// Where its last challenge says that its metadata stands.
    metadata: Option<Url>,
    looked: Option<Instant>,
    issuer: Option<String>,
}

impl UpstreamLogin {
    pub(in crate::upstream) fn new(carrier: &HttpCarrier, has_account: bool) -> Self {
        let is_token = |(name, _): &(String, _)| name.eq_ignore_ascii_case("authorization");
        Self {
            url: carrier.url.clone(),
            ca_file: carrier.ca_file.clone(),
            proxy: carrier.proxy.clone(),
            sends_token: carrier.headers.iter().any(is_token),
            has_account,
            state: Mutex::default(),
        }
    }

    /// Looks at the answer to a request: a refusal may name the upstream's metadata.
    pub(super) fn note(&self, status: StatusCode, headers: &HeaderMap) {
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return;
        }
        let named = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .find_map(|value| metadata_url(value.as_bytes()));
        if let Some(named) = named
            && self.may_ask(&named)
        {
            lock(&self.state).metadata = Some(named);
        }
    }

    /// The issuer that the upstream's metadata names, if it was fetched.
    pub(in crate::upstream) fn issuer(&self) -> Option<String> {
        lock(&self.state).issuer.clone()
    }

    /// Whether [`look`](Self::look) would fetch the metadata; if so, it counts as fetched for an hour.
    pub(in crate::upstream) fn is_due(&self) -> bool {
        let mut state = lock(&self.state);
        let is_due =
            state.metadata.is_some() && state.looked.is_none_or(|at| at.elapsed() >= EVERY);
        if is_due {
            state.looked = Some(Instant::now());
        }
        is_due
    }

    /// Fetches the metadata, and returns the issuer that it names, masked and cut.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(in crate::upstream) async fn look(&self) -> Option<String> {
        let from = lock(&self.state).metadata.clone()?;
        let issuer = tokio::time::timeout(TIMEOUT, self.fetch(from))
            .await
            .ok()??;
        lock(&self.state).issuer = Some(issuer.clone());
        Some(issuer)
    }

    /// The operator's own origin, or what is public.
    fn may_ask(&self, url: &Url) -> bool {
        self.is_own(url) || (self.proxy.is_none() && egress::check_url(url).is_ok())
    }

    fn is_own(&self, url: &Url) -> bool {
        let is_plain = url.username().is_empty() && url.password().is_none();
        // `ws` and `wss` URLs have the origin of their handshake.
        let scheme = match self.url.scheme() {
            "ws" => "http",
            "wss" => "https",
            other => other,
        };
        is_plain
            && url.scheme() == scheme
            && url.host() == self.url.host()
            && url.port_or_known_default() == self.url.port_or_known_default()
    }

    async fn fetch(&self, url: Url) -> Option<String> {
        #[derive(Deserialize)]
        struct LoginMetadata {
            authorization_servers: Vec<String>,
        }
        let client = self.client(&url).await?;
        let answer = client.get(url).send().await.ok()?;
        if answer.status() != StatusCode::OK {
            return None;
        }
        let document = egress::read_body(answer, MAX_DOCUMENT).await.ok()?;
        let metadata: LoginMetadata = serde_json::from_slice(&document).ok()?;
        let issuer = metadata.authorization_servers.into_iter().next()?;
        let is_url = Url::parse(&issuer).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
        is_url.then(|| shown(&issuer, MAX_ISSUER).into_owned())
    }

    /// A client that sends none of the configured headers.
    async fn client(&self, url: &Url) -> Option<Client> {
        if !self.is_own(url) {
            return EgressRules::default().documents().build().ok();
        }
        let mut builder = match &self.ca_file {
            Some(file) => {
                let pem = tokio::fs::read(file).await.ok()?;
                egress::documents_trusting(Certificate::from_pem_bundle(&pem).ok()?)
            }
            None => egress::documents(),
        };
        if let Some(proxy) = &self.proxy {
            builder = builder.proxy(Proxy::all(proxy.clone()).ok()?);
        }
        builder.build().ok()
    }
}

/// The `resource_metadata` of a Bearer challenge. Spec: RFC 9728 §5.1, RFC 9110 §11.6.1
fn metadata_url(challenge: &[u8]) -> Option<Url> {
    const NAME: &str = "resource_metadata";
    let text = std::str::from_utf8(challenge.get(..MAX_CHALLENGE).unwrap_or(challenge)).ok()?;
    let (_, after) = text.split_once(NAME)?;
    let value = after.trim_start().strip_prefix('=')?.trim_start();
    let value = match value.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"')?.0,
        None => value.split([',', ' ', '\t']).next()?,
    };
    Url::parse(value).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;

    use super::*;
    use crate::config::TransportKind;

    fn login(url: &str, proxy: Option<&str>) -> UpstreamLogin {
        let carrier = HttpCarrier {
            url: url.parse().unwrap(),
            transport: TransportKind::Streamable,
            headers: Vec::new(),
            ca_file: None,
            proxy: proxy.map(|proxy| proxy.parse().unwrap()),
            pool_idle: Duration::from_secs(4),
        };
        UpstreamLogin::new(&carrier, false)
    }

    fn challenged(login: &UpstreamLogin, status: u16, challenge: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.append(
            WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"x\""),
        );
        headers.append(WWW_AUTHENTICATE, HeaderValue::try_from(challenge).unwrap());
        login.note(StatusCode::from_u16(status).unwrap(), &headers);
        login.is_due()
    }

    #[rstest]
    #[case::quoted(
        401,
        "Bearer error=\"x\", resource_metadata=\"https://up.test/meta\"",
        true
    )]
    #[case::bare(
        403,
        "Bearer resource_metadata=https://up.test/meta, scope=\"x\"",
        true
    )]
    #[case::spaced(401, "Bearer resource_metadata = \"https://up.test/meta\"", true)]
    #[case::public(401, "Bearer resource_metadata=\"https://auth.test/meta\"", true)]
    #[case::another_status(400, "Bearer resource_metadata=\"https://up.test/meta\"", false)]
    #[case::none(401, "Bearer realm=\"x\"", false)]
    #[case::no_url(401, "Bearer resource_metadata=\"/meta\"", false)]
    #[case::unclosed(401, "Bearer resource_metadata=\"https://up.test/meta", false)]
    #[case::plain(401, "Bearer resource_metadata=\"http://auth.test/meta\"", false)]
    #[case::other_port(401, "Bearer resource_metadata=\"http://up.test:8443/meta\"", false)]
    #[case::inside(401, "Bearer resource_metadata=\"https://10.0.0.1/meta\"", false)]
    #[case::cloud(
        401,
        "Bearer resource_metadata=\"https://169.254.169.254/meta\"",
        false
    )]
    #[case::this_machine(401, "Bearer resource_metadata=\"https://localhost/meta\"", false)]
    #[case::credentials(401, "Bearer resource_metadata=\"https://a:b@up.test/meta\"", false)]
    fn only_its_own_or_a_public_address_is_asked(
        #[case] status: u16,
        #[case] challenge: &str,
        #[case] is_asked: bool,
    ) {
        let login = login("https://up.test/mcp", None);
        assert_eq!(challenged(&login, status, challenge), is_asked);
    }

    #[test]
    fn its_own_address_may_be_private() {
        let own = "Bearer resource_metadata=\"http://127.0.0.1:8080/meta\"";
        assert!(challenged(
            &login("http://127.0.0.1:8080/mcp", None),
            401,
            own
        ));
        assert!(challenged(
            &login("ws://127.0.0.1:8080/mcp", None),
            401,
            own
        ));
        assert!(!challenged(
            &login("http://127.0.0.1:8081/mcp", None),
            401,
            own
        ));
    }

    // A proxy resolves names by itself, so that nothing here could judge the address.
    #[test]
    fn through_a_proxy_only_the_own_origin_is_asked() {
        let login = login("https://up.test/mcp", Some("http://proxy.test:3128"));
        let other = "Bearer resource_metadata=\"https://auth.test/meta\"";
        assert!(!challenged(&login, 401, other));
        let own = "Bearer resource_metadata=\"https://up.test/meta\"";
        assert!(challenged(&login, 401, own));
    }

    #[tokio::test(start_paused = true)]
    async fn the_document_is_fetched_once_an_hour_at_most() {
        let login = login("https://up.test/mcp", None);
        let challenge = "Bearer resource_metadata=\"https://up.test/meta\"";
        assert!(challenged(&login, 401, challenge));
        assert!(!challenged(&login, 401, challenge));
        tokio::time::advance(EVERY).await;
        assert!(challenged(&login, 401, challenge));
    }
}
