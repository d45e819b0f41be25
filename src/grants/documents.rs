//! `DocumentClients`: all HTTP requests of accounts: metadata of upstreams and authorization servers, and token
//! requests.
//!
//! The origins of the upstream's URL and of the configured issuer are as trusted as the operator who configured them;
//! any other URL was learned from a document and must pass the egress rules. Redirects and the proxies of the
//! environment are off; sizes and times are bounded. Spec: SPEC X-01.

use std::path::PathBuf;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use reqwest::{Certificate, Client, ClientBuilder, Proxy};
use url::Url;

use crate::config::{HttpCarrier, is_loopback};
pub(super) use crate::egress::DocumentError;
use crate::egress::{self, EgressRefusal, EgressRules, read_body};

/// Bytes of a foreign value that an error message shows.
pub(super) const MAX_SHOWN: usize = 256;

/// The largest document that is accepted, in bytes.
const MAX_DOCUMENT: usize = 256 * 1024;
/// The largest token response that is accepted, in bytes.
const MAX_TOKEN_ANSWER: usize = 64 * 1024;
/// Time limit for one document, connecting included.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for one token request, connecting included.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for connecting alone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A request without effect. Servers that demand tokens refuse it; many of them let anyone send `initialize`.
const LIST_TOOLS: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

impl DocumentError {
    /// Whether a retry may succeed.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Transport(_) => true,
            Self::Status(status) => is_passing(*status),
            Self::Refused(_) | Self::TooLarge(_) => false,
        }
    }

    /// Whether the server has no document at this URL.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Status(status) if !is_passing(*status))
    }
}

/// Whether a retry may get another status.
pub(super) fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

