//! Requests about a task that an upstream runs. Spec: SPEC §11; BRIDGING §3.8.

use crate::call::Reply;
use crate::fault::Fault;
use crate::outbound::RelayFailure;
use crate::relay::forward::{Forward, Opened};
use crate::relay::tasks::BridgedRequest;

/// # Errors
/// The upstream did not answer.
pub(super) async fn handle(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    let opened = forward.open(forward.audit()).await?;
    let reply = send(forward, &opened).await;
    if let (Some(implicit_session), "tasks/update" | "tasks/cancel") =
        (forward.session.implicit_session(), forward.method())
    {
        implicit_session.task_changed();
    }
    let (call, target) = (opened.call(forward), forward.target);
    let shown = match reply {
        Ok(reply) => forward
            .relay
            .show_own_task(call, forward.session, target, reply),
        failed => failed,
    };
    forward.respond(opened, shown)
}

async fn send(forward: &Forward<'_>, opened: &Opened<'_>) -> Result<Reply, Fault> {
    let (relay, session, target) = (forward.relay, forward.session, forward.target);
    let (link, call) = (&opened.link, opened.call(forward));
    if target.home.is_some() {
        let bridged = BridgedRequest {
            relay,
            link,
            call,
            session,
            target,
        };
        return bridged.answer().await;
    }
    if forward.method() == "tasks/result" && session.implicit_session().is_none() {
        return relay
            .result_of_task(&forward.permit, link, call, target)
            .await;
    }
    forward.send(opened).await
}
