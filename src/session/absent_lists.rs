//! Lists that were missing, or replaced by an older copy, in an answer to the client, because the
//! upstream took too long or failed: whether a background request runs, and which pages the client was
//! shown instead. Spec: SPEC G-03; BRIDGING §5.6.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::lock;
use crate::protocol::methods::ListKind;
use crate::store::lists::ContentDigest;
use crate::sync::wait_until::wait_until;

/// An upstream, and the kind of a list.
type ListKey = (Arc<str>, ListKind);

/// The absent lists of one session: one errand for each at most, so as many as there are upstreams and
/// kinds of lists.
#[derive(Debug, Default)]
pub struct AbsentLists {
    lists: Mutex<BTreeMap<ListKey, AbsentList>>,
    settled: Notify,
}

/// One absent list.
#[derive(Debug)]
struct AbsentList {
    errand: CancellationToken,
    number: u64,
    stage: AbsenceStage,
    /// Whether the client asked for it since its upstream was asked.
    again: bool,
    /// The pages that the client was shown; `None` where only the gateway asked.
    shown: Option<Vec<ContentDigest>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbsenceStage {
    /// Its upstream is asked.
    Asked,
    /// Its upstream failed, and is asked again later.
    Paused,
    /// It came, later than the client waited.
    Came,
}

/// The right to ask for a list in the background.
#[derive(Debug)]
pub struct BackgroundFetch {
    place: ListKey,
    number: u64,
    /// Cancelled when another errand took its place, or none is needed.
    pub superseded: CancellationToken,
}

/// What an errand has to do when its list came.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FetchArrival {
    /// Whether the client has to be told.
    pub differs: bool,
    /// Whether the client asked for the list since: the list may miss what happened in between.
    pub again: bool,
}

impl BackgroundFetch {
    /// The upstream, and the kind of its list.
    #[must_use]
    pub fn place(&self) -> (&Arc<str>, ListKind) {
        (&self.place.0, self.place.1)
    }
}

impl AbsentLists {
    /// Begins to ask for a list in the background, unless its upstream is asked already: then the running
    /// errand asks once more where that is needed. `asked` says
    /// whether a request is under way. The client was shown `shown`.
    pub fn begin(
        &self,
        upstream: &Arc<str>,
        kind: ListKind,
        asked: bool,
        shown: Option<Vec<ContentDigest>>,
    ) -> Option<BackgroundFetch> {
        let place = (Arc::clone(upstream), kind);
        let mut lists = lock(&self.lists);
        let before = lists.get_mut(&place);
        let number = before.as_ref().map_or(0, |before| before.number + 1);
        let mut known = None;
        if let Some(before) = before {
            if before.stage == AbsenceStage::Asked
                || (before.stage == AbsenceStage::Paused && !asked)
            {
                before.again = true;
                before.shown = shown.or_else(|| before.shown.take());
                return None;
            }
            before.errand.cancel();
            known = before.shown.take();
        }
        let superseded = CancellationToken::new();
        let absence = AbsentList {
            errand: superseded.clone(),
            number,
            stage: if asked {
                AbsenceStage::Asked
            } else {
                AbsenceStage::Paused
            },
            again: false,
            shown: shown.or(known),
        };
        lists.insert(place.clone(), absence);
        Some(BackgroundFetch {
            place,
            number,
            superseded,
        })
    }

    /// Whether a list overran or failed when it was asked for last.
    pub fn is_absent(&self, upstream: &Arc<str>, kind: ListKind) -> bool {
        let lists = lock(&self.lists);
        !lists.is_empty() && lists.contains_key(&(Arc::clone(upstream), kind))
    }

