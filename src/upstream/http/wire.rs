//! One upstream session over Streamable HTTP: posting, reading JSON or event streams, resuming
//! them, and the GET stream. Spec: SPEC U-01…U-04, U-10, T-27.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio_util::sync::CancellationToken;

use super::body::UpstreamBody;
use super::client::{HttpClient, MessageHeaders};
use crate::protocol::Message;
use crate::protocol::sse::SseDecoder;
use crate::telemetry::metrics::LABELED;
use crate::telemetry::trace::TraceContext;
use crate::upstream::error::LinkError;
use crate::upstream::hearing::Hearing;

/// How often a broken stream is resumed without any event in between.
const RESUME_ATTEMPTS: u32 = 5;
/// Before a stream is resumed when the upstream did not say how long to wait.
const RESUME_DELAY: Duration = Duration::from_millis(500);
/// The longest `retry` that we honour.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Bounds on what an upstream may send.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// One message, bytes.
    pub message: usize,
    /// One event, bytes.
    pub event: usize,
    /// Nesting of a message.
    pub depth: usize,
}

/// The HTTP side of one upstream session.
#[derive(Debug)]
pub struct HttpWire {
    upstream: Arc<str>,
    client: HttpClient,
    bounds: Bounds,
    session: OnceLock<HeaderValue>,
    version: OnceLock<HeaderValue>,
    /// Of the GET stream, while it is open.
    hearing: Hearing,
    /// Cancelled once the upstream has answered a GET, whatever it said.
    answered: CancellationToken,
}

/// Open ears; closed when dropped.
struct Ears<'a>(&'a Hearing);

impl<'a> Ears<'a> {
    fn open(hearing: &'a Hearing) -> Self {
        hearing.begin();
        Self(hearing)
    }
}

impl Drop for Ears<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What takes the messages of a stream; `Some` from it ends the reading.
pub(crate) type OnMessage<'a> = dyn FnMut(Message) -> Option<Message> + Send + 'a;

impl HttpWire {
    /// A wire to the named upstream, without a session yet.
    #[must_use]
    pub fn new(upstream: Arc<str>, client: HttpClient, bounds: Bounds) -> Self {
        Self {
            upstream,
            client,
            bounds,
            session: OnceLock::new(),
            version: OnceLock::new(),
            hearing: Hearing::default(),
            answered: CancellationToken::new(),
        }
    }

    /// Whether changes are heard of: a GET stream is open.
    pub(crate) fn hearing(&self) -> &Hearing {
        &self.hearing
    }

