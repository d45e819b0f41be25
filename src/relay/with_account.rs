//! Requests to upstreams where callers have accounts of their own, if the caller has none yet.

use std::sync::Arc;

use super::consents::{Consent, ConsentEnd};
use super::forward::{Forward, ForwardParts};
use super::methods;
use crate::call::{Call, Reply};
use crate::fault::Fault;
use crate::outbound::{RelayFailure, UpstreamTarget, want_of_account};
use crate::session::Session;

/// Answers a call of the gateway's own tool that connects an account at the upstream.
pub(super) async fn connect(
    parts: &ForwardParts,
    call: &Call,
    session: &Arc<Session>,
    target: &UpstreamTarget,
) -> Result<Reply, RelayFailure> {
    let accounts = parts.links.upstreams.caller_accounts();
    let lacking = accounts.wants_more(&target.upstream, session.owner());
    let consent = Consent {
        parts,
        call,
        session,
        target,
        insufficient: lacking.map(|lacking| lacking.connection),
    };
    consent.connect().await
}

/// Answers a request to an upstream where callers have accounts of their own, after a look-up of its caller's.
pub(super) async fn answer(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    if let Some(reply) = account_asked(forward, None).await? {
        return Ok(reply);
    }
    match methods::handle(forward).await {
        Err(RelayFailure::Fault(fault)) => again(forward, fault).await,
        answered => answered,
    }
}

/// Answers a request that ended with `fault`. A request whose account the upstream refuses has not run: it is made once
/// more when its user has connected again.
pub(super) async fn again(forward: &Forward<'_>, fault: Fault) -> Result<Reply, RelayFailure> {
    let Some(failure) = want_of_account(&fault) else {
        return Err(fault.into());
    };
    match account_asked(forward, failure.insufficient()).await? {
        Some(reply) => Ok(reply),
        None => methods::handle(forward).await,
    }
}

/// Waits for an account of the caller, another one than that of the connection of number `insufficient`. The reply where
/// there is none.
async fn account_asked(
    forward: &Forward<'_>,
    insufficient: Option<i64>,
) -> Result<Option<Reply>, RelayFailure> {
    let consent = Consent {
        parts: forward.parts,
        call: forward.call,
        session: forward.session,
        target: forward.target,
        insufficient,
    };
    match consent.ask().await? {
        ConsentEnd::Replied(reply) => Ok(Some(reply)),
        ConsentEnd::Connected(connection) => {
            consent.note_use(connection);
            Ok(None)
        }
    }
}
