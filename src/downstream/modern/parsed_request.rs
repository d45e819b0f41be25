//! `ParsedRequest`: a request whose envelope was read, and why one did not become an exchange.

use std::sync::Arc;
use std::time::Duration;

use http::Version;
use http::request::Parts;

use super::envelope::RequestEnvelope;
use super::parking::SharedConnection;
use super::refusal::{self, RequestRefusal};
use super::request_state::RequestBinding;
use crate::budget::ReplyShare;
use crate::call::{Principal, Reply};
use crate::downstream::call_telemetry::error_word;
use crate::downstream::listener::ConnectionPermit;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::protocol::Message;
use crate::session::ImplicitHome;
use crate::store::quotas::QuotaClaim;
use crate::telemetry::names::error_type;

/// Why a request did not become an exchange.
pub(super) enum EarlyEnd {
    Refused(RequestRefusal),
    Failed(Fault),
}

impl EarlyEnd {
    /// Why, in one word.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Refused(_) => error_type::BAD_REQUEST,
            Self::Failed(fault) => error_word(fault.kind),
        }
    }

    /// The reply, where there is no HTTP status.
    pub(super) fn reply(&self) -> Reply {
        match self {
            Self::Refused(refusal) => refusal.reply(),
            Self::Failed(fault) => refusal::of_fault(fault).1,
        }
    }
}

/// A request whose envelope was read.
pub(super) struct ParsedRequest {
    pub(super) principal: Arc<Principal>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) message: Message,
    pub(super) envelope: RequestEnvelope,
    /// How long it may wait for its place.
    pub(super) patience: Duration,
    /// The caller's share of the reply budget, from which replies are reserved.
    pub(super) share: Option<ReplyShare>,
    /// The HTTP/2 connection shared with other exchanges.
    pub(super) connection: SharedConnection,
    /// Its implicit session, where it needs the only one of all replicas.
    pub(super) home: Option<ImplicitHome>,
    /// The caller's claim for that session, until it is opened or found.
    pub(super) claim: Option<QuotaClaim>,
}

pub(super) fn shared_connection(parts: &Parts) -> SharedConnection {
    let place = parts.extensions.get::<ConnectionPermit>();
    let shared = place.filter(|_| parts.version == Version::HTTP_2);
    shared.map(ConnectionPermit::id)
}

impl ParsedRequest {
    pub(super) fn method(&self) -> &str {
        self.message.method().unwrap_or_default()
    }

    pub(super) fn id(&self) -> String {
        self.message.id().unwrap_or("null").to_owned()
    }

    pub(super) fn request_binding(&self) -> RequestBinding {
        RequestBinding::new(&self.principal, &self.endpoint, &self.message)
    }
}
