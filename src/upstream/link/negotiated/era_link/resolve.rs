//! Chooses the era of a link: the one that the upstream speaks; if it speaks both, the client's own. Spec: SPEC
//! U-05…U-09; `docs/adr/0008`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{EraLink, NegotiatedState};
use crate::call::ServerDeclaration;
use crate::process::{BusyGuard, WaitPolicy};
use crate::protocol::Era;
use crate::sync::shared_failure::AttemptPermit;
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::{Carrier, StartedConnection};
use crate::upstream::error::LinkError;
use crate::upstream::link::legacy::LegacyLink;
use crate::upstream::link::modern::ModernServerLink;
use crate::upstream::link::negotiated::probe::{self, LegacySign, ProbeFinding};
use crate::upstream::link::negotiated::{EraSetting, EraVerdict, FruitlessProbe};
use crate::upstream::link::session_state::SessionState;
use crate::upstream::lock;

/// How long a session waits for the probe of another session's child, before it probes its own child.
const HELD_UP: Duration = Duration::from_secs(5);

impl EraLink {
    /// The current link, created at the first use.
    pub(super) async fn inner(&self) -> Result<NegotiatedState, LinkError> {
        match self.current() {
            Some(inner) => Ok(inner),
            // Boxed, since it runs once and is large.
            None => Box::pin(self.first()).await,
        }
    }

    async fn first(&self) -> Result<NegotiatedState, LinkError> {
        let turn = self.resolving.attempt().await;
        if let Some(inner) = self.current() {
            return Ok(inner);
        }
        if let Some(failed) = turn.spared() {
            return Err(failed);
        }
        let resolved = self.resolve().await;
        let resolved = resolved.map_err(LinkError::of_opening);
        if let Err(error) = &resolved {
            turn.share(error.clone());
        }
        resolved
    }

    async fn resolve(&self) -> Result<NegotiatedState, LinkError> {
        let inner = self.find(false).await?;
        self.put(&inner)?;
        Ok(inner)
    }

    /// Creates a link without making it current; `afresh`: the cached verdict was just contradicted.
    pub(super) async fn find(&self, afresh: bool) -> Result<NegotiatedState, LinkError> {
        if self.ended.load(Ordering::Acquire) {
            return Err(LinkError::Cancelled);
        }
        match self.cell.pin {
            // Another replica has found out.
            _ if self.settings.continues_session() => Ok(self.legacy(None, false)),
            Some(EraSetting::Legacy(_)) => Ok(self.legacy(None, false)),
            Some(EraSetting::Modern) => Ok(self.modern(None, None)),
            // Boxed, since it runs once per link and is large.
            None => Box::pin(self.detect(afresh)).await,
        }
    }

    /// Makes `inner` the current link.
    ///
    /// # Errors
    /// [`LinkError::Cancelled`] if the session has ended; the link is being closed then.
    pub(super) fn put(&self, inner: &NegotiatedState) -> Result<(), LinkError> {
        let stands_by = matches!(inner, NegotiatedState::Modern(_))
            && self.settings.client == Era::Legacy
            && self.cell.stands_by();
        let before = {
            let mut current = lock(&self.current);
            self.stands_by.store(stands_by, Ordering::Relaxed);
            current.replace(inner.clone())
        };
        // The session has ended meanwhile: nothing else would close the link.
        if self.ended.load(Ordering::Acquire) {
            drop(self.close_inner());
            return Err(LinkError::Cancelled);
        }
        // Before the link listens: changes may have been missed until its first stream opens.
        if let (NegotiatedState::Modern(link), Some(NegotiatedState::Legacy { .. }) | None) =
            (inner, &before)
        {
            link.take_over();
        }
        self.listening.apply(|wanted| inner.listen(*wanted));
        Ok(())
    }

