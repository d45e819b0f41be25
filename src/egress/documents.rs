//! HTTP clients for documents: no redirects, no proxy of the environment.

use futures_util::StreamExt as _;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Response};

use super::public::EgressRefusal;
use super::trust::system_trust;

/// Why a request for a document, or of a token, has no usable answer. For the log alone: the answers of servers inside the
/// network must not reach a client (SPEC X-02).
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The egress rules forbid the URL.
    #[error("the gateway does not ask there: {0}")]
    Refused(EgressRefusal),
    /// The request failed, or the answer broke off.
    #[error("no answer")]
    Transport(#[source] reqwest::Error),
    /// An answer with another status than 200.
    #[error("the answer was HTTP {0}")]
    Status(u16),
    /// The answer exceeds its limit.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

impl From<EgressRefusal> for DocumentError {
    fn from(refusal: EgressRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<reqwest::Error> for DocumentError {
    /// Drops the URL, which the surrounding error names. A learned name that the resolver refused is `Refused`.
    fn from(error: reqwest::Error) -> Self {
        match EgressRefusal::within(&error) {
            Some(refusal) => Self::Refused(refusal),
            None => Self::Transport(error.without_url()),
        }
    }
}

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

/// Reads the body of an answer, of `limit` bytes at most.
///
/// # Errors
/// The body is larger, or breaks off.
///
/// # Cancel safety
/// Dropping the future abandons the answer.
pub async fn read_body(answer: Response, limit: usize) -> Result<Vec<u8>, DocumentError> {
    let mut read = Vec::new();
    let mut body = answer.bytes_stream();
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        if read.len() + chunk.len() > limit {
            return Err(DocumentError::TooLarge(limit));
        }
        read.extend_from_slice(&chunk);
    }
    Ok(read)
}
