//! One structured line per request, written when the response ends, and one per message of a WebSocket. Fields:
//! `docs/logging.md`.
//!
//! A line belongs to the exchange and travels with the body of its answer, so that the line of an event stream is
//! written when the stream ends. Code that learns a fact about the request notes the fact in the line's record; facts
//! learned after the line is written are lost.

mod recorded_body;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::Body;
use http::{Method, Response};
use http_body::Body as _;
use tokio_util::sync::CancellationToken;
use tracing::Level;

use self::recorded_body::RecordedBody;
use crate::call::OwnerKey;
use crate::lock::lock;
use crate::runtime::poll_time;
use crate::telemetry::names::{ACCESS_TARGET, error_type};
use crate::telemetry::record::{self, RecordEvent};
use crate::telemetry::request_tag::{self, RequestTag};
use crate::telemetry::trace::TraceId;

/// Names that clients send are cut here.
const MAX_NAME_BYTES: usize = 128;

/// Outcome when the client disconnected before the end of the answer.
const CLIENT_GONE: &str = "client_gone";

/// Outcome when the gateway's own stop cut the answer off.
const STOPPED: &str = "stopped";

/// The access line of one exchange; dropped without an answer, the line notes `client_gone` or `stopped`.
#[derive(Debug)]
pub struct AccessLine {
    record: AccessRecord,
}

/// The fields of an access line, noted while the request is served; cheap to clone. `None` when access lines are not logged.
#[derive(Debug, Clone, Default)]
pub struct AccessRecord(Option<Arc<Mutex<LineFields>>>);

#[derive(Debug)]
struct LineFields {
    started: Instant,
    /// Cancelled when we stop.
    stop: Arc<CancellationToken>,
    /// The id that its caller may quote.
    tag: Option<RequestTag>,
    /// Absent for a message of a socket.
    method: Option<Method>,
    path: &'static str,
    client: Option<IpAddr>,
    written: bool,
    endpoint: Option<Arc<str>>,
    status: Option<u16>,
    rpc_method: Option<String>,
    name: Option<String>,
    rpc_id: Option<String>,
    principal: Option<[u8; 4]>,
    session: Option<u64>,
    upstream: Option<Arc<str>>,
    outcome: Option<&'static str>,
    trace: Option<TraceId>,
    bytes_in: u64,
    bytes_out: u64,
}

impl AccessLine {
    /// Begins the line of a request; `path` is the pattern of its route, never the client's text. An answer that breaks
    /// off after `stop` is cancelled counts as cut off by the gateway.
    #[must_use]
    pub fn begin(
        method: &Method,
        path: &'static str,
        client: Option<IpAddr>,
        stop: &Arc<CancellationToken>,
    ) -> Self {
        let fields = record::is_wanted()
            .then(|| LineFields::new(Some(method.clone()), path, client, Arc::clone(stop)));
        Self::of(fields)
    }

    /// Begins the access line of a message received on the socket that `socket`, the record of the upgrade request,
    /// opened. The line is written on drop: with `client_gone` or `stopped`, unless [`AccessRecord::answered`] was
    /// called. Begun [within](RequestTag::within) the message's own id.
    #[must_use]
    pub fn of_message(socket: &AccessRecord) -> Self {
        let fields = socket.0.as_ref().map(|socket| {
            let about = lock(socket);
            LineFields {
                endpoint: about.endpoint.clone(),
                principal: about.principal,
                upstream: about.upstream.clone(),
                ..LineFields::new(None, about.path, about.client, Arc::clone(&about.stop))
            }
        });
        Self::of(fields)
    }

    fn of(fields: Option<LineFields>) -> Self {
        let record = AccessRecord(fields.map(|fields| Arc::new(Mutex::new(fields))));
        Self { record }
    }

    /// The record of this line.
    #[must_use]
    pub fn record(&self) -> &AccessRecord {
        &self.record
    }

    /// Hands the line to the answer: it is written when the body has ended or is dropped.
    #[must_use]
    pub fn attach(mut self, response: Response<Body>) -> Response<Body> {
        let record = std::mem::take(&mut self.record);
        if record.0.is_none() {
            return response;
        }
        let status = response.status().as_u16();
        let size = response.body().size_hint().exact();
        record.note(|fields| {
            fields.status = Some(status);
            fields.bytes_out = size.unwrap_or(0);
        });
        if size.is_some() {
            // A body of known size is complete: no need to watch its end.
            record.write();
            return response;
        }
        response.map(|body| {
            Body::new(RecordedBody {
                body,
                record,
                ended: false,
            })
        })
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        self.record.gone();
        self.record.write();
    }
}

impl AccessRecord {
    /// Whether a line will be written; if not, costly facts need not be computed.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// The addressed endpoint.
    pub fn endpoint(&self, name: &Arc<str>) {
        self.note(|fields| fields.endpoint = Some(Arc::clone(name)));
    }

    /// Method, id and name (tool, prompt or resource) of the message, or of the first one of an
    /// array; a response has no method.
    pub fn message(&self, rpc_method: Option<&str>, rpc_id: Option<&str>, name: Option<&str>) {
        self.note(|fields| {
            if fields.rpc_method.is_none() && fields.rpc_id.is_none() {
                fields.rpc_method = rpc_method.map(bounded);
                fields.rpc_id = rpc_id.map(bounded);
                fields.name = name.map(bounded);
            }
        });
    }

