//! The client link of the gateway's own requests: no client stands behind them.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::call::{Call, ClientCapabilities, DownstreamLink, Principal};
use crate::protocol::Message;
use crate::session::Session;
use crate::telemetry::trace::TraceContext;

/// A request of our own in a session of `principal`, declaring `capabilities`.
pub(crate) fn own_call(
    principal: &Arc<Principal>,
    session: &Session,
    message: Message,
    capabilities: ClientCapabilities,
) -> Call {
    Call {
        principal: Arc::clone(principal),
        endpoint: Arc::clone(&session.endpoint),
        revision: session.revision,
        message,
        link: InternalCall::declaring(capabilities),
        trace: TraceContext::default(),
        cancel: CancellationToken::new(),
        resumption: None,
        param_headers: None,
    }
}

/// Hears no notice and answers no question.
#[derive(Debug)]
pub(crate) struct InternalCall(ClientCapabilities);

impl InternalCall {
    /// A link that declares `capabilities`; they limit the kinds of reply (tasks, for example) that may arrive.
    pub(crate) fn declaring(capabilities: ClientCapabilities) -> Arc<dyn DownstreamLink> {
        Arc::new(Self(capabilities))
    }
}

impl DownstreamLink for InternalCall {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.0
    }
}