/// Why the clients cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientsError {
    /// Trust anchors or a proxy cannot be used.
    #[error("no client for documents")]
    Client(#[from] reqwest::Error),
    /// `ca_file` cannot be read.
    #[error("ca_file {0} cannot be read")]
    TrustAnchors(PathBuf, #[source] std::io::Error),
}

/// The HTTP clients common to all upstreams. Clones share connections.
#[derive(Debug, Clone)]
pub struct SharedClients {
    rules: EgressRules,
    configured: Client,
    learned: Client,
    plain: Client,
}

impl SharedClients {
    /// Builds clients that apply `rules` to learned URLs.
    ///
    /// # Errors
    /// This machine has no trust anchors.
    pub fn new(rules: EgressRules) -> Result<Self, ClientsError> {
        Ok(Self {
            configured: limited(egress::documents()).build()?,
            learned: limited(rules.documents()).build()?,
            plain: limited(rules.plain_documents()).build()?,
            rules,
        })
    }
}

/// The clients of one upstream's account, or of one issuer.
#[derive(Debug)]
pub struct DocumentClients {
    shared: SharedClients,
    /// The client for the upstream's own origin, with its `ca_file` and `proxy`.
    own: Client,
    /// The upstream, or the issuer; the origin that is trusted.
    upstream: Url,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(super) struct ReadAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl DocumentClients {
    /// Clients for the account at the upstream that `carrier` describes. Reads `ca_file`.
    ///
    /// # Errors
    /// `ca_file` or `proxy` cannot be used.
    pub fn new(shared: SharedClients, carrier: &HttpCarrier) -> Result<Self, ClientsError> {
        let mut builder = limited(match &carrier.ca_file {
            Some(file) => {
                let pem = std::fs::read(file)
                    .map_err(|error| ClientsError::TrustAnchors(file.clone(), error))?;
                egress::documents_trusting(Certificate::from_pem_bundle(&pem)?)
            }
            None => egress::documents(),
        });
        if let Some(proxy) = &carrier.proxy {
            builder = builder.proxy(Proxy::all(proxy.clone())?);
        }
        Ok(Self {
            shared,
            own: builder.build()?,
            upstream: carrier.url.clone(),
        })
    }

    /// Clients for `issuer`, which the operator configured: its origin is trusted. Of a child that only exchanges callers'
    /// tokens, the resource stands in for it.
    #[must_use]
    pub fn of_issuer(shared: SharedClients, issuer: Url) -> Self {
        Self {
            own: shared.configured.clone(),
            shared,
            upstream: issuer,
        }
    }

    /// Fetches a document. `issuer` is the configured one, whose origin is trusted.
    ///
    /// # Errors
    /// The egress rules forbid the URL, the request failed, or the status is not 200.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(super) async fn get(
        &self,
        url: &Url,
        issuer: Option<&Url>,
    ) -> Result<Vec<u8>, DocumentError> {
        let client = self.client(url, issuer)?;
        let request = client.get(url.clone()).header(ACCEPT, "application/json");
        let answer = request.timeout(DOCUMENT_TIMEOUT).send().await?;
        if answer.status() != StatusCode::OK {
            return Err(DocumentError::Status(answer.status().as_u16()));
        }
        read_body(answer, MAX_DOCUMENT).await
    }

    /// Requests the upstream without a token; returns the headers of its 401 or 403, if it refuses. Sends a GET, and a
    /// POST where the GET is not refused: a server without streams answers every GET with 404 or 405.
    ///
    /// # Errors
    /// The upstream does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(super) async fn knock(&self) -> Result<Option<HeaderMap>, DocumentError> {
        let get = self.own.get(self.upstream.clone());
        let post = self.own.post(self.upstream.clone());
        let post = post
            .header(CONTENT_TYPE, "application/json")
            .body(LIST_TOOLS);
        for request in [get, post] {
            let request = request.header(ACCEPT, "application/json, text/event-stream");
            let answer = request.timeout(DOCUMENT_TIMEOUT).send().await?;
            if matches!(answer.status().as_u16(), 401 | 403) {
                return Ok(Some(answer.headers().clone()));
            }
        }
        Ok(None)
    }

    /// Posts a token request. Its errors hold nothing of the request or of the answer.
    ///
    /// # Errors
    /// The request failed, or the egress rules forbid the URL.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(super) async fn post(
        &self,
        request: http::Request<Vec<u8>>,
        issuer: Option<&Url>,
    ) -> Result<ReadAnswer, DocumentError> {
        let url = Url::parse(&request.uri().to_string())
            .map_err(|_| DocumentError::Refused(EgressRefusal::Host))?;
        let client = self.client(&url, issuer)?;
        let (head, body) = request.into_parts();
        let sent = client.post(url).headers(head.headers).body(body);
        let answer = sent.timeout(TOKEN_TIMEOUT).send().await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = match read_body(answer, MAX_TOKEN_ANSWER).await {
            Err(error) if status == StatusCode::OK => return Err(error),
            body => body.unwrap_or_default(),
        };
        Ok(ReadAnswer {
            status,
            headers,
            body,
        })
    }

    /// Whether the egress rules allow `url`.
    ///
    /// # Errors
    /// The egress rule that forbids `url`.
    pub(super) fn check(&self, url: &Url, issuer: Option<&Url>) -> Result<(), EgressRefusal> {
        self.client(url, issuer).map(|_| ())
    }

    fn client(&self, url: &Url, issuer: Option<&Url>) -> Result<&Client, EgressRefusal> {
        let has_credentials = !url.username().is_empty() || url.password().is_some();
        if has_credentials {
            return Err(EgressRefusal::Credentials);
        }
        if url.origin() == self.upstream.origin() {
            return Ok(&self.own);
        }
        if issuer.is_some_and(|issuer| issuer.origin() == url.origin()) {
            return if url.scheme() == "https" || is_loopback(url) {
                Ok(&self.shared.configured)
            } else {
                Err(EgressRefusal::Scheme)
            };
        }
        self.shared.rules.check_url(url)?;
        Ok(match url.scheme() {
            "https" => &self.shared.learned,
            _ => &self.shared.plain,
        })
    }
}

fn limited(builder: ClientBuilder) -> ClientBuilder {
    builder
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EgressConfig;

    #[tokio::test]
    async fn learned_name_of_a_private_address_is_refused() {
        let rules = EgressRules::new(&EgressConfig { allow: Vec::new() });
        let clients = SharedClients::new(rules).unwrap();
        let sent = clients.learned.get("https://localhost:9/").send().await;
        let error = DocumentError::from(sent.unwrap_err());
        assert!(
            matches!(error, DocumentError::Refused(EgressRefusal::Address)),
            "{error:?}"
        );
    }
}
