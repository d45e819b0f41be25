//! Refusals before a message is read, in the order of DESIGN §4: 400 or 421 Host / 403 Origin →
//! 404 path → preflight 204 → 401 token → 403 endpoint scope → 405 method → 429 rate (a message that
//! is posted and the GET stream of a session may wait instead, see `admission`); then the handler of the
//! method goes on with 406 / 415 / 413 → 400.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use http::header::{CACHE_CONTROL, ORIGIN};
use http::{Extensions, HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};

use super::access_log::{AccessLine, AccessRecord};
use super::admission::{MessageDue, OwedAdmission, crowded};
use super::connect_page::{self, ConnectPage};
use super::forwarding::{self, ForwardedResponse};
use super::guard::RequestKind;
use super::held_body::hold;
use super::listener::{ConnectionPermit, OpenExchange, TooManyExchanges};
use super::paths::{PathTarget, ServedTransport, pattern};
use super::request_place::RequestPlace;
use super::{McpService, cors, get_stream, http_sse, modern, reply, streamable, websocket};
use crate::address::ClientNetwork;
use crate::call::{OwnerKey, Principal};
use crate::config::AuthMode;
use crate::connect::ConnectPages;
use crate::endpoint::Endpoint;
use crate::protocol::headers;
use crate::telemetry::metrics::LABELED;
use crate::telemetry::names::error_type;

impl McpService {
    /// Serves one HTTP request.
    pub(super) async fn serve(self: Arc<Self>, request: Request) -> Response<Body> {
        let origin = request.headers().get(ORIGIN).cloned();
        let target = self.paths.target(request.uri().path());
        let client = request
            .extensions()
            .get()
            .and_then(ConnectionPermit::client);
        let pattern = pattern(target.as_ref());
        let line = AccessLine::begin(request.method(), pattern, client, &self.stop);
        let kind = match &target {
            Some(PathTarget::Metadata(_)) => RequestKind::Metadata,
            Some(PathTarget::Connect(_)) => RequestKind::Page,
            _ if cors::is_preflight(request.method(), request.headers()) => RequestKind::Preflight,
            _ => RequestKind::Mcp,
        };
        let mut response = self.route(request, target, kind, line.record()).await;
        if response.extensions().get::<ForwardedResponse>().is_none() {
            cors::decorate(&self.guard, kind, origin.as_ref(), response.headers_mut());
        }
        line.attach(response)
    }

    async fn route(
        self: &Arc<Self>,
        mut request: Request,
        target: Option<PathTarget>,
        kind: RequestKind,
        record: &AccessRecord,
    ) -> Response<Body> {
        if let Err(failure) = self.guard.check(kind, request.uri(), request.headers()) {
            LABELED.requests_refused.add(failure.reason(), 1);
            record.outcome(failure.reason());
            return reply::plain(failure.status(), failure.public());
        }
        let rate = &self.admission.rate;
        if kind == RequestKind::Page
            && let Err(wait) = rate.take(page_visitor(client_address(&request)))
        {
            record.outcome("rate_limited");
            return reply::over_the_rate(wait);
        }
        let (endpoint, way) = match target {
            None => return nothing_here(),
            Some(PathTarget::Metadata(document)) => {
                return metadata(request.method(), document, || {
                    cors::preflight(&self.guard, kind, request.headers())
                });
            }
            Some(PathTarget::Endpoint(endpoint, way)) => (endpoint, way),
            Some(PathTarget::Connect(page)) => {
                let Some(pages) = &self.pages else {
                    return nothing_here();
                };
                return Box::pin(self.serve_page(pages, request, page, record)).await;
            }
        };
        if kind == RequestKind::Preflight {
            return cors::preflight(&self.guard, kind, request.headers());
        }
        record.endpoint(&endpoint.name);
        if let [upstream] = endpoint.upstreams.as_slice() {
            record.upstream(upstream);
        }
        let from = client_address(&request);
        let principal = match self
            .authenticate(
                request.uri(),
                (request.headers(), request.extensions()),
                from,
                &endpoint,
                record,
            )
            .await
        {
            Ok(principal) => principal,
            Err(refusal) => return *refusal,
        };
        record.principal(principal.owner());
        let method = request.method().clone();
        if way == ServedTransport::Streamable
            && method != Method::POST
            && modern::names_modern(request.headers())
        {
            return reply::post_only();
        }
        if !way.methods().contains(&method) {
            return reply::method_not_allowed(way.methods());
        }
        let mut used = None;
        if let Some(forwarder) = &self.forwarder {
            match RequestPlace::of(self, forwarder, &request, &principal, (&endpoint, way)) {
                RequestPlace::Here(session) => used = session,
                other => {
                    let caller = (&principal, (&endpoint, way), from);
                    let passed = other.pass_on(self, forwarder, caller, request, record);
                    match Box::pin(passed).await {
                        Ok(own) => (request, used) = own,
                        Err(response) => return *response,
                    }
                }
            }
        }
        let served = self.serve_here((&endpoint, way), principal, request, record);
        let response = served.await;
        drop(used);
        response
    }