    /// The principal as a short digest: lines of one principal can be grouped, without revealing more.
    pub fn principal(&self, owner: OwnerKey) {
        self.note(|fields| fields.principal = owner.bytes().first_chunk().copied());
    }

    /// The tag of the session, never its id.
    pub fn session(&self, tag: u64) {
        self.note(|fields| fields.session = Some(tag));
    }

    /// The upstream that answered.
    pub fn upstream(&self, name: &Arc<str>) {
        self.note(|fields| fields.upstream = Some(Arc::clone(name)));
    }

    /// The outcome in one word, where the status does not suffice; the first word counts.
    pub fn outcome(&self, word: &'static str) {
        self.note(|fields| {
            let cut_off = [error_type::CANCELLED, CLIENT_GONE].contains(&word);
            let ours = cut_off && fields.stop.is_cancelled();
            fields
                .outcome
                .get_or_insert(if ours { STOPPED } else { word });
        });
    }

    /// The gateway stops before the call is over.
    pub fn stopped(&self) {
        self.note(|fields| {
            fields.outcome.get_or_insert(STOPPED);
        });
    }

    /// Marks a socket message as fully answered; for an HTTP request the status tells that.
    pub fn answered(&self) {
        self.note(|fields| {
            if fields.method.is_none() {
                fields.outcome.get_or_insert("ok");
            }
        });
    }

    /// Bytes of one more message of the answer.
    pub fn sent(&self, bytes: usize) {
        self.note(|fields| fields.bytes_out += bytes as u64);
    }

    /// Whether the line is another replica's, to which the request was passed on.
    pub fn forwarded(&self, is_forwarded: bool) {
        self.note(|fields| fields.written = is_forwarded);
    }

    /// The trace that the request belongs to.
    pub fn trace(&self, trace: Option<TraceId>) {
        self.note(|fields| fields.trace = trace);
    }

    /// Bytes of the request's body.
    pub fn received(&self, bytes: usize) {
        self.note(|fields| fields.bytes_in = bytes as u64);
    }

    /// The client disconnected before the end of the answer.
    fn gone(&self) {
        self.outcome(CLIENT_GONE);
    }

    fn note(&self, change: impl FnOnce(&mut LineFields)) {
        if let Some(fields) = &self.0 {
            change(&mut lock(fields));
        }
    }

    /// Writes the line, once.
    fn write(&self) {
        self.note(|fields| {
            if !std::mem::replace(&mut fields.written, true) {
                record::write(ACCESS_TARGET, Level::INFO, fields);
            }
        });
    }
}

impl LineFields {
    fn new(
        method: Option<Method>,
        path: &'static str,
        client: Option<IpAddr>,
        stop: Arc<CancellationToken>,
    ) -> Self {
        Self {
            started: poll_time::now().into_std(),
            stop,
            tag: request_tag::current(),
            method,
            path,
            client,
            written: false,
            endpoint: None,
            status: None,
            rpc_method: None,
            name: None,
            rpc_id: None,
            principal: None,
            session: None,
            upstream: None,
            outcome: None,
            trace: None,
            bytes_in: 0,
            bytes_out: 0,
        }
    }
}

impl RecordEvent for LineFields {
    fn fields(&self, to: &mut dyn record::RecordFields) {
        if let Some(status) = self.status {
            to.number("status", status.into());
        }
        if let Some(method) = &self.method {
            to.word("method", known(method));
        }
        to.word("path", self.path);
        if let Some(client) = self.client {
            to.address("client", client);
        }
        if let Some(endpoint) = &self.endpoint {
            to.word("endpoint", endpoint);
        }
        let chosen = [
            ("rpc_method", &self.rpc_method),
            ("rpc_id", &self.rpc_id),
            ("name", &self.name),
        ];
        for (name, value) in chosen {
            if let Some(value) = value {
                to.text(name, value);
            }
        }
        if let Some(digest) = self.principal {
            to.hex("principal", u32::from_be_bytes(digest).into(), 8);
        }
        if let Some(tag) = self.session {
            to.hex("session", tag, 16);
        }
        if let Some(upstream) = &self.upstream {
            to.word("upstream", upstream);
        }
        let by_status = if self.status.is_some_and(|status| status < 400) {
            "ok"
        } else {
            "refused"
        };
        to.word("outcome", self.outcome.unwrap_or(by_status));
        if let Some(tag) = &self.tag {
            to.word("request_id", tag.as_str());
        }
        if let Some(trace) = &self.trace {
            to.trace(trace);
        }
        to.number("bytes_in", self.bytes_in);
        to.number("bytes_out", self.bytes_out);
        let micros = u64::try_from(self.started.elapsed().as_micros());
        to.number("duration_us", micros.unwrap_or(u64::MAX));
    }
}

/// The method itself if HTTP defines it: other words of clients may be long, and may be secrets.
fn known(method: &Method) -> &str {
    const KNOWN: [Method; 9] = [
        Method::POST,
        Method::GET,
        Method::DELETE,
        Method::OPTIONS,
        Method::HEAD,
        Method::PUT,
        Method::PATCH,
        Method::CONNECT,
        Method::TRACE,
    ];
    if KNOWN.contains(method) {
        method.as_str()
    } else {
        "_OTHER"
    }
}

fn bounded(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_NAME_BYTES))
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests;
