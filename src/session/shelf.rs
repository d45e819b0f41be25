//! Which lists a session was given by its upstreams, and what has happened since that may have
//! changed them. Only times are compared: a list that was asked for before a change is never
//! current after it, however late it arrives. Spec: SPEC M-85; DESIGN §5.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::lock;
use crate::protocol::methods::ListKind;
use crate::store::lists::Held;

/// Pages of one upstream's lists that are remembered.
const MAX_PAGES: usize = 400;

/// Lists by upstream.
#[derive(Debug, Default)]
pub struct Shelf(Mutex<Vec<Board>>);

/// What one upstream listed.
#[derive(Debug)]
struct Board {
    upstream: Arc<str>,
    called: Option<Instant>,
    /// Since when changes are heard.
    heard: Option<Instant>,
    changed: [Option<Instant>; ListKind::ALL.len()],
    pages: Vec<(ListKind, Option<Box<str>>, Held)>,
}

impl Board {
    fn new(upstream: &Arc<str>) -> Self {
        Self {
            upstream: Arc::clone(upstream),
            called: None,
            heard: None,
            changed: [None; ListKind::ALL.len()],
            pages: Vec::new(),
        }
    }

    fn changed(&self, kind: ListKind) -> Option<Instant> {
        self.changed.get(kind as usize).copied().flatten()
    }

    fn page(&self, kind: ListKind, cursor: Option<&str>) -> Option<&Held> {
        let mut pages = self.pages.iter();
        let found = pages.find(|(k, c, _)| *k == kind && c.as_deref() == cursor);
        found.map(|(_, _, held)| held)
    }

    fn change(&mut self, concerned: impl Fn(ListKind) -> bool) {
        let now = Some(Instant::now());
        for kind in ListKind::ALL {
            if concerned(kind)
                && let Some(changed) = self.changed.get_mut(kind as usize)
            {
                *changed = now;
            }
        }
        self.pages.retain(|(kind, _, _)| !concerned(*kind));
    }
}

impl Shelf {
    /// A page that may answer again: nothing has happened since, and either changes would have
    /// been heard of (`stretch` is what is heard now, asked only if it matters) or it is fresh.
    pub fn current(
        &self,
        upstream: &str,
        kind: ListKind,
        cursor: Option<&str>,
        stretch: impl FnOnce() -> Option<u64>,
    ) -> Option<Held> {
        let (held, called) = {
            let boards = lock(&self.0);
            let board = find(&boards, upstream)?;
            (board.page(kind, cursor)?.clone(), board.called)
        };
        if held.stretch.is_some() && held.stretch == stretch() {
            return Some(held);
        }
        let calm = held.outlives_calls || called.is_none_or(|called| held.asked > called);
        (calm && held.asked.elapsed() < held.fresh).then_some(held)
    }

    /// The last page that was given, however old; nothing once the upstream said that it changed.
    pub fn last(&self, upstream: &str, kind: ListKind, cursor: Option<&str>) -> Option<Held> {
        let boards = lock(&self.0);
        find(&boards, upstream)?.page(kind, cursor).cloned()
    }

    /// The pages of lists that `concerned` says, as they were last given.
    pub fn given(
        &self,
        upstream: &str,
        concerned: impl Fn(ListKind) -> bool,
    ) -> Vec<(ListKind, Option<Box<str>>, Held)> {
        let boards = lock(&self.0);
        let pages = find(&boards, upstream).map(|board| board.pages.iter());
        let pages = pages.into_iter().flatten();
        pages
            .filter(|(kind, _, _)| concerned(*kind))
            .cloned()
            .collect()
    }

    /// Whether the session never had a list of this kind, called no tool and heard of no change.
    pub fn is_untouched(&self, upstream: &str, kind: ListKind) -> bool {
        let boards = lock(&self.0);
        find(&boards, upstream).is_none_or(|board| {
            board.called.is_none()
                && board.changed(kind).is_none()
                && !board.pages.iter().any(|(known, _, _)| *known == kind)
        })
    }

