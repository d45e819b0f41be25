//! Negotiation with an HTTP upstream of unknown era: `initialize` first, then `server/discover`. Servers before
//! 2025-06-18 may fail if their first request is unknown to them, and a legacy client needs the session that
//! `initialize` opens anyway.
//! Spec: SPEC U-05, U-06; the table of `docs/adr/0008`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::current_link::CurrentLink;
use super::state::NegotiatedState;
use crate::call::ServerDeclaration;
use crate::protocol::{Era, json};
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::http::http_session::HttpSession;
use crate::upstream::carrier::{Carrier, LinkSettings};
use crate::upstream::error::LinkError;
use crate::upstream::link::legacy::LegacyLink;
use crate::upstream::link::legacy::offer::{InitializeRefusal, SpareSession};
use crate::upstream::link::modern::discover;
use crate::upstream::link::negotiated::{EraCell, EraVerdict, FIRST_TO_DISCOVER, FruitlessProbe};

/// How long `server/discover` may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A link, and the outcome to share with waiting sessions.
type NegotiationOutcome = Result<(NegotiatedState, Option<FruitlessProbe>), LinkError>;

/// Meaning of the answer to `server/discover`.
#[derive(Debug)]
enum DiscoverAnswer {
    /// The upstream supports the gateway's modern revision.
    Modern(Arc<ServerDeclaration>),
    /// The upstream does not know the method.
    Absent,
    /// No answer in time.
    Silent,
    /// A status that proves nothing (3xx, 401, 403, 429, 5xx), or no response.
    Unsure,
    /// The upstream is modern, and supports no revision that the gateway knows.
    Unusable(LinkError),
}

/// Negotiates the era with an HTTP upstream.
pub(super) struct Negotiation<'a> {
    current: &'a CurrentLink,
    settings: &'a LinkSettings,
    cell: &'a EraCell,
}

impl<'a> Negotiation<'a> {
    /// For a link that may become the `current` one.
    pub(super) fn new(current: &'a CurrentLink) -> Self {
        Self {
            current,
            settings: &current.settings,
            cell: &current.cell,
        }
    }

    /// Opens a link of the era that upstream and client have in common. `believed` is the cached verdict: with
    /// "modern", only whether legacy sessions are kept is unknown.
    pub(super) async fn run(&self, believed: Option<EraVerdict>) -> NegotiationOutcome {
        let known = match believed {
            Some(EraVerdict::Modern(declared)) => Some(declared),
            Some(EraVerdict::Legacy) | None => None,
        };
        if known.is_none() {
            LABELED.upstream_probed.add(&self.settings.name, 1);
        }
        let end = Instant::now() + self.settings.upstream.connect_timeout;
        let link = self.current.legacy_link(None);
        let outcome = match self.greet().await {
            (Ok(offer), found) => self.after_offer(link, offer, known, found).await,
            (Err(refusal), found) => self.after_refusal(link, refusal, known, found, end).await,
        };
        outcome.inspect_err(|error| self.settings.count_unopened(error))
    }

    /// Sends `initialize`. Silence alone proves nothing: towards the end of `connect_timeout`, `server/discover` is
    /// sent too.
    async fn greet(
        &self,
    ) -> (
        Result<SpareSession, InitializeRefusal>,
        Option<DiscoverAnswer>,
    ) {
        let patience = self.patience();
        let limit = self.settings.upstream.connect_timeout;
        let alone = limit.saturating_sub(patience);
        let mut hello = pin!(SpareSession::open(&self.current.settings));
        if let Ok(answer) = timeout(alone, &mut hello).await {
            return (answer, None);
        }
        let (answer, found) = tokio::join!(timeout(patience, hello), self.discover());
        // Both answers are late: a slow server proves nothing about its era.
        let found = match found {
            DiscoverAnswer::Silent => DiscoverAnswer::Unsure,
            found => found,
        };
        let answer = answer.unwrap_or_else(|_| Err(InitializeRefusal::silence()));
        (answer, Some(found))
    }

    fn patience(&self) -> Duration {
        PATIENCE.min(self.settings.upstream.connect_timeout / 2)
    }

