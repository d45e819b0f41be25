//! Moves a link to the other era, after evidence against the present one. Spec: SPEC U-07.

use super::resolve::EraResolver;
use super::{EraLink, NegotiatedState, contradiction};
use crate::call::{Call, Reply};
use crate::protocol::{Era, Message};
use crate::upstream::carrier::LinkSettings;
use crate::upstream::error::LinkError;

impl EraLink {
    /// Probes the upstream again, after evidence against the era of `was`; not if another link has just done so.
    /// Returns the link that replaces `was`, `None` where nothing has changed.
    pub(super) async fn reconsider(&self, was: &NegotiatedState) -> Option<NegotiatedState> {
        if self.cell.pin.is_some() {
            return None;
        }
        let LinkSettings { client, owner, .. } = *self.settings;
        let is_known = self.cell.has_moved_on(was.era(), client, owner);
        if !is_known && !self.cell.may_reconsider() {
            return None;
        }
        let _resolving = self.resolving.attempt().await;
        let current = self.current.get()?;
        // Another link, of either era, has already replaced `was`.
        if !current.is(was) {
            return Some(current);
        }
        let fresh = EraResolver::new(&self.current).find(!is_known).await.ok()?;
        if fresh.era() == was.era() {
            // Unchanged: the existing link stays, since it has the sessions.
            match was.era() {
                Era::Modern => self.doubts.confirm(),
                Era::Legacy => self.cell.confirm_legacy(),
            }
            fresh.close().await;
            return None;
        }
        let put = self.current.put(&fresh);
        // Closed even if the session has ended meanwhile: nothing else would close it.
        was.close().await;
        put.ok()?;
        Some(fresh)
    }

    /// Waits until every change notice is received; `false` as soon as none will be sent. Waits for a replacing link of
    /// the other era too, and checks the era when there are no notices: a client that only listens makes no call that
    /// would reveal a change.
    pub(super) async fn until_heard_in_its_era(&self) -> bool {
        loop {
            let Some(inner) = self.current.get() else {
                return false;
            };
            let heard = match &inner {
                NegotiatedState::Legacy { link, .. } => Some(link.wait_until_live().await),
                NegotiatedState::Modern(link) => tokio::select! {
                    biased;
                    heard = link.notices().wait_until_live() => Some(heard),
                    () = link.notices().until_refused(|error| self.contradicts_modern(error)) => None,
                },
            };
            if heard == Some(true) {
                return true;
            }
            // A link of the other era may have replaced it.
            if self.current.get().is_some_and(|now| !now.is(&inner)) {
                continue;
            }
            if Box::pin(self.replaces_deaf(&inner)).await {
                continue;
            }
            return match (&inner, heard) {
                // The stream is retried, as the refusal may be temporary. The check of the refusal may replace the
                // link, which ends this wait.
                (NegotiatedState::Modern(link), None)
                    if !link.notices().wait_until_live().await =>
                {
                    if self.current.get().is_some_and(|now| !now.is(&inner)) {
                        continue;
                    }
                    false
                }
                (NegotiatedState::Modern(_), None) => true,
                _ => false,
            };
        }
    }

    /// Whether another link replaces one that receives no notices, since the upstream changed its era.
    async fn replaces_deaf(&self, inner: &NegotiatedState) -> bool {
        if self.cell.pin.is_some() {
            return false;
        }
        self.fits(inner).await == Some(false) && self.reconsider(inner).await.is_some()
    }

    /// Whether a link without notices has the era of its upstream; `None` where the upstream's answer proves nothing.
    pub(super) async fn fits(&self, inner: &NegotiatedState) -> Option<bool> {
        match inner {
            // Many servers have no GET stream: that it is refused proves nothing.
            NegotiatedState::Legacy { link, .. } if !self.current.is_piped() => {
                let answer = link.knock().await;
                let is_contradicted = contradiction::is_in(Era::Legacy, false, &answer)
                    || contradiction::knows_no_ping(&answer) && !self.cell.is_legacy_confirmed();
                (is_contradicted || answer.is_ok()).then_some(!is_contradicted)
            }
            NegotiatedState::Legacy { .. } => Some(true),
            NegotiatedState::Modern(link) => Some(
                !link
                    .notices()
                    .is_refused(|error| self.contradicts_modern(error)),
            ),
        }
    }

    fn contradicts_modern(&self, error: &LinkError) -> bool {
        self.contradicts(Era::Modern, error)
    }

    pub(super) fn contradicts(&self, era: Era, error: &LinkError) -> bool {
        contradiction::is_in(era, self.current.is_piped(), &Err(error.clone()))
    }

    /// Whether a modern link refused a subscription because the upstream refuses `subscriptions/listen`.
    pub(super) fn contradicts_listening(
        &self,
        inner: &NegotiatedState,
        request: &Message,
        reply: &Result<Reply, LinkError>,
    ) -> bool {
        let NegotiatedState::Modern(link) = inner else {
            return false;
        };
        matches!(reply, Ok(Reply::Error(_)))
            && request.method() == Some("resources/subscribe")
            && link
                .notices()
                .is_refused(|error| self.contradicts_modern(error))
    }

    /// Sends the log level of a modern call to the legacy upstream, before the call is sent again. A legacy client has
    /// its own level; among other clients the most verbose level applies.
    // Spec: SPEC C-21
    pub(super) async fn raise_level(
        &self,
        other: &NegotiatedState,
        request: &Message,
        call: &Call,
    ) {
        let (NegotiatedState::Legacy { link, .. }, Some(wanted)) = (other, call.link.level())
        else {
            return;
        };
        let is_own = self.settings.exclusive && self.settings.client == Era::Legacy;
        let is_told = self.current.state.level().is_some_and(|told| {
            if is_own {
                told == wanted
            } else {
                told <= wanted
            }
        });
        let logs = link.declared().is_none_or(|declared| declared.logs());
        if !is_told && logs && request.method() != Some("logging/setLevel") {
            link.set_level(wanted).await;
        }
    }

    /// Changes to the stateless legacy side, since the modern side refused the form of the first call.
    // Spec: `docs/adr/0008`
    pub(super) async fn fall_back(&self, was: &NegotiatedState) -> Option<NegotiatedState> {
        let _resolving = self.resolving.attempt().await;
        let current = self.current.get()?;
        if !current.is(was) {
            return Some(current);
        }
        self.cell
            .prefer_legacy("the modern era refused the form of a call");
        let fresh = self.current.legacy(None);
        let put = self.current.put(&fresh);
        was.close().await;
        put.ok()?;
        Some(fresh)
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::registry::tests::era_link;

    // A use of the link may end with evidence after another link has replaced it.
    #[tokio::test]
    async fn link_that_was_replaced_is_not_put_back() {
        let link = era_link();
        let [old, new] = [(); 2].map(|()| link.current.legacy(None));
        link.current.put(&new).unwrap();
        let found = link.reconsider(&old).await;
        assert!(found.is_some_and(|found| found.is(&new)));
        assert!(link.current.get().is_some_and(|now| now.is(&new)));
    }
}
