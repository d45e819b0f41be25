//! `EraCell`: the eras that an upstream speaks, determined once for all sessions, cached, and probed again on evidence.
//! Spec: SPEC U-05…U-09, D-07, D-08; BRIDGING §3.10; `docs/adr/0008`.

mod era_link;
mod probe;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

pub(in crate::upstream) use era_link::EraLink;

use crate::call::{OwnerKey, ServerDeclaration};
use crate::config;
use crate::protocol::{Era, Revision};
use crate::sync::lazy_cache::LazyCache;
use crate::sync::shared_failure::SharedFailure;
use crate::telemetry::metrics::LABELED;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// The cached findings about one upstream.
#[derive(Debug)]
pub(in crate::upstream) struct EraCell {
    name: Arc<str>,
    pin: Option<EraSetting>,
    /// How long the verdict "legacy" is cached: an upgrade of the upstream would cause no error (SPEC U-07).
    recheck: Duration,
    known: Mutex<Option<EraKnowledge>>,
    /// Whether a modern upstream keeps legacy sessions too; unknown before the first legacy client.
    sessions: Mutex<Option<SessionSupport>>,
    /// Owners whose children died of the handshake for a legacy session.
    sessionless: LazyCache<OwnerKey, ()>,
    /// Owners whose children answered neither `server/discover` nor `initialize`; their next child gets `initialize`
    /// alone.
    mute: LazyCache<OwnerKey, ()>,
    /// When a client that offers a revision older than `server/discover` last got a session of an upstream without a
    /// verdict.
    old_offers_are_legacy: Mutex<Option<Instant>>,
    /// Serialises probes.
    probing: SharedFailure<FruitlessProbe>,
    /// When evidence last caused a probe.
    reconsidered: Mutex<Option<Instant>>,
    /// When a probe last confirmed the legacy era, after evidence against it.
    legacy_confirmed: Mutex<Option<Instant>>,
    /// Notified when the verdict changes.
    learnt: watch::Sender<()>,
}

/// Least time between two probes caused by evidence: an upstream that refuses every call is not probed at every call.
const RECONSIDER: Duration = Duration::from_secs(5);

/// How long weak evidence against the legacy era is ignored once a probe has confirmed that era: some legacy servers
/// give such evidence at each check.
const LEGACY_CONFIRMED: Duration = Duration::from_mins(10);

/// Most owners in `sessionless` and in `mute`, per upstream.
const BEREFT: u64 = 1024;
/// Longest lifetime of their entries: the cache needs a finite one.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// The configured era.
#[derive(Debug, Clone, Copy)]
enum EraSetting {
    /// Legacy; the handshake offers this revision, if one is configured.
    Legacy(Option<Revision>),
    Modern,
}

#[derive(Debug, Clone)]
struct EraKnowledge {
    verdict: EraVerdict,
    since: Instant,
}

/// The era that an upstream speaks.
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

/// A probe without a certain verdict.
#[derive(Debug, Clone)]
enum FruitlessProbe {
    Failed(LinkError),
    /// Presumed legacy; for this owner only if one is given (its child died on the probe).
    Presumed(Option<OwnerKey>),
    /// Legacy for the sessions that waited; later sessions probe again.
    ForNow,
}

/// The era that legacy clients get at a modern upstream.
#[derive(Debug, Clone, Copy)]
enum SessionSupport {
    Kept,
    /// The upstream keeps no legacy session; found at this time.
    Refused(Instant),
    /// `initialize` was answered without a session id at this time: legacy clients get the modern era, with the
    /// stateless legacy side as fallback.
    Stateless(Instant),
    /// As [`Stateless`](Self::Stateless), but legacy clients get the legacy side: the modern side declares less, or
    /// refused the form of a call.
    Preferred(Instant),
}

