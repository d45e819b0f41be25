//! Which eras an upstream speaks: found out once for all sessions, believed for a while, and asked
//! again on evidence. Spec: SPEC U-05…U-09, D-07, D-08; BRIDGING §3.10; `docs/adr/0008`.

mod era_link;
mod probe;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::watch;
use tokio::time::Instant;

pub(in crate::upstream) use era_link::EraLink;

use crate::call::{OwnerKey, ServerDeclaration};
use crate::config;
use crate::protocol::{Era, Revision};
use crate::sync::shared_failure::SharedFailure;
use crate::telemetry::metrics::LABELED;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// What is known of one upstream.
#[derive(Debug)]
pub(in crate::upstream) struct EraCell {
    name: Arc<str>,
    pin: Option<EraSetting>,
    /// How long "legacy" is believed: an upgrade would never show by itself (SPEC U-07).
    recheck: Duration,
    known: Mutex<Option<EraKnowledge>>,
    /// Whether it keeps legacy sessions besides speaking the modern era, once a client wanted one.
    sessions: Mutex<Option<SessionSupport>>,
    /// Owners whose children have died of the handshake for one.
    bereft: Cache<OwnerKey, ()>,
    /// Owners whose children have answered neither question nor handshake; their next one is asked for
    /// a session alone.
    mute: Cache<OwnerKey, ()>,
    /// When a client that offers a revision older than `server/discover` last got a session while nothing else was
    /// known of the upstream.
    elderly: Mutex<Option<Instant>>,
    /// Probes, one at a time.
    probing: SharedFailure<FruitlessProbe>,
    /// When evidence last made us ask again.
    reconsidered: Mutex<Option<Instant>>,
    /// Told when what is believed has changed.
    learnt: watch::Sender<()>,
}

/// Minimum time between two probes caused by evidence: an upstream that refuses every call is not probed at every
/// call.
const RECONSIDER: Duration = Duration::from_secs(5);

/// Upper bound on remembered owners, per upstream, whose children die of handshakes.
const BEREFT: u64 = 1024;
/// Upper bound on their lifetime: the cache needs a finite one.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// What the configuration says.
#[derive(Debug, Clone, Copy)]
enum EraSetting {
    /// Legacy; a handshake offers this revision, if one is pinned.
    Legacy(Option<Revision>),
    Modern,
}

#[derive(Debug, Clone)]
struct EraKnowledge {
    verdict: EraVerdict,
    since: Instant,
}

/// What an upstream speaks.
#[derive(Debug, Clone)]
enum EraVerdict {
    Legacy,
    /// Modern, with the declaration received last.
    Modern(Arc<ServerDeclaration>),
}

impl EraVerdict {
    fn era(&self) -> Era {
        match self {
            Self::Legacy => Era::Legacy,
            Self::Modern(_) => Era::Modern,
        }
    }
}

/// A probe after which nothing is known for certain.
#[derive(Debug, Clone)]
enum FruitlessProbe {
    Failed(LinkError),
    /// Presumed legacy; for this owner only if one is given (its child died of the probe).
    Presumed(Option<OwnerKey>),
    /// The legacy era, for the sessions that waited; later ones ask again.
    ForNow,
}

/// What legacy clients get of an upstream of the modern era.
#[derive(Debug, Clone, Copy)]
enum SessionSupport {
    Kept,
    /// No session; found at this time.
    Refused(Instant),
    /// `initialize` was answered without a session id at this time: the modern era is used, and the
    /// legacy one stands by.
    Stateless(Instant),
    /// The same, but legacy clients lose something in the modern era: it declares less, or refused the
    /// form of a call.
    Preferred(Instant),
}

/// The first revision whose servers may know `server/discover`: an older `InitializeResult` decides alone.
// Spec: SPEC U-05
pub(in crate::upstream) const FIRST_TO_DISCOVER: Revision = Revision::V2025_06_18;