    /// When something last happened that may have changed lists of this kind: a change notice, or
    /// a call where `by_calls` says so.
    pub fn disturbed(&self, upstream: &str, kind: ListKind, by_calls: bool) -> Option<Instant> {
        let boards = lock(&self.0);
        let board = find(&boards, upstream)?;
        let called = board.called.filter(|_| by_calls);
        called.max(board.changed(kind))
    }

    /// When an upstream last said that a list of this kind changed.
    pub fn last_change(&self, kind: ListKind) -> Option<Instant> {
        let boards = lock(&self.0);
        boards.iter().filter_map(|board| board.changed(kind)).max()
    }

    /// Changes of the upstream's lists are heard from now on; `true` when they were heard before,
    /// and not just now.
    pub fn heard(&self, upstream: &Arc<str>) -> bool {
        let mut before = None;
        self.at(upstream, |board| {
            before = board.heard.replace(Instant::now());
        });
        before.is_some()
    }

    /// Whether a page that was asked for at `asked` is older than the hearing of changes, which may
    /// thus have missed one.
    pub fn may_be_missed(&self, upstream: &str, asked: Instant) -> bool {
        let boards = lock(&self.0);
        let heard = find(&boards, upstream).and_then(|board| board.heard);
        heard.is_some_and(|heard| asked <= heard)
    }

    /// Remembers a page, unless something happened since it was asked for.
    pub fn hold(&self, upstream: &Arc<str>, kind: ListKind, cursor: Option<&str>, held: Held) {
        self.at(upstream, |board| {
            let changed = board.changed(kind);
            if changed.is_some_and(|changed| held.asked <= changed) {
                return;
            }
            let mut pages = board.pages.iter_mut();
            if let Some((_, _, known)) =
                pages.find(|(k, c, _)| *k == kind && c.as_deref() == cursor)
            {
                *known = held;
            } else if board.pages.len() < MAX_PAGES {
                board.pages.push((kind, cursor.map(Into::into), held));
            }
        });
    }

    /// A tool is called, or was: the upstream may list something else now.
    pub fn called(&self, upstream: &Arc<str>) {
        let now = Some(Instant::now());
        self.at(upstream, |board| board.called = now);
    }

    /// The upstream said that its `what` (`tools`, `prompts`, `resources`) changed.
    pub fn changed(&self, upstream: &Arc<str>, what: &str) {
        self.at(upstream, |board| {
            board.change(|kind| kind.capability() == what);
        });
    }

    /// There is a new connection to the upstream: what the session had from an older one is over.
    /// What a modern upstream lists belongs to no connection.
    pub fn reconnected(&self, upstream: &Arc<str>) {
        self.at(upstream, |board| {
            let of_connection = |held: &Held| held.is_own && !held.outlives_calls;
            if board.pages.iter().any(|(_, _, held)| of_connection(held)) {
                board.change(|_| true);
            }
        });
    }

    fn at(&self, upstream: &Arc<str>, act: impl FnOnce(&mut Board)) {
        let mut boards = lock(&self.0);
        if let Some(board) = boards.iter_mut().find(|board| board.upstream == *upstream) {
            return act(board);
        }
        let mut board = Board::new(upstream);
        act(&mut board);
        boards.push(board);
    }
}

