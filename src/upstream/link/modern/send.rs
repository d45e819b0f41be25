//! Sending one request: with the headers that its tool declares, and with a retry where that is safe. Spec: SPEC M-35,
//! M-36, M-44, U-09.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::envelope::{self, OutgoingTrace, RetryInputs};
use super::running_request::{ReplyOwner, RunningRequest};
use super::schemas::{KnownTools, ListedHeaders};
use super::{ModernServerLink, ModernWire, OutgoingCall, own};
use crate::budget::ReplyLease;
use crate::cause::chain;
use crate::protocol::error_codes::{HEADER_MISMATCH, UNSUPPORTED_VERSION};
use crate::protocol::json::JsonError;
use crate::protocol::param_headers::ParamHeaders;
use crate::protocol::{Message, Revision, json, meta, methods, rpc};
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::http::message_headers::MessageHeaders;
use crate::upstream::carrier::http::sink::MessageSink;
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;
use crate::upstream::link::observe::{client_span, outcome};
use crate::upstream::lock;
use crate::upstream::room::GrowingReply;

/// Most pages of tools read in search of one tool.
const MAX_PAGES: usize = 50;
/// Time limit of such a search.
const WALK: Duration = Duration::from_secs(5);

impl ModernServerLink {
    /// Sends a call. Retries if the upstream refused the request's form or did not read it, or if the reply was lost
    /// and a second run is safe.
    pub(super) async fn send(
        self: &Arc<Self>,
        outgoing: &OutgoingCall<'_>,
        inputs: &RetryInputs,
    ) -> Result<Message, LinkError> {
        let mut params = None;
        let (mut lost, mut refused, mut unread) = (false, false, false);
        loop {
            let known = match params.take() {
                Some(known) => known,
                None => self.params(outgoing).await?,
            };
            let reply = self.send_once(outgoing, inputs, known.as_deref()).await;
            match &reply {
                // The upstream did not read the request: nothing has run.
                Err(LinkError::Unread { .. }) if !unread => {
                    LABELED.calls_repeated.add(&self.settings.name, 1);
                    (unread, params) = (true, Some(known));
                }
                // A lost reply is retried once where a second run is safe. Spec: SPEC M-44
                Err(LinkError::Lost { .. })
                    if !(lost || refused)
                        && inputs.responses.is_none()
                        && self.is_safe(outgoing) =>
                {
                    (lost, params) = (true, Some(known));
                }
                Ok(refusal) if !refused => match refusal.error_code() {
                    // Refused before it ran: the tool may declare other headers now (SPEC M-35).
                    Some(HEADER_MISMATCH) if outgoing.method() == "tools/call" => {
                        self.schemas.forget(self.settings.owner);
                        refused = true;
                    }
                    // Refused before it ran, although the upstream supports the revision. Spec: SPEC U-09
                    Some(UNSUPPORTED_VERSION) if offers_ours(refusal) => {
                        (refused, params) = (true, Some(known));
                    }
                    _ => return reply,
                },
                _ => return reply.map_err(LinkError::of_last_try),
            }
        }
    }

    async fn send_once(
        self: &Arc<Self>,
        outgoing: &OutgoingCall<'_>,
        inputs: &RetryInputs,
        params: Option<&ParamHeaders>,
    ) -> Result<Message, LinkError> {
        let (request, call) = (outgoing.request, outgoing.call);
        // Checked here, since `call_inner` polls this future before the cancellation.
        if call.cancel.is_cancelled() {
            return Err(LinkError::Cancelled);
        }
        let whose = RunningRequest::of_call(request, call, &outgoing.told);
        let flight = RunningRequest::new(self.next_id(), whose, Arc::clone(&outgoing.activity));
        let span = client_span(
            &self.settings,
            request,
            call,
            flight.id,
            Revision::V2026_07_28,
        );
        *lock(&outgoing.flight) = Some(Arc::clone(&flight));
        let parent = span.context().traceparent();
        let place = OutgoingTrace::of(span.context(), parent.as_ref());
        let info = self.client_info(request);
        let bytes = envelope::body(flight.id, request, call, info, inputs, &place);
        let headers = || envelope::headers(outgoing, params, &place);
        let reply = self.exchange(bytes, headers, &flight).await;
        let reply = reply.and_then(|reply| self.with_outcome(reply));
        span.finish(outcome(&reply));
        reply
    }