impl EraCell {
    pub(in crate::upstream) fn new(upstream: &config::UpstreamConfig) -> Self {
        let pin = match upstream.era {
            config::EraPin::Auto => None,
            config::EraPin::Legacy => Some(EraSetting::Legacy(None)),
            config::EraPin::Modern => Some(EraSetting::Modern),
            config::EraPin::Revision(text) => Some(match Revision::parse(text) {
                Some(revision) if revision.era() == Era::Modern => EraSetting::Modern,
                revision => EraSetting::Legacy(revision),
            }),
        };
        Self {
            name: upstream.name.as_str().into(),
            pin,
            recheck: upstream.era_recheck,
            known: Mutex::default(),
            sessions: Mutex::default(),
            elderly: Mutex::default(),
            bereft: Cache::builder()
                .max_capacity(BEREFT)
                .time_to_live(upstream.era_recheck.min(LONGEST))
                .build(),
            mute: Cache::builder()
                .max_capacity(BEREFT)
                .time_to_live(upstream.era_recheck.min(LONGEST))
                .build(),
            probing: SharedFailure::default(),
            reconsidered: Mutex::default(),
            learnt: watch::Sender::default(),
        }
    }

    /// The legacy revision to offer to it, for a client that speaks `wanted`.
    pub(in crate::upstream) fn offer(&self, wanted: Revision) -> Revision {
        match self.pin {
            Some(EraSetting::Legacy(Some(pinned))) => pinned,
            _ => wanted.min(Revision::LATEST_LEGACY),
        }
    }

    /// What is believed now.
    fn believed(&self) -> Option<EraVerdict> {
        let known = lock(&self.known);
        let known = known.as_ref()?;
        let is_stale =
            matches!(known.verdict, EraVerdict::Legacy) && known.since.elapsed() >= self.recheck;
        (!is_stale).then(|| known.verdict.clone())
    }

    /// What it is spoken to in: by what is believed, else by what is pinned. A modern revision is named where it
    /// is known.
    pub(in crate::upstream) fn spoken(&self) -> Option<(Era, Option<Revision>)> {
        match (self.believed(), &self.pin) {
            (Some(EraVerdict::Modern(declared)), _) => Some((Era::Modern, Some(declared.revision))),
            (Some(EraVerdict::Legacy), _) | (None, Some(EraSetting::Legacy(_))) => {
                Some((Era::Legacy, None))
            }
            (None, Some(EraSetting::Modern)) => Some((Era::Modern, Some(Revision::V2026_07_28))),
            (None, None) => None,
        }
    }

    /// Whether the upstream is believed to speak the modern era; `false` for a pinned upstream.
    pub(in crate::upstream) fn speaks_modern(&self) -> bool {
        matches!(self.believed(), Some(EraVerdict::Modern(_)))
    }

    /// Whether it is believed to keep legacy sessions as well, for this owner. That it keeps none is
    /// believed as long as "legacy" is: a change would never show by itself.
    fn keeps_sessions(&self, owner: OwnerKey) -> Option<bool> {
        if self.bereft.contains_key(&owner) {
            return Some(false);
        }
        match (*lock(&self.sessions))? {
            SessionSupport::Kept => Some(true),
            SessionSupport::Preferred(at) => (at.elapsed() < self.recheck).then_some(true),
            SessionSupport::Refused(at) | SessionSupport::Stateless(at) => {
                (at.elapsed() < self.recheck).then_some(false)
            }
        }
    }

    /// Whether a legacy client that gets the modern era could be served without a session in its own.
    fn stands_by(&self) -> bool {
        matches!(*lock(&self.sessions), Some(SessionSupport::Stateless(_)))
    }

    /// Remembers that `initialize` is answered without a session id.
    fn learn_stateless(&self) {
        self.note_sessions(SessionSupport::Stateless(Instant::now()));
    }

    /// Remembers for `era_recheck` that legacy clients get the legacy era though it keeps no session.
    fn prefer_legacy(&self, why: &'static str) {
        *lock(&self.sessions) = Some(SessionSupport::Preferred(Instant::now()));
        tracing::info!(
            upstream = %self.name, why,
            "legacy era without sessions is used for legacy clients"
        );
    }

    /// Remembers for `era_recheck` that a client which offers a revision before `server/discover` gets a
    /// legacy session. It is no evidence for other clients: the upstream may speak newer revisions.
    fn learn_elderly(&self) {
        *lock(&self.elderly) = Some(Instant::now());
    }

    /// Whether a client with this offer gets a legacy session though nothing else is known.
    fn serves_elderly(&self, offer: Revision) -> bool {
        offer < FIRST_TO_DISCOVER
            && lock(&self.elderly).is_some_and(|at| at.elapsed() < self.recheck)
    }

    /// Drops the verdict "modern", which was contradicted without evidence that lasts.
    fn withdraw_modern(&self) {
        let mut known = lock(&self.known);
        if known
            .as_ref()
            .is_some_and(|known| matches!(known.verdict, EraVerdict::Modern(_)))
        {
            *known = None;
            drop(known);
            self.learnt.send_replace(());
            LABELED.upstream_downgraded.add(&self.name, 1);
            tracing::warn!(upstream = %self.name, "upstream no longer speaks the modern era, for now");
        }
    }

