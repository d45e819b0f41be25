//! `PreparedRequest`: a request with its headers, the client to send it, and the credential that it carries or waits for.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{COOKIE, Entry};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;

use super::body::UpstreamBody;
use super::exchange_error::ExchangeError;
use super::targets::SentRoute;
use super::ways::ClientGrant;
use crate::grants::HeldToken;
use crate::ownership::Fence;
use crate::upstream::credentials::Requester;

/// A request, with the client to send it.
pub(super) struct PreparedRequest<'a> {
    pub(super) carry: ClientGrant<'a>,
    pub(super) request: Request<Full<Bytes>>,
    pub(super) sent: SentRoute,
    pub(super) requester: Requester,
    /// The token that the request carries.
    pub(super) held: Option<Arc<HeldToken>>,
    /// A credential that has to be waited for.
    pub(super) awaited: Option<BoxFuture<'a, Result<Arc<HeldToken>, ExchangeError>>>,
}

/// Sends a request once its credential is there; the answer, and the token that the request carried.
///
/// # Errors
/// There is no credential, or `fence` has closed meanwhile: nothing was sent.
pub(super) async fn send_with(
    credential: BoxFuture<'_, Result<Arc<HeldToken>, ExchangeError>>,
    carry: ClientGrant<'_>,
    mut request: Request<Full<Bytes>>,
    fence: &Fence,
) -> Result<
    (
        Result<Response<UpstreamBody>, ExchangeError>,
        Option<Arc<HeldToken>>,
    ),
    ExchangeError,
> {
    let token = credential.await?;
    if !fence.is_open() {
        return Err(ExchangeError::fenced());
    }
    bear(request.headers_mut(), token.headers());
    Ok((carry.send(request, fence).await, Some(token)))
}

/// Adds a credential to a request, whose own headers stand. Cookies of both are sent.
pub(super) fn bear(headers: &mut HeaderMap, credential: &HeaderMap) {
    for (name, value) in credential {
        match headers.entry(name) {
            Entry::Vacant(place) => {
                place.insert(value.clone());
            }
            Entry::Occupied(mut place) if *name == COOKIE => {
                let both = [value.as_bytes(), b"; ", place.get().as_bytes()].concat();
                if let Ok(mut both) = HeaderValue::from_bytes(&both) {
                    both.set_sensitive(true);
                    place.insert(both);
                }
            }
            Entry::Occupied(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;

    use super::*;

    fn headers(of: [(http::HeaderName, &'static str); 2]) -> HeaderMap {
        of.map(|(name, value)| (name, HeaderValue::from_static(value)))
            .into_iter()
            .collect()
    }

    #[test]
    fn configured_cookies_go_with_those_of_the_session() {
        let mut sent = headers([(COOKIE, "route=1"), (AUTHORIZATION, "own")]);
        bear(
            &mut sent,
            &headers([(COOKIE, "key=2"), (AUTHORIZATION, "x")]),
        );
        assert_eq!(sent.get(COOKIE).unwrap(), "key=2; route=1");
        assert_eq!(sent.get_all(COOKIE).iter().count(), 1);
        assert_eq!(sent.get(AUTHORIZATION).unwrap(), "own");
    }
}
