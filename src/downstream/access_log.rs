//! One structured line per request, written when its answer has ended. Fields: `docs/logging.md`.
//!
//! A record is filled as the request becomes known and travels with the body of its answer, so
//! that the line of an event stream is written when the stream ends, and says how.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Response};
use http_body::{Body as _, Frame, SizeHint};

use crate::call::OwnerKey;
use crate::telemetry::names::ACCESS_TARGET;
use crate::telemetry::trace::TraceId;

/// Names that clients send are cut here.
const MAX_NAME_BYTES: usize = 128;

/// What is known of one request. Dropping it writes the line.
#[derive(Debug)]
pub struct AccessRecord {
    fields: Option<Box<Fields>>,
}

#[derive(Debug)]
struct Fields {
    started: Instant,
    method: Method,
    path: &'static str,
    client: IpAddr,
    endpoint: Option<String>,
    status: u16,
    rpc_method: Option<String>,
    name: Option<String>,
    rpc_id: Option<String>,
    principal: Option<[u8; 4]>,
    session: Option<String>,
    upstream: Option<String>,
    outcome: &'static str,
    trace: Option<TraceId>,
    bytes_in: u64,
    bytes_out: u64,
}

impl AccessRecord {
    /// Begins the record of a request; `path` is the pattern of its route, never what was sent.
    /// When nobody reads access lines, the record stays empty and costs nothing.
    #[must_use]
    pub fn begin(method: &Method, path: &'static str, client: IpAddr) -> Self {
        let fields = tracing::enabled!(target: ACCESS_TARGET, tracing::Level::INFO).then(|| {
            Box::new(Fields {
                started: Instant::now(),
                method: method.clone(),
                path,
                client,
                endpoint: None,
                status: 0,
                rpc_method: None,
                name: None,
                rpc_id: None,
                principal: None,
                session: None,
                upstream: None,
                outcome: "ok",
                trace: None,
                bytes_in: 0,
                bytes_out: 0,
            })
        });
        Self { fields }
    }

    /// Whether a line will be written.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.fields.is_some()
    }

    /// The endpoint that was addressed.
    pub fn endpoint(&mut self, name: &str) {
        self.set(|fields| fields.endpoint = Some(bounded(name)));
    }

    /// The JSON-RPC method and id of the message, or of the first one of an array.
    pub fn message(&mut self, rpc_method: &str, rpc_id: Option<&str>) {
        self.set(|fields| {
            fields.rpc_method = Some(bounded(rpc_method));
            fields.rpc_id = rpc_id.map(bounded);
        });
    }

    /// The tool, prompt or resource asked for.
    pub fn name(&mut self, name: &str) {
        self.set(|fields| fields.name = Some(bounded(name)));
    }

    /// Who asked, as a short digest: lines of one principal can be put together, and say no more.
    pub fn principal(&mut self, owner: OwnerKey) {
        let digest = owner.bytes().first_chunk().copied();
        self.set(|fields| fields.principal = digest);
    }

    /// The tag of the session, never its id.
    pub fn session(&mut self, tag: &str) {
        self.set(|fields| fields.session = Some(bounded(tag)));
    }

    /// The upstream that answered.
    pub fn upstream(&mut self, name: &str) {
        self.set(|fields| fields.upstream = Some(bounded(name)));
    }

    /// How it ended, in one word: `ok`, `tool_error`, a JSON-RPC code, a reason for a refusal.
    pub fn outcome(&mut self, word: &'static str) {
        self.set(|fields| fields.outcome = word);
    }

    /// The trace that the request belongs to.
    pub fn trace(&mut self, trace: Option<TraceId>) {
        self.set(|fields| fields.trace = trace);
    }

    /// Bytes of the request's body.
    pub fn received(&mut self, bytes: usize) {
        self.set(|fields| fields.bytes_in = bytes as u64);
    }

    /// Hands the record to the answer: the line is written when its body has ended or is dropped.
    #[must_use]
    pub fn attach(mut self, response: Response<Body>) -> Response<Body> {
        let Some(fields) = &mut self.fields else {
            return response;
        };
        fields.status = response.status().as_u16();
        if let Some(size) = response.body().size_hint().exact() {
            // A body that is there already needs no watching.
            fields.bytes_out = size;
            return response;
        }
        response.map(|body| {
            Body::new(Recorded {
                body,
                record: self,
                ended: false,
            })
        })
    }

    fn set(&mut self, change: impl FnOnce(&mut Fields)) {
        if let Some(fields) = &mut self.fields {
            change(fields);
        }
    }
}

fn bounded(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_NAME_BYTES))
        .unwrap_or_default()
        .to_owned()
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        let Some(fields) = self.fields.take() else {
            return;
        };
        let micros = u64::try_from(fields.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let principal = fields.principal.map(u32::from_be_bytes);
        // Fields that are `None` are left out of the line.
        tracing::info!(
            target: ACCESS_TARGET,
            status = fields.status,
            method = fields.method.as_str(),
            path = fields.path,
            client = %fields.client,
            endpoint = fields.endpoint,
            rpc_method = fields.rpc_method,
            rpc_id = fields.rpc_id,
            name = fields.name,
            principal = principal.map(|digest| format!("{digest:08x}")),
            session = fields.session,
            upstream = fields.upstream,
            outcome = fields.outcome,
            trace_id = fields.trace.as_ref().map(TraceId::as_str),
            bytes_in = fields.bytes_in,
            bytes_out = fields.bytes_out,
            duration_us = micros,
        );
    }
}

/// A body that is counted until its end.
struct Recorded {
    body: Body,
    record: AccessRecord,
    ended: bool,
}

impl http_body::Body for Recorded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                let sent = frame.data_ref().map_or(0, Bytes::len) as u64;
                this.record.set(|fields| fields.bytes_out += sent);
            }
            Some(Err(_)) => this.record.outcome("broken"),
            None => this.ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.ended && !self.body.is_end_stream() {
            self.record.outcome("client_gone");
        }
    }
}

#[cfg(test)]
mod tests;
