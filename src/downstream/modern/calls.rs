//! Modern calls, over any transport: begun, or taken up where an earlier request left them, and run to their outcome.
//! Spec: SPEC §2; DESIGN §3.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::envelope;
use super::exchange::{CallFuture, ModernExchange};
use super::link::{
    ExchangeOutcome, ExchangePreferences, InputContext, ModernClientLink, ParkedModernCalls,
};
use super::parsed_request::{EarlyEnd, ParsedRequest};
use super::refusal::{self, RequestRefusal};
use super::response_queue::ResponseQueue;
use super::retry::{self, RetryContinuation};
use crate::auth::Authenticator;
use crate::call::{Call, ClientCapabilities, Reply, ResumedInput};
use crate::downstream::access_log::AccessRecord;
use crate::downstream::admission::{AdmissionControl, MessageDue};
use crate::downstream::busy::draining;
use crate::downstream::call_telemetry::{ended, error_word, failure_word, log_fault, server_span};
use crate::downstream::cut_off::CutOff;
use crate::fault::{Fault, FaultKind};
use crate::protocol::{Message, Revision, json, methods};
use crate::relay::{Relay, RelayFailure};
use crate::session::{ImplicitSessionCall, Session};
use crate::telemetry::metrics::GAUGES;
use crate::telemetry::names::error_type;
use crate::telemetry::request_tag;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE, TraceContext};
use crate::translate::effective_capabilities::without_questions;

/// Begins the calls of modern clients, and runs them.
#[derive(Debug)]
pub(in crate::downstream) struct ModernCalls {
    pub(in crate::downstream) admission: Arc<AdmissionControl>,
    pub(in crate::downstream) relay: Arc<Relay>,
    pub(in crate::downstream) auth: Arc<Authenticator>,
    pub(in crate::downstream) parking: Arc<ParkedModernCalls>,
    /// Cancelled when the drain is over: calls that still run end with an error.
    pub(in crate::downstream) cut_off: CutOff,
}

impl ModernCalls {
    /// Waits for the rate limit of a request; the time is deducted from `patience`, the wait for a permit.
    pub(super) async fn pay(
        &self,
        asked: &mut ParsedRequest,
        due: MessageDue,
    ) -> Result<(), Fault> {
        let began = Instant::now();
        self.admission.pay(asked.principal.owner(), due).await?;
        asked.patience = asked.patience.saturating_sub(began.elapsed());
        Ok(())
    }

    /// Begins a call, or goes on with one; `headers` are none where requests have none.
    pub(super) async fn begin_exchange(
        self: &Arc<Self>,
        mut asked: ParsedRequest,
        headers: Option<&HeaderMap>,
        record: &AccessRecord,
    ) -> Result<ModernExchange, EarlyEnd> {
        let begun = match self.retry_of(&asked) {
            Ok(RetryContinuation::Parked {
                link,
                round,
                answers,
            }) => {
                let retry = (round, answers);
                // The call has its session.
                drop(asked.claim.take());
                let resumed = self.resume(asked, link, retry, record);
                Ok(Box::pin(resumed).await)
            }
            Ok(RetryContinuation::Upstream(resumption)) => {
                self.begin(asked, headers, Some(resumption), record)
            }
            Ok(RetryContinuation::None) => self.begin(asked, headers, None, record),
            Err(refusal) => {
                record.outcome(error_type::BAD_REQUEST);
                return Err(EarlyEnd::Refused(refusal));
            }
        };
        begun.map_err(|fault| {
            record.outcome(error_word(fault.kind));
            log_fault(&fault);
            EarlyEnd::Failed(fault)
        })
    }

    /// The continuation in a request; `RetryContinuation::None` for methods that never ask a question.
    fn retry_of(&self, asked: &ParsedRequest) -> Result<RetryContinuation, RequestRefusal> {
        if !methods::may_ask(asked.method()) {
            return Ok(RetryContinuation::None);
        }
        retry::read(&self.parking, || asked.request_binding(), &asked.message)
    }