    /// Whether the last child of this owner answered nothing at all.
    fn is_mute(&self, owner: OwnerKey) -> bool {
        self.mute.contains_key(&owner)
    }

    /// Remembers that a child of this owner answered nothing at all: some servers stop reading after an unknown request
    /// (SPEC D-08).
    fn learn_mute(&self, owner: OwnerKey) {
        self.mute.insert(owner, ());
    }

    /// Remembers that what this owner got of an upstream of the modern era has died of the handshake
    /// for a legacy session.
    fn learn_loss(&self, owner: OwnerKey) {
        self.bereft.insert(owner, ());
        tracing::info!(
            upstream = %self.name, principal = %owner,
            "upstream ends of the handshake for a legacy session: its owner's clients get the modern era"
        );
    }

    /// Remembers that connections to an upstream of the modern era broke of the handshake for a legacy
    /// session. One that is known to keep sessions is out of order just now: that passes.
    fn learn_break(&self) {
        let is_kept = matches!(*lock(&self.sessions), Some(SessionSupport::Kept));
        if !is_kept {
            self.learn_sessions(false);
        }
    }

    /// Remembers whether a legacy client got a session of an upstream of the modern era.
    fn learn_sessions(&self, kept: bool) {
        self.note_sessions(if kept {
            SessionSupport::Kept
        } else {
            SessionSupport::Refused(Instant::now())
        });
    }

    fn note_sessions(&self, found: SessionSupport) {
        let is_kept = |sessions: &SessionSupport| matches!(sessions, SessionSupport::Kept);
        let before = lock(&self.sessions).replace(found);
        let before = before.as_ref().map(is_kept);
        if before != Some(is_kept(&found)) {
            self.learnt.send_replace(());
        }
        match (before, is_kept(&found)) {
            (None | Some(false), true) => {
                tracing::info!(upstream = %self.name, "upstream keeps legacy sessions as well");
            }
            (None | Some(true), false) => {
                tracing::info!(
                    upstream = %self.name,
                    "upstream keeps no legacy sessions: clients of both eras get the modern one"
                );
            }
            _ => {}
        }
    }

    /// Whether another link has found out meanwhile that a client of era `client`, of this owner, needs another era than
    /// `was`.
    fn has_moved_on(&self, was: Era, client: Era, owner: OwnerKey) -> bool {
        match self.believed() {
            // "Modern" was withdrawn without a verdict in its place, or "legacy" has expired since.
            Some(EraVerdict::Legacy) | None => was == Era::Modern,
            Some(EraVerdict::Modern(_)) => {
                let keeps_sessions = || self.keeps_sessions(owner) == Some(true);
                was == Era::Legacy && (client == Era::Modern || !keeps_sessions())
            }
        }
    }

