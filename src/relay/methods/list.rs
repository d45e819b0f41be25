//! A plain list request on a pure endpoint: answered by a cached page, by one that another request is fetching, or
//! by the upstream.

use crate::audit;
use crate::call::Reply;
use crate::relay::RelayFailure;
use crate::relay::cached_list_reply::ListReply;
use crate::relay::forward::Forward;
use crate::relay::page_fetch::{FetchOutcome, land};

/// # Errors
/// The upstream did not answer, or the request that this one waited for failed.
pub(super) async fn handle(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    let (relay, target) = (forward.relay, forward.target);
    let audited = forward.audit();
    let listing = relay.listing(forward.call, forward.session, target).await?;
    let lead = match listing {
        ListReply::Known(reply) => {
            audited.end(audit::AuditOutcome::Ok);
            return Ok(reply);
        }
        ListReply::Ask(lead) => lead,
    };
    let opened = forward.open(audited).await?;
    let Some(place) = target.place() else {
        let reply = forward.exchange(&opened).await;
        return forward.respond(opened, reply);
    };
    let (permit, call) = (&forward.permit, opened.call(forward));
    let page = relay.ask_for_page(permit, &*opened.link, call, forward.session, target, place);
    let (reply, page) = Box::pin(page).await;
    land(lead, FetchOutcome::of(&reply, page));
    forward.respond(opened, reply)
}
