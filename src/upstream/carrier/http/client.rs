//! The only HTTP client for MCP traffic: pooled, no redirects but that of a last slash, no ambient proxy, and requests
//! built from an inclusion list of headers, so that no header of the caller leaves by accident. Spec: SPEC U-11, A-22;
//! DESIGN §6.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_TYPE, HOST, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;

use super::body::UpstreamBody;
use super::client_error::ClientError;
use super::exchange_error::ExchangeError;
use super::login::UpstreamLogin;
use super::message_headers::MessageHeaders;
use super::prepared_request::{PreparedRequest, bear, send_with};
use super::request_credentials::{RequestCredentials, is_telling};
use super::targets::{RedirectVerdict, RequestTargets, SentRoute, host};
use super::ways::{ClientChoice, ClientGrant};
use crate::call::{CallerAccess, OwnerKey};
use crate::config::HttpCarrier;
use crate::ownership::Fence;
use crate::protocol::headers::MCP_SESSION_ID;
use crate::upstream::credentials::{Credential, Credentials, FixedHeaders, fixed_headers};

/// Headers that are put to a request besides those of its message and the configured ones, at most; hyper adds the
/// length of the body, for which the table would have to grow.
const MADE_HERE: usize = 4;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A client for one upstream. Clones share its connections, and make requests for the same account.
#[derive(Debug, Clone)]
pub struct HttpClient {
    way: Arc<ClientChoice>,
    targets: Arc<RequestTargets>,
    credentials: RequestCredentials,
    /// `Host` of requests in origin form.
    host: HeaderValue,
    login: Arc<UpstreamLogin>,
    /// Open while requests may be sent.
    fence: Fence,
}

/// When a request is retried. An unread request always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryRule {
    /// A second run may do harm.
    IfUnread,
    /// A second run does no harm.
    IfLost,
}

impl HttpClient {
    /// A client for the upstream that `carrier` describes.
    ///
    /// # Errors
    /// [`ClientError`] when the configuration cannot be used.
    pub fn new(carrier: &HttpCarrier) -> Result<Self, ClientError> {
        let targets = RequestTargets::new(&carrier.url)?;
        let uri = &targets.configured().absolute;
        let fixed = || fixed_headers(&carrier.headers).map(FixedHeaders);
        Ok(Self {
            way: Arc::new(ClientChoice::new(carrier, uri)?),
            host: host(uri)?,
            targets: Arc::new(targets),
            credentials: RequestCredentials::new(Arc::new(fixed()?)),
            login: Arc::new(UpstreamLogin::new(carrier, false)),
            fence: Fence::default(),
        })
    }

    /// This client with other credentials.
    pub(in crate::upstream) fn with_credentials(&self, credentials: Arc<dyn Credentials>) -> Self {
        Self {
            credentials: self.credentials.with(credentials),
            ..self.clone()
        }
    }

    /// This client, for an account at the upstream that `carrier` describes.
    pub(in crate::upstream) fn with_account(
        &self,
        carrier: &HttpCarrier,
        credentials: Arc<dyn Credentials>,
    ) -> Self {
        Self {
            login: Arc::new(UpstreamLogin::new(carrier, true)),
            ..self.with_credentials(credentials)
        }
    }

    /// This client, for the requests of `owner`; `caller` has the tokens that can be exchanged for those of requests that
    /// belong to no call.
    #[must_use]
    pub fn on_behalf_of(&self, owner: OwnerKey, caller: Option<&Arc<CallerAccess>>) -> Self {
        Self {
            credentials: self.credentials.on_behalf_of(owner, caller),
            ..self.clone()
        }
    }

    /// Whose credential the requests carry.
    pub(in crate::upstream) fn credentials(&self) -> &RequestCredentials {
        &self.credentials
    }

    /// A copy of this client that refuses requests while `fence` is closed.
    #[must_use]
    pub fn behind(&self, fence: &Fence) -> Self {
        Self {
            fence: fence.clone(),
            ..self.clone()
        }
    }

