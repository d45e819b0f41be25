//! Pages that are being asked for: who wants the same one waits for it instead of asking again, as
//! far as it may answer both. Who fails fails alone, and who gives up leaves the asking to the next.
//! Spec: DESIGN §5.

use std::sync::Arc;

use super::Relay;
use super::catalog::{Other, Place};
use crate::call::Call;
use crate::fault::{Fault, FaultKind};
use crate::protocol::Message;
use crate::session::Session;
use crate::store::flights::{self, Flights, Lead};
use crate::store::lists::Held;
use crate::telemetry::metrics::COUNTERS;

/// What came of asking: a page, or nothing that is of use to others.
type Landed = Option<(Held, Message)>;

/// The pages that are being asked for.
pub(super) type Flying = Flights<Other, Landed>;

/// Somebody who asks, also for others.
pub(super) type Leading = Lead<Other, Landed>;

/// How a session comes to a page that is not kept.
pub(super) enum Boarded {
    /// Somebody else asked.
    Page(Held, Message),
    /// It asks for itself, and tells those who wait, if it may be waited for.
    Ask(Option<Leading>),
}

impl Relay {
    /// Waits for a page that is being asked for, if it may answer this session.
    ///
    /// # Errors
    /// The call was cancelled meanwhile.
    ///
    /// # Cancel safety
    /// Nobody else is concerned.
    pub(super) async fn board(
        &self,
        call: &Call,
        session: &Arc<Session>,
        place: Place<'_>,
    ) -> Result<Boarded, Fault> {
        loop {
            let Some(key) = self.flight_key(session, place) else {
                return Ok(Boarded::Ask(None));
            };
            let join = match self.catalog.flights.board(key) {
                flights::Boarded::Lead(lead) => {
                    // One may have landed since the kept pages were looked at.
                    return Ok(match self.kept_page(session, place) {
                        Some((held, message)) => Boarded::Page(held, message),
                        None => Boarded::Ask(Some(lead)),
                    });
                }
                flights::Boarded::Join(join) => join,
            };
            self.open_later(session, place.upstream);
            let landed = tokio::select! {
                landed = join.landed() => landed,
                () = call.cancel.cancelled() => {
                    return Err(Fault::downstream(FaultKind::Cancelled, "the call was cancelled"));
                }
            };
            let Some(landed) = landed else { continue };
            let adopted = || {
                let (held, message) = landed?;
                let may = self.may_adopt(session, place, &held);
                may.then(|| (self.adopt(session, place, held), message))
            };
            // Of this very session, or of another one.
            let page = self.kept_page(session, place).or_else(adopted);
            return Ok(match page {
                Some((held, message)) => {
                    COUNTERS.lists_joined.add(1);
                    Boarded::Page(held, message)
                }
                None => Boarded::Ask(None),
            });
        }
    }

    /// The page that may answer this session now, if it is kept.
    pub(super) fn kept_page(
        &self,
        session: &Arc<Session>,
        place: Place<'_>,
    ) -> Option<(Held, Message)> {
        let held = self.held(session, place)?;
        let page = self.page(&held)?;
        Some((held, page.message.clone()))
    }
}
