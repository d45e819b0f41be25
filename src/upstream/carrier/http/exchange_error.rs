//! Why an exchange brought no answer.

use super::pool::PoolError;
use super::unreachable;
use crate::grants::TokenFailure;

/// Why an exchange failed below HTTP, or has to be made once more.
#[derive(Debug, thiserror::Error)]
#[error("the connection failed")]
pub struct ExchangeError(#[source] ExchangeCause);

#[derive(Debug, thiserror::Error)]
enum ExchangeCause {
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Hyper(#[from] hyper_util::client::legacy::Error),
    /// The answer was a redirect to the URL that requests go to from now on.
    #[error("redirected with HTTP status {0}")]
    Moved(u16),
    /// There was no credential for the request, which was not sent.
    #[error(transparent)]
    Account(#[from] TokenFailure),
    /// The answer refused the credential with this status, and there is another one now.
    #[error("refused with HTTP status {0}, before the credential was renewed")]
    Renewed(u16),
}

impl<E: Into<ExchangeCause>> From<E> for ExchangeError {
    fn from(cause: E) -> Self {
        Self(cause.into())
    }
}

impl ExchangeError {
    /// Another replica may own the session of the request, which was not sent.
    pub(super) fn fenced() -> Self {
        PoolError::Fenced.into()
    }

    /// Whether another replica may own the session of the request, so that it was not sent.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(&self.0, ExchangeCause::Pool(PoolError::Fenced))
    }

    pub(super) fn moved(status: http::StatusCode) -> Self {
        Self(ExchangeCause::Moved(status.as_u16()))
    }

    /// The request may be made again, with another credential than the one refused with `status`.
    pub(super) fn renewed(status: http::StatusCode) -> Self {
        Self(ExchangeCause::Renewed(status.as_u16()))
    }

    /// Why there was no credential.
    #[must_use]
    pub fn account(&self) -> Option<&TokenFailure> {
        match &self.0 {
            ExchangeCause::Account(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether the upstream could not be reached at all, so that nothing can have run.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        match &self.0 {
            ExchangeCause::Pool(error) => matches!(error, PoolError::Connect(_)),
            ExchangeCause::Hyper(error) => error.is_connect(),
            ExchangeCause::Moved(_) | ExchangeCause::Account(_) | ExchangeCause::Renewed(_) => {
                false
            }
        }
    }

    /// Whether the upstream was reached and has provably not read the request. Any request may then be
    /// sent again.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        match &self.0 {
            ExchangeCause::Pool(error) => matches!(error, PoolError::Unread(_)),
            ExchangeCause::Hyper(error) => refused_by_http2(error),
            ExchangeCause::Moved(_) | ExchangeCause::Renewed(_) => true,
            ExchangeCause::Account(_) => false,
        }
    }

    /// The status of the answer after which the request is to be made again, to another URL or with another credential.
    #[must_use]
    pub fn redirect(&self) -> Option<u16> {
        match &self.0 {
            ExchangeCause::Moved(status) | ExchangeCause::Renewed(status) => Some(*status),
            ExchangeCause::Pool(_) | ExchangeCause::Hyper(_) | ExchangeCause::Account(_) => None,
        }
    }

    /// Why not, in words that name no address.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        unreachable::reason(self)
    }
}

/// Whether the upstream says over HTTP/2 that it has not processed the request: it refused the stream, or
/// its farewell names an earlier one as the last. Spec: RFC 9113 §8.7.
fn refused_by_http2(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let reason = error.reason();
            let is_refused = error.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM);
            let is_farewell = error.is_go_away() && reason == Some(h2::Reason::NO_ERROR);
            return error.is_remote() && (is_refused || is_farewell);
        }
        next = error.source();
    }
    false
}
