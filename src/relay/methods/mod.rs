//! The methods that do more than pass a request on to one upstream, one file for each. Which parameter
//! names the upstream is decided in `route` and `catalog::resolve_name`; names in results are mapped in
//! `translate::rewrite`.

pub(super) mod complete;
mod list;
mod subscribe;
mod task;
pub(super) mod tools_call;

use super::forward::Forward;
use crate::call::Reply;
use crate::catalog::ListPageKey;
use crate::outbound::RelayFailure;
use crate::tasks::is_of_tasks;

/// Answers a request to one upstream.
///
/// # Errors
/// [`RelayFailure`] when the upstream did not answer.
///
/// # Cancel safety
/// Dropping the future cancels the request upstream.
pub(super) async fn handle(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    match forward.method() {
        "tools/call" => tools_call::handle(forward).await,
        "resources/subscribe" | "resources/unsubscribe" => {
            Box::pin(subscribe::handle(forward)).await
        }
        "completion/complete" => Box::pin(complete::handle(forward)).await,
        method if is_of_tasks(method) => Box::pin(task::handle(forward)).await,
        _ => {
            if let Some(page) = ListPageKey::of(forward.target) {
                return Box::pin(list::handle(forward, page)).await;
            }
            let opened = forward.open(forward.audit()).await?;
            let reply = forward.exchange(&opened).await;
            forward.respond(opened, reply)
        }
    }
}
