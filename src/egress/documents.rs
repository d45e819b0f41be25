//! HTTP clients for documents: no redirects, no proxy of the environment.

use futures_util::StreamExt as _;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Response};

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