    /// The reply, if it has an outcome. Spec: SPEC U-14; BRIDGING §3.10
    fn with_outcome(&self, reply: Message) -> Result<Message, LinkError> {
        if reply.has_outcome() {
            return Ok(reply);
        }
        let error = LinkError::no_object();
        self.suspect(&error.to_string());
        Err(error)
    }

    /// The client info of this request, else that of its session.
    fn client_info<'a>(&'a self, request: &'a Message) -> &'a str {
        let own = || std::str::from_utf8(&self.settings.client_info).unwrap_or("{}");
        meta::client_info(request).unwrap_or_else(own)
    }

    /// One exchange with the upstream over HTTP or the pipe. The headers are built only where they are used, since
    /// moving their large list is expensive.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        bytes: Bytes,
        headers: impl FnOnce() -> Result<MessageHeaders, JsonError> + Send,
        flight: &Arc<RunningRequest>,
    ) -> Result<Message, LinkError> {
        match &self.wire {
            ModernWire::Pipe(pipe) => self.exchange_piped(pipe, bytes, flight).await,
            ModernWire::Http(http) => {
                let mut take = ModernPostStream(self, flight);
                let unsendable = |error: JsonError| LinkError::Unsendable(error.to_string());
                // Two awaits: one future around both would be moved as a whole.
                let reply = match http.post(bytes, headers().map_err(unsendable)?).await {
                    Ok(response) => http.read(response, &mut take).await,
                    Err(error) => Err(error.into()),
                };
                if let Err(LinkError::Lost { .. }) = &reply {
                    LABELED.upstream_lost.add(&self.settings.name, 1);
                }
                reply
            }
        }
    }

    /// [`exchange`](Self::exchange) for the gateway's own requests: retried once if the upstream has not read the
    /// request.
    pub(super) async fn exchange_again(
        self: &Arc<Self>,
        bytes: Bytes,
        headers: impl Fn() -> Result<MessageHeaders, JsonError> + Send + Sync,
        flight: &Arc<RunningRequest>,
    ) -> Result<Message, LinkError> {
        let reply = self.exchange(bytes.clone(), &headers, flight).await;
        let reply = match reply {
            Err(LinkError::Unread { .. }) => self.exchange(bytes, &headers, flight).await,
            other => other,
        };
        reply.map_err(LinkError::of_last_try)
    }

    /// Whether a second run of the call is safe: the method only reads, or the operator says so. A tool's own
    /// annotations are not trusted (SPEC C-95).
    fn is_safe(&self, outgoing: &OutgoingCall<'_>) -> bool {
        match outgoing.method() {
            "tools/call" => {
                let safe = &self.settings.upstream.retry_safe;
                outgoing
                    .tool()
                    .is_some_and(|tool| safe.iter().any(|name| name == tool))
            }
            method => methods::is_repeatable(method),
        }
    }

    /// The headers that the called tool declares. An unknown tool is searched for once; if that fails, the call is sent
    /// without such headers, and the upstream decides (SPEC M-36).
    ///
    /// # Errors
    /// [`LinkError::Unsendable`] when its annotations are invalid (SPEC M-31).
    async fn params(
        self: &Arc<Self>,
        outgoing: &OutgoingCall<'_>,
    ) -> Result<Option<Arc<ParamHeaders>>, LinkError> {
        let Some(tool) = outgoing.tool().filter(|_| self.pipe().is_none()) else {
            return Ok(None);
        };
        let tools = outgoing.tools(self);
        if let Some(ListedHeaders::Asks(headers)) = tools.get(tool) {
            return Ok(Some(headers));
        }
        let _walking = tools.walking.lock().await;
        if !matches!(tools.get(tool), Some(ListedHeaders::Asks(_))) && !tools.walked_lately() {
            let walk = Box::pin(self.walk(&tools, outgoing));
            let walk = tokio::time::timeout(WALK, walk).await;
            if let Err(problem) = walk.unwrap_or(Err(LinkError::Timeout)) {
                LABELED.schemas_unknown.add(&self.settings.name, 1);
                tracing::warn!(
                    upstream = %self.settings.name, error = chain(&problem),
                    "the tools cannot be listed: their parameter headers are not sent"
                );
            }
            tools.walked();
        }
        match tools.get(tool) {
            Some(ListedHeaders::Asks(headers)) => Ok(Some(headers)),
            Some(ListedHeaders::Invalid) => {
                let why = "the x-mcp-header annotations of the tool are invalid";
                Err(LinkError::Unsendable(why.to_owned()))
            }
            None => Ok(None),
        }
    }

    /// Reads all pages of the tools, with the caller's credentials.
    async fn walk(
        self: &Arc<Self>,
        tools: &KnownTools,
        outgoing: &OutgoingCall<'_>,
    ) -> Result<(), LinkError> {
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let params = match &cursor {
                Some(cursor) => format!("{{\"cursor\":{cursor}}}"),
                None => "{}".to_owned(),
            };
            let text = rpc::request(0, "tools/list", Some(&params));
            let request = own(text)?;
            let flight = RunningRequest::new(
                self.next_id(),
                ReplyOwner::Nobody,
                Arc::new(CallActivity::new()),
            );
            let listing = OutgoingCall::new(&request, outgoing.call, Arc::clone(&flight.activity));
            let trace = outgoing.call.trace.child();
            let parent = trace.traceparent();
            let place = OutgoingTrace::of(&trace, parent.as_ref());
            let info = self.client_info(outgoing.request);
            let inputs = RetryInputs::default();
            let bytes = envelope::body(flight.id, &request, outgoing.call, info, &inputs, &place);
            let headers = || envelope::headers(&listing, None, &place);
            let reply = self.exchange_again(bytes, headers, &flight).await?;
            outgoing.activity.touch();
            let Some(page) = reply.result_member("tools") else {
                return Err(LinkError::Invalid("it does not list its tools".to_owned()));
            };
            tools.learn(&self.settings.name, page);
            let next = reply
                .result_member("nextCursor")
                .filter(|next| *next != "null");
            match next {
                Some(next) if cursor.as_deref() != Some(next) => cursor = Some(next.to_owned()),
                _ => break,
            }
        }
        Ok(())
    }
}