    /// Waits until no request for a list is under way in the background.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn settled(&self, upstream: &Arc<str>, kind: ListKind) {
        let place = (Arc::clone(upstream), kind);
        let is_settled = || {
            let lists = lock(&self.lists);
            let asked = lists.get(&place).map(|absence| absence.stage);
            asked != Some(AbsenceStage::Asked)
        };
        wait_until(&self.settled, is_settled).await;
    }

    /// The client asked again and was shown `shown`, while its upstream is still asked.
    pub fn show(&self, upstream: &Arc<str>, kind: ListKind, shown: Option<Vec<ContentDigest>>) {
        let place = (Arc::clone(upstream), kind);
        if let Some(absence) = lock(&self.lists).get_mut(&place) {
            absence.again = true;
            absence.shown = shown.or_else(|| absence.shown.take());
        }
    }

    /// The list came in time: nothing is to be asked in the background.
    pub fn forget(&self, upstream: &Arc<str>, kind: ListKind) {
        let mut lists = lock(&self.lists);
        if lists.is_empty() {
            return;
        }
        if let Some(absence) = lists.remove(&(Arc::clone(upstream), kind)) {
            absence.errand.cancel();
            drop(lists);
            self.settled.notify_waiters();
        }
    }

    /// The list of an errand came, and is this.
    pub fn came(&self, errand: &BackgroundFetch, now: Vec<ContentDigest>) -> FetchArrival {
        let arrival = self.with(errand, |absence| {
            let differs = absence.shown.as_ref().is_some_and(|shown| *shown != now);
            absence.shown = absence.shown.take().map(|_| now);
            absence.stage = AbsenceStage::Came;
            let again = std::mem::take(&mut absence.again);
            FetchArrival { differs, again }
        });
        arrival.unwrap_or_default()
    }

    /// The upstream failed; whether it is to be asked again later, because a client lacks its list.
    pub fn pause(&self, errand: &BackgroundFetch) -> bool {
        let lacks = self.with(errand, |absence| {
            absence.stage = AbsenceStage::Paused;
            absence.shown.is_some()
        });
        lacks.unwrap_or(false)
    }

    /// The upstream is asked once more.
    pub fn resume(&self, errand: &BackgroundFetch) {
        self.with(errand, |absence| {
            absence.stage = AbsenceStage::Asked;
            absence.again = false;
        });
    }

    /// Acts on an absence, if it is still that of the errand, and wakes who waits for its stage.
    fn with<T>(
        &self,
        errand: &BackgroundFetch,
        act: impl FnOnce(&mut AbsentList) -> T,
    ) -> Option<T> {
        let done = {
            let mut lists = lock(&self.lists);
            let absence = lists.get_mut(&errand.place);
            absence
                .filter(|absence| absence.number == errand.number)
                .map(act)
        };
        self.settled.notify_waiters();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: ListKind = ListKind::Tools;

    fn up() -> Arc<str> {
        "up".into()
    }

    #[test]
    fn one_errand_asks_for_a_list_at_a_time() {
        let absences = AbsentLists::default();
        let first = absences.begin(&up(), TOOLS, true, Some(Vec::new()));
        let first = first.expect("nobody asks");
        assert!(absences.begin(&up(), TOOLS, true, None).is_none());
        assert!(
            absences
                .begin(&up(), ListKind::Prompts, true, None)
                .is_some()
        );
        assert!(absences.pause(&first), "a client lacks the list");
        assert!(absences.begin(&up(), TOOLS, false, None).is_none());
        let second = absences.begin(&up(), TOOLS, true, None);
        assert!(second.is_some() && first.superseded.is_cancelled());
        assert!(!absences.pause(&first), "it was replaced");
        assert!(
            absences.pause(&second.unwrap()),
            "the client still lacks it"
        );
    }

    #[test]
    fn a_client_is_told_of_what_it_was_not_shown() {
        let absences = AbsentLists::default();
        let begin = |shown| {
            absences
                .begin(&up(), TOOLS, true, shown)
                .expect("an errand")
        };
        let told = |errand: &BackgroundFetch, now| absences.came(errand, now).differs;
        assert!(told(&begin(Some(Vec::new())), vec![[1; 32]]));
        assert!(!told(&begin(Some(vec![[1; 32]])), vec![[1; 32]]));
        assert!(
            !told(&begin(Some(Vec::new())), Vec::new()),
            "it lists nothing"
        );
        let absences = AbsentLists::default();
        let unseen = absences.begin(&up(), TOOLS, true, None).expect("an errand");
        assert!(!absences.came(&unseen, vec![[1; 32]]).differs);
    }

    #[tokio::test]
    async fn who_asks_again_waits_for_the_errand() {
        let absences = AbsentLists::default();
        let errand = absences.begin(&up(), TOOLS, true, None).expect("an errand");
        let upstream = up();
        let waiting = absences.settled(&upstream, TOOLS);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        absences.show(&up(), TOOLS, Some(Vec::new()));
        assert!(absences.came(&errand, vec![[1; 32]]).again);
        assert!(futures_util::poll!(&mut waiting).is_ready());
        assert!(absences.is_absent(&up(), TOOLS), "it overran");
        absences.forget(&up(), TOOLS);
        assert!(!absences.is_absent(&up(), TOOLS));
    }
}
