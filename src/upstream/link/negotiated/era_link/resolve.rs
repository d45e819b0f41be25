//! Chooses the era of a link: the one that the upstream speaks; if it speaks both, the client's own. Spec: SPEC
//! U-05…U-09; `docs/adr/0008`.

use std::sync::Arc;
use std::time::Duration;

use super::current_link::CurrentLink;
use super::negotiation::Negotiation;
use super::state::NegotiatedState;
use crate::process::{BusyGuard, WaitPolicy};
use crate::protocol::Era;
use crate::sync::shared_failure::AttemptPermit;
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::duplex::DuplexSource;
use crate::upstream::carrier::{Carrier, LinkSettings, StartedConnection};
use crate::upstream::error::LinkError;
use crate::upstream::link::negotiated::probe::{self, ProbeFinding};
use crate::upstream::link::negotiated::{EraCell, EraSetting, EraVerdict, FruitlessProbe};

/// How long a session waits for the probe of another session's child, before it probes its own child.
const HELD_UP: Duration = Duration::from_secs(5);

/// Finds out which era a link is to have, and makes the link. It asks the upstream where the cache does not tell.
pub(super) struct EraResolver<'a> {
    current: &'a CurrentLink,
    settings: &'a LinkSettings,
    cell: &'a EraCell,
}

impl<'a> EraResolver<'a> {
    /// For a link that may become the `current` one.
    pub(super) fn new(current: &'a CurrentLink) -> Self {
        Self {
            current,
            settings: &current.settings,
            cell: &current.cell,
        }
    }

    /// Creates a link without making it current; `afresh`: the cached verdict was just contradicted.
    pub(super) async fn find(&self, afresh: bool) -> Result<NegotiatedState, LinkError> {
        if self.current.has_ended() {
            return Err(LinkError::Cancelled);
        }
        match self.cell.pin {
            // Another replica has found out.
            _ if self.settings.continues_session() => Ok(self.current.legacy(None)),
            Some(EraSetting::Legacy(_)) => Ok(self.current.legacy(None)),
            Some(EraSetting::Modern) => Ok(self.current.modern(None, None)),
            // Boxed, since it runs once per link and is large.
            None => Box::pin(self.detect(afresh)).await,
        }
    }

    async fn detect(&self, afresh: bool) -> Result<NegotiatedState, LinkError> {
        let decided = |started: &mut _| (!afresh).then(|| self.decided(started)).flatten();
        if let Some(inner) = decided(&mut None) {
            return Ok(inner);
        }
        let before = self.cell.probing.shared();
        // Before the turn to probe: sessions whose children have permits do not wait for this session's permit.
        let child = StartedConnection::child(&self.current.settings, WaitPolicy::SpawnWait).await;
        let mut started =
            child.inspect_err(|_| LABELED.upstream_failed.add(&self.settings.name, 1))?;
        // Busy: the child must not be evicted for another child of its owner before it is probed.
        let busy = started.as_ref().and_then(|started| started.child.busy());
        let turn = self.cell.probing.attempt_since(before);
        let turn = if self.current.is_remote() {
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
            Some(FruitlessProbe::ForNow) => return Ok(self.current.legacy(started)),
            Some(FruitlessProbe::Presumed(owner))
                if owner.is_none_or(|owner| owner == self.settings.owner) =>
            {
                return Ok(self.current.presumed_legacy(started));
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
                if self.current.is_remote()
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
            return Ok((self.current.presumed_legacy(started), None));
        }
        let believed = self.cell.believed().filter(|_| !afresh);
        let Carrier::Duplex(source) = &self.settings.carrier else {
            return Box::pin(Negotiation::new(self.current).run(believed)).await;
        };
        let (declared, is_told) = match believed {
            // Only whether the upstream keeps legacy sessions is unknown.
            Some(EraVerdict::Modern(declared)) => (declared, false),
            _ => match self.probe(source, started.take()).await? {
                ProbeFinding::Modern(declared, child) => {
                    self.cell.learn(&EraVerdict::Modern(Arc::clone(&declared)));
                    started = child;
                    (declared, true)
                }
                ProbeFinding::Legacy(started) => {
                    self.cell.learn(&EraVerdict::Legacy);
                    return Ok((self.current.legacy(started), None));
                }
                found @ (ProbeFinding::Silent | ProbeFinding::Ended) => {
                    // The end of a child concerns its owner alone.
                    let is_own = matches!(found, ProbeFinding::Ended) && !self.current.is_remote();
                    let owner = is_own.then_some(self.settings.owner);
                    let presumed = FruitlessProbe::Presumed(owner);
                    return Ok((self.current.presumed_legacy(None), Some(presumed)));
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
        let inner = self.current.declared_modern(declared, started, is_told);
        Ok((inner, None))
    }

    /// The link that follows from the cached verdict, over the child `started` if any; `None` if a probe is needed.
    fn decided(&self, started: &mut Option<StartedConnection>) -> Option<NegotiatedState> {
        let Some(believed) = self.cell.believed() else {
            let is_known = self.cell.serves_old_offer(self.settings.offer);
            return is_known.then(|| self.current.legacy(started.take()));
        };
        Some(match (believed, self.settings.client) {
            (EraVerdict::Legacy, _) => self.current.legacy(started.take()),
            (EraVerdict::Modern(_), Era::Legacy)
                if self.cell.keeps_sessions(self.settings.owner)? =>
            {
                self.current.legacy(started.take())
            }
            (EraVerdict::Modern(declared), _) => {
                self.current.modern(Some(declared), started.take())
            }
        })
    }

    async fn probe(
        &self,
        source: &DuplexSource,
        started: Option<StartedConnection>,
    ) -> Result<ProbeFinding, LinkError> {
        LABELED.upstream_probed.add(&self.settings.name, 1);
        // A child that has already ended is not probed.
        let started = started.filter(|started| !started.child.closed().is_cancelled());
        let found = probe::probe(source, self.settings, started).await;
        found.inspect_err(|error| self.settings.count_unopened(error))
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
            match probe::greet(found, self.settings).await {
                Ok(answered) => greeted = Some(answered),
                Err(refused) => *started = refused,
            }
        }
        let link = self.current.legacy_link(greeted);
        let mut opened = link.open_session().await;
        // A single socket may break for any reason: a second one decides.
        if let Err(LinkError::Lost { .. }) = opened
            && self.current.is_piped()
            && self.current.is_remote()
        {
            opened = link.open_session().await;
        }
        let is_kept = match opened {
            Ok(is_kept) => is_kept,
            // An upstream that does not answer the handshake keeps no sessions.
            Err(LinkError::Timeout | LinkError::Garbled { .. }) if self.current.is_piped() => false,
            // Nor does an upstream that disconnects at the handshake. The end of a child concerns its owner alone.
            Err(LinkError::Lost { .. }) if self.current.is_piped() => {
                if self.current.is_remote() {
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
        Ok(is_kept.then(|| NegotiatedState::legacy(link)))
    }
}
