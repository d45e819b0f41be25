//! Marks between replicas: headers of forwarded requests and of their answers, which no client can set, and the mark of a
//! request that came over the internal listener.

use std::net::IpAddr;

use axum::body::Body;
use axum::extract::Request;
use http::header::HeaderValue;
use http::{Extensions, HeaderMap, HeaderName, Method, Response};

use super::ending_body::is_event_stream;
use crate::cluster::{self, Cluster, REPLICA_PATH};
use crate::session::EventId;
use crate::telemetry::request_tag;

/// The client's address, for the owner.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Says that a forwarded request was taken out of the rate of its caller.
const PAID: HeaderName = HeaderName::from_static("drawbridge-paid");
/// Says that the request needed no owner, as all upstreams that it reached are modern.
const OWNERLESS: HeaderName = HeaderName::from_static("drawbridge-ownerless");

/// The position before the first event of the stream that answers a call, as an event id.
const STREAM: HeaderName = HeaderName::from_static("drawbridge-stream");

/// Marks a request that another replica has passed on, which has authenticated itself.
#[derive(Debug, Clone, Copy)]
struct ForwardedRequest {
    /// Whether the entry replica has taken it out of the rate of its caller.
    is_paid: bool,
}

/// Whether another replica has passed the request on.
pub(in crate::downstream) fn is_forwarded(extensions: &Extensions) -> bool {
    extensions.get::<ForwardedRequest>().is_some()
}

/// Says in the answer to a forwarded request that the request needed no owner.
pub(in crate::downstream) fn say_ownerless(headers: &mut HeaderMap) {
    headers.insert(OWNERLESS, HeaderValue::from_static("1"));
}

/// Takes the header that [`say_ownerless`] sets out of an answer; clients do not need it. Returns whether it was set.
pub(super) fn take_ownerless(headers: &mut HeaderMap) -> bool {
    headers.remove(OWNERLESS).is_some()
}

/// Says in the answer to a forwarded call where its event stream begins, if it is one.
pub(in crate::downstream) fn say_begun(headers: &mut HeaderMap, begun: EventId) {
    if is_event_stream(headers)
        && let Ok(begun) = HeaderValue::try_from(begun.to_string())
    {
        headers.insert(STREAM, begun);
    }
}

/// Takes the header that [`say_begun`] sets out of an answer; clients do not need it. Earlier releases do not set it.
pub(super) fn take_begun(headers: &mut HeaderMap) -> Option<EventId> {
    let begun = headers.remove(STREAM)?;
    begun.to_str().ok().and_then(EventId::parse)
}

/// Takes in a request over the internal listener, marked as forwarded.
///
/// # Errors
/// The answer: the greeting of this replica, or that the request is for another one.
pub(in crate::downstream) fn take_in(
    cluster: &Cluster,
    mut request: Request,
) -> Result<Request, Box<Response<Body>>> {
    if request.method() == Method::GET && request.uri().path() == REPLICA_PATH {
        let greeting = serde_json::to_vec(&cluster.greeting()).unwrap_or_default();
        return Err(Box::new(Response::new(Body::from(greeting))));
    }
    if !cluster::is_for(cluster.node(), request.headers_mut()) {
        return Err(Box::new(cluster::misdirected()));
    }
    let is_paid = request.headers_mut().remove(PAID).is_some();
    request
        .extensions_mut()
        .insert(ForwardedRequest { is_paid });
    Ok(request)
}

/// Whether another replica has taken a request out of the rate of its caller.
pub(in crate::downstream) fn is_paid(extensions: &Extensions) -> bool {
    let forwarded = extensions.get::<ForwardedRequest>();
    forwarded.is_some_and(|forwarded| forwarded.is_paid)
}

/// Adds what the owner has to know, in place of what the client may have sent under these names.
pub(in crate::downstream) fn describe(
    headers: &mut HeaderMap,
    client: Option<IpAddr>,
    is_paid: bool,
) {
    // Before the marks are set: a client must not have them removed by naming them in `Connection`.
    cluster::remove_hop_by_hop(headers);
    headers.remove(FORWARDED_FOR);
    if let Some(client) = client.and_then(|client| HeaderValue::try_from(client.to_string()).ok()) {
        headers.insert(FORWARDED_FOR, client);
    }
    headers.remove(PAID);
    if is_paid {
        headers.insert(PAID, HeaderValue::from_static("1"));
    }
    headers.remove(request_tag::HEADER);
    if let Some(tag) = request_tag::current().and_then(|tag| tag.header()) {
        headers.insert(request_tag::HEADER, tag);
    }
}

#[cfg(test)]
mod tests {
    use http::header::{CONNECTION, CONTENT_TYPE};

    use super::*;

    #[test]
    fn client_cannot_have_its_address_or_the_request_id_removed() {
        let named = "x-forwarded-for, x-request-id, x-own";
        let mut request = Request::builder()
            .header(CONNECTION, named)
            .header("x-own", "1")
            .header(FORWARDED_FOR, "198.51.100.7")
            .body(Body::empty())
            .unwrap();
        describe(
            request.headers_mut(),
            Some(IpAddr::from([192, 0, 2, 1])),
            false,
        );
        // As it is done once more where the request is made for the other replica.
        cluster::remove_hop_by_hop(request.headers_mut());
        let headers = request.headers();
        assert_eq!(headers.get(FORWARDED_FOR).unwrap(), "192.0.2.1");
        assert!(!headers.contains_key(CONNECTION) && !headers.contains_key("x-own"));
    }

    #[test]
    fn begin_of_a_stream_is_read_once() {
        let begun = EventId::parse("00000000000000aa.3.0").unwrap();
        let mut headers = HeaderMap::new();
        say_begun(&mut headers, begun);
        assert_eq!(take_begun(&mut headers), None, "no stream");
        let kind = HeaderValue::from_static("text/event-stream");
        headers.insert(CONTENT_TYPE, kind);
        say_begun(&mut headers, begun);
        assert_eq!(take_begun(&mut headers), Some(begun));
        assert_eq!(take_begun(&mut headers), None, "the client is not told");
    }

    #[test]
    fn request_that_needs_no_owner_is_noted_once() {
        let mut headers = HeaderMap::new();
        assert!(!take_ownerless(&mut headers));
        say_ownerless(&mut headers);
        assert!(take_ownerless(&mut headers));
        assert!(headers.is_empty(), "the client is not told");
    }

    #[test]
    fn client_cannot_say_that_its_request_is_paid() {
        for (is_paid, expected) in [(false, None), (true, Some("1"))] {
            let request = Request::builder().header(PAID, "yes");
            let mut request = request.body(Body::empty()).unwrap();
            describe(request.headers_mut(), None, is_paid);
            let said = request.headers().get(PAID);
            assert_eq!(said.map(|said| said.to_str().unwrap()), expected);
        }
    }
}