    /// Resumes a parked call, if its caller is still authorized.
    async fn resume(
        &self,
        asked: ParsedRequest,
        link: Arc<ModernClientLink>,
        (round, answers): (u16, Vec<(String, Bytes)>),
        record: &AccessRecord,
    ) -> ModernExchange {
        let response_queue = ResponseQueue::new();
        let session = Arc::clone(&link.context.session);
        let wants = ExchangePreferences::new(
            self.relay
                .opener
                .effective(&asked.envelope.capabilities, &asked.endpoint),
            &asked.envelope,
        );
        let call = Call {
            principal: asked.principal,
            endpoint: asked.endpoint,
            revision: Revision::V2026_07_28,
            message: asked.message,
            link: Arc::clone(&link) as _,
            trace: link.trace(),
            cancel: link.cancelled().clone(),
            resumption: None,
            param_headers: asked.envelope.param_headers,
        };
        record.trace(call.trace.trace_id());
        if let Some(upstream) = link.upstream() {
            record.upstream(upstream);
        }
        if let Err(failure) = self.relay.authorize(&call, &session).await {
            record.outcome(failure_word(&failure));
            // The call stays parked: an authorized retry can still answer it.
            response_queue.end(self.outcome(&call, &session, Err(failure)));
        } else if !link.resume(round, wants, answers, &response_queue, record) {
            record.outcome(error_type::BAD_REQUEST);
            response_queue.end(ExchangeOutcome::Reply(
                StatusCode::OK,
                retry::stale().reply(),
            ));
        } else if let Some(upstream) = link.upstream() {
            self.relay.raise_level_of_parked(call, session, upstream);
        }
        ModernExchange::new(None, link, response_queue)
    }

    /// Begins a call; at a cap on parked ones its client cannot be asked, unless its questions may wait for a place
    /// (BRIDGING §3.1 step 12).
    fn begin(
        self: &Arc<Self>,
        asked: ParsedRequest,
        headers: Option<&HeaderMap>,
        resumption: Option<Arc<ResumedInput>>,
        record: &AccessRecord,
    ) -> Result<ModernExchange, Fault> {
        let askable = methods::may_ask(asked.method());
        let owner = asked.principal.owner();
        let declared = asked.envelope.capabilities.as_str();
        let may_wait = || {
            let mut upstreams = asked.endpoint.upstreams.iter();
            upstreams.any(|upstream| self.relay.ask_wait(upstream) != Some(Duration::ZERO))
        };
        let declared = if !askable || self.parking.has_room(owner, asked.connection, may_wait) {
            Cow::Borrowed(declared)
        } else {
            Cow::Owned(without_questions(declared))
        };
        // Another declaration is that of another implicit session, which is this replica's alone.
        let home = asked.home.filter(|_| matches!(declared, Cow::Borrowed(_)));
        let session = self.relay.opener.implicit_session(
            &asked.principal,
            &asked.endpoint,
            (&declared, home),
            &asked.message,
            asked.claim.as_ref(),
        )?;
        // A task asks in its results, never in the middle of a request.
        let can_be_asked = if askable || envelope::is_task(asked.method()) {
            session.capabilities.clone()
        } else {
            ClientCapabilities::none()
        };
        let response_queue = ResponseQueue::new();
        let context = InputContext {
            parking: Arc::clone(&self.parking),
            relay: Arc::clone(&self.relay),
            session: Arc::clone(&session),
            request_binding: asked.request_binding(),
            owner,
            connection: asked.connection,
            share: asked.share,
        };
        let wants = ExchangePreferences::new(can_be_asked, &asked.envelope);
        let link =
            ModernClientLink::new(context, wants, Arc::clone(&response_queue), record.clone());
        let message = match retry::without_answers(&asked.message).filter(|_| askable) {
            Some(bytes) => Message::parse(bytes, json::MAX_DEPTH).map_err(Fault::internal)?,
            None => asked.message,
        };
        let trace =
            TraceContext::incoming(headers, message.meta(TRACEPARENT), message.meta(TRACESTATE));
        let call = Call {
            principal: asked.principal,
            endpoint: asked.endpoint,
            revision: Revision::V2026_07_28,
            link: Arc::clone(&link) as _,
            trace,
            cancel: link.cancelled().clone(),
            resumption,
            param_headers: asked.envelope.param_headers,
            message,
        };
        let future = self.run(call, session, Arc::clone(&link), record, asked.patience)?;
        Ok(ModernExchange::new(Some(future), link, response_queue))
    }

