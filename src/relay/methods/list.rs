//! A plain list request on a pure endpoint: answered by a cached page, by one that another request is fetching, or
//! by the upstream. The bytes of a cached result are ready, only the id and what is left of the lifetime are put in.
//! Spec: DESIGN §5, §12; SPEC M-83.

use std::sync::Arc;

use bytes::Bytes;

use crate::audit;
use crate::call::Reply;
use crate::catalog::{FetchLeader, FetchOutcome, FetchRole, ListPageKey, land, lifetime};
use crate::fault::Fault;
use crate::outbound::RelayFailure;
use crate::protocol::{Era, Message, json};
use crate::relay::forward::Forward;
use crate::store::lists::{CachedPage, ClientForm, MergedResult};
use crate::telemetry::metrics::COUNTERS;

/// Depth limit for messages that were already checked on arrival.
const ANY_DEPTH: usize = usize::MAX;

/// How a list request of a pure endpoint goes on.
enum ListReply {
    /// This is its reply.
    Known(Reply),
    /// The upstream is asked; a leader hands the reply to its followers.
    Ask(Option<FetchLeader>),
}

/// # Errors
/// The upstream did not answer, or the request that this one waited for failed.
pub(super) async fn handle(
    forward: &Forward<'_>,
    place: ListPageKey<'_>,
) -> Result<Reply, RelayFailure> {
    let target = forward.target;
    let audited = forward.audit();
    let lead = match listing(forward, place).await? {
        ListReply::Known(reply) => {
            audited.end(audit::AuditOutcome::Ok);
            return Ok(reply);
        }
        ListReply::Ask(lead) => lead,
    };
    let opened = forward.open(audited).await?;
    let (permit, call) = (&forward.permit, opened.call(forward));
    let pages = &forward.parts.catalog.pages;
    let page = pages.ask_for_page(permit, &*opened.link, call, forward.session, target, place);
    let (reply, page) = Box::pin(page).await;
    land(lead, FetchOutcome::of(&reply, page));
    forward.respond(opened, reply)
}

/// The reply to a list request of a pure endpoint, if a page that is cached or being fetched
/// answers it.
///
/// # Errors
/// The call was cancelled meanwhile, or the request that it waited for failed.
async fn listing(forward: &Forward<'_>, place: ListPageKey<'_>) -> Result<ListReply, Fault> {
    let (parts, call, session) = (forward.parts, forward.call, forward.session);
    let (pages, target) = (&parts.catalog.pages, forward.target);
    if let Some(held) = pages.held(session, place)
        && let Some(reply) = reply_of(forward, &held, None)
    {
        COUNTERS.lists_hits.add(1);
        return Ok(ListReply::Known(reply));
    }
    Ok(match pages.join_fetch(call, session, place).await? {
        FetchRole::Page(held, page) => match reply_of(forward, &held, Some(page)) {
            Some(reply) => ListReply::Known(reply),
            None => ListReply::Ask(None),
        },
        FetchRole::Refused(error) => {
            let link = parts.links.link(session, &target.upstream)?;
            let source = parts.sources.of(call, link.declared(), &target.view);
            let reply = Reply::Relayed(error);
            match parts.replies.bring_back(call, target, &source, reply) {
                Ok(reply) => ListReply::Known(reply),
                Err(_) => ListReply::Ask(None),
            }
        }
        FetchRole::Ask(lead) => ListReply::Ask(lead),
    })
}

/// The reply from a page: the one just fetched, or the cached one.
fn reply_of(forward: &Forward<'_>, held: &CachedPage, page: Option<Message>) -> Option<Reply> {
    let (pages, call) = (&forward.parts.catalog.pages, forward.call);
    let form = ClientForm {
        endpoint: Arc::clone(&call.endpoint.name),
        from: Some(held.declared.revision),
        hosts_tasks: held.declared.hosts_tasks(),
        to: call.revision,
    };
    let kept = pages.shared.lists.made(held.digest, form.clone());
    let made = kept.or_else(|| {
        let page = page.or_else(|| Some(pages.page(held)?.message.clone()))?;
        make(forward, held, page, form)
    })?;
    Some(Reply::Result(made.result(lifetime(held))))
}

/// Builds the result for this kind of client and caches it, unless it contains a cursor sealed for one caller.
fn make(
    forward: &Forward<'_>,
    held: &CachedPage,
    page: Message,
    form: ClientForm,
) -> Option<MergedResult> {
    let (parts, call, target) = (forward.parts, forward.call, forward.target);
    let source = parts
        .sources
        .of(call, Some(Arc::clone(&held.declared)), &target.view);
    let reply = Reply::Relayed(page);
    // If the cached page cannot be projected, the caller fetches the page again and reports the failure.
    let Reply::Relayed(message) = parts
        .replies
        .bring_back(call, target, &source, reply)
        .ok()?
    else {
        return None;
    };
    let timed = held.outlives_calls && call.revision.era() == Era::Modern;
    let made = if timed {
        open_end(&message)?
    } else {
        whole(&message)?
    };
    let next = message.result_member("nextCursor");
    if next.is_none_or(|next| next == "null") {
        let lists = &parts.catalog.pages.shared.lists;
        lists.keep_made(held.digest, form, made.clone());
    }
    Some(made)
}

/// The result, unchanged.
fn whole(message: &Message) -> Option<MergedResult> {
    let text = std::str::from_utf8(message.bytes()).ok()?;
    let span = json::span_of(text, message.result()?)?;
    Some(MergedResult {
        text: message.bytes().slice(span),
        ends_in_ttl: false,
    })
}

/// The result without its lifetime, which is to come last.
fn open_end(message: &Message) -> Option<MergedResult> {
    let bytes = message.edit().remove_result_member("ttlMs").finish();
    let message = Message::parse(bytes, ANY_DEPTH).ok()?;
    let mut text = message.result()?.strip_suffix('}')?.trim_end().to_owned();
    if !text.ends_with('{') {
        text.push(',');
    }
    text.push_str("\"ttlMs\":");
    Some(MergedResult {
        text: Bytes::from(text),
        ends_in_ttl: true,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reply(result: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        Message::parse(text.into(), 128).unwrap()
    }

    #[test]
    fn a_kept_result_shares_the_bytes_that_came() {
        let message = reply(r#"{"tools":[ ]}"#);
        let made = whole(&message).unwrap();
        assert_eq!(made.text, r#"{"tools":[ ]}"#);
        assert!(message.bytes().as_ptr_range().contains(&made.text.as_ptr()));
    }

    #[test]
    fn only_the_lifetime_is_left_open() {
        let made = open_end(&reply(r#"{"ttlMs":9000,"tools":[{"ttlMs":1}] }"#)).unwrap();
        let result = made.result(Duration::from_millis(8500));
        assert_eq!(result, r#"{"tools":[{"ttlMs":1}],"ttlMs":8500}"#);
    }
}