    /// The login that the upstream asks for.
    #[must_use]
    pub fn login(&self) -> &Arc<UpstreamLogin> {
        &self.login
    }

    /// The configured URL of the upstream.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.targets.configured().absolute
    }

    /// Posts one JSON-RPC message to another URL of the same origin; once more, where the upstream has
    /// not read it. Spec: SPEC H-02.
    ///
    /// # Errors
    /// `ExchangeError` when no response head arrives.
    pub async fn post_to(
        &self,
        uri: &Uri,
        message: Bytes,
        headers: MessageHeaders,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let make = || {
            let mut prepared = self.prepare(Method::POST, headers.clone(), message.clone());
            *prepared.request.uri_mut() = match (&prepared.carry, uri.path_and_query()) {
                (ClientGrant::Pool(_), Some(path)) => Uri::from(path.clone()),
                _ => uri.clone(),
            };
            let headers = prepared.request.headers_mut();
            headers.insert(CONTENT_TYPE, JSON);
            prepared
        };
        self.carry_again(make).await
    }

    /// Asks for a WebSocket with this key and subprotocol. Spec: RFC 6455 §4.1.
    ///
    /// # Errors
    /// `ExchangeError` when no response head arrives.
    pub async fn upgrade(
        &self,
        key: &str,
        subprotocol: &'static str,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let make = || {
            let mut prepared = self.prepare(Method::GET, MessageHeaders::default(), Bytes::new());
            let headers = prepared.request.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
            headers.insert(
                SEC_WEBSOCKET_PROTOCOL,
                HeaderValue::from_static(subprotocol),
            );
            if let Ok(key) = HeaderValue::from_str(key) {
                headers.insert(SEC_WEBSOCKET_KEY, key);
            }
            prepared
        };
        self.carry_again(make).await
    }

    /// Posts one JSON-RPC message, once. Spec: SPEC U-01.
    ///
    /// # Errors
    /// `ExchangeError` when no response head arrives, or one that leads elsewhere: the caller may post an unread
    /// request again, with a copy that this hot path does not make.
    pub fn post(
        &self,
        message: Bytes,
        headers: MessageHeaders,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, ExchangeError>> + Send {
        self.send(self.prepare_post(message, headers))
    }

    /// Posts one JSON-RPC message, and again as `repeat` says. Spec: SPEC U-01.
    ///
    /// # Errors
    /// `ExchangeError` when no response head arrives.
    pub async fn post_again(
        &self,
        message: Bytes,
        headers: MessageHeaders,
        repeat: RetryRule,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let make = || self.prepare_post(message.clone(), headers.clone());
        self.send_again(repeat, make).await
    }

    /// Opens, or resumes, an event stream.
    ///
    /// # Errors
    /// `ExchangeError` when no response head arrives.
    pub async fn listen(
        &self,
        headers: MessageHeaders,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let make = || {
            let mut prepared = self.prepare(Method::GET, headers.clone(), Bytes::new());
            let headers = prepared.request.headers_mut();
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
            prepared
        };
        self.send_again(RetryRule::IfLost, make).await
    }

    /// Sends `OPTIONS`, which opens no session. An unknown session id keeps servers from opening one for any request
    /// without an id.
    ///
    /// # Errors
    /// `ExchangeError` when no response head arrives.
    pub async fn knock(&self) -> Result<Response<UpstreamBody>, ExchangeError> {
        const UNKNOWN: HeaderValue = HeaderValue::from_static("drawbridge-health");
        let make = || {
            let headers = MessageHeaders::default().with(MCP_SESSION_ID, Some(UNKNOWN));
            self.prepare(Method::OPTIONS, headers, Bytes::new())
        };
        self.carry_again(make).await
    }

    /// Ends the upstream session. Spec: SPEC U-04.
    ///
    /// # Errors
    /// `ExchangeError` when no response head arrives.
    pub async fn delete(
        &self,
        headers: MessageHeaders,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let make = || self.prepare(Method::DELETE, headers.clone(), Bytes::new());
        self.send_again(RetryRule::IfLost, make).await
    }

    fn prepare_post(&self, message: Bytes, headers: MessageHeaders) -> PreparedRequest<'_> {
        let mut prepared = self.prepare(Method::POST, headers, message);
        let headers = prepared.request.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        prepared
    }

    fn prepare(&self, method: Method, own: MessageHeaders, body: Bytes) -> PreparedRequest<'_> {
        let carry = self.way.carry();
        let (moved, target) = self.targets.current();
        let is_post = method == Method::POST;
        let sent = SentRoute { moved, is_post };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        let requester = self.credentials.requester(own.caller);
        let credential = self.credentials.of(request.method(), &requester);
        let at_hand = match &credential {
            Credential::Ready(headers) => headers.len(),
            Credential::Held(token) => token.headers().len(),
            Credential::Awaited(_) => 0,
        };
        let headers = request.headers_mut();
        headers.reserve(own.all.len() + MADE_HERE + at_hand);
        let uri = match &carry {
            ClientGrant::Pool(_) => {
                // Set by hyper's client, but not below it.
                headers.insert(HOST, self.host.clone());
                &target.origin_form
            }
            ClientGrant::Shared(_) => &target.absolute,
        };
        for (name, value) in own.all {
            headers.append(name, value);
        }
        *request.uri_mut() = uri.clone();
        let (held, awaited) = match credential {
            Credential::Ready(credential) => {
                bear(request.headers_mut(), credential);
                (None, None)
            }
            Credential::Held(token) => {
                bear(request.headers_mut(), token.headers());
                (Some(token), None)
            }
            Credential::Awaited(credential) => (None, Some(credential)),
        };
        PreparedRequest {
            carry,
            request,
            sent,
            requester,
            held,
            awaited,
        }
    }

    async fn carry(
        &self,
        prepared: PreparedRequest<'_>,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        if !self.fence.is_open() {
            return Err(ExchangeError::fenced());
        }
        // Each part is moved and none borrowed, so that the future has no room for the request twice.
        let (answer, used) = match prepared.awaited {
            None => (
                prepared.carry.send(prepared.request, &self.fence).await,
                prepared.held,
            ),
            Some(credential) => {
                let (carry, request) = (prepared.carry, prepared.request);
                let later = send_with(credential, carry, request, &self.fence);
                Box::pin(later).await?
            }
        };
        self.way.note(&answer);
        let answer = answer?;
        self.login.note(answer.status(), answer.headers());
        match used {
            Some(used) if is_telling(&used, answer.status()) => {
                let answered = self.credentials.answered(&prepared.requester, used, answer);
                Box::pin(answered).await
            }
            _ => Ok(answer),
        }
    }

    /// [`carry`](Self::carry), once more where the upstream has not read the request.
    async fn carry_again<'a>(
        &'a self,
        make: impl Fn() -> PreparedRequest<'a>,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        match self.carry(make()).await {
            Err(error) if error.is_unread() => self.carry(make()).await,
            other => other,
        }
    }

    /// Sends to the URL of the upstream; a redirect that can be followed is an error.
    fn send<'a>(
        &'a self,
        prepared: PreparedRequest<'a>,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, ExchangeError>> + Send + 'a {
        let sent = prepared.sent;
        // `map`, since an `async` block has room for the future that it awaits twice.
        self.carry(prepared).map(move |answer| {
            let answer = answer?;
            match self.targets.judge(sent, answer.status(), answer.headers()) {
                RedirectVerdict::Stands => Ok(answer),
                RedirectVerdict::Moved => Err(ExchangeError::moved(answer.status())),
            }
        })
    }

    async fn send_again<'a>(
        &'a self,
        repeat: RetryRule,
        make: impl Fn() -> PreparedRequest<'a>,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        match self.send(make()).await {
            Err(error)
                if error.is_unread() || repeat == RetryRule::IfLost && !error.is_connect() =>
            {
                // A second redirect is the answer.
                self.carry(make()).await
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests;