    /// Answers a request for a connect page, unless too many are being answered.
    async fn serve_page(
        &self,
        pages: &ConnectPages,
        request: Request,
        page: ConnectPage,
        record: &AccessRecord,
    ) -> Response<Body> {
        let visitor = ClientNetwork::from(client_address(&request));
        let Some(_permit) = self.page_permits.enter(visitor) else {
            LABELED.requests_refused.add("pages", 1);
            record.outcome(error_type::BUSY);
            let text = "too many pages are asked for at once, try again in a moment";
            return reply::retryable(reply::plain(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let body_timeout = self.settings.server.body_timeout;
        connect_page::answer(pages, body_timeout, request, page).await
    }

    /// Admits and serves a request of this replica.
    async fn serve_here(
        self: &Arc<Self>,
        (endpoint, way): (&Arc<Endpoint>, ServedTransport),
        principal: Arc<Principal>,
        mut request: Request,
        record: &AccessRecord,
    ) -> Response<Body> {
        let (open, due) = match self.admit(&mut request, &principal, way).await {
            Ok(admitted) => admitted,
            Err(GateRefusal::Rate(wait)) => {
                record.outcome("rate_limited");
                return reply::over_the_rate(wait);
            }
            Err(GateRefusal::Crowded) => {
                record.outcome(error_type::BUSY);
                return reply::fault_response(&crowded(), None);
            }
        };
        let (target, caller) = ((endpoint, way), (principal, due));
        let is_of_session = self.forwarder.is_some()
            && headers::session_id(request.headers()) != Ok(None)
            && !modern::names_modern(request.headers());
        let response = self.hand_over(target, caller, request, record).await;
        if is_of_session
            && let Some(forwarder) = &self.forwarder
            && response.status() != StatusCode::NOT_FOUND
            && let Some(lost) = forwarder.lost_meanwhile(record)
        {
            return lost;
        }
        hold(response, open)
    }

    /// # Errors
    /// The answer to a request without a good token, which its connection notes.
    async fn authenticate(
        &self,
        uri: &Uri,
        (headers, extensions): (&HeaderMap, &Extensions),
        from: IpAddr,
        endpoint: &Endpoint,
        record: &AccessRecord,
    ) -> Result<Arc<Principal>, Box<Response<Body>>> {
        let query = uri.query();
        let checked = self.auth.authenticate(headers, query, from, endpoint).await;
        checked.map_err(|denied| {
            record.outcome(denied.reason);
            if denied.status == StatusCode::UNAUTHORIZED
                && let Some(place) = extensions.get::<ConnectionPermit>()
            {
                place.refused();
            }
            Box::new(reply::denied(&denied))
        })
    }

    /// Counts the exchange, and takes the request out of the allowance. What is posted may wait, or be
    /// refused for itself: what it is decides. The stream of a session may wait for the allowance; a request that opens a
    /// session waits only for borrowed allowance.
    async fn admit(
        &self,
        request: &mut Request,
        principal: &Principal,
        way: ServedTransport,
    ) -> Result<(Option<OpenExchange>, MessageDue), GateRefusal> {
        let (owner, method) = (principal.owner(), request.method().clone());
        let open = self.begin_exchange_of(owner, request, way);
        match method {
            Method::POST => {
                let is_paid = forwarding::is_paid(request.extensions());
                let due = if is_paid {
                    None
                } else {
                    self.admission.due(owner)
                };
                Ok(match open {
                    Ok(open) => (open, due),
                    Err(TooManyExchanges) => (None, Some(OwedAdmission::exchange(due))),
                })
            }
            // It counts and is never refused: it frees what a session holds, and the TypeScript SDK
            // fails to close where it is.
            Method::DELETE => {
                let _ = self.admission.rate.take(owner);
                Ok((open.unwrap_or(None), None))
            }
            // A client that is refused its stream ends the session, or does without for good.
            Method::GET
                if way == ServedTransport::Streamable
                    && !http_sse::is_for_events(&self.settings, request.headers()) =>
            {
                let due = self.admission.due(owner);
                let open = open.map_err(|TooManyExchanges| GateRefusal::Crowded)?;
                Ok((open, due))
            }
            _ => {
                let taken = Box::pin(self.admission.rate.take_once_borrowed(owner)).await;
                taken.map_err(GateRefusal::Rate)?;
                let open = open.map_err(|TooManyExchanges| GateRefusal::Crowded)?;
                Ok((open, None))
            }
        }
    }

    /// Notes on the connection whose token it brought, and counts the exchange.
    fn begin_exchange_of(
        &self,
        owner: OwnerKey,
        request: &mut Request,
        way: ServedTransport,
    ) -> Result<Option<OpenExchange>, TooManyExchanges> {
        let Some(place) = request.extensions_mut().get_mut::<ConnectionPermit>() else {
            return Ok(None);
        };
        let open = place.begin(owner, self.settings.auth.mode != AuthMode::None)?;
        if way == ServedTransport::Socket {
            // It is open as long as the socket.
            place.keep(open);
            return Ok(None);
        }
        Ok(Some(open))
    }

    async fn hand_over(
        self: &Arc<Self>,
        (endpoint, way): (&Arc<Endpoint>, ServedTransport),
        (principal, due): (Arc<Principal>, MessageDue),
        request: Request,
        record: &AccessRecord,
    ) -> Response<Body> {
        let method = request.method().clone();
        let (mut parts, body) = request.into_parts();
        match way {
            ServedTransport::Streamable
                if method == Method::GET
                    && http_sse::is_for_events(&self.settings, &parts.headers) =>
            {
                return http_sse::open(self, endpoint, &principal, &parts.headers, record);
            }
            ServedTransport::Streamable => {}
            ServedTransport::Events => {
                return http_sse::open(self, endpoint, &principal, &parts.headers, record);
            }
            ServedTransport::Socket => {
                return websocket::open(self, endpoint, &principal, &mut parts, record);
            }
            ServedTransport::Messages => {
                let posted = http_sse::post(self, endpoint, principal, &parts, (body, due), record);
                return Box::pin(posted).await;
            }
        }
        match method {
            Method::POST => {
                streamable::post(self, endpoint, principal, &parts, (body, due), record).await
            }
            Method::GET => {
                let got =
                    get_stream::open(self, endpoint, &principal, (&parts.headers, due), record);
                Box::pin(got).await
            }
            _ => streamable::delete(self, endpoint, &principal, &parts.headers, record),
        }
    }
}

/// Why a request is refused before it is read.
enum GateRefusal {
    /// The rate of its principal; how long to wait.
    Rate(Duration),
    /// The exchanges of its principal.
    Crowded,
}

/// The client's address, where its connection has one.
fn client_address(request: &Request) -> IpAddr {
    let client = request
        .extensions()
        .get()
        .and_then(ConnectionPermit::client);
    client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

fn nothing_here() -> Response<Body> {
    reply::plain(StatusCode::NOT_FOUND, "there is nothing at this path")
}

/// The owner that the rate counts a page for: only the address is known yet.
fn page_visitor(address: IpAddr) -> OwnerKey {
    let network = ClientNetwork::from(address).to_string();
    Principal::new("connect pages", &network, "", Vec::new(), None).owner()
}

/// The metadata is public and never fails. Spec: RFC 9728 §3.2; SPEC A-02.
fn metadata(
    method: &Method,
    document: bytes::Bytes,
    preflight: impl FnOnce() -> Response<Body>,
) -> Response<Body> {
    match *method {
        Method::GET | Method::HEAD => {
            let mut response = reply::json_response(StatusCode::OK, document);
            response.headers_mut().insert(
                CACHE_CONTROL,
                HeaderValue::from_static("public, max-age=300"),
            );
            response
        }
        Method::OPTIONS => preflight(),
        _ => reply::method_not_allowed(&[Method::GET, Method::HEAD, Method::OPTIONS]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_customer_are_one_visitor_of_pages() {
        let visitor = |text: &str| page_visitor(text.parse().unwrap());
        assert!(visitor("2001:db8::1") == visitor("2001:db8::2:9"));
        assert!(visitor("2001:db8::1") != visitor("2001:db8:0:1::1"));
        assert!(visitor("192.0.2.1") != visitor("192.0.2.2"));
    }
}
