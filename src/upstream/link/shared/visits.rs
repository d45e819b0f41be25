//! Visits to URLs on which a shared link sends its sessions: only the sessions sent there are told of the end. Spec:
//! BRIDGING §2.4, §4.1; SPEC C-83.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;

use super::{Members, Place};
use crate::call::{
    Call, ClientCapabilities, DownstreamLink, InputOutcome, InputRequests, Notice, NoticeKind,
    Reply, UpstreamLink,
};
use crate::fault::Fault;
use crate::protocol::error_codes::URL_ELICITATION_REQUIRED;
use crate::protocol::{Message, json};
use crate::telemetry::metrics::COUNTERS;
use crate::upstream::lock;

/// Visits of one link that are not over, the newest.
const SHOWN: usize = 1024;
/// Ends of visits that arrived before the visit itself, the newest.
const EARLY: usize = 64;

/// Members by visit, under the upstream's ids.
#[derive(Debug, Default)]
pub(super) struct Visits(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    shown: VecDeque<(String, u64)>,
    early: VecDeque<(String, Notice)>,
}

impl Visits {
    /// The members to tell of the end of a visit; `None` for a notice of another kind. An end that arrives before its
    /// visit is kept for `show`.
    pub(super) fn over(&self, notice: &Notice) -> Option<Vec<u64>> {
        if notice.kind != NoticeKind::ElicitationComplete {
            return None;
        }
        let message = Message::parse(notice.bytes.clone(), json::MAX_DEPTH).ok();
        let id = message.as_ref().and_then(|m| m.param_str("elicitationId"));
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
            // The evicted end may be that of another session's visit, or was told before.
            push(&mut inner.early, (id, notice.clone()), EARLY);
        }
        Some(sent)
    }

    /// Forgets the visits of a member that left.
    pub(super) fn leave(&self, member: u64) {
        lock(&self.0).shown.retain(|(_, sent)| *sent != member);
    }

    /// Notes a visit of a member; returns its end, if that arrived already.
    fn show(&self, id: String, member: u64) -> Option<Notice> {
        let mut inner = lock(&self.0);
        let early = inner.early.iter().position(|(over, _)| *over == id);
        let early = early.and_then(|at| inner.early.remove(at));
        let shown = (id, member);
        // A visit whose end arrived before is over.
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

impl Members {
    /// Notes the visit in a question's parameters (JSON text) for a member.
    fn sends(&self, upstream: &Arc<str>, member: u64, params: &str) {
        let id = json::member(params, "elicitationId").and_then(json::string);
        let Some(over) = id.and_then(|id| self.visits.show(id.into_owned(), member)) else {
            return;
        };
        let intake = lock(&self.intakes).get(&member).map(Arc::clone);
        if let Some(intake) = intake {
            intake.notice(upstream, over, None);
        }
    }
}

impl Place {
    /// The call with a `DownstreamLink` that notes the visits of its client; `None` where the client takes no URLs.
    pub(super) fn noting(&self, call: &Call) -> Option<Call> {
        let capabilities = call.link.capabilities();
        capabilities.allows("elicitation/create", true).then(|| {
            let link = Arc::new(Noting {
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

    /// Sends a call, and notes the visits in its error.
    pub(super) async fn call_noting(&self, request: &Message, call: Call) -> Result<Reply, Fault> {
        let reply = self.pooled.link.call(request, &call).await?;
        if let Reply::Relayed(message) = &reply
            && message.error_code() == Some(URL_ELICITATION_REQUIRED)
        {
            let data = message.error_member("data");
            let visits = data.and_then(|data| json::member(data, "elicitations"));
            let visits = visits.and_then(|all| json::elements(all).ok());
            for visit in visits.unwrap_or_default() {
                let members = &self.pooled.members;
                members.sends(self.upstream(), self.number, visit);
            }
        }
        Ok(reply)
    }
}

/// Notes the visits on which a client is sent.
#[derive(Debug)]
struct Noting {
    inner: Arc<dyn DownstreamLink>,
    members: Arc<Members>,
    upstream: Arc<str>,
    member: u64,
}

impl DownstreamLink for Noting {
    fn capabilities(&self) -> &ClientCapabilities {
        self.inner.capabilities()
    }

    fn notify(&self, notice: Notice) {
        self.inner.notify(notice);
    }

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
        let visits = Visits::default();
        assert_eq!(visits.show("a".to_owned(), 1), None);
        assert_eq!(visits.show("b".to_owned(), 2), None);
        assert_eq!(visits.over(&complete("a")), Some(vec![1]));
        assert_eq!(visits.over(&complete("c")), Some(vec![]));
        assert_eq!(visits.over(&Notice::list_changed("tools")), None);
    }

    #[test]
    fn an_end_that_comes_before_its_visit_waits_for_it() {
        let visits = Visits::default();
        assert_eq!(visits.over(&complete("a")), Some(vec![]));
        assert!(visits.show("a".to_owned(), 1).is_some());
        assert!(visits.show("a".to_owned(), 1).is_none());
    }

    // In one test: the counter is one for the process.
    #[test]
    fn visits_are_bounded_and_counted_where_they_are_forgotten_before_their_end() {
        let visits = Visits::default();
        let before = COUNTERS.url_elicitations_forgotten.get();
        let forgotten = || COUNTERS.url_elicitations_forgotten.get() - before;
        for (number, member) in (0..=SHOWN).zip(2..) {
            let id = number.to_string();
            drop(visits.show(id.clone(), 1));
            assert_eq!(visits.over(&complete(&id)), Some(vec![1]));
            assert_eq!(visits.over(&complete(&id)), Some(vec![]), "told once");
            drop(visits.show(format!("left {number}"), member));
            visits.leave(member);
        }
        assert_eq!(forgotten(), 0);
        for number in 0..=SHOWN {
            drop(visits.show(format!("open {number}"), 1));
        }
        assert_eq!(forgotten(), 1);
        let inner = lock(&visits.0);
        assert_eq!((inner.shown.len(), inner.early.len()), (SHOWN, EARLY));
    }
}
