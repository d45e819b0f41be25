//! `UnansweredLists`: sessions to tell when an upstream answers that did not. Each was given another list in place of the
//! one that the upstream gives without an account.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;
use crate::protocol::methods::ListKind;
use crate::session::Session;
use crate::store::events::SessionKey;
use crate::store::lists::ContentDigest;

/// A list that a session was given.
#[derive(Debug)]
struct GivenList {
    session: Weak<Session>,
    /// Of the list without an account that was found before; `None` for any other list.
    digest: Option<ContentDigest>,
}

type GivenLists = HashMap<(SessionKey, ListKind), GivenList>;

/// The given lists, by upstream: one for each live session and kind of list at most, and those of ended sessions until the
/// upstream is asked again. An upstream stands here as long as a task asks it again.
#[derive(Debug, Default)]
pub(super) struct UnansweredLists(Mutex<BTreeMap<Arc<str>, GivenLists>>);

impl UnansweredLists {
    /// Notes what `session` was given. Returns whether no task asks the upstream again yet: the caller has to begin one.
    pub(super) fn note(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        (kind, digest): (ListKind, Option<ContentDigest>),
    ) -> bool {
        let mut unanswered = lock(&self.0);
        let is_first = !unanswered.contains_key(upstream);
        let given = unanswered.entry(Arc::clone(upstream)).or_default();
        let list = GivenList {
            session: Arc::downgrade(session),
            digest,
        };
        given.insert((session.key(), kind), list);
        is_first
    }

    /// Whether a live session waits for the answer of `upstream`. The task that asks again ends on `false`.
    pub(super) fn is_waited_for(&self, upstream: &str) -> bool {
        let mut unanswered = lock(&self.0);
        if let Some(given) = unanswered.get_mut(upstream) {
            given.retain(|_, list| live(list).is_some());
            if !given.is_empty() {
                return true;
            }
            unanswered.remove(upstream);
        }
        false
    }

    /// Returns the sessions to be told that `upstream` was asked again, with the capability of the lists that are other
    /// ones now, and forgets what these were given. `digest` has the lists that are known now; `is_answer`: the upstream has
    /// answered about each, and nothing is left to wait for.
    pub(super) fn asked(
        &self,
        upstream: &str,
        is_answer: bool,
        digest: impl Fn(ListKind) -> Option<ContentDigest>,
    ) -> Vec<(Arc<Session>, &'static str)> {
        let mut told = HashMap::new();
        if let Some(given) = lock(&self.0).get_mut(upstream) {
            given.retain(|(session, kind), list| {
                let now = digest(*kind);
                // A failure says nothing of a list that did not come.
                let differs = list.digest != now && (is_answer || now.is_some());
                // Skills have no such notice.
                let is_told = differs && *kind != ListKind::Skills;
                if let Some(live) = live(list).filter(|_| is_told) {
                    told.insert((*session, kind.capability()), live);
                }
                !is_answer && !differs
            });
        }
        let told = told.into_iter();
        told.map(|((_, what), session)| (session, what)).collect()
    }
}

fn live(list: &GivenList) -> Option<Arc<Session>> {
    let session = list.session.upgrade();
    session.filter(|session| !session.closed().is_cancelled())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call::{ClientCapabilities, Principal};
    use crate::clock::SystemClock;
    use crate::endpoint::Endpoint;
    use crate::ownership::Ownership;
    use crate::protocol::Revision;
    use crate::runtime::lifecycle::TaskSpawner;
    use crate::seal::Sealer;
    use crate::session::{DeliveryMode, NewSession, SessionIds, SessionRegistry, SessionSettings};
    use crate::store::events::{LogBounds, MemoryEvents};
    use crate::upstream::OWN_INFO;

    const OLD: Option<ContentDigest> = Some([1; 32]);
    const NEW: Option<ContentDigest> = Some([2; 32]);

    fn sessions() -> Arc<SessionRegistry> {
        let settings = SessionSettings {
            idle: Duration::from_mins(1),
            absolute: Duration::from_mins(10),
            max_per_principal: 9,
            max_total: 9,
            hold_question: Duration::from_secs(10),
        };
        let sealer = Arc::new(Sealer::new(&[]).unwrap());
        SessionRegistry::new(
            SessionIds::new(sealer, Ownership::ALONE),
            settings,
            Arc::new(MemoryEvents::new(LogBounds::ROOMY)),
            Arc::new(SystemClock),
            TaskSpawner::new(),
        )
    }

    fn open(sessions: &Arc<SessionRegistry>, up: &Arc<str>) -> Arc<Session> {
        let new = NewSession {
            principal: Arc::new(Principal::gateway()),
            endpoint: Arc::new(Endpoint::unreachable(up)),
            revision: Revision::LATEST_LEGACY,
            capabilities: ClientCapabilities::none(),
            client_info: OWN_INFO,
            delivery: DeliveryMode::Streams,
        };
        Arc::clone(sessions.open(new, None).unwrap().session())
    }

    #[tokio::test]
    async fn session_is_told_once_of_lists_that_differ() {
        let (sessions, up) = (sessions(), Arc::from("up"));
        let session = open(&sessions, &up);
        let unanswered = UnansweredLists::default();
        let told = |is_answer, digest| {
            let told = unanswered.asked("up", is_answer, |_| digest).into_iter();
            let mut told: Vec<_> = told.map(|(_, what)| what).collect();
            told.sort_unstable();
            told
        };
        let note = |kind, digest| unanswered.note(&session, &up, (kind, digest));
        assert!(note(ListKind::Tools, OLD) && !note(ListKind::Prompts, None));
        assert_eq!(told(false, None), [""; 0]);
        assert_eq!(told(false, OLD), ["prompts"]);
        assert_eq!(told(true, None), ["tools"]);
        assert_eq!(told(true, NEW), [""; 0]);
        for kind in ListKind::ALL {
            assert!(!note(kind, OLD), "a task asks already");
        }
        assert_eq!(told(true, NEW), ["prompts", "resources", "tools"]);
    }

    #[tokio::test]
    async fn upstream_is_asked_again_until_its_sessions_end() {
        let (sessions, up) = (sessions(), Arc::from("up"));
        let session = open(&sessions, &up);
        let unanswered = UnansweredLists::default();
        assert!(unanswered.note(&session, &up, (ListKind::Tools, None)));
        assert!(unanswered.is_waited_for("up"));
        sessions.close(&session);
        assert!(!unanswered.is_waited_for("up"));
        let next = open(&sessions, &up);
        assert!(unanswered.note(&next, &up, (ListKind::Tools, None)));
        drop(unanswered.asked("up", true, |_| NEW));
        assert!(!unanswered.is_waited_for("up"));
    }
}