/// Receives the messages of the stream that answers a request.
struct ModernPostStream<'a>(&'a ModernServerLink, &'a Arc<RunningRequest>);

impl MessageSink for ModernPostStream<'_> {
    fn message(&mut self, message: Message) -> Option<Message> {
        self.0.on_message(message, self.1)
    }

    fn awaits(&self, id: u64) -> bool {
        self.1.id == id
    }

    fn growing(&self) -> Option<GrowingReply> {
        let Some(room) = self.1.reply_room() else {
            let settings = &self.0.settings;
            // Lists do not wait for the caller's share: a list whose copy exceeds the budget is refused.
            let share = match self.1.whose {
                ReplyOwner::Listen(_) => settings.arriving_share(),
                _ => settings.replies.clone(),
            };
            return Some(GrowingReply::outside_calls(&share));
        };
        Some(GrowingReply::of(room, &self.1.activity))
    }

    fn keep(&mut self, lease: ReplyLease) {
        self.1.keep(lease);
    }

    /// Comments count as activity too: each shows that the upstream is alive.
    fn taken(&mut self) {
        self.1.activity.touch();
    }
}

/// Whether an error that refuses the gateway's revision lists that same revision as supported.
fn offers_ours(reply: &Message) -> bool {
    let data = reply.error_member("data").unwrap_or_default();
    data.contains(&json::quote(Revision::V2026_07_28.as_str()))
}
