//! One upstream session over Streamable HTTP: posts and their responses. Spec: SPEC U-01…U-04.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::body::UpstreamBody;
use super::client::{HttpClient, RetryRule};
use super::exchange_error::ExchangeError;
use super::message_headers::MessageHeaders;
use super::non_mcp_response;
use super::opening_attempts::OpeningAttempts;
use super::response_head::{is_event_stream, is_gone, is_of_lost_session, retry_after};
use super::sink::MessageSink;
use super::sticky_cookies::StickyCookies;
use super::stream_cursor::StreamCursor;
use super::whole::{refusal_body, whole_body};
use crate::call::CallerAccess;
use crate::protocol::headers::{MCP_PROTOCOL_VERSION, MCP_SESSION_ID, TRACEPARENT, TRACESTATE};
use crate::protocol::{DecodeError, Message, Revision, methods};
use crate::secret::Secret;
use crate::telemetry::metrics::LABELED;
use crate::telemetry::trace::TraceContext;
use crate::upstream::error::LinkError;
use crate::upstream::notice_feed::NoticeFeed;

/// Messages in one array of 2025-03-26.
pub(crate) const LONGEST_ARRAY: usize = 1024;

/// Bounds on what an upstream may send.
#[derive(Debug, Clone, Copy)]
pub struct ResponseBounds {
    /// One message, bytes.
    pub message: usize,
    /// One event, bytes.
    pub event: usize,
    /// Nesting of a message.
    pub depth: usize,
}

/// What the headers of a request say of the call that it belongs to; nothing for a request of our own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallOrigin<'a> {
    /// The span of the call.
    pub(crate) trace: Option<&'a TraceContext>,
    /// The caller, where callers' tokens are exchanged.
    pub(crate) caller: Option<&'a Arc<CallerAccess>>,
}

/// The HTTP side of one upstream session.
#[derive(Debug)]
pub struct HttpSession {
    pub(super) upstream: Arc<str>,
    pub(super) client: HttpClient,
    pub(super) bounds: ResponseBounds,
    pub(super) session: OnceLock<HeaderValue>,
    pub(super) version: OnceLock<HeaderValue>,
    /// Those of the response that gave us the session id.
    cookies: StickyCookies,
    /// Whether the session was found lost while a reply was awaited.
    pub(super) is_lost: AtomicBool,
    /// Whether a reply has shown that the upstream stores no events: no stream of a call is resumed.
    pub(super) stores_no_events: AtomicBool,
    /// Of the GET stream, while it is open.
    pub(super) notice_feed: NoticeFeed,
    /// Whether the GET stream was ever open.
    pub(super) was_open: AtomicBool,
    /// The attempts to open the GET stream.
    pub(super) opening: OpeningAttempts,
}

impl HttpSession {
    /// A wire to the named upstream, without a session yet.
    #[must_use]
    pub fn new(upstream: Arc<str>, client: HttpClient, bounds: ResponseBounds) -> Self {
        Self {
            upstream,
            client,
            bounds,
            session: OnceLock::new(),
            version: OnceLock::new(),
            cookies: StickyCookies::default(),
            is_lost: AtomicBool::new(false),
            stores_no_events: AtomicBool::new(false),
            notice_feed: NoticeFeed::default(),
            was_open: AtomicBool::new(false),
            opening: OpeningAttempts::default(),
        }
    }

    /// Goes on with a session that the upstream has given to another process.
    pub(crate) fn continue_as(&self, id: HeaderValue) {
        self.session.get_or_init(|| id);
    }

    /// Whether the upstream gave us a session id.
    #[must_use]
    pub fn has_session(&self) -> bool {
        self.session.get().is_some()
    }

    /// The upstream's session id, while the upstream has not reported it as unknown.
    pub(crate) fn id(&self) -> Option<Secret> {
        let id = self.session.get().filter(|_| !self.has_lost_session())?;
        id.to_str().ok().map(Secret::new)
    }