    /// Decides after a result of `initialize`.
    async fn after_offer(
        &self,
        link: Arc<LegacyLink>,
        offer: SpareSession,
        known: Option<Arc<ServerDeclaration>>,
        found: Option<DiscoverAnswer>,
    ) -> NegotiationOutcome {
        let has_old_revision = offer.declared().revision < FIRST_TO_DISCOVER;
        // A modern upstream that is probed again answers an old client with an old revision.
        let is_established = self.cell.speaks_modern();
        if known.is_none() && (offer.is_older() || has_old_revision && !is_established) {
            if offer.is_older() || self.settings.offer >= FIRST_TO_DISCOVER {
                self.cell.learn(&EraVerdict::Legacy);
            } else {
                self.cell.learn_old_offer_is_legacy();
            }
            return self.accept(link, offer, None).await;
        }
        let (modern, is_told) = match (known, found) {
            (Some(declared), _) => (declared, false),
            (None, found) => {
                let found = match found {
                    Some(found) => found,
                    None => self.discover().await,
                };
                match found {
                    DiscoverAnswer::Modern(declared) => (declared, true),
                    DiscoverAnswer::Absent
                    | DiscoverAnswer::Silent
                    | DiscoverAnswer::Unusable(_) => {
                        self.cell.learn(&EraVerdict::Legacy);
                        return self.accept(link, offer, None).await;
                    }
                    DiscoverAnswer::Unsure => {
                        self.cell.withdraw_modern();
                        tracing::info!(
                            upstream = %self.settings.name,
                            "`server/discover` got no usable answer: legacy era for this session"
                        );
                        return self.accept(link, offer, Some(FruitlessProbe::ForNow)).await;
                    }
                }
            }
        };
        if is_told {
            self.cell.learn(&EraVerdict::Modern(Arc::clone(&modern)));
        }
        let is_used = if offer.has_session() {
            self.cell.learn_sessions(true);
            true
        } else if declares_less(&modern, offer.declared()) {
            self.cell
                .prefer_legacy("`server/discover` declares less than `initialize`");
            true
        } else {
            self.cell.learn_stateless();
            false
        };
        if is_used && self.settings.client == Era::Legacy {
            return self.accept(link, offer, None).await;
        }
        drop(offer);
        Ok((self.current.declared_modern(modern, None, is_told), None))
    }

    /// Decides after an error of `initialize`, or no answer.
    async fn after_refusal(
        &self,
        link: Arc<LegacyLink>,
        refusal: InitializeRefusal,
        known: Option<Arc<ServerDeclaration>>,
        found: Option<DiscoverAnswer>,
        end: Instant,
    ) -> NegotiationOutcome {
        if !decides_nothing_alone(refusal.error()) {
            return Err(refusal.into_error());
        }
        let (found, is_told) = match (known, found) {
            (Some(declared), _) => (DiscoverAnswer::Modern(declared), false),
            (None, Some(found)) => (found, true),
            (None, None) => (self.discover().await, true),
        };
        match found {
            DiscoverAnswer::Modern(declared) => {
                if is_told {
                    self.cell.learn(&EraVerdict::Modern(Arc::clone(&declared)));
                }
                if refusal.is_final() {
                    self.cell.learn_sessions(false);
                }
                Ok((self.current.declared_modern(declared, None, is_told), None))
            }
            DiscoverAnswer::Unusable(error) => Err(error),
            DiscoverAnswer::Absent | DiscoverAnswer::Silent | DiscoverAnswer::Unsure => {
                let end = end.max(Instant::now() + self.patience());
                let older = timeout_at(
                    end,
                    SpareSession::open_older(&self.current.settings, refusal),
                )
                .await;
                let offer = older.unwrap_or(Err(LinkError::Timeout))?;
                self.cell.learn(&EraVerdict::Legacy);
                self.accept(link, offer, None).await
            }
        }
    }

    async fn accept(
        &self,
        link: Arc<LegacyLink>,
        offer: SpareSession,
        shared: Option<FruitlessProbe>,
    ) -> NegotiationOutcome {
        link.accept(offer).await?;
        Ok((NegotiatedState::legacy(link), shared))
    }

