//! `CurrentLink`: the link of the negotiated era, and the links that may replace it.

use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;

use super::presumption::EraPresumption;
use super::state::NegotiatedState;
use crate::call::ServerDeclaration;
use crate::protocol::Era;
use crate::sync::desired::Desired;
use crate::upstream::carrier::duplex::DuplexSource;
use crate::upstream::carrier::{Carrier, LinkSettings, StartedConnection};
use crate::upstream::error::LinkError;
use crate::upstream::link::legacy::LegacyLink;
use crate::upstream::link::modern::{ModernServerLink, ToolSchemas};
use crate::upstream::link::negotiated::EraCell;
use crate::upstream::link::session_state::SessionState;
use crate::upstream::lock;

/// The link of the negotiated era. It carries session state and the wish for notices from one link to the next.
#[derive(Debug)]
pub(super) struct CurrentLink {
    pub(super) settings: Arc<LinkSettings>,
    pub(super) cell: Arc<EraCell>,
    schemas: Arc<ToolSchemas>,
    /// Subscriptions and log level, kept at a change of the era.
    pub(super) state: SessionState,
    current: Mutex<Option<NegotiatedState>>,
    listening: Desired<bool>,
    /// Whether a modern link serves a legacy client in place of the stateless legacy side, and no call has succeeded
    /// yet.
    stands_by: AtomicBool,
    /// Whether the session has ended: the link is not used again.
    ended: AtomicBool,
}

impl CurrentLink {
    /// None yet.
    pub(super) fn new(
        settings: Arc<LinkSettings>,
        cell: Arc<EraCell>,
        schemas: Arc<ToolSchemas>,
        state: SessionState,
    ) -> Self {
        Self {
            settings,
            cell,
            schemas,
            state,
            current: Mutex::default(),
            listening: Desired::default(),
            stands_by: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    pub(super) fn get(&self) -> Option<NegotiatedState> {
        lock(&self.current).clone()
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
        if self.has_ended() {
            drop(self.close());
            return Err(LinkError::Cancelled);
        }
        // Before the link listens: changes may have been missed until its first stream opens.
        if let (NegotiatedState::Modern(link), Some(NegotiatedState::Legacy { .. }) | None) =
            (inner, &before)
        {
            link.notices().take_over();
        }
        self.listening.apply(|wanted| inner.listen(*wanted));
        Ok(())
    }

    /// Forgets the legacy `link`, unless another one has replaced it already.
    pub(super) fn forget(&self, link: &Arc<LegacyLink>) {
        let mut current = lock(&self.current);
        if let Some(NegotiatedState::Legacy { link: now, .. }) = &*current
            && Arc::ptr_eq(now, link)
        {
            *current = None;
        }
    }

    /// Whether a modern link stands in for the stateless legacy side, and no call has succeeded yet.
    pub(super) fn stands_by(&self) -> bool {
        self.stands_by.load(Ordering::Relaxed)
    }

    /// Notes that a call has succeeded: the link stays.
    pub(super) fn call_succeeded(&self) {
        self.stands_by.store(false, Ordering::Relaxed);
    }

    /// Sets whether a client listens, for this link and its successors.
    pub(super) fn listen(&self, wanted: bool) {
        let listen = |wanted: &bool| {
            if let Some(inner) = self.get() {
                inner.listen(*wanted);
            }
        };
        self.listening.set_and_apply(|wish| *wish = wanted, listen);
    }

    /// Whether a client listens, or has subscribed to a resource.
    pub(super) fn is_heard(&self) -> bool {
        let is_wanted = self.listening.get() || !self.state.followed.is_empty();
        is_wanted && !self.has_ended()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends the session. Closes the link, even if the returned future is never polled.
    pub(super) fn end(&self) -> BoxFuture<'static, ()> {
        self.ended.store(true, Ordering::Release);
        self.close()
    }

    /// Closes the current link, even if the returned future is never polled.
    fn close(&self) -> BoxFuture<'static, ()> {
        let inner = lock(&self.current).take();
        inner.map_or_else(|| Box::pin(ready(())) as _, |inner| inner.close())
    }

    pub(super) fn is_piped(&self) -> bool {
        matches!(self.settings.carrier, Carrier::Duplex(_))
    }

    pub(super) fn is_remote(&self) -> bool {
        !matches!(
            self.settings.carrier,
            Carrier::Duplex(DuplexSource::Children(_))
        )
    }

    /// A legacy link over the child `started`, if any, that is not current yet.
    pub(super) fn legacy(&self, started: Option<StartedConnection>) -> NegotiatedState {
        NegotiatedState::legacy(self.legacy_link(started))
    }

    /// The same for an upstream that is only presumed to be legacy.
    pub(super) fn presumed_legacy(&self, started: Option<StartedConnection>) -> NegotiatedState {
        NegotiatedState::Legacy {
            link: self.legacy_link(started),
            presumption: EraPresumption::pending(),
        }
    }

    /// A modern link over the child `started`, if any, that is not current yet.
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

    /// A modern link; `is_told`: the upstream has just sent `declared` to this link.
    pub(super) fn declared_modern(
        &self,
        declared: Arc<ServerDeclaration>,
        started: Option<StartedConnection>,
        is_told: bool,
    ) -> NegotiatedState {
        if !is_told {
            return self.modern(Some(declared), started);
        }
        let inner = self.modern(None, started);
        if let NegotiatedState::Modern(link) = &inner {
            link.told(&declared);
        }
        inner
    }

    /// A legacy link with the session state of its predecessor. Beside another legacy link it has a state of its own,
    /// since one of the two will be dropped.
    pub(super) fn legacy_link(&self, started: Option<StartedConnection>) -> Arc<LegacyLink> {
        let state = match self.get() {
            Some(NegotiatedState::Legacy { .. }) => SessionState::default(),
            Some(NegotiatedState::Modern(_)) | None => self.state.clone(),
        };
        let link = LegacyLink::new(Arc::clone(&self.settings), state, started);
        // Before the link opens, so that notices right after its subscriptions are received.
        self.listening.apply(|wanted| link.listen(*wanted));
        link
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::registry::tests::era_link;

    // The replacing link may be modern too, without being a stand-in.
    #[tokio::test]
    async fn only_the_link_in_use_stands_in_for_a_stateless_legacy_side() {
        let link = era_link();
        let current = &link.current;
        current.cell.learn_stateless();
        let modern = current.modern(None, None);
        assert!(!current.stands_by(), "it is not in use");
        current.put(&modern).unwrap();
        assert!(current.stands_by());
        current.put(&current.legacy(None)).unwrap();
        assert!(!current.stands_by());
    }
}
