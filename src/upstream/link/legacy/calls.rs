//! Our requests on a connection, sent under our own ids and progress tokens, and their replies. Spec: SPEC C-01, C-03,
//! C-10, C-98, U-12.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::connection::LegacyConnection;
use super::in_flight::InFlight;
use super::pending_reply::{PendingReply, ReplySlot, may_be_asked};
use super::post_stream::LegacyPostStream;
use super::task_progress::is_over;
use super::wire::LegacyWire;
use crate::call::{Call, Reply};
use crate::protocol::meta::{self, BAGGAGE};
use crate::protocol::{Message, json, methods, rpc};
use crate::telemetry::metrics::LABELED;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE, TraceContext};
use crate::upstream::carrier::http::http_session::CallOrigin;
use crate::upstream::deadlines::{CallActivity, before_sending};
use crate::upstream::error::LinkError;
use crate::upstream::link::observe::{self, client_span};
use crate::upstream::lock;

impl LegacyConnection {
    /// Opens the GET stream before a call is sent, where something can come over it.
    async fn hear(&self, call: &Call) -> Result<(), LinkError> {
        if let Some(get_stream) = &self.get_stream {
            get_stream.hear(call).await;
        }
        Ok(())
    }

    /// Sends a call and waits for its reply, within the upstream's deadlines.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request upstream.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, LinkError> {
        let limit = self.settings.upstream.total_timeout;
        before_sending(&call.cancel, limit, self.hear(call)).await?;
        let id = self.pending.next_id();
        let progress = meta::progress_token(request).map(Arc::from);
        let own = id.to_string();
        let mut edit = request.edit().id(own.as_str());
        if progress.is_some() {
            edit = edit.meta(meta::PROGRESS_TOKEN, own.as_str());
        } else if request.meta(meta::PROGRESS_TOKEN).is_some() {
            // Such as null, which strict servers refuse, and strict clients in the notices.
            edit = edit.remove_meta(meta::PROGRESS_TOKEN);
        }
        let method = request.method().unwrap_or_default();
        let revision = self.declared().revision;
        let span = client_span(&self.settings, request, call, id, revision);
        let (parent, state) = self.stamp(request, span.context());
        let own = [
            (TRACEPARENT, &parent),
            (TRACESTATE, &state),
            (BAGGAGE, &None),
        ];
        for (key, value) in own {
            edit = match value {
                Some(value) => edit.meta(key, value.as_str()),
                None if request.meta(key).is_some() => edit.remove_meta(key),
                None => edit,
            };
        }
        let bytes = edit.finish();
        let activity = Arc::new(CallActivity::new());
        let task = (method == "tasks/result").then(|| request.param_str("taskId"));
        let pending = PendingReply {
            task: task.flatten().map(Cow::into_owned),
            wants_task: request.param("task").is_some(),
            is_list: methods::is_list(method),
            link: Some(Arc::clone(&call.link)),
            caller: call.principal.access().cloned(),
            may_be_asked: may_be_asked(request, call),
            // It may go beside a call, whose log messages it is for.
            is_talked_of: method != "logging/setLevel",
            progress,
            ..PendingReply::new(id, &activity)
        };
        let (flight, reply) = self.take_off(pending);
        let upstream = &self.settings.upstream;
        let outcome = tokio::select! {
            // A reply that is ready wins over a deadline or a cancellation.
            biased;
            reply = self.exchange(flight.pending(), bytes, Some(span.context()), reply) => {
                let reply = reply.and_then(|reply| self.with_outcome(method, reply));
                // Before it lands: progress may come right behind the reply.
                if let Ok(reply) = &reply {
                    self.task_progress.keep(request, flight.pending(), reply);
                }
                match &reply {
                    Err(error) if self.may_go_on(error) => flight.abort("the reply was lost"),
                    _ => flight.landed(),
                }
                reply
            }
            () = activity.expired(upstream.idle_timeout, upstream.total_timeout) => {
                flight.abort("timeout");
                Err(match &self.wire {
                    _ if activity.awaits_room() => LinkError::no_room(),
                    LegacyWire::Duplex(duplex) => duplex.timed_out(activity.started(), upstream.isolation),
                    LegacyWire::Http(_) => LinkError::Timeout,
                })
            }
            () = call.cancel.cancelled() => {
                flight.abort(call.link.cancel_reason().unwrap_or("cancelled by the client"));
                Err(LinkError::Cancelled)
            }
        };
        if let Some(get_stream) = &self.get_stream {
            get_stream.called();
        }
        span.finish(observe::outcome(&outcome));
        if let Ok(reply) = &outcome {
            self.task_progress.replied(method, request, reply);
        }
        outcome.map(Reply::Relayed)
    }

    /// Whether the upstream may still work on a request that ended with `error`, in a session that lives on: the end of an
    /// exchange cancels nothing. Spec: MCP 2025-11-25, Streamable HTTP, Sending Messages.
    fn may_go_on(&self, error: &LinkError) -> bool {
        let LegacyWire::Http(http) = &self.wire else {
            return false;
        };
        // 504: a proxy has waited for the reply too long.
        matches!(error, LinkError::Lost { .. } | LinkError::Status(504))
            && http.has_session()
            && !self.is_closed()
            && !self.closed.is_cancelled()
    }

    /// A reply that has an outcome. Some servers answer `null` to requests without a result of their own.
    /// Spec: SPEC U-14; BRIDGING §3.10.
    fn with_outcome(&self, method: &str, reply: Message) -> Result<Message, LinkError> {
        if reply.has_outcome() {
            return Ok(reply);
        }
        if matches!(
            method,
            "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe"
        ) {
            let done = reply.edit().result("{}").finish();
            return Message::parse(done, json::MAX_DEPTH)
                .map_err(|error| LinkError::Invalid(error.to_string()));
        }
        let error = LinkError::no_object();
        self.suspect(&error.to_string());
        Err(error)
    }

    /// Trace context for `_meta`, as JSON text: a pipe has no headers, and the client's own `traceparent` must not stay
    /// the parent (SPEC C-98).
    fn stamp(&self, request: &Message, trace: &TraceContext) -> (Option<String>, Option<String>) {
        let piped = matches!(self.wire, LegacyWire::Duplex(_));
        if !piped && request.meta(TRACEPARENT).is_none() {
            return (None, None);
        }
        let quote = |text: &str| json::quote(text);
        let parent = trace.traceparent().map(|parent| quote(parent.as_str()));
        (parent, trace.tracestate().map(quote))
    }

    /// Sends one of our own requests with a single parameter; a failure is only logged.
    pub(super) async fn tell(self: &Arc<Self>, method: &str, name: &str, value: &str) {
        let id = self.pending.next_id();
        let params = json::object([(name, value)]);
        let bytes = rpc::request(id, method, Some(&params));
        let activity = Arc::new(CallActivity::new());
        let (flight, reply) = self.take_off(PendingReply::new(id, &activity));
        let limit = self.settings.upstream.connect_timeout;
        let exchange = self.exchange(flight.pending(), bytes.into(), None, reply);
        match tokio::time::timeout(limit, exchange).await {
            Ok(Ok(reply)) if reply.error().is_none() => {}
            _ => {
                tracing::warn!(upstream = %self.settings.name, method, "request of the gateway failed");
            }
        }
        flight.landed();
    }

    pub(super) fn take_off(self: &Arc<Self>, pending: PendingReply) -> (InFlight, ReplySlot) {
        let (sender, receiver) = oneshot::channel();
        *lock(&pending.reply) = Some(sender);
        let pending = Arc::new(pending);
        self.pending.insert(&pending);
        if self.is_pipe() {
            self.pending.begin_clock(&pending.activity);
        }
        (InFlight::new(Arc::clone(self), pending), receiver)
    }

    pub(super) async fn exchange(
        self: &Arc<Self>,
        pending: &Arc<PendingReply>,
        bytes: Bytes,
        trace: Option<&TraceContext>,
        reply: ReplySlot,
    ) -> Result<Message, LinkError> {
        match &self.wire {
            LegacyWire::Duplex(duplex) => {
                if !self.settings.fence.is_open() {
                    return Err(LinkError::Fenced);
                }
                let _busy = duplex.busy();
                let reply = async { reply.await.map_err(|_| duplex.lost())? };
                duplex.ask(bytes, &pending.departure, reply).await
            }
            // Its client looks at the fence, after each wait.
            LegacyWire::Http(http) => {
                let mut take = LegacyPostStream::new(self, pending);
                let caller = pending.caller.as_ref();
                let origin = CallOrigin { trace, caller };
                let outcome = tokio::select! {
                    biased;
                    direct = http.request(bytes, origin, &mut take) => direct,
                    Ok(elsewhere) = reply => elsewhere,
                };
                // Not retried, as this call may have run; the next call opens a new session.
                if outcome.is_err() && http.has_lost_session() && !self.is_closed() {
                    LABELED.upstream_lost.add(&self.settings.name, 1);
                    self.forget();
                }
                outcome
            }
        }
    }

    /// Resolves a pending request with a reply from a pipe or from a stream of another call. Late replies are ignored
    /// (SPEC C-10); if one begins a task, the task is cancelled.
    pub(super) fn deliver(self: &Arc<Self>, id: u64, message: Message) {
        let waiting = self.pending.take_reply(id);
        let is_ours = waiting.is_some();
        let left = match waiting {
            Some(waiting) => waiting.send(Ok(message)).err(),
            None => Some(Ok(message)),
        };
        let Some(Ok(late)) = left else { return };
        if self.pending.given_up.take(id).is_some() {
            self.cancel_begun(&late);
        } else if !is_ours && !self.pending.has_used(id) {
            self.suspect("it answered a request that we did not make");
        }
    }

    /// Cancels the task that a late reply begins.
    fn cancel_begun(self: &Arc<Self>, reply: &Message) {
        let task = reply.result_member("task").filter(|task| !is_over(task));
        let Some(id) = task.and_then(|task| json::member(task, "taskId")) else {
            return;
        };
        let (this, id) = (Arc::clone(self), id.to_owned());
        self.settings.tasks.spawn_service(async move {
            this.tell("tasks/cancel", "taskId", &id).await;
        });
    }
}
