//! `FormSender`: sends the requests that `oauth2` builds, and returns the responses that it can parse.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::StatusCode;
use http::header::RETRY_AFTER;
use oauth2::AsyncHttpClient;
use serde::Deserialize;
use serde::de::IgnoredAny;
use url::Url;

use super::documents::{DocumentClients, DocumentError, ReadAnswer};

/// The longest `Retry-After` that is honoured.
const LONGEST_RETRY: Duration = Duration::from_mins(5);

/// Why a request failed before `oauth2` could parse a response.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("the answer cannot be a token")]
    Status {
        status: u16,
        retry_after: Option<Duration>,
    },
    #[error("the answer cannot be passed on")]
    Answer,
}

/// Sends the requests that `oauth2` builds, within the gateway's limits.
pub(super) struct FormSender<'a> {
    pub(super) clients: &'a DocumentClients,
    pub(super) issuer: Option<&'a Url>,
    /// Status of the response, which errors of `oauth2` do not carry.
    pub(super) status: AtomicU16,
}

impl<'c> AsyncHttpClient<'c> for FormSender<'_> {
    type Error = SendError;
    type Future = BoxFuture<'c, Result<oauth2::HttpResponse, SendError>>;

    fn call(&'c self, request: oauth2::HttpRequest) -> Self::Future {
        async move {
            let answer = self.clients.post(request, self.issuer).await?;
            self.status.store(answer.status.as_u16(), Ordering::Relaxed);
            readable(answer)
        }
        .boxed()
    }
}

/// The response, where `oauth2` can parse it, which takes a token with status 200 as JSON alone: other statuses of success
/// get that one, and no type is passed on. A refusal with status 200, as of GitHub, gets that of RFC 6749 §5.2.
pub(super) fn readable(answer: ReadAnswer) -> Result<oauth2::HttpResponse, SendError> {
    let ReadAnswer {
        status,
        headers,
        body,
    } = answer;
    let number = status.as_u16();
    // The statuses that RFC 6749 gives errors.
    if !status.is_success() && !matches!(number, 400 | 401 | 403) {
        let seconds = headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST_RETRY));
        return Err(SendError::Status {
            status: number,
            retry_after,
        });
    }
    let is_refusal = status.is_success() && holds_error_alone(&body);
    let mut answer = http::Response::new(body);
    if is_refusal {
        *answer.status_mut() = StatusCode::BAD_REQUEST;
    } else if !status.is_success() {
        *answer.status_mut() = status;
    }
    if answer.body().is_empty() {
        return Err(SendError::Answer);
    }
    Ok(answer)
}

fn holds_error_alone(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Members {
        error: Option<IgnoredAny>,
        access_token: Option<IgnoredAny>,
    }
    let members = serde_json::from_slice::<Members>(body);
    members.is_ok_and(|members| members.error.is_some() && members.access_token.is_none())
}
