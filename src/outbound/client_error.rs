//! Faults for what a client did wrong, and how its cursor is read.

use std::borrow::Cow;
use std::time::Duration;

use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::protocol::Message;
use crate::session::SessionRefused;
use crate::telemetry::metrics::COUNTERS;

/// Cursor sent by some clients for the first page; many servers refuse `null`.
pub(super) const NO_CURSOR: &str = "null";

/// The cursor that a client names.
pub(crate) fn given_cursor(message: &Message) -> Option<&str> {
    message.param("cursor").filter(|given| *given != NO_CURSOR)
}

/// Parameters that cannot be used; `text` is for the client.
pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Fault {
    Fault::downstream(FaultKind::InvalidParams, text)
}

/// A parameter of a request, which has to be text.
///
/// # Errors
/// The parameter is absent or no string.
pub(crate) fn required_text<'m>(message: &'m Message, param: &str) -> Result<Cow<'m, str>, Fault> {
    let given = message.param_str(param);
    given.ok_or_else(|| invalid(format!("params.{param} must be a string")))
}

/// A method that is unknown where the request went.
pub(crate) fn unknown_method(method: &str) -> Fault {
    let method: String = method.chars().take(64).collect();
    Fault::downstream(
        FaultKind::UnknownMethod,
        format!("unknown method {method:?}"),
    )
}

/// There is no room for another session; counted.
pub(crate) fn refused(refused: SessionRefused) -> Fault {
    COUNTERS.sessions_refused.add(1);
    let (kind, side) = match refused {
        SessionRefused::Principal => (FaultKind::CallerBusy, FaultSide::Downstream),
        SessionRefused::Total => (FaultKind::GatewayBusy, FaultSide::Gateway),
    };
    Fault::new(kind, side, refused.to_string()).retry(RetryHint::After(Duration::from_secs(5)))
}
