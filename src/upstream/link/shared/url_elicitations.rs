//! Visits to URLs on which a shared link sends its sessions: only the sessions sent there are told of the end. Spec:
//! BRIDGING §2.4, §4.1; SPEC C-83.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;

use super::{MemberFanout, SharedMember};
use crate::call::{
    Call, DownstreamLink, InputOutcome, InputRequests, Notice, NoticeArrival, NoticeKind, Reply,
    UpstreamLink,
};
use crate::fault::Fault;
use crate::protocol::error_codes::URL_ELICITATION_REQUIRED;
use crate::protocol::links::LONGEST_ELICITATION_ID;
use crate::protocol::{Message, json};
use crate::telemetry::metrics::COUNTERS;
use crate::upstream::lock;

/// Visits of one link that are not over, the newest.
const SHOWN: usize = 1024;
/// Ends of URL elicitations that arrived before the URL elicitation itself, the newest.
const EARLY: usize = 64;

/// Members by URL elicitation, under the upstream's ids.
#[derive(Debug, Default)]
pub(super) struct SharedUrlElicitations(Mutex<ElicitationTable>);

#[derive(Debug, Default)]
struct ElicitationTable {
    shown: VecDeque<(String, u64)>,
    early: VecDeque<(String, Notice)>,
}

impl SharedUrlElicitations {
    /// The members to tell of the end of a URL elicitation; `None` for a notice of another kind. An end that arrives
    /// before its URL elicitation is kept for `show`. One with a very long id is told nobody.
    pub(super) fn over(&self, notice: &Notice) -> Option<Vec<u64>> {
        if notice.kind != NoticeKind::ElicitationComplete {
            return None;
        }
        let message = Message::parse(notice.bytes.clone(), json::MAX_DEPTH).ok();
        let id = message.as_ref().and_then(|m| m.param_str("elicitationId"));
        let id = id.filter(|id| id.len() <= LONGEST_ELICITATION_ID);
        let Some(id) = id.map(Cow::into_owned) else {
            return Some(Vec::new());
        };
        let mut inner = lock(&self.0);
        let mut sent = Vec::new();
        inner.shown.retain(|(shown, member)| {
            let is_over = *shown == id;
            if is_over {
                sent.push(*member);
            }
            !is_over
        });
        if sent.is_empty() {
            // The evicted end may be that of another session's URL elicitation, or was told before.
            let own = Notice::elicitation_complete(&json::quote(&id));
            push(&mut inner.early, (id, own), EARLY);
        }
        Some(sent)
    }

    /// Forgets the URL elicitations of a member that left.
    pub(super) fn leave(&self, member: u64) {
        lock(&self.0).shown.retain(|(_, sent)| *sent != member);
    }

    /// Notes a URL elicitation of a member; returns its end, if that arrived already.
    fn show(&self, id: String, member: u64) -> Option<Notice> {
        let mut inner = lock(&self.0);
        let early = inner.early.iter().position(|(over, _)| *over == id);
        let early = early.and_then(|at| inner.early.remove(at));
        let shown = (id, member);
        // A URL elicitation whose end arrived before is over.
        let is_new = early.is_none() && !inner.shown.contains(&shown);
        if is_new && push(&mut inner.shown, shown, SHOWN) {
            COUNTERS.url_elicitations_forgotten.add(1);
        }
        early.map(|(_, notice)| notice)
    }
}

/// Adds an item; returns whether the oldest was evicted.
fn push<T>(queue: &mut VecDeque<T>, item: T, max: usize) -> bool {
    let is_full = queue.len() >= max && queue.pop_front().is_some();
    queue.push_back(item);
    is_full
}

impl MemberFanout {
    /// Notes the URL elicitation in a question's parameters (JSON text) for a member.
    fn sends(&self, upstream: &Arc<str>, member: u64, params: &str) {
        let id = json::member(params, "elicitationId").and_then(json::string);
        let id = id.filter(|id| id.len() <= LONGEST_ELICITATION_ID);
        let Some(over) = id.and_then(|id| self.url_elicitations.show(id.into_owned(), member))
        else {
            return;
        };
        let intake = lock(&self.intakes).get(&member).map(Arc::clone);
        if let Some(intake) = intake {
            intake.notice(upstream, over, NoticeArrival::now(None));
        }
    }
}

impl SharedMember {
    /// The call with a `DownstreamLink` that notes the URL elicitations of its client; `None` where the client takes no
    /// URLs.
    pub(super) fn noting(&self, call: &Call) -> Option<Call> {
        let capabilities = call.link.capabilities();
        capabilities.allows("elicitation/create", true).then(|| {
            let link = Arc::new(ElicitationNoter {
                inner: Arc::clone(&call.link),
                members: Arc::clone(&self.pooled.members),
                upstream: Arc::clone(self.upstream()),
                member: self.number,
            });
            Call {
                link,
                ..call.clone()
            }
        })
    }