    /// Whether evidence may make us ask again now. What was found out just now stands.
    fn may_reconsider(&self) -> bool {
        let recent = |at: &Instant| at.elapsed() < RECONSIDER;
        if lock(&self.known)
            .as_ref()
            .is_some_and(|known| recent(&known.since))
        {
            return false;
        }
        let mut last = lock(&self.reconsidered);
        let may = !last.as_ref().is_some_and(recent);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    /// Remembers what was found out.
    fn learn(&self, verdict: &EraVerdict) {
        let since = Instant::now();
        self.mute.invalidate_all();
        let before = lock(&self.known).replace(EraKnowledge {
            verdict: verdict.clone(),
            since,
        });
        if matches!(verdict, EraVerdict::Legacy) {
            *lock(&self.sessions) = None;
            self.bereft.invalidate_all();
        }
        let before = before.map(|known| known.verdict);
        if before.as_ref().map(EraVerdict::era) != Some(verdict.era()) {
            self.learnt.send_replace(());
        }
        match (before, verdict) {
            (Some(EraVerdict::Modern(_)), EraVerdict::Legacy) => {
                LABELED.upstream_downgraded.add(&self.name, 1);
                tracing::warn!(upstream = %self.name, "upstream no longer speaks the modern era");
            }
            (None | Some(EraVerdict::Legacy), EraVerdict::Modern(_)) => {
                tracing::info!(upstream = %self.name, "upstream speaks the modern era");
            }
            (None, EraVerdict::Legacy) => {
                tracing::info!(upstream = %self.name, "upstream speaks the legacy era");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::call::Principal;

    fn cell(era: &str) -> EraCell {
        let text = format!(
            "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\nera = {era:?}\n"
        );
        let config = config::parse(&text, "test.toml", &|_| None).unwrap();
        EraCell::new(config.upstreams.first().unwrap())
    }

    fn modern() -> EraVerdict {
        EraVerdict::Modern(Arc::new(ServerDeclaration::new(
            Revision::V2026_07_28,
            Bytes::from_static(b"{}"),
            Bytes::from_static(b"{}"),
            None,
        )))
    }

    const HOUR: Duration = Duration::from_hours(1);

    // SPEC U-07: a stale "modern" fails loudly, a stale "legacy" never fails.
    #[tokio::test(start_paused = true)]
    async fn legacy_is_believed_for_a_while_and_modern_until_evidence() {
        let cell = cell("auto");
        cell.learn(&EraVerdict::Legacy);
        tokio::time::advance(Duration::from_mins(59)).await;
        assert!(matches!(cell.believed(), Some(EraVerdict::Legacy)));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert!(cell.believed().is_none());
        cell.learn(&modern());
        tokio::time::advance(HOUR * 24).await;
        assert!(matches!(cell.believed(), Some(EraVerdict::Modern(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_kept_until_evidence_and_a_refusal_believed_for_a_while() {
        let cell = cell("auto");
        cell.learn(&modern());
        let keeps_sessions = || cell.keeps_sessions(Principal::anonymous().owner());
        assert_eq!(keeps_sessions(), None);
        cell.learn_break();
        assert_eq!(keeps_sessions(), Some(false));
        tokio::time::advance(HOUR).await;
        assert_eq!(keeps_sessions(), None);
        cell.learn_sessions(true);
        tokio::time::advance(HOUR * 24).await;
        assert_eq!(keeps_sessions(), Some(true));
        cell.learn_break();
        assert_eq!(keeps_sessions(), Some(true), "it is out of order just now");
        cell.learn_loss(Principal::anonymous().owner());
        assert_eq!(
            keeps_sessions(),
            Some(false),
            "not with what this owner gets"
        );
        cell.learn(&EraVerdict::Legacy);
        assert_eq!(keeps_sessions(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn evidence_makes_us_ask_again_but_not_at_every_call() {
        let cell = cell("auto");
        cell.learn(&EraVerdict::Legacy);
        assert!(!cell.may_reconsider(), "it was found out just now");
        tokio::time::advance(RECONSIDER).await;
        assert!(cell.may_reconsider());
        assert!(!cell.may_reconsider());
        tokio::time::advance(RECONSIDER).await;
        assert!(cell.may_reconsider());
    }

    // The findings of one link apply to every other link at once.
    #[test]
    fn who_speaks_another_era_than_what_is_believed_has_missed_something() {
        let cell = cell("auto");
        let moved = |cell: &EraCell| {
            let eras = [Era::Legacy, Era::Modern];
            let owner = Principal::anonymous().owner();
            eras.map(|was| eras.map(|client| cell.has_moved_on(was, client, owner)))
        };
        assert_eq!(
            moved(&cell),
            [[false; 2], [true; 2]],
            "\"modern\" was withdrawn"
        );
        cell.learn(&EraVerdict::Legacy);
        assert_eq!(moved(&cell), [[false; 2], [true; 2]]);
        let declared =
            ServerDeclaration::new(Revision::V2026_07_28, "{}".into(), "{}".into(), None);
        cell.learn(&EraVerdict::Modern(Arc::new(declared)));
        assert_eq!(moved(&cell), [[true; 2], [false; 2]]);
        cell.learn_sessions(true);
        assert_eq!(moved(&cell), [[false, true], [false; 2]]);
    }

    // A handshake never offers a modern revision, and offers a pinned one to everybody (SPEC L-01).
    #[test]
    fn what_a_handshake_offers_is_legacy() {
        let offer = |era: &str, wanted| cell(era).offer(wanted);
        let (old, new) = (Revision::V2024_11_05, Revision::V2026_07_28);
        assert_eq!(offer("auto", old), old);
        assert_eq!(offer("auto", new), Revision::V2025_11_25);
        assert_eq!(offer("legacy", new), Revision::V2025_11_25);
        assert_eq!(offer("2025-06-18", new), Revision::V2025_06_18);
        assert_eq!(offer("2025-06-18", old), Revision::V2025_06_18);
    }
}