    /// Whether the upstream reported the session as unknown when a stream was resumed: the call of that stream may have
    /// run.
    #[must_use]
    pub fn has_lost_session(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// The revision every further request names (SPEC U-03).
    pub fn set_version(&self, version: &'static str) {
        self.version
            .get_or_init(|| HeaderValue::from_static(version));
    }

    pub(super) fn headers(&self, CallOrigin { trace, caller }: CallOrigin<'_>) -> MessageHeaders {
        let value = |text: &str| HeaderValue::from_str(text).ok();
        let parent = trace.and_then(TraceContext::traceparent);
        let state = trace.and_then(TraceContext::tracestate);
        MessageHeaders::default()
            .with(MCP_SESSION_ID, self.session.get().cloned())
            .with(MCP_PROTOCOL_VERSION, self.version.get().cloned())
            .with(COOKIE, self.cookies.header())
            .with(
                TRACEPARENT,
                parent.and_then(|parent| value(parent.as_str())),
            )
            .with(TRACESTATE, state.and_then(value))
            .called_by(caller)
    }

    /// Posts a self-contained request and returns the response, for [`read`](Self::read).
    ///
    /// # Errors
    /// [`ExchangeError`] when no response arrives.
    ///
    /// # Cancel safety
    /// Dropping the future closes the exchange, which cancels the request.
    pub(crate) fn post(
        &self,
        message: Bytes,
        headers: MessageHeaders,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, ExchangeError>> + Send {
        self.client.post(message, headers)
    }

    /// Posts a request that probes the era of the upstream: the status, and the reply if there is one.
    ///
    /// # Errors
    /// [`LinkError`] when no response arrives.
    pub(crate) async fn probe(
        &self,
        message: Bytes,
        headers: MessageHeaders,
    ) -> Result<(StatusCode, Result<Message, LinkError>), LinkError> {
        let response = self.client.post_again(message, headers, RetryRule::IfLost);
        let response = response.await?;
        let status = response.status();
        let take = &mut |message: Message| message.method().is_none().then_some(message);
        let reply = self.read(response, take).await;
        match reply {
            Err(error @ LinkError::Lost { .. }) => Err(error),
            reply => Ok((status, reply)),
        }
    }

    /// Reads an answer until `sink` has its reply. A stream that breaks is not resumed: the request
    /// is lost (SPEC M-44, U-10).
    ///
    /// # Errors
    /// [`LinkError`] when there is no reply.
    ///
    /// # Cancel safety
    /// Dropping the future closes the exchange, which cancels the request.
    pub(crate) async fn read(
        &self,
        response: Response<UpstreamBody>,
        sink: &mut dyn MessageSink,
    ) -> Result<Message, LinkError> {
        if !response.status().is_success() {
            return Box::pin(self.refused(response, sink)).await;
        }
        if is_event_stream(&response) {
            // Larger, and most replies are whole.
            return Box::pin(self.read_events(response.into_body(), sink)).await;
        }
        self.read_whole(response, sink).await
    }

    /// Reads a stream of events that holds the reply.
    async fn read_events(
        &self,
        mut body: UpstreamBody,
        sink: &mut dyn MessageSink,
    ) -> Result<Message, LinkError> {
        let mut place = StreamCursor::default();
        let reply = self.read_once(&mut body, &mut place, sink).await?;
        let reply = reply.ok_or(LinkError::Lost { last_words: None })?;
        body.finish();
        Ok(reply)
    }

    /// Reads the body of a response as one message.
    async fn read_whole(
        &self,
        response: Response<UpstreamBody>,
        sink: &mut dyn MessageSink,
    ) -> Result<Message, LinkError> {
        let (head, body) = response.into_parts();
        let body = whole_body(body, self.bounds.message, sink).await?;
        if body.is_empty() {
            let what = format!("nothing, with HTTP status {}", head.status.as_u16());
            return Err(LinkError::Invalid(what));
        }
        let reply = self
            .hand_over(body, sink)
            .map_err(|error| self.unread(&error, &head.headers))?;
        reply.ok_or_else(|| {
            LinkError::Invalid("the response does not answer our request".to_owned())
        })
    }

    /// The error of a body that is no message.
    fn unread(&self, error: &DecodeError, headers: &HeaderMap) -> LinkError {
        LABELED.upstream_garbage.add(&self.upstream, 1);
        LinkError::Invalid(non_mcp_response::foreign(headers).unwrap_or_else(|| error.to_string()))
    }

    /// Hands a message, or each message of an array, to `sink`; returns the reply if found.
    pub(super) fn hand_over(
        &self,
        text: Bytes,
        sink: &mut dyn MessageSink,
    ) -> Result<Option<Message>, DecodeError> {
        let has_arrays = self.version.get().is_some_and(|version| {
            let text = version.to_str().ok();
            text.and_then(Revision::parse)
                .is_some_and(Revision::supports_batches)
        });
        if !has_arrays || !Message::is_batch(&text) {
            return Ok(sink.message(Message::parse(text, self.bounds.depth)?));
        }
        let mut reply = None;
        for element in Message::parse_batch(text, self.bounds.depth, LONGEST_ARRAY)? {
            match element {
                Ok(message) => reply = sink.message(message).or(reply),
                Err(error) => self.suspect(&error),
            }
        }
        Ok(reply)
    }

    /// Posts a request and reads until `sink` has its reply.
    ///
    /// # Errors
    /// [`LinkError`] when there is no reply; [`LinkError::Unread`] when the request may be posted again.
    ///
    /// # Cancel safety
    /// Dropping the future closes the exchange; the caller must then cancel the call upstream.
    pub(crate) async fn request(
        &self,
        message: Bytes,
        origin: CallOrigin<'_>,
        sink: &mut dyn MessageSink,
    ) -> Result<Message, LinkError> {
        let response = self.client.post(message, self.headers(origin)).await?;
        let status = response.status();
        if !status.is_success() {
            return Box::pin(self.refused(response, sink)).await;
        }
        if let Some(id) = response.headers().get("mcp-session-id") {
            self.session.get_or_init(|| {
                self.cookies
                    .begin(response.headers(), self.client.uri().path());
                id.clone()
            });
        }
        self.cookies.renew(response.headers());
        if is_event_stream(&response) {
            // Larger, and most replies are whole.
            return Box::pin(self.read_stream(response, origin.caller, sink)).await;
        }
        self.read_whole(response, sink).await
    }

    /// Makes the first request of a session, once more where its answer was lost.
    ///
    /// # Errors
    /// [`LinkError`] when there is no reply.
    pub(crate) async fn begin(
        &self,
        message: Bytes,
        sink: &mut dyn MessageSink,
    ) -> Result<Message, LinkError> {
        let own = CallOrigin::default();
        let reply = match self.request(message.clone(), own, sink).await {
            Err(LinkError::Unread { .. }) => self.request(message, own, sink).await,
            // With a session, it would be another request.
            Err(LinkError::Lost { .. }) if !self.has_session() => {
                self.request(message, own, sink).await
            }
            other => other,
        };
        reply.map_err(LinkError::of_last_try)
    }

    /// Posts a notification or a response.
    ///
    /// # Errors
    /// [`LinkError`] when the upstream did not take it.
    pub(crate) async fn send(&self, message: Bytes) -> Result<(), LinkError> {
        let post = || {
            let (message, headers) = (message.clone(), self.headers(CallOrigin::default()));
            self.client
                .post_again(message, headers, RetryRule::IfUnread)
        };
        let response = match post().await {
            Err(error) if !error.is_connect() && may_repeat(&message, self.bounds.depth) => {
                post().await?
            }
            other => other?,
        };
        let status = response.status();
        if is_gone(status) && self.has_session() {
            return Err(Box::pin(self.gone(response)).await);
        }
        // The body has no meaning, and some upstreams never end it.
        response.into_body().finish();
        if status.is_success() {
            Ok(())
        } else {
            Err(self.status_error(status, None))
        }
    }

    /// Ends the upstream session; a failure is harmless (SPEC U-04).
    pub(crate) async fn close(&self) {
        if self.has_session() {
            drop(
                self.client
                    .delete(self.headers(CallOrigin::default()))
                    .await,
            );
        }
    }

    async fn refused(
        &self,
        response: Response<UpstreamBody>,
        sink: &mut dyn MessageSink,
    ) -> Result<Message, LinkError> {
        let status = response.status();
        let retry = retry_after(response.headers());
        if let Some(body) = refusal_body(response.into_body(), self.bounds.message, sink).await {
            let parsed = Message::parse(body.clone(), self.bounds.depth).ok();
            if self.has_session() && is_of_lost_session(status, &body, parsed.as_ref()) {
                return Err(LinkError::SessionGone);
            }
            // A message without id is about our request if the status is 400; other statuses may be those of a
            // firewall, or of a server that does not serve such requests. A 401 is about the credential, whatever its
            // body: many servers put the id of the refused request in it.
            let parsed = parsed.filter(|it| match status {
                StatusCode::UNAUTHORIZED => false,
                StatusCode::BAD_REQUEST => true,
                _ => it.id().is_some(),
            });
            if let Some(reply) = parsed.and_then(|message| sink.message(message)) {
                return Ok(reply);
            }
        }
        Err(self.status_error(status, retry))
    }

    fn status_error(&self, status: StatusCode, retry_after: Option<Duration>) -> LinkError {
        match status {
            status if is_gone(status) && self.has_session() => LinkError::SessionGone,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => LinkError::Busy {
                status: status.as_u16(),
                retry_after,
            },
            _ => LinkError::Status(status.as_u16()),
        }
    }
}

/// Whether a notification or a response may be posted again though it may have arrived. A repeated response has no
/// request left to answer, and the notifications of MCP are repeatable.
fn may_repeat(message: &Bytes, depth: usize) -> bool {
    Message::parse(message.clone(), depth).is_ok_and(|message| {
        message
            .method()
            .is_none_or(|method| methods::lookup(method).is_some())
    })
}

#[cfg(test)]
mod tests;
