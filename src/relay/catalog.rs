//! What upstreams listed: which kept page may answer for which session, and what is kept of a new
//! one. A session sees its own pages, and pages of others only where they would have been the same
//! for it: of the same principal, of a legacy upstream that everybody shares, or declared public.
//! Spec: DESIGN §5 ("Lists are kept…"); SPEC M-80…M-86; BRIDGING §5.4…§5.6.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use super::Relay;
use super::flight::Flying;
use super::param_headers::warn_of_invalid;
use super::project::{Hints, Scope};
use crate::call::{ClientCapabilities, Declared, UpstreamLink};
use crate::config::{self, Isolation};
use crate::fault::Fault;
use crate::lock::lock;
use crate::protocol::methods::ListKind;
use crate::protocol::{Era, Message, Revision};
use crate::session::Session;
use crate::store::lists::{Held, Lists, Page};
use crate::telemetry::metrics::COUNTERS;
use crate::upstream::knowledge::Key;

/// Pages of other sessions that are known at most.
const OTHERS: u64 = 16_384;
/// How many times longer a list may answer while its changes are announced.
const LENGTHENED: u32 = 3;
/// How long a page of another session may answer at most: what an upstream may promise.
const LONGEST: Duration = Duration::from_hours(24);

/// When an upstream last said that its lists of a kind changed.
type Heard = BTreeMap<(Arc<str>, &'static str), Instant>;

/// Kept pages. Cloning shares them.
#[derive(Debug, Clone)]
pub(super) struct Catalog {
    pub(super) lists: Lists,
    others: Cache<Other, Held>,
    /// What sessions were given that had done nothing before: it stands in for upstreams that are late.
    untouched: Cache<Other, Held>,
    /// When an upstream last said that its `what` changed, to whom.
    changes: Cache<(Key, &'static str), Instant>,
    /// The same to anybody: as many as there are upstreams and kinds of lists.
    heard: Arc<Mutex<Heard>>,
    /// Pages that are being asked for.
    pub(super) flights: Flying,
    fresh: Duration,
}

/// A page that others may see who have this key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Other {
    key: Key,
    kind: ListKind,
    cursor: Option<Box<str>>,
}

impl Other {
    fn new(key: Key, place: Place<'_>) -> Self {
        Self {
            key,
            kind: place.kind,
            cursor: place.cursor.map(Into::into),
        }
    }
}

/// A page that is being asked for.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) asked: Instant,
    stretch: Option<u64>,
    declared: Arc<Declared>,
}

/// Which page of which list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) upstream: &'a Arc<str>,
    pub(super) kind: ListKind,
    /// JSON text of the upstream's cursor.
    pub(super) cursor: Option<&'a str>,
}

impl Catalog {
    pub(super) fn new(settings: &config::Lists) -> Self {
        Self {
            lists: Lists::new(settings.total),
            others: Cache::builder()
                .max_capacity(OTHERS)
                .time_to_live(LONGEST)
                .build(),
            untouched: Cache::builder()
                .max_capacity(OTHERS)
                .time_to_live(LONGEST)
                .build(),
            changes: Cache::builder()
                .max_capacity(OTHERS)
                .time_to_live(LONGEST)
                .build(),
            heard: Arc::default(),
            flights: Flying::default(),
            fresh: settings.fresh,
        }
    }

    /// An upstream told those behind `key` that its `what` changed.
    pub(super) fn changed(&self, key: &Key, what: &'static str) {
        self.changed_at(key, what, Instant::now());
    }

    /// The same, found out by a list that was asked for after `at`: that list stays.
    pub(super) fn changed_at(&self, key: &Key, what: &'static str, at: Instant) {
        let heard = (Arc::clone(&key.upstream), what);
        lock(&self.heard)
            .entry(heard)
            .and_modify(|known| *known = at.max(*known))
            .or_insert(at);
        // One that all share was not known to be so before it was opened.
        let shared = Key {
            owner: None,
            ..key.clone()
        };
        for key in [shared, key.clone()] {
            let about = (key, what);
            let known = self.changes.get(&about);
            self.changes
                .insert(about, known.max(Some(at)).unwrap_or(at));
        }
    }

    /// A page of another session that is still fresh.
    pub(super) fn other(&self, key: Key, place: Place<'_>) -> Option<Held> {
        let changed = self.changes.get(&(key.clone(), place.kind.capability()));
        let other = self.others.get(&Other::new(key, place))?;
        let calm = changed.is_none_or(|changed| other.asked > changed);
        (calm && other.asked.elapsed() < other.fresh).then_some(other)
    }