    async fn discover(&self) -> DiscoverAnswer {
        let asked = timeout(self.patience(), self.ask_to_discover()).await;
        asked.unwrap_or(DiscoverAnswer::Silent)
    }

    async fn ask_to_discover(&self) -> DiscoverAnswer {
        let settings = &self.current.settings;
        let Carrier::Http(client, bounds, _) = &settings.carrier else {
            return DiscoverAnswer::Absent;
        };
        let wire = HttpSession::new(Arc::clone(&settings.name), (**client).clone(), *bounds);
        for id in 0..2 {
            let message = discover::request(id, settings);
            let Ok((status, reply)) = wire.probe(message, discover::headers()).await else {
                return DiscoverAnswer::Unsure;
            };
            let reply = match (status.as_u16(), reply) {
                // The status is no evidence for either era. Spec: SPEC U-06
                (300..=399 | 401 | 403 | 429 | 500.., _) => return DiscoverAnswer::Unsure,
                (_, Ok(reply)) => reply,
                (_, Err(_)) => return DiscoverAnswer::Absent,
            };
            match discover::judge(&reply, false, &settings.upstream) {
                discover::DiscoverVerdict::Modern(declared) => {
                    return DiscoverAnswer::Modern(declared);
                }
                discover::DiscoverVerdict::Legacy => return DiscoverAnswer::Absent,
                discover::DiscoverVerdict::Foreign(revisions) => {
                    return DiscoverAnswer::Unusable(discover::foreign(&revisions));
                }
                discover::DiscoverVerdict::Again => {}
            }
        }
        DiscoverAnswer::Unusable(discover::refuses())
    }
}

/// Whether a failed `initialize` leaves the era open. A status about the caller or a broken connection proves nothing,
/// and is returned as the error.
// Spec: SPEC U-06
fn decides_nothing_alone(error: &LinkError) -> bool {
    let is_answer = matches!(
        error,
        LinkError::Status(_)
            | LinkError::Busy { .. }
            | LinkError::Handshake(_)
            | LinkError::Invalid(_)
            | LinkError::TooLarge { .. }
            | LinkError::Timeout
    );
    is_answer && !error.is_wall()
}

/// Whether the modern side lacks a capability that the legacy side declares.
fn declares_less(modern: &ServerDeclaration, legacy: &ServerDeclaration) -> bool {
    let modern = json::members(&modern.capabilities).unwrap_or_default();
    let legacy = json::members(&legacy.capabilities).unwrap_or_default();
    let mut legacy = legacy.iter();
    legacy.any(|(name, _)| !modern.iter().any(|(known, _)| known == name))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::call::samples::declared;
    use crate::protocol::Revision;

    #[rstest]
    #[case::equal(r#"{"tools":{}}"#, r#"{"tools":{}}"#, false)]
    #[case::more(r#"{"tools":{},"logging":{}}"#, r#"{"tools":{}}"#, false)]
    #[case::less(r#"{"tools":{}}"#, r#"{"tools":{},"tasks":{}}"#, true)]
    #[case::none("{}", "{}", false)]
    fn capabilities_are_compared_by_name(
        #[case] modern: &'static str,
        #[case] legacy: &'static str,
        #[case] less: bool,
    ) {
        let [modern, legacy] = [modern, legacy].map(|it| declared(Revision::V2025_11_25, it));
        assert_eq!(declares_less(&modern, &legacy), less);
    }

    // Spec: SPEC U-06
    #[rstest]
    #[case(LinkError::Status(500), true)]
    #[case(LinkError::Status(404), true)]
    #[case(LinkError::Timeout, true)]
    #[case(LinkError::Busy { status: 503, retry_after: None }, true)]
    #[case(LinkError::Busy { status: 429, retry_after: None }, false)]
    #[case(LinkError::Status(401), false)]
    #[case(LinkError::Status(403), false)]
    #[case(LinkError::Lost { last_words: None }, false)]
    fn statuses_about_the_caller_end_a_negotiation(#[case] error: LinkError, #[case] open: bool) {
        assert_eq!(decides_nothing_alone(&error), open);
    }
}