fn find<'a>(boards: &'a [Board], upstream: &str) -> Option<&'a Board> {
    boards.iter().find(|board| *board.upstream == *upstream)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::call::Declared;
    use crate::protocol::Revision;

    fn up() -> Arc<str> {
        "up".into()
    }

    fn held(stretch: Option<u64>) -> Held {
        Held {
            digest: [7; 32],
            asked: Instant::now(),
            fresh: Duration::from_secs(5),
            outlives_calls: false,
            stretch,
            is_own: true,
            declared: Arc::new(Declared::new(
                Revision::LATEST_LEGACY,
                Bytes::new(),
                Bytes::new(),
                None,
            )),
        }
    }

    async fn later() {
        tokio::time::advance(Duration::from_millis(1)).await;
    }

    fn is_current(shelf: &Shelf, kind: ListKind, stretch: Option<u64>) -> bool {
        shelf.current("up", kind, None, || stretch).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn an_unannounced_list_answers_until_it_is_old() {
        let shelf = Shelf::default();
        shelf.hold(&up(), ListKind::Tools, None, held(None));
        assert!(is_current(&shelf, ListKind::Tools, None));
        assert!(!is_current(&shelf, ListKind::Prompts, None));
        assert!(
            shelf
                .current("up", ListKind::Tools, Some("c"), || None)
                .is_none()
        );
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(!is_current(&shelf, ListKind::Tools, None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unannounced_list_ends_with_the_first_call() {
        let shelf = Shelf::default();
        shelf.hold(&up(), ListKind::Tools, None, held(None));
        later().await;
        shelf.called(&up());
        assert!(!is_current(&shelf, ListKind::Tools, None));
        assert!(shelf.last("up", ListKind::Tools, None).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_whose_changes_are_heard_answers_as_long_as_they_are() {
        let shelf = Shelf::default();
        shelf.hold(&up(), ListKind::Tools, None, held(Some(3)));
        later().await;
        shelf.called(&up());
        tokio::time::advance(Duration::from_hours(1)).await;
        assert!(is_current(&shelf, ListKind::Tools, Some(3)));
        assert!(!is_current(&shelf, ListKind::Tools, Some(4)));
        assert!(!is_current(&shelf, ListKind::Tools, None));
    }

    // SPEC M-85.
    #[tokio::test(start_paused = true)]
    async fn a_change_ends_lists_of_its_kind_at_once() {
        let shelf = Shelf::default();
        for kind in ListKind::ALL {
            shelf.hold(&up(), kind, None, held(Some(3)));
        }
        shelf.changed(&up(), "resources");
        assert!(is_current(&shelf, ListKind::Tools, Some(3)));
        assert!(!is_current(&shelf, ListKind::Resources, Some(3)));
        assert!(!is_current(&shelf, ListKind::Templates, Some(3)));
        assert!(shelf.last("up", ListKind::Resources, None).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_before_a_change_is_not_kept_after_it() {
        let shelf = Shelf::default();
        let before = held(Some(3));
        later().await;
        shelf.changed(&up(), "tools");
        shelf.hold(&up(), ListKind::Tools, None, before);
        assert!(!is_current(&shelf, ListKind::Tools, Some(3)));
        later().await;
        shelf.hold(&up(), ListKind::Tools, None, held(Some(3)));
        assert!(is_current(&shelf, ListKind::Tools, Some(3)));
    }

    // Spec: BRIDGING §3.4.
    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_before_changes_were_heard_may_have_missed_one() {
        let shelf = Shelf::default();
        let before = held(None).asked;
        assert!(!shelf.may_be_missed("up", before), "nobody is to hear");
        later().await;
        assert!(!shelf.heard(&up()), "nobody heard before");
        assert!(shelf.may_be_missed("up", before));
        later().await;
        assert!(!shelf.may_be_missed("up", held(None).asked));
        assert!(shelf.heard(&up()), "it broke off meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn the_lists_of_a_modern_upstream_outlive_its_connections() {
        let shelf = Shelf::default();
        let modern = Held {
            outlives_calls: true,
            ..held(None)
        };
        shelf.hold(&up(), ListKind::Tools, None, modern);
        later().await;
        shelf.reconnected(&up());
        let given = shelf.given("up", |kind| kind == ListKind::Tools);
        assert_eq!(given.len(), 1);
        assert!(
            shelf
                .given("up", |kind| kind == ListKind::Prompts)
                .is_empty()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_ends_what_came_over_the_old_one() {
        let shelf = Shelf::default();
        let others = Held {
            is_own: false,
            ..held(None)
        };
        shelf.hold(&up(), ListKind::Tools, None, others);
        later().await;
        shelf.reconnected(&up());
        assert!(is_current(&shelf, ListKind::Tools, None));
        shelf.hold(&up(), ListKind::Tools, None, held(None));
        shelf.reconnected(&up());
        assert!(!is_current(&shelf, ListKind::Tools, None));
    }
}
