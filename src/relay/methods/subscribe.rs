//! `resources/subscribe` and `resources/unsubscribe`: the session keeps what it follows. Spec: SPEC C-50.

use crate::audit;
use crate::call::Reply;
use crate::outbound::{RelayFailure, invalid, outcome};
use crate::relay::forward::Forward;
use crate::session::PendingSubscription;

/// Subscriptions of one session at most.
const SUBSCRIPTIONS: usize = 1024;

/// # Errors
/// The session follows too many resources, the URI is too long to be kept, or the upstream did not answer.
pub(super) async fn handle(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    let begun = begin(forward)?;
    let opened = forward.open(forward.audit()).await?;
    let reply = forward.exchange(&opened).await;
    if let Some(begun) = begun
        && outcome(&reply) == audit::AuditOutcome::Ok
    {
        begun.granted();
        forward.session.record_changed();
    }
    forward.respond(opened, reply)
}

/// Notes what the session follows, or no longer does.
fn begin<'a>(forward: &Forward<'a>) -> Result<Option<PendingSubscription<'a>>, RelayFailure> {
    let (all, target) = (forward.session.subscriptions(), forward.target);
    let Some(uri) = target.name.as_deref() else {
        return Ok(None);
    };
    if forward.method() == "resources/unsubscribe" {
        all.remove(&target.upstream, uri);
        forward.session.record_changed();
        return Ok(None);
    }
    let begun = all.begin(&target.upstream, uri, SUBSCRIPTIONS);
    let refused = "this session follows too many resources, or the URI is too long";
    Ok(Some(begun.ok_or_else(|| invalid(refused))?))
}
