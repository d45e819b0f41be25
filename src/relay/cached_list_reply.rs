//! Lists of pure endpoints, answered from what is kept: the bytes of the result are ready, only
//! the id and what is left of the lifetime are put in. Spec: DESIGN §5, §12; SPEC M-83.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Relay;
use super::catalog::ListPageKey;
use super::page_fetch::{FetchLeader, FetchRole};
use super::route::UpstreamTarget;
use crate::call::{Call, Reply};
use crate::fault::Fault;
use crate::protocol::{Era, Message, json};
use crate::session::Session;
use crate::store::lists::{CachedPage, ClientForm, MergedResult};
use crate::telemetry::metrics::COUNTERS;

/// Depth limit for messages that were already checked on arrival.
const ANY_DEPTH: usize = usize::MAX;

/// How a list request of a pure endpoint goes on.
pub(super) enum ListReply {
    /// This is its reply.
    Known(Reply),
    /// The upstream is asked; a leader hands the reply to its followers.
    Ask(Option<FetchLeader>),
}

impl Relay {
    /// The reply to a list request of a pure endpoint, where a page may answer it that is kept or
    /// on its way. Requests of other kinds go on.
    ///
    /// # Errors
    /// The call was cancelled meanwhile, or the request that it waited for failed.
    pub(super) async fn listing(
        &self,
        call: &Call,
        session: &Arc<Session>,
        target: &UpstreamTarget,
    ) -> Result<ListReply, Fault> {
        let Some(place) = target.place() else {
            return Ok(ListReply::Ask(None));
        };
        if let Some(held) = self.held(session, place)
            && let Some(reply) = self.reply_of(call, target, &held, None)
        {
            COUNTERS.lists_hits.add(1);
            return Ok(ListReply::Known(reply));
        }
        Ok(match self.join_fetch(call, session, place).await? {
            FetchRole::Page(held, page) => match self.reply_of(call, target, &held, Some(page)) {
                Some(reply) => ListReply::Known(reply),
                None => ListReply::Ask(None),
            },
            FetchRole::Refused(error) => {
                let link = self.link(session, &target.upstream)?;
                let source = self.source(call, link.declared(), &target.view);
                let reply = Reply::Relayed(error);
                match self.bring_back(call, target, &source, reply) {
                    Ok(reply) => ListReply::Known(reply),
                    Err(_) => ListReply::Ask(None),
                }
            }
            FetchRole::Ask(lead) => ListReply::Ask(lead),
        })
    }

    /// The reply that a page makes, which is at hand or kept.
    fn reply_of(
        &self,
        call: &Call,
        target: &UpstreamTarget,
        held: &CachedPage,
        page: Option<Message>,
    ) -> Option<Reply> {
        let form = ClientForm {
            endpoint: Arc::clone(&call.endpoint.name),
            from: Some(held.declared.revision),
            hosts_tasks: held.declared.hosts_tasks(),
            to: call.revision,
        };
        let kept = self.catalog.lists.made(held.digest, form.clone());
        let made = kept.or_else(|| {
            let page = page.or_else(|| Some(self.page(held)?.message.clone()))?;
            self.make(call, target, held, page, form)
        })?;
        Some(Reply::Result(made.result(lifetime(held))))
    }

    /// Builds the result for this kind of client and caches it, unless it contains a cursor sealed for one caller.
    fn make(
        &self,
        call: &Call,
        target: &UpstreamTarget,
        held: &CachedPage,
        page: Message,
        form: ClientForm,
    ) -> Option<MergedResult> {
        let source = self.source(call, Some(Arc::clone(&held.declared)), &target.view);
        let reply = Reply::Relayed(page);
        // If the cached page cannot be projected, the caller fetches the page again and reports the failure.
        let Reply::Relayed(message) = self.bring_back(call, target, &source, reply).ok()? else {
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
            self.catalog
                .lists
                .keep_made(held.digest, form, made.clone());
        }
        Some(made)
    }
}

impl UpstreamTarget {
    /// The requested page, if the request is a plain list request.
    pub(super) fn place(&self) -> Option<ListPageKey<'_>> {
        let (kind, cursor) = self.page.as_ref()?;
        Some(ListPageKey {
            upstream: &self.upstream,
            kind: *kind,
            cursor: cursor.as_deref(),
        })
    }
}

/// What is left of a page's lifetime.
pub(super) fn lifetime(held: &CachedPage) -> Duration {
    held.fresh.saturating_sub(held.asked.elapsed())
}

/// The result as it stands.
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