    /// Ready once the GET stream is open, or was refused, for the first time.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn answered(&self) {
        self.answered.cancelled().await;
    }

    /// Whether the upstream gave us a session id.
    #[must_use]
    pub fn has_session(&self) -> bool {
        self.session.get().is_some()
    }

    /// The revision every further request names (SPEC U-03).
    pub fn set_version(&self, version: &'static str) {
        self.version
            .get_or_init(|| HeaderValue::from_static(version));
    }

    fn headers(&self, trace: Option<&TraceContext>) -> MessageHeaders {
        let parent = trace.and_then(TraceContext::traceparent);
        let state = trace.and_then(TraceContext::tracestate);
        MessageHeaders {
            session: self.session.get().cloned(),
            version: self.version.get().cloned(),
            last_event: None,
            traceparent: parent.and_then(|text| HeaderValue::from_str(text.as_str()).ok()),
            tracestate: state.and_then(|text| HeaderValue::from_str(text).ok()),
            mirrors: Vec::new(),
        }
    }

    /// Posts a request that stands for itself and reads until `on_message` has its reply. A stream
    /// that breaks is not resumed: the request is lost (SPEC M-44, U-10).
    ///
    /// # Errors
    /// [`LinkError`] when there is no reply.
    ///
    /// # Cancel safety
    /// Dropping the future closes the exchange, which cancels the request.
    pub(crate) async fn exchange(
        &self,
        message: Bytes,
        headers: MessageHeaders,
        on_message: &mut OnMessage<'_>,
    ) -> Result<Message, LinkError> {
        let response = self.client.post(message, headers).await?;
        self.read(response, on_message).await
    }

    /// Posts a request to find out what the upstream speaks: the status, and the reply if there is
    /// one.
    ///
    /// # Errors
    /// [`LinkError`] when no response arrives.
    pub(crate) async fn probe(
        &self,
        message: Bytes,
        headers: MessageHeaders,
    ) -> Result<(StatusCode, Result<Message, LinkError>), LinkError> {
        let response = self.client.post(message, headers).await?;
        let status = response.status();
        let take = &mut |message: Message| message.method().is_none().then_some(message);
        let reply = self.read(response, take).await;
        match reply {
            Err(error @ LinkError::Lost { .. }) => Err(error),
            reply => Ok((status, reply)),
        }
    }

    async fn read(
        &self,
        response: Response<UpstreamBody>,
        on_message: &mut OnMessage<'_>,
    ) -> Result<Message, LinkError> {
        if !response.status().is_success() {
            return self.refused(response, on_message).await;
        }
        if is_event_stream(&response) {
            let (mut body, mut place) = (response.into_body(), Place::default());
            let reply = self.read_once(&mut body, &mut place, on_message).await?;
            let reply = reply.ok_or(LinkError::Lost { last_words: None })?;
            body.finish();
            return Ok(reply);
        }
        self.read_whole(response, on_message).await
    }

    /// Reads a body that is one message.
    async fn read_whole(
        &self,
        response: Response<UpstreamBody>,
        on_message: &mut OnMessage<'_>,
    ) -> Result<Message, LinkError> {
        let body = self.body(response).await?;
        let reply = Message::parse(body, self.bounds.depth)
            .map_err(|error| LinkError::Invalid(error.to_string()))?;
        on_message(reply).ok_or_else(|| {
            LinkError::Invalid("the response does not answer our request".to_owned())
        })
    }

    /// Posts a request and reads until `on_message` has its reply.
    ///
    /// # Errors
    /// [`LinkError`] when there is no reply.
    ///
    /// # Cancel safety
    /// Dropping the future closes the exchange; whoever drops it cancels the call upstream.
    pub(crate) async fn request(
        &self,
        message: Bytes,
        trace: Option<&TraceContext>,
        on_message: &mut OnMessage<'_>,
    ) -> Result<Message, LinkError> {
        let response = self.client.post(message, self.headers(trace)).await?;
        let status = response.status();
        if !status.is_success() {
            return Box::pin(self.refused(response, on_message)).await;
        }
        if let Some(id) = response.headers().get("mcp-session-id") {
            self.session.get_or_init(|| id.clone());
        }
        if is_event_stream(&response) {
            // Larger, and most replies are whole.
            return Box::pin(self.read_stream(response, on_message)).await;
        }
        self.read_whole(response, on_message).await
    }

    /// Posts a notification or a response.
    ///
    /// # Errors
    /// [`LinkError`] when the upstream did not take it.
    pub(crate) async fn send(&self, message: Bytes) -> Result<(), LinkError> {
        let response = self.client.post(message, self.headers(None)).await?;
        let status = response.status();
        // Read to the end, so that the connection can be used again.
        drop(
            Limited::new(response.into_body(), self.bounds.message)
                .collect()
                .await,
        );
        if status.is_success() {
            Ok(())
        } else {
            Err(self.status_error(status, None))
        }
    }

    /// Ends the upstream session; that it cannot be ended is harmless (SPEC U-04).
    pub(crate) async fn close(&self) {
        if self.has_session() {
            drop(self.client.delete(self.headers(None)).await);
        }
    }

    async fn refused(
        &self,
        response: Response<UpstreamBody>,
        on_message: &mut OnMessage<'_>,
    ) -> Result<Message, LinkError> {
        let status = response.status();
        let retry = retry_after(&response);
        let gone = status == StatusCode::NOT_FOUND && self.has_session();
        if !gone && let Ok(body) = self.body(response).await {
            let reply = Message::parse(body, self.bounds.depth)
                .ok()
                .and_then(on_message);
            if let Some(reply) = reply {
                return Ok(reply);
            }
        }
        Err(self.status_error(status, retry))
    }

    fn status_error(&self, status: StatusCode, retry_after: Option<Duration>) -> LinkError {
        match status {
            StatusCode::NOT_FOUND if self.has_session() => LinkError::SessionGone,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                LinkError::Busy { retry_after }
            }
            _ => LinkError::Status(status.as_u16()),
        }
    }

    async fn body(&self, response: Response<UpstreamBody>) -> Result<Bytes, LinkError> {
        let body = Limited::new(response.into_body(), self.bounds.message)
            .collect()
            .await;
        body.map(http_body_util::Collected::to_bytes)
            .map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    LinkError::TooLarge {
                        limit: self.bounds.message,
                    }
                } else {
                    LinkError::Lost { last_words: None }
                }
            })
    }

    /// Reads a stream until the reply, resuming it where the upstream gave event ids.
    async fn read_stream(
        &self,
        response: Response<UpstreamBody>,
        on_message: &mut OnMessage<'_>,
    ) -> Result<Message, LinkError> {
        let mut place = Place::default();
        let mut body = response.into_body();
        let mut attempts = 0;
        loop {
            let seen = place.events;
            if let Some(reply) = self.read_once(&mut body, &mut place, on_message).await? {
                body.finish();
                return Ok(reply);
            }
            attempts = if place.events > seen { 0 } else { attempts + 1 };
            let Some(last) = place
                .last_event
                .clone()
                .filter(|_| attempts < RESUME_ATTEMPTS)
            else {
                return Err(LinkError::Lost { last_words: None });
            };
            tokio::time::sleep(place.retry.unwrap_or(RESUME_DELAY)).await;
            let headers = MessageHeaders {
                last_event: Some(last),
                ..self.headers(None)
            };
            match self.client.listen(headers).await {
                Ok(response) if response.status().is_success() && is_event_stream(&response) => {
                    body = response.into_body();
                }
                Ok(response) => return Err(self.status_error(response.status(), None)),
                Err(error) if attempts + 1 >= RESUME_ATTEMPTS => return Err(error.into()),
                Err(_) => {}
            }
        }
    }

    /// Notes an event that is no message; what follows it may be one (SPEC U-14).
    fn suspect(&self, error: &impl std::fmt::Display) {
        LABELED.upstream_garbage.add(&self.upstream, 1);
        tracing::warn!(upstream = %self.upstream, error = %error, "upstream sends what is no message");
    }

    /// Reads one connection's worth of a stream.
    async fn read_once(
        &self,
        body: &mut UpstreamBody,
        place: &mut Place,
        on_message: &mut OnMessage<'_>,
    ) -> Result<Option<Message>, LinkError> {
        let mut decoder = SseDecoder::new(self.bounds.event);
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else {
                continue;
            };
            decoder.feed(data);
            while let Some(event) = decoder.next().map_err(|_| LinkError::TooLarge {
                limit: self.bounds.event,
            })? {
                place.note(event.id.as_deref(), event.retry);
                if !event.has_data || event.data.is_empty() {
                    continue;
                }
                match Message::parse(event.data, self.bounds.depth) {
                    Ok(message) => {
                        if let Some(reply) = on_message(message) {
                            return Ok(Some(reply));
                        }
                    }
                    Err(error) => self.suspect(&error),
                }
            }
        }
        Ok(None)
    }

    /// Keeps the GET stream open until the upstream turns out to have none; `on_open` is told of
    /// each that does not go on where the one before it broke off. Whoever asks what is heard waits
    /// from now on, whatever became of an earlier stream.
    ///
    /// # Cancel safety
    /// Dropping the future closes the stream.
    pub(crate) fn listen(
        self: Arc<Self>,
        on_open: impl FnMut() + Send,
        on_message: impl FnMut(Message) + Send,
    ) -> impl Future<Output = ()> + Send {
        self.hearing.end();
        self.keep_listening(on_open, on_message)
    }

    async fn keep_listening(
        self: Arc<Self>,
        mut on_open: impl FnMut() + Send,
        mut on_message: impl FnMut(Message) + Send,
    ) {
        let mut place = Place::default();
        let mut pause = RESUME_DELAY;
        loop {
            let headers = MessageHeaders {
                last_event: place.last_event.clone(),
                ..self.headers(None)
            };
            let answer = self.client.listen(headers).await;
            self.answered.cancel();
            match answer {
                Ok(response) if response.status().is_success() && is_event_stream(&response) => {
                    pause = RESUME_DELAY;
                    let mut body = response.into_body();
                    let _ears = Ears::open(&self.hearing);
                    if place.last_event.is_none() {
                        on_open();
                    }
                    let mut take = |message| {
                        on_message(message);
                        None
                    };
                    if let Err(error) = self.read_once(&mut body, &mut place, &mut take).await {
                        tracing::warn!(error = %error, "upstream event stream is invalid");
                    }
                }
                // The position is no longer kept there: go on from now.
                Ok(response) if place.last_event.is_some() && response.status() == 404 => {
                    place.last_event = None;
                }
                Ok(response) if response.status().is_client_error() => {
                    self.hearing.give_up();
                    return;
                }
                Ok(_) | Err(_) => pause = (pause * 2).min(LONGEST_RETRY),
            }
            tokio::time::sleep(place.retry.unwrap_or(pause)).await;
        }
    }
}

/// Where we are in a stream.
#[derive(Debug, Default)]
struct Place {
    last_event: Option<HeaderValue>,
    retry: Option<Duration>,
    events: u64,
}

impl Place {
    fn note(&mut self, id: Option<&str>, retry: Option<u64>) {
        self.events += 1;
        if let Some(id) = id {
            self.last_event = HeaderValue::from_str(id).ok().filter(|id| !id.is_empty());
        }
        if let Some(retry) = retry {
            self.retry = Some(Duration::from_millis(retry).min(LONGEST_RETRY));
        }
    }
}

/// When the upstream asks us to come back.
pub(crate) fn retry_after(response: &Response<UpstreamBody>) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?;
    value.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

pub(crate) fn is_event_stream(response: &Response<UpstreamBody>) -> bool {
    response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.trim_start().starts_with("text/event-stream"))
}

#[cfg(test)]
mod tests;
