//! Why a call could not be answered, as the outside may learn it.
//!
//! Modules raise their own narrow errors; at the edge each becomes one [`Fault`], which
//! `downstream::reply` turns into an HTTP status and a JSON-RPC error.

pub mod told;

use std::borrow::Cow;
use std::time::Duration;

/// Who has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultSide {
    /// The MCP client.
    Downstream,
    /// The MCP server.
    Upstream,
    /// Us, or our operator.
    Gateway,
}

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryHint {
    /// It cannot.
    Never,
    /// The same request may be sent again.
    Same,
    /// The same request, after this long.
    After(Duration),
}

/// What went wrong; picks status and JSON-RPC code, per era.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Not JSON, or ambiguous JSON.
    Parse,
    /// JSON, but not a valid message here.
    InvalidRequest,
    /// Unknown method, or not available to this session.
    UnknownMethod,
    /// Invalid parameters: unknown name, bad cursor.
    InvalidParams,
    /// Headers and body disagree.
    HeaderMismatch,
    /// No such resource.
    ResourceNotFound,
    /// The revision is not served.
    UnsupportedVersion,
    /// No such session, for this caller.
    UnknownSession,
    /// A session id is missing.
    MissingSession,
    /// The caller's own cap is reached.
    CallerBusy,
    /// A cap of the gateway is reached, or it drains.
    GatewayBusy,
    /// An upstream cannot be reached or started.
    UpstreamUnavailable,
    /// An upstream broke off; whether the call ran is unknown.
    UpstreamLost,
    /// An upstream did not answer in time.
    UpstreamTimeout,
    /// An upstream sent something no MCP server may send.
    UpstreamInvalid,
    /// An upstream answered, and there was no room for its reply: the call ran.
    ReplyDropped,
    /// The caller cannot be asked what the upstream wants to know.
    CannotAsk,
    /// The call was cancelled.
    Cancelled,
    /// Our own fault.
    Internal,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One failure: a public text for the caller, a private source for the log.
#[derive(Debug, thiserror::Error)]
#[error("{public}")]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Who has to act.
    pub side: FaultSide,
    /// Whether to try again.
    pub retry: RetryHint,
    /// Text for the caller: the mistake and its remedy. Contains no secret and no internal address.
    pub public: Cow<'static, str>,
    /// For `error.data`, JSON text.
    pub data: Option<String>,
    #[source]
    source: Option<BoxError>,
}

impl Fault {
    /// A fault of `kind` on `side` that is not worth retrying.
    pub fn new(kind: FaultKind, side: FaultSide, public: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            side,
            retry: RetryHint::Never,
            public: public.into(),
            data: None,
            source: None,
        }
    }

    /// A fault of the caller: the request cannot be served.
    pub fn downstream(kind: FaultKind, public: impl Into<Cow<'static, str>>) -> Self {
        Self::new(kind, FaultSide::Downstream, public)
    }

    /// An upstream failed.
    pub fn upstream(kind: FaultKind, public: impl Into<Cow<'static, str>>) -> Self {
        Self::new(kind, FaultSide::Upstream, public)
    }

    /// The replica that ran `what`, a call or a task, was lost.
    #[must_use]
    pub fn outcome_unknown(what: &str) -> Self {
        let text = format!(
            "the replica that ran this {what} was lost: its outcome is unknown, and it may have had an effect"
        );
        Self::new(FaultKind::UpstreamLost, FaultSide::Gateway, text)
    }

    /// The gateway stops while a call still runs.
    #[must_use]
    pub fn cut_off() -> Self {
        let text = "the gateway stopped before the call was over: its outcome is unknown, and it may have had an effect";
        Self::new(FaultKind::UpstreamLost, FaultSide::Gateway, text)
    }

    /// A call was cancelled, as its client left and too many calls of such clients run on.
    #[must_use]
    pub fn left_alone() -> Self {
        let text = "the call was cancelled when its stream broke off, as too many calls run on without a client: its outcome is unknown, and it may have had an effect";
        Self::new(FaultKind::UpstreamLost, FaultSide::Gateway, text)
    }

    /// A call was ended although its client waits for it: its connection to the upstream was closed, as when the account
    /// of its user changes.
    #[must_use]
    pub fn connection_closed() -> Self {
        let text = "the connection to the upstream was closed before the call was over, as happens when the account of its user changes: its outcome is unknown";
        Self::new(FaultKind::UpstreamLost, FaultSide::Gateway, text)
    }

    /// We failed; `source` goes to the log only.
    pub fn internal(source: impl Into<BoxError>) -> Self {
        let mut fault = Self::new(FaultKind::Internal, FaultSide::Gateway, "internal error");
        fault.source = Some(source.into());
        fault
    }

    /// The same for one more caller, without the cause, which is logged once.
    #[must_use]
    pub fn shared(&self) -> Self {
        Self {
            public: self.public.clone(),
            data: self.data.clone(),
            source: None,
            ..*self
        }
    }

    /// The same fault with a hint when to try again.
    #[must_use]
    pub fn retry(mut self, retry: RetryHint) -> Self {
        self.retry = retry;
        self
    }

    /// The same fault with `error.data`.
    #[must_use]
    pub fn with_data(mut self, data: String) -> Self {
        self.data = Some(data);
        self
    }

    /// The same fault with a cause for the log.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }
}