    async fn detect(&self, afresh: bool) -> Result<NegotiatedState, LinkError> {
        let decided = |started: &mut _| (!afresh).then(|| self.decided(started)).flatten();
        if let Some(inner) = decided(&mut None) {
            return Ok(inner);
        }
        let before = self.cell.probing.shared();
        // Before the turn to probe: sessions whose children have permits do not wait for this session's permit.
        let child = StartedConnection::child(&self.settings, WaitPolicy::SpawnWait).await;
        let mut started =
            child.inspect_err(|_| LABELED.upstream_failed.add(&self.settings.name, 1))?;
        // Busy: the child must not be evicted for another child of its owner before it is probed.
        let busy = started.as_ref().and_then(|started| started.child.busy());
        let turn = self.cell.probing.attempt_since(before);
        let turn = if self.is_remote() {
            Some(turn.await)
        } else {
            // The child of another session may be slow or hang: wait only briefly for its probe.
            tokio::time::timeout(HELD_UP, turn).await.ok()
        };
        if let Some(inner) = decided(&mut started) {
            return Ok(inner);
        }
        match turn.as_ref().and_then(AttemptPermit::spared) {
            Some(FruitlessProbe::Failed(error)) => return Err(error),
            Some(FruitlessProbe::ForNow) => return Ok(self.legacy(started, false)),
            Some(FruitlessProbe::Presumed(owner))
                if owner.is_none_or(|owner| owner == self.settings.owner) =>
            {
                return Ok(self.legacy(started, true));
            }
            Some(FruitlessProbe::Presumed(_)) | None => {}
        }
        match Box::pin(self.find_out(afresh, started, busy)).await {
            Ok((inner, presumed)) => {
                if let Some((presumed, turn)) = presumed.zip(turn) {
                    turn.share(presumed);
                }
                Ok(inner)
            }
            Err(error) => {
                // Failures of a child concern its owner alone; and a refusal of one caller's credentials does not apply
                // to the next caller.
                let is_own = matches!(error, LinkError::Cancelled) || error.is_wall();
                if self.is_remote()
                    && !is_own
                    && let Some(turn) = turn
                {
                    turn.share(FruitlessProbe::Failed(error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Probes the upstream, over the child `started` if any, and creates the link. For a presumed legacy upstream also
    /// returns the outcome to share with waiting callers.
    async fn find_out(
        &self,
        afresh: bool,
        mut started: Option<StartedConnection>,
        busy: Option<BusyGuard>,
    ) -> Result<(NegotiatedState, Option<FruitlessProbe>), LinkError> {
        if self.cell.is_mute(self.settings.owner) && !afresh {
            return Ok((self.legacy(started, true), None));
        }
        let believed = self.cell.believed().filter(|_| !afresh);
        if !self.is_piped() {
            return self.negotiate(believed).await;
        }
        let (declared, is_told) = match believed {
            // Only whether the upstream keeps legacy sessions is unknown.
            Some(EraVerdict::Modern(declared)) => (declared, false),
            _ => match self.probe(started.take()).await? {
                ProbeFinding::Modern(declared, child) => {
                    started = child;
                    (declared, true)
                }
                ProbeFinding::Legacy(started) => return Ok((self.legacy(started, false), None)),
                ProbeFinding::Presumed(sign) => {
                    // Failures of a child concern its owner alone.
                    let of_all = sign == LegacySign::Silence || self.is_remote();
                    let owner = (!of_all).then_some(self.settings.owner);
                    let presumed = FruitlessProbe::Presumed(owner);
                    return Ok((self.legacy(None, true), Some(presumed)));
                }
                ProbeFinding::Mute(error) => {
                    // No second start now; the owner's next child gets `initialize` alone.
                    self.cell.learn_mute(self.settings.owner);
                    LABELED.upstream_failed.add(&self.settings.name, 1);
                    return Err(error);
                }
            },
        };
        drop(busy);
        if self.settings.client == Era::Legacy
            && let Some(session) = self.session(&mut started).await?
        {
            return Ok((session, None));
        }
        if !is_told {
            return Ok((self.modern(Some(declared), started), None));
        }
        let inner = self.modern(None, started);
        if let NegotiatedState::Modern(link) = &inner {
            link.told(&declared);
        }
        Ok((inner, None))
    }

    /// The link that follows from the cached verdict, over the child `started` if any; `None` if a probe is needed.
    fn decided(&self, started: &mut Option<StartedConnection>) -> Option<NegotiatedState> {
        let Some(believed) = self.cell.believed() else {
            let is_known = self.cell.serves_elderly(self.settings.offer);
            return is_known.then(|| self.legacy(started.take(), false));
        };
        Some(match (believed, self.settings.client) {
            (EraVerdict::Legacy, _) => self.legacy(started.take(), false),
            (EraVerdict::Modern(_), Era::Legacy)
                if self.cell.keeps_sessions(self.settings.owner)? =>
            {
                self.legacy(started.take(), false)
            }
            (EraVerdict::Modern(declared), _) => self.modern(Some(declared), started.take()),
        })
    }

    async fn probe(&self, started: Option<StartedConnection>) -> Result<ProbeFinding, LinkError> {
        LABELED.upstream_probed.add(&self.settings.name, 1);
        // A child that has already ended is not probed.
        let started = started.filter(|started| !started.child.closed().is_cancelled());
        let found = probe::probe(&self.settings, started).await;
        let found = found.inspect_err(|error| self.settings.count_unopened(error))?;
        match &found {
            ProbeFinding::Modern(declared, _) => {
                self.cell.learn(&EraVerdict::Modern(Arc::clone(declared)));
            }
            ProbeFinding::Legacy(_) => self.cell.learn(&EraVerdict::Legacy),
            ProbeFinding::Presumed(_) | ProbeFinding::Mute(_) => {}
        }
        Ok(found)
    }

    /// A legacy session of a modern upstream; `None` if the upstream keeps none. `started` is the connection of the
    /// probe, or a connection that was not probed; the caller keeps it unless it carries the session.
    async fn session(
        &self,
        started: &mut Option<StartedConnection>,
    ) -> Result<Option<NegotiatedState>, LinkError> {
        // Some servers accept the handshake on the connection of the probe, others only on a fresh one.
        let mut greeted = None;
        if let Some(found) = started.take() {
            if found.asked {
                match probe::greet(found, &self.settings).await {
                    Ok(answered) => greeted = Some(answered),
                    Err(refused) => *started = refused,
                }
            } else {
                greeted = Some(found);
            }
        }
        let link = self.legacy_link(greeted);
        let mut opened = link.open_session().await;
        // A single socket may break for any reason: a second one decides.
        if let Err(LinkError::Lost { .. }) = opened
            && self.is_piped()
            && self.is_remote()
        {
            opened = link.open_session().await;
        }
        let is_kept = match opened {
            Ok(is_kept) => is_kept,
            // An upstream that does not answer the handshake keeps no sessions.
            Err(LinkError::Timeout | LinkError::Garbled { .. }) if self.is_piped() => false,
            // Nor does an upstream that disconnects at the handshake. The end of a child concerns its owner alone.
            Err(LinkError::Lost { .. }) if self.is_piped() => {
                if self.is_remote() {
                    self.cell.learn_break();
                } else {
                    self.cell.learn_loss(self.settings.owner);
                }
                return Ok(None);
            }
            // An outage of one era, or no permit for another child: the other era serves, and the next session tries
            // again.
            Err(LinkError::Status(500..) | LinkError::AtCapacity { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.cell.learn_sessions(is_kept);
        Ok(is_kept.then(|| NegotiatedState::Legacy {
            link,
            presumed: Arc::default(),
        }))
    }

    pub(super) fn is_piped(&self) -> bool {
        matches!(self.settings.carrier, Carrier::Duplex(_))
    }

    pub(super) fn legacy(
        &self,
        started: Option<StartedConnection>,
        presumed: bool,
    ) -> NegotiatedState {
        NegotiatedState::Legacy {
            link: self.legacy_link(started),
            presumed: Arc::new(AtomicBool::new(presumed)),
        }
    }

    pub(super) fn modern(
        &self,
        known: Option<Arc<ServerDeclaration>>,
        started: Option<StartedConnection>,
    ) -> NegotiatedState {
        let (settings, schemas) = (Arc::clone(&self.settings), Arc::clone(&self.schemas));
        let state = self.state.clone();
        NegotiatedState::Modern(ModernServerLink::new(
            settings, schemas, state, known, started,
        ))
    }

    /// A legacy link with the session state of its predecessor. Beside another legacy link it has a state of its own,
    /// since one of the two will be dropped.
    pub(super) fn legacy_link(&self, started: Option<StartedConnection>) -> Arc<LegacyLink> {
        let state = match self.current() {
            Some(NegotiatedState::Legacy { .. }) => SessionState::default(),
            Some(NegotiatedState::Modern(_)) | None => self.state.clone(),
        };
        let link = LegacyLink::new(Arc::clone(&self.settings), state, started);
        // Before the link opens, so that notices right after its subscriptions are received.
        self.listening.apply(|wanted| link.listen(*wanted));
        link
    }
}