    /// Sends a call, and notes the URL elicitations in its error.
    pub(super) async fn call_noting(&self, request: &Message, call: Call) -> Result<Reply, Fault> {
        let reply = self.pooled.link.call(request, &call).await?;
        if let Reply::Relayed(message) = &reply
            && message.error_code() == Some(URL_ELICITATION_REQUIRED)
        {
            let data = message.error_member("data");
            let url_elicitations = data.and_then(|data| json::member(data, "elicitations"));
            let url_elicitations = url_elicitations.and_then(|all| json::elements(all).ok());
            for url_elicitation in url_elicitations.unwrap_or_default() {
                let members = &self.pooled.members;
                members.sends(self.upstream(), self.number, url_elicitation);
            }
        }
        Ok(reply)
    }
}

/// Notes the URL elicitations on which a client is sent.
#[derive(Debug)]
struct ElicitationNoter {
    inner: Arc<dyn DownstreamLink>,
    members: Arc<MemberFanout>,
    upstream: Arc<str>,
    member: u64,
}

impl DownstreamLink for ElicitationNoter {
    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        for (_, question) in &round.entries {
            let params = question.params.as_deref().map(std::str::from_utf8);
            if let Some(Ok(params)) = params {
                self.members.sends(&self.upstream, self.member, params);
            }
        }
        self.inner.ask(round)
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::rpc;

    fn complete(id: &str) -> Notice {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{{"elicitationId":"{id}"}}}}"#
        );
        Notice {
            kind: NoticeKind::ElicitationComplete,
            bytes: text.into(),
        }
    }

    // Spec: BRIDGING §2.4: to the originating session only.
    #[test]
    fn the_end_of_a_visit_is_told_to_those_who_were_sent_there() {
        let url_elicitations = SharedUrlElicitations::default();
        assert_eq!(url_elicitations.show("a".to_owned(), 1), None);
        assert_eq!(url_elicitations.show("b".to_owned(), 2), None);
        assert_eq!(url_elicitations.over(&complete("a")), Some(vec![1]));
        assert_eq!(url_elicitations.over(&complete("c")), Some(vec![]));
        assert_eq!(url_elicitations.over(&Notice::list_changed("tools")), None);
    }

    #[test]
    fn an_end_that_comes_before_its_visit_waits_for_it() {
        let url_elicitations = SharedUrlElicitations::default();
        assert_eq!(url_elicitations.over(&complete("a")), Some(vec![]));
        assert!(url_elicitations.show("a".to_owned(), 1).is_some());
        assert!(url_elicitations.show("a".to_owned(), 1).is_none());
    }

    #[test]
    fn no_more_is_kept_of_an_early_end_than_a_short_id() {
        let url_elicitations = SharedUrlElicitations::default();
        let padded = format!(r#"{{"elicitationId":"a","x":"{}"}}"#, "x".repeat(10_000));
        let padded = rpc::notification("notifications/elicitation/complete", &padded);
        let padded = Notice {
            kind: NoticeKind::ElicitationComplete,
            bytes: padded.into(),
        };
        assert_eq!(url_elicitations.over(&padded), Some(vec![]));
        let early = url_elicitations.show("a".to_owned(), 1);
        assert_eq!(early, Some(Notice::elicitation_complete(r#""a""#)));
        let long = "a".repeat(LONGEST_ELICITATION_ID + 1);
        assert_eq!(url_elicitations.over(&complete(&long)), Some(vec![]));
        assert!(lock(&url_elicitations.0).early.is_empty());
    }

    // In one test: the counter is one for the process.
    #[test]
    fn visits_are_bounded_and_counted_where_they_are_forgotten_before_their_end() {
        let url_elicitations = SharedUrlElicitations::default();
        let before = COUNTERS.url_elicitations_forgotten.get();
        let forgotten = || COUNTERS.url_elicitations_forgotten.get() - before;
        for (number, member) in (0..=SHOWN).zip(2..) {
            let id = number.to_string();
            drop(url_elicitations.show(id.clone(), 1));
            assert_eq!(url_elicitations.over(&complete(&id)), Some(vec![1]));
            assert_eq!(
                url_elicitations.over(&complete(&id)),
                Some(vec![]),
                "told once"
            );
            drop(url_elicitations.show(format!("left {number}"), member));
            url_elicitations.leave(member);
        }
        assert_eq!(forgotten(), 0);
        for number in 0..=SHOWN {
            drop(url_elicitations.show(format!("open {number}"), 1));
        }
        assert_eq!(forgotten(), 1);
        let inner = lock(&url_elicitations.0);
        assert_eq!((inner.shown.len(), inner.early.len()), (SHOWN, EARLY));
    }
}
