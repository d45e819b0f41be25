//! The modern front: revision 2026-07-28, where every request stands alone. It shares its URLs with
//! the legacy front; the body of a message decides which of the two it is for.
//! Spec: SPEC §2; DESIGN §3.

mod envelope;
mod exchange;
mod link;
mod outlet;
mod refusal;

use std::sync::Arc;

use axum::body::Body;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};

pub(super) use envelope::{is_modern, names_modern};

use self::envelope::Envelope;
use self::exchange::Exchange;
use self::link::{ModernLink, Outcome};
use self::outlet::Outlet;
use self::refusal::Refusal;
use super::access_log::AccessRecord;
use super::exchange::{ended, error_word, log_fault, server_span};
use super::{Front, reply};
use crate::call::{Call, ClientCapabilities, Principal, Reply};
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::protocol::headers::MCP_PARAM_PREFIX;
use crate::protocol::{Kind, Message, Revision};
use crate::relay::Failure;
use crate::session::Session;
use crate::telemetry::metrics::GAUGES;
use crate::telemetry::names::error_type;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE, TraceContext};

impl Front {
    /// POST of one message of the modern era.
    pub(super) async fn post_modern(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: Arc<Principal>,
        parts: &Parts,
        message: Message,
        record: &AccessRecord,
    ) -> Response<Body> {
        match message.kind() {
            Kind::Request => {}
            // None is defined for this way, and whose call would one cancel? Spec: SPEC M-22.
            Kind::Notification => return reply::empty(StatusCode::ACCEPTED),
            Kind::Response => {
                record.outcome(error_type::BAD_REQUEST);
                return Refusal::not_a_request().response(message.id());
            }
        }
        let id = message.id().unwrap_or("null").to_owned();
        let envelope = match envelope::read(&parts.headers, &message) {
            Ok(envelope) => envelope,
            Err(refusal) => {
                record.outcome(error_type::BAD_REQUEST);
                return refusal.response(Some(&id));
            }
        };
        let begun = self
            .begin_modern(endpoint, principal, &parts.headers, message, &envelope)
            .and_then(|begun| self.run_modern(begun, record));
        match begun {
            Ok(exchange) => exchange.answer(self.settings.server.keep_alive).await,
            Err(fault) => {
                record.outcome(error_word(fault.kind));
                log_fault(&fault);
                refusal::fault_response(&fault, Some(&id))
            }
        }
    }

    fn begin_modern(
        &self,
        endpoint: &Arc<Endpoint>,
        principal: Arc<Principal>,
        headers: &HeaderMap,
        message: Message,
        envelope: &Envelope,
    ) -> Result<Begun, Fault> {
        let session = self
            .relay
            .visit(&principal, endpoint, &envelope.capabilities)?;
        let outlet = Outlet::new();
        let askable = may_ask(message.method().unwrap_or_default());
        let capabilities = if askable {
            session.capabilities.clone()
        } else {
            ClientCapabilities::none()
        };
        let link = ModernLink::new(capabilities, envelope, Arc::clone(&outlet));
        let trace =
            TraceContext::incoming(headers, message.meta(TRACEPARENT), message.meta(TRACESTATE));
        let call = Call {
            principal,
            endpoint: Arc::clone(endpoint),
            revision: Revision::V2026_07_28,
            link: Arc::clone(&link) as _,
            trace,
            cancel: link.cancelled().clone(),
            resumption: None,
            param_headers: param_headers(headers),
            message,
        };
        Ok(Begun {
            call,
            session,
            link,
            outlet,
        })
    }

    fn run_modern(
        self: &Arc<Self>,
        begun: Begun,
        record: &AccessRecord,
    ) -> Result<Exchange, Fault> {
        let Begun {
            call,
            session,
            link,
            outlet,
        } = begun;
        let id = call.message.id().unwrap_or("null").to_owned();
        let future = self.modern_call(call, session, Arc::clone(&link), record)?;
        Ok(Exchange::new(future, link, outlet, id))
    }

    /// The whole way of a call, as a future of its own.
    fn modern_call(
        self: &Arc<Self>,
        call: Call,
        session: Arc<Session>,
        link: Arc<ModernLink>,
        record: &AccessRecord,
    ) -> Result<BoxFuture<'static, Outcome>, Fault> {
        let running = session
            .begin_visit_call(self.settings.limits.calls_per_principal)
            .map_err(|refused| Fault::downstream(FaultKind::CallerBusy, refused.to_string()))?;
        let span = server_span(&call, None);
        record.trace(span.context().trace_id());
        let counted = GAUGES.calls_running.enter();
        let call = Call {
            trace: span.context().clone(),
            ..call
        };
        let (front, record) = (Arc::clone(self), record.clone());
        Ok(Box::pin(async move {
            let answer = if call.message.method() == Some("server/discover") {
                Ok(Reply::Result(front.relay.discover(&session).await))
            } else {
                front.relay.handle(&call, &session).await
            };
            let outcome = ended(&answer);
            if let Some(word) = outcome.error_type() {
                record.outcome(word);
            }
            if let Some(upstream) = link.upstream() {
                record.upstream(upstream);
            }
            span.finish(outcome);
            drop((record, counted, running));
            front.modern_outcome(&call, answer)
        }))
    }

    fn modern_outcome(&self, call: &Call, answer: Result<Reply, Failure>) -> Outcome {
        match answer {
            Ok(reply) => Outcome::Reply(refusal::status_of(&reply), reply),
            Err(Failure::Denied(denial)) => {
                let reply = Refusal::params(denial.public()).reply();
                if denial.missing_scopes.is_empty() {
                    return Outcome::Reply(StatusCode::OK, reply);
                }
                let denied = self.auth.insufficient_scope(
                    &call.endpoint,
                    &denial.missing_scopes,
                    &call.principal,
                );
                Outcome::Denied(denied, reply)
            }
            Err(Failure::Fault(fault)) if fault.kind == FaultKind::Cancelled => Outcome::Cancelled,
            Err(Failure::Fault(fault)) => {
                log_fault(&fault);
                let is_tool_call = call.message.method() == Some("tools/call");
                let (status, reply) = refusal::of_fault(&fault, is_tool_call);
                Outcome::Reply(status, reply)
            }
        }
    }
}

/// A call that is ready to run.
struct Begun {
    call: Call,
    session: Arc<Session>,
    link: Arc<ModernLink>,
    outlet: Arc<Outlet<Outcome>>,
}

/// Whether the answer to a request of this method may be a question. Spec: SPEC M-60.
fn may_ask(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// The headers that carry single arguments, as they came; nothing when there are none.
fn param_headers(headers: &HeaderMap) -> Option<Arc<HeaderMap>> {
    let of_params: HeaderMap = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with(MCP_PARAM_PREFIX))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    (!of_params.is_empty()).then(|| Arc::new(of_params))
}