    /// How long a list of a legacy upstream that was asked for at `asked` and came now may answer. What
    /// came slowly would be over when it comes, if the way counted.
    fn freshness(&self, asked: Instant) -> Duration {
        if self.fresh.is_zero() {
            return self.fresh;
        }
        self.fresh.saturating_add(asked.elapsed())
    }

    /// Whether nothing that anybody heard has outdated a page. The lists of a modern upstream belong to
    /// no session: when one is told that they changed, they have for all (SPEC M-85).
    fn is_calm(&self, place: Place<'_>, held: &Held) -> bool {
        if !held.outlives_calls {
            return true;
        }
        let about = (Arc::clone(place.upstream), place.kind.capability());
        let heard = lock(&self.heard).get(&about).copied();
        heard.is_none_or(|heard| held.asked > heard)
    }
}

impl Relay {
    /// The page that may answer this session now, if one is kept.
    pub(super) fn held(&self, session: &Arc<Session>, place: Place<'_>) -> Option<Held> {
        let own = session
            .shelf()
            .current(place.upstream, place.kind, place.cursor, || {
                session.link(place.upstream)?.hearing()
            });
        let Some(current) = own.filter(|own| self.catalog.is_calm(place, &own.held)) else {
            return self.adopted(session, place);
        };
        if current.is_due {
            self.recheck_aged(session, place, &current.held);
        }
        Some(current.held)
    }

    /// A page that another session was given, where it may answer this one too: always on an
    /// upstream that all share, while its own lifetime lasts on a modern one, and else as the
    /// first list of this session.
    fn adopted(&self, session: &Arc<Session>, place: Place<'_>) -> Option<Held> {
        let may = |held: &Held| self.may_adopt(session, place, held);
        let private = self.catalog_key(session, place.upstream);
        let public = Key {
            owner: None,
            ..private.clone()
        };
        let found = [private, public]
            .into_iter()
            .find_map(|key| self.catalog.other(key, place).filter(&may))?;
        Some(self.adopt(session, place, found))
    }

    /// Whether a page that another session was given may answer this one.
    pub(super) fn may_adopt(&self, session: &Session, place: Place<'_>, held: &Held) -> bool {
        let known = session.shelf();
        if held.outlives_calls || self.is_shared(place.upstream) {
            let by_calls = !held.outlives_calls;
            let disturbed = known.disturbed(place.upstream, place.kind, by_calls);
            disturbed.is_none_or(|at| held.asked > at) && self.catalog.is_calm(place, held)
        } else {
            known.is_untouched(place.upstream, place.kind) || place.cursor.is_some()
        }
    }

    /// Makes a page of another session one that this session was given.
    pub(super) fn adopt(&self, session: &Arc<Session>, place: Place<'_>, found: Held) -> Held {
        let held = Held {
            stretch: None,
            is_own: false,
            ..found
        };
        let cursor = place.cursor;
        session
            .shelf()
            .hold(place.upstream, place.kind, cursor, held.clone());
        self.recheck_where_due(session, place, &held);
        self.open_later(session, place.upstream);
        held
    }

    /// Opens an upstream for a session that is answered by others: it is to hear of changes, as if
    /// it had listed for itself.
    pub(super) fn open_later(&self, session: &Arc<Session>, upstream: &Arc<str>) {
        if let Ok(link) = self.link(session, upstream)
            && link.declared().is_none()
        {
            self.parts.tasks.spawn_service(async move {
                drop(link.open().await);
            });
        }
    }

    /// What tells a page that is asked for from others, where one who asks may ask for this session
    /// too: what may be adopted of a kept page may be of one on its way. An operator who lets no
    /// list of a legacy upstream be kept has each asked for.
    pub(super) fn flight_key(&self, session: &Session, place: Place<'_>) -> Option<Other> {
        let key = self.knowledge_key(session, place.upstream);
        let modern = self.known_era(&key) == Some(Era::Modern);
        let lists = session.shelf();
        let may = modern
            || !self.catalog.fresh.is_zero()
                && (self.is_shared(place.upstream)
                    || place.cursor.is_some()
                    || lists.is_untouched(place.upstream, place.kind));
        may.then(|| Other::new(self.catalog_key(session, place.upstream), place))
    }

    /// Makes ready to ask for a page: the connection is open, and the clock runs.
    pub(super) async fn begin_fetch(
        &self,
        link: &dyn UpstreamLink,
        kind: ListKind,
    ) -> Result<Fetch, Fault> {
        let declared = match link.declared() {
            Some(declared) => declared,
            None => link.open().await?,
        };
        if link.hearing().is_none() && declared.announces(kind.capability()) {
            link.prepare().await;
        }
        let stretch = link
            .hearing()
            .filter(|_| declared.announces(kind.capability()));
        Ok(Fetch {
            asked: Instant::now(),
            stretch,
            declared,
        })
    }

