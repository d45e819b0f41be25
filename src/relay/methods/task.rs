//! Requests about a task that an upstream runs. Spec: SPEC §11; BRIDGING §3.8.

use crate::call::Reply;
use crate::outbound::RelayFailure;
use crate::relay::forward::Forward;

/// # Errors
/// The upstream did not answer.
pub(super) async fn handle(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    let opened = forward.open(forward.audit()).await?;
    let request = forward.task_request(&opened);
    let reply = forward.parts.tasks.send(request).await;
    forward.respond(opened, reply)
}
