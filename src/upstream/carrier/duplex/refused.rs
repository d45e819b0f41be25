//! The error of a response that opens no connection.

use http::{Response, StatusCode};

use crate::upstream::carrier::http::body::UpstreamBody;
use crate::upstream::carrier::http::response_head::retry_after;
use crate::upstream::error::LinkError;

/// The error of a response that opens no connection.
pub(super) fn refused(response: &Response<UpstreamBody>) -> LinkError {
    match response.status() {
        status @ (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => {
            LinkError::Busy {
                status: status.as_u16(),
                retry_after: retry_after(response.headers()),
            }
        }
        status => LinkError::Status(status.as_u16()),
    }
}