    /// The whole way of a call, as a future of its own.
    fn run(
        self: &Arc<Self>,
        mut call: Call,
        session: Arc<Session>,
        link: Arc<ModernClientLink>,
        record: &AccessRecord,
        patience: Duration,
    ) -> Result<CallFuture, Fault> {
        let implicit_call = ImplicitSessionCall::begin(&session);
        // It was opened just now, and the hand-over was faster.
        if session.may_be_given_up() {
            return Err(draining());
        }
        let entry = self.admission.enter_implicit_session(&session, patience)?;
        let span = server_span(&call, None);
        record.trace(span.context().trace_id());
        link.traced(span.context());
        call.trace = span.context().clone();
        let calls = Arc::clone(self);
        Ok(request_tag::keep(Box::pin(async move {
            let answer = async {
                let place = calls.admission.seat(entry, &call.cancel).await;
                let place = place.map_err(RelayFailure::Fault)?;
                let counted = GAUGES.calls_running.enter();
                let answer = if call.message.method() == Some("server/discover") {
                    Ok(Reply::Result(calls.relay.opener.discover(&session).await))
                } else {
                    calls.relay.handle(&call, &session).await
                };
                drop((counted, place));
                answer
            };
            let answer = calls.until_cut_off(answer, &link).await;
            let outcome = ended(&answer, is_tool_call(&call), refusal::code_of);
            let record = link.record();
            if let Some(word) = outcome.error_type() {
                record.outcome(word);
            }
            if let Some(upstream) = link.upstream() {
                record.upstream(upstream);
            }
            span.finish(outcome);
            drop(implicit_call);
            calls.outcome(&call, &session, answer)
        })))
    }

    /// The outcome of a call, which is unknown where the call outlasts the drain.
    async fn until_cut_off(
        &self,
        answer: impl Future<Output = Result<Reply, RelayFailure>>,
        link: &ModernClientLink,
    ) -> Result<Reply, RelayFailure> {
        let mut answer = pin!(answer);
        let cut_off = self.cut_off.of(std::ptr::from_ref(link).addr());
        tokio::select! {
            biased;
            answer = answer.as_mut() => return answer,
            () = cut_off.cancelled() => link.cancelled().cancel(),
        }
        match answer.await {
            Err(RelayFailure::Fault(fault)) if fault.kind == FaultKind::Cancelled => {
                link.record().stopped();
                Err(RelayFailure::Fault(Fault::cut_off()))
            }
            answer => answer,
        }
    }

    fn outcome(
        &self,
        call: &Call,
        session: &Session,
        answer: Result<Reply, RelayFailure>,
    ) -> ExchangeOutcome {
        match answer {
            Ok(reply) => ExchangeOutcome::Reply(refusal::status_of(&reply), reply),
            Err(RelayFailure::Denied(denial)) => {
                let reply = RequestRefusal::params(denial.public()).reply();
                if denial.missing_scopes.is_empty() {
                    return ExchangeOutcome::Reply(StatusCode::OK, reply);
                }
                let denied = self.auth.insufficient_scope(
                    &call.endpoint,
                    &denial.missing_scopes,
                    &call.principal,
                );
                ExchangeOutcome::Denied(denied, reply)
            }
            Err(RelayFailure::Fault(fault)) if fault.kind == FaultKind::Cancelled => {
                ExchangeOutcome::Cancelled
            }
            Err(RelayFailure::Fault(fault)) => {
                log_fault(&fault);
                let (status, reply) = if is_tool_call(call) {
                    refusal::of_tool_fault(&fault, || self.relay.opener.server_info(session))
                } else {
                    refusal::of_fault(&fault)
                };
                ExchangeOutcome::Reply(status, reply)
            }
        }
    }
}

fn is_tool_call(call: &Call) -> bool {
    call.message.method() == Some("tools/call")
}