/// The first revision whose servers may know `server/discover`: an `InitializeResult` with an older revision proves the
/// legacy era.
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
        let kept = upstream.era_recheck.min(LONGEST);
        Self {
            name: upstream.name.as_str().into(),
            pin,
            recheck: upstream.era_recheck,
            known: Mutex::default(),
            sessions: Mutex::default(),
            old_offers_are_legacy: Mutex::default(),
            sessionless: LazyCache::new(BEREFT).time_to_live(kept),
            mute: LazyCache::new(BEREFT).time_to_live(kept),
            probing: SharedFailure::default(),
            reconsidered: Mutex::default(),
            legacy_confirmed: Mutex::default(),
            learnt: watch::Sender::default(),
        }
    }

    /// The legacy revision that a handshake offers to the upstream, for a client that speaks `wanted`.
    pub(in crate::upstream) fn offer(&self, wanted: Revision) -> Revision {
        match self.pin {
            Some(EraSetting::Legacy(Some(pinned))) => pinned,
            _ => wanted.min(Revision::LATEST_LEGACY),
        }
    }

    /// The cached verdict, unless it has expired.
    fn believed(&self) -> Option<EraVerdict> {
        let known = lock(&self.known);
        let known = known.as_ref()?;
        let is_stale =
            matches!(known.verdict, EraVerdict::Legacy) && known.since.elapsed() >= self.recheck;
        (!is_stale).then(|| known.verdict.clone())
    }

    /// The era in which the upstream is addressed: the verdict, else the configured era. Includes the modern revision,
    /// if known.
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

    /// Whether the verdict is "modern"; `false` for a configured era.
    pub(in crate::upstream) fn speaks_modern(&self) -> bool {
        matches!(self.believed(), Some(EraVerdict::Modern(_)))
    }

    /// Whether the upstream keeps legacy sessions for this owner. "No" is cached as long as the verdict "legacy": a
    /// change would cause no error.
    fn keeps_sessions(&self, owner: OwnerKey) -> Option<bool> {
        if self.sessionless.get(&owner).is_some() {
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

    /// Whether the stateless legacy side is the fallback for legacy clients.
    fn stands_by(&self) -> bool {
        matches!(*lock(&self.sessions), Some(SessionSupport::Stateless(_)))
    }

    /// Records that `initialize` is answered without a session id.
    fn learn_stateless(&self) {
        self.note_sessions(SessionSupport::Stateless(Instant::now()));
    }

    /// Records for `era_recheck` that legacy clients get the legacy era although it has no sessions.
    fn prefer_legacy(&self, why: &'static str) {
        *lock(&self.sessions) = Some(SessionSupport::Preferred(Instant::now()));
        tracing::info!(
            upstream = %self.name, why,
            "legacy era without sessions is used for legacy clients"
        );
    }

    /// Records for `era_recheck` that a client which offers a revision before `server/discover` gets a legacy session.
    /// Other clients draw no conclusion: the upstream may speak newer revisions.
    fn learn_old_offer_is_legacy(&self) {
        *lock(&self.old_offers_are_legacy) = Some(Instant::now());
    }

    /// Whether a client with this offer gets a legacy session without a verdict.
    fn serves_old_offer(&self, offer: Revision) -> bool {
        offer < FIRST_TO_DISCOVER
            && lock(&self.old_offers_are_legacy).is_some_and(|at| at.elapsed() < self.recheck)
    }

    /// Drops the verdict "modern", contradicted by evidence that may be temporary.
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
        self.mute.get(&owner).is_some()
    }

    /// Records a child of this owner without any answer: some servers stop reading after an unknown request
    /// (SPEC D-08).
    fn learn_mute(&self, owner: OwnerKey) {
        self.mute.insert(owner, ());
    }

    /// Records that a child of this owner died of the handshake for a legacy session, at a modern upstream.
    fn learn_loss(&self, owner: OwnerKey) {
        self.sessionless.insert(owner, ());
        tracing::info!(
            upstream = %self.name, principal = %owner,
            "upstream ends at the handshake for a legacy session: clients of this owner get the modern era"
        );
    }

    /// Records that connections to a modern upstream broke off at the handshake for a legacy session. Ignored for an
    /// upstream that is known to keep sessions, where the failure is temporary.
    fn learn_break(&self) {
        let is_kept = matches!(*lock(&self.sessions), Some(SessionSupport::Kept));
        if !is_kept {
            self.learn_sessions(false);
        }
    }

    /// Records whether a legacy client got a session of a modern upstream.
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

    /// Whether another link has found out meanwhile that a client of this owner and of era `client` needs another era
    /// than `was`.
    fn has_moved_on(&self, was: Era, client: Era, owner: OwnerKey) -> bool {
        match self.believed() {
            // The verdict "modern" was withdrawn without a new one, or "legacy" has expired since.
            Some(EraVerdict::Legacy) | None => was == Era::Modern,
            Some(EraVerdict::Modern(_)) => {
                let keeps_sessions = || self.keeps_sessions(owner) == Some(true);
                was == Era::Legacy && (client == Era::Modern || !keeps_sessions())
            }
        }
    }

    /// Whether evidence may cause a probe now. A verdict of the last few seconds stands.
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

    /// Records that a probe after evidence against the legacy era has confirmed it.
    fn confirm_legacy(&self) {
        *lock(&self.legacy_confirmed) = Some(Instant::now());
    }

    /// Whether weak evidence against the legacy era is ignored.
    fn is_legacy_confirmed(&self) -> bool {
        lock(&self.legacy_confirmed).is_some_and(|at| at.elapsed() < LEGACY_CONFIRMED)
    }

    /// Caches a verdict.
    fn learn(&self, verdict: &EraVerdict) {
        let since = Instant::now();
        self.mute.invalidate_all();
        let before = lock(&self.known).replace(EraKnowledge {
            verdict: verdict.clone(),
            since,
        });
        if matches!(verdict, EraVerdict::Legacy) {
            *lock(&self.sessions) = None;
            self.sessionless.invalidate_all();
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
    use super::*;
    use crate::call::Principal;
    use crate::call::samples::declared;

    fn cell(era: &str) -> EraCell {
        EraCell::new(&config::UpstreamConfig::sample(&format!("era = {era:?}\n")))
    }

    fn modern() -> EraVerdict {
        EraVerdict::Modern(declared(Revision::V2026_07_28, "{}"))
    }

    const HOUR: Duration = Duration::from_hours(1);

    // Some legacy servers do not know `ping`: each check would probe them again.
    #[tokio::test(start_paused = true)]
    async fn confirmed_legacy_era_ignores_weak_evidence() {
        let cell = cell("auto");
        assert!(!cell.is_legacy_confirmed());
        cell.confirm_legacy();
        assert!(cell.is_legacy_confirmed());
        tokio::time::advance(LEGACY_CONFIRMED).await;
        assert!(!cell.is_legacy_confirmed());
    }

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
        cell.learn(&modern());
        assert_eq!(moved(&cell), [[true; 2], [false; 2]]);
        cell.learn_sessions(true);
        assert_eq!(moved(&cell), [[false, true], [false; 2]]);
    }

    // A handshake never offers a modern revision, and offers a pinned revision to every client (SPEC L-01).
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
