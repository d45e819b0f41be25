//! Sending one request: with the headers that its tool declares, and with a retry where that is safe. Spec: SPEC M-35,
//! M-36, M-44, U-09.

use std::sync::Arc;
use std::time::Duration;

use super::envelope::{self, OutgoingTrace, RetryInputs};
use super::running_request::{ReplyOwner, RunningRequest};
use super::schemas::{KnownTools, ListedHeaders};
use super::{ModernServerLink, OutgoingCall, own};
use crate::cause::chain;
use crate::protocol::error_codes::{HEADER_MISMATCH, UNSUPPORTED_VERSION};
use crate::protocol::param_headers::ParamHeaders;
use crate::protocol::{Message, Revision, json, meta, methods, rpc};
use crate::telemetry::metrics::LABELED;
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;
use crate::upstream::link::observe::{client_span, outcome};
use crate::upstream::lock;

/// Most pages of tools read in search of one tool.
const MAX_PAGES: usize = 50;
/// Time limit of such a search.
const WALK: Duration = Duration::from_secs(5);

impl ModernServerLink {
    /// Sends a call. Retries if the upstream refused the request's form or did not read it, or if the reply was lost
    /// and a second run is safe.
    pub(super) async fn send(
        &self,
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
        &self,
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
        let running = RunningRequest::new(
            self.connection.next_id(),
            whose,
            Arc::clone(&outgoing.activity),
        );
        let span = client_span(
            &self.settings,
            request,
            call,
            running.id,
            Revision::V2026_07_28,
        );
        *lock(&outgoing.running) = Some(Arc::clone(&running));
        let parent = span.context().traceparent();
        let place = OutgoingTrace::of(span.context(), parent.as_ref());
        let info = self.client_info(request);
        let bytes = envelope::body(running.id, request, call, info, inputs, &place);
        let headers = || envelope::headers(outgoing, params, &place);
        let reply = self.connection.exchange(bytes, headers, &running).await;
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
        self.connection.suspect(&error.to_string());
        Err(error)
    }

    /// The client info of this request, else that of its session.
    fn client_info<'a>(&'a self, request: &'a Message) -> &'a str {
        meta::client_info(request).unwrap_or_else(|| self.settings.client_info_text())
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
        &self,
        outgoing: &OutgoingCall<'_>,
    ) -> Result<Option<Arc<ParamHeaders>>, LinkError> {
        let Some(tool) = outgoing.tool().filter(|_| self.connection.pipe().is_none()) else {
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
    async fn walk(&self, tools: &KnownTools, outgoing: &OutgoingCall<'_>) -> Result<(), LinkError> {
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let params = json::object(cursor.iter().map(|cursor| ("cursor", cursor)));
            let text = rpc::request(0, "tools/list", Some(&params));
            let request = own(text)?;
            let running = RunningRequest::new(
                self.connection.next_id(),
                ReplyOwner::Nobody,
                Arc::new(CallActivity::new()),
            );
            let listing = OutgoingCall::new(&request, outgoing.call, Arc::clone(&running.activity));
            let trace = outgoing.call.trace.child();
            let parent = trace.traceparent();
            let place = OutgoingTrace::of(&trace, parent.as_ref());
            let info = self.client_info(outgoing.request);
            let inputs = RetryInputs::default();
            let bytes = envelope::body(running.id, &request, outgoing.call, info, &inputs, &place);
            let headers = || envelope::headers(&listing, None, &place);
            let reply = self
                .connection
                .exchange_again(bytes, headers, &running)
                .await?;
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

/// Whether an error that refuses the gateway's revision lists that same revision as supported.
fn offers_ours(reply: &Message) -> bool {
    let data = reply.error_member("data").unwrap_or_default();
    data.contains(&json::quote(Revision::V2026_07_28.as_str()))
}
