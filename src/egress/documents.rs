//! HTTP clients for documents: no redirects, no proxy of the environment, and where a URL was learned, public
//! addresses alone.

use std::net::SocketAddr;

use futures_util::StreamExt as _;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Response};

use super::public::{EgressRefusal, check_address};
use super::trust::system_trust;

/// A client that follows no redirect, obeys no proxy of the environment and sends no `Referer`. It trusts the authorities
/// of the system; a certificate that is added to the builder has no effect (see [`documents_trusting`]). Deadlines are
/// the caller's.
pub fn documents() -> ClientBuilder {
    match system_trust() {
        Ok(mut tls) => {
            tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            bare_documents().tls_backend_preconfigured(tls)
        }
        // `build` then reads the authorities itself, and its error says why that fails.
        Err(_) => bare_documents(),
    }
}

/// The same, which trusts `certificates` beside the authorities of the system.
pub fn documents_trusting(certificates: impl IntoIterator<Item = Certificate>) -> ClientBuilder {
    bare_documents().tls_certs_merge(certificates)
}

fn bare_documents() -> ClientBuilder {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one client builder for documents"
    )]
    let builder = Client::builder();
    builder.redirect(Policy::none()).no_proxy().referer(false)
}

/// The same for URLs that a document named: https to public addresses alone.
pub fn learned_documents() -> ClientBuilder {
    documents().https_only(true).dns_resolver(PublicOnly)
}

/// Reads the body of an answer; `None` if it is larger than `limit` bytes.
///
/// # Errors
/// The body breaks off.
///
/// # Cancel safety
/// Dropping the future abandons the answer.
pub async fn read_body(answer: Response, limit: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut read = Vec::new();
    let mut body = answer.bytes_stream();
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        if read.len() + chunk.len() > limit {
            return Ok(None);
        }
        read.extend_from_slice(&chunk);
    }
    Ok(Some(read))
}

/// Resolves names to public addresses only: the checked address and the connected address are the same.
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(public_only(found)?)
        })
    }
}

fn public_only(found: impl Iterator<Item = SocketAddr>) -> Result<Addrs, EgressRefusal> {
    let public: Vec<SocketAddr> = found
        .filter(|address| check_address(address.ip()).is_ok())
        .collect();
    if public.is_empty() {
        return Err(EgressRefusal::Address);
    }
    Ok(Box::new(public.into_iter()))
}

#[cfg(test)]
mod tests {
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
}