    /// Keeps the page that was asked for, and says how long it may answer again.
    pub(super) fn keep(
        &self,
        session: &Arc<Session>,
        link: &dyn UpstreamLink,
        place: Place<'_>,
        fetch: Fetch,
        message: &Message,
    ) -> Option<Held> {
        COUNTERS.lists_misses.add(1);
        message.result_member(place.kind.member())?;
        if place.kind == ListKind::Tools {
            warn_of_invalid(place.upstream, &fetch.declared, message);
        }
        let modern = fetch.declared.revision.era() == Era::Modern;
        let hints = Hints::read(message);
        let fresh = if modern {
            Duration::from_millis(hints.ttl_ms)
        } else {
            self.catalog.freshness(fetch.asked)
        };
        let heard = fetch
            .stretch
            .filter(|_| !modern && !fresh.is_zero() && link.hearing() == fetch.stretch);
        let held = Held {
            digest: self.catalog.lists.keep(message),
            asked: fetch.asked,
            fresh,
            lasts: fresh.max(self.catalog.fresh.saturating_mul(LENGTHENED)),
            outlives_calls: modern,
            stretch: heard,
            is_own: true,
            declared: fetch.declared,
        };
        self.remember(session, place, &held, hints);
        let cursor = place.cursor;
        session
            .shelf()
            .hold(place.upstream, place.kind, cursor, held.clone());
        self.recheck_where_due(session, place, &held);
        if !fresh.is_zero() {
            let public = if modern {
                hints.scope == Scope::Public
            } else {
                self.is_shared(place.upstream)
            };
            let key = Key {
                owner: (!public).then(|| session.owner()),
                ..self.catalog_key(session, place.upstream)
            };
            let other = Other::new(key, place);
            self.catalog.others.insert(other, held.clone());
        }
        Some(held)
    }

    /// Remembers a page for sessions whose upstream will be late: of a legacy upstream one that a session was
    /// given before it called a tool or heard of a change, for all with the same credentials and capabilities;
    /// of a modern one what it calls public for them, and the rest for its principal (SPEC M-82).
    fn remember(&self, session: &Session, place: Place<'_>, held: &Held, hints: Hints) {
        let key = self.knowledge_key(session, place.upstream);
        let key = if !held.outlives_calls {
            let known = session.shelf();
            if known.disturbed(place.upstream, place.kind, true).is_some() {
                return;
            }
            key
        } else if hints.scope == Scope::Public {
            key
        } else {
            Key {
                owner: Some(session.owner()),
                ..key
            }
        };
        let page = Other::new(key, place);
        self.catalog.untouched.insert(page, held.clone());
    }

    /// A page that was [remembered](Self::remember) for sessions like this one, or of one that declared nothing:
    /// what is listed for that one may be used by all.
    pub(super) fn known_elsewhere(&self, session: &Session, place: Place<'_>) -> Option<Held> {
        let alike = self.knowledge_key(session, place.upstream);
        let own = Key {
            owner: Some(session.owner()),
            ..alike.clone()
        };
        let plain = Key {
            offer: Revision::LATEST_LEGACY,
            capabilities: ClientCapabilities::none().fingerprint(),
            ..alike.clone()
        };
        let mut keys = [own, alike, plain].into_iter();
        keys.find_map(|key| self.catalog.untouched.get(&Other::new(key, place)))
    }

    /// The page that a session holds, unless its bytes had to make room.
    pub(super) fn page(&self, held: &Held) -> Option<Arc<Page>> {
        self.catalog.lists.page(&held.digest)
    }

    /// Who may see the same lists as this session: nobody but its principal, unless the operator
    /// said that all share the upstream, and that is a legacy one: a modern one says itself what
    /// everybody may see (SPEC M-82).
    pub(super) fn catalog_key(&self, session: &Session, upstream: &Arc<str>) -> Key {
        let key = self.knowledge_key(session, upstream);
        let all = self.is_shared(upstream) && self.known_era(&key) == Some(Era::Legacy);
        Key {
            owner: (!all).then(|| session.owner()),
            ..key
        }
    }

    fn known_era(&self, key: &Key) -> Option<Era> {
        Some(self.knowledge.last(key)?.revision.era())
    }

    fn is_shared(&self, upstream: &str) -> bool {
        let settings = self.parts.upstreams.settings(upstream);
        settings.is_some_and(|settings| settings.isolation == Isolation::Shared)
    }
}
