//! Fetches of issuers' documents and questions about tokens: the only HTTP requests of the resource
//! server.
//!
//! A URL on the issuer's own origin is as trusted as the operator who wrote it down; any other is
//! learned from a document and goes through the egress rules, names being judged by the addresses
//! they resolve to at connect (SPEC X-01). No redirects, no proxies of the environment, 1 MiB, 5 s.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::HeaderValue;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response};
use url::{Host, Url};

use crate::egress::{self, Refusal};

/// The largest document that is read, in bytes.
pub(super) const MAX_BYTES: usize = 1024 * 1024;
/// The largest answer about one token, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// For one document, connecting included.
const TIMEOUT: Duration = Duration::from_secs(5);
/// For the connection alone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a document could not be had. For the log only: what a server inside answers must not reach
/// a client (SPEC X-02).
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("the URL is refused")]
    Refused(#[from] Refusal),
    #[error("the request failed")]
    Transport(#[from] reqwest::Error),
    #[error("the answer was HTTP {0}")]
    Status(u16),
    #[error("the document is larger than {0} bytes")]
    TooLarge(usize),
}

/// What was answered to a form.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Empty where the status is not 200 and the body cannot be read to its end.
    pub(super) body: Vec<u8>,
}

/// The two clients: one for each kind of trust.
#[derive(Debug, Clone)]
pub(super) struct Fetcher {
    configured: Client,
    learned: Client,
}

impl Fetcher {
    /// Sets up both clients, trust anchors of the system included.
    ///
    /// # Errors
    /// There are no trust anchors.
    pub(super) fn new() -> Result<Self, reqwest::Error> {
        Ok(Self {
            configured: builder().build()?,
            learned: builder()
                .https_only(true)
                .dns_resolver(PublicOnly)
                .build()?,
        })
    }

    /// Fetches `url` for an issuer that the operator configured as `issuer`.
    ///
    /// # Errors
    /// There is no document, or it must not be fetched.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(super) async fn get(&self, url: &Url, issuer: &Url) -> Result<Vec<u8>, FetchError> {
        let client = self.client(url, issuer)?;
        let request = client.get(url.clone()).header(ACCEPT, "application/json");
        read(request.send().await?, MAX_BYTES).await
    }

    /// Posts a form to `url` for an issuer that the operator configured as `issuer`; the answer may
    /// have 64 KiB, whatever its status. No error holds anything of the form or of `authorization`.
    ///
    /// # Errors
    /// There is no answer, a 200 cannot be read, or the URL must not be contacted.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(super) async fn post(
        &self,
        url: &Url,
        issuer: &Url,
        authorization: Option<HeaderValue>,
        form: String,
    ) -> Result<Answer, FetchError> {
        let client = self.client(url, issuer)?;
        let mut request = client
            .post(url.clone())
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let body = match read_body(answer, MAX_ANSWER_BYTES).await {
            Err(error) if status == 200 => return Err(error),
            body => body.unwrap_or_default(),
        };
        Ok(Answer { status, body })
    }

    /// The client for `url`, which stands there by the operator's word or by a document's.
    fn client(&self, url: &Url, issuer: &Url) -> Result<&Client, Refusal> {
        if url.origin() == issuer.origin() {
            check_configured(url)?;
            Ok(&self.configured)
        } else {
            egress::check_url(url)?;
            Ok(&self.learned)
        }
    }
}

async fn read(answer: Response, limit: usize) -> Result<Vec<u8>, FetchError> {
    if answer.status() != http::StatusCode::OK {
        return Err(FetchError::Status(answer.status().as_u16()));
    }
    read_body(answer, limit).await
}

async fn read_body(answer: Response, limit: usize) -> Result<Vec<u8>, FetchError> {
    let mut document = Vec::new();
    let mut body = answer.bytes_stream();
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        if document.len() + chunk.len() > limit {
            return Err(FetchError::TooLarge(limit));
        }
        document.extend_from_slice(&chunk);
    }
    Ok(document)
}

fn builder() -> ClientBuilder {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one client builder of the resource server"
    )]
    let builder = Client::builder();
    builder
        .redirect(Policy::none())
        .no_proxy()
        .referer(false)
        .timeout(TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(4)
}

/// Plain HTTP is for hosts of this machine. SPEC A-24
fn check_configured(url: &Url) -> Result<(), Refusal> {
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if url.scheme() == "https" || (url.scheme() == "http" && is_loopback) {
        Ok(())
    } else {
        Err(Refusal::Scheme)
    }
}

/// Resolves names to public addresses only, so that the address that is checked is the one that is
/// connected to.
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(public_only(found)?)
        })
    }
}

fn public_only(found: impl Iterator<Item = SocketAddr>) -> Result<Addrs, Refusal> {
    let public: Vec<SocketAddr> = found
        .filter(|address| egress::check_address(address.ip()).is_ok())
        .collect();
    if public.is_empty() {
        return Err(Refusal::Address);
    }
    Ok(Box::new(public.into_iter()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn kept(found: &[&str]) -> Option<Vec<String>> {
        let found: Vec<SocketAddr> = found
            .iter()
            .map(|address| SocketAddr::new(address.parse().expect("an address"), 0))
            .collect();
        let kept = public_only(found.into_iter()).ok()?;
        Some(kept.map(|address| address.ip().to_string()).collect())
    }

    // SPEC X-01: a name that also leads inside
    #[test]
    fn of_the_addresses_of_a_name_only_the_public_ones_are_tried() {
        let found = ["10.0.0.1", "93.184.216.34", "::1"];
        assert_eq!(kept(&found), Some(vec!["93.184.216.34".to_owned()]));
        assert_eq!(kept(&["169.254.169.254", "::ffff:10.0.0.1"]), None);
        assert_eq!(kept(&[]), None);
    }

    // SPEC X-01
    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_not_resolved() {
        let name = "localhost".parse().expect("a name");
        assert!(PublicOnly.resolve(name).await.is_err());
    }

    // SPEC A-24
    #[rstest]
    #[case("https://as.internal/keys", true)]
    #[case("http://127.0.0.1:3000/keys", true)]
    #[case("http://[::1]:3000/keys", true)]
    #[case("http://localhost:3000/keys", true)]
    #[case("http://as.internal/keys", false)]
    #[case("http://127.0.0.1.nip.test/keys", false)]
    #[case("ftp://127.0.0.1/keys", false)]
    fn plain_http_is_for_this_machine(#[case] url: &str, #[case] allowed: bool) {
        let url = Url::parse(url).expect("a URL");
        assert_eq!(check_configured(&url).is_ok(), allowed);
    }
}
