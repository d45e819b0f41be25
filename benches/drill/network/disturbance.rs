//! What goes wrong on the networks of a site, and when.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Site;

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All connections between the gateway and the server were reset.
    CutBehind,
    /// The same between callers and the gateway.
    CutFront,
    /// Connections between the gateway and the server carry nothing any more, and neither end hears of it.
    FrozenBehind,
    /// The same between callers and the gateway.
    FrozenFront,
}

impl Kind {
    /// In the order of their coming.
    const ROUND: [Self; 6] = [
        Self::CutBehind,
        Self::CutFront,
        Self::CutBehind,
        Self::FrozenBehind,
        Self::CutFront,
        Self::FrozenFront,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::CutBehind => "cut_behind",
            Self::CutFront => "cut_in_front",
            Self::FrozenBehind => "half_open_behind",
            Self::FrozenFront => "half_open_in_front",
        }
    }
}

/// Everything that went wrong so far.
#[derive(Debug, Default)]
pub(super) struct Disturbances(Mutex<Vec<(Instant, Kind)>>);

impl Disturbances {
    fn note(&self, kind: Kind) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((Instant::now(), kind));
    }

    pub(super) fn all(&self) -> Vec<Kind> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(_, kind)| *kind).collect()
    }

    /// How often this happened since then.
    pub(super) fn since(&self, then: Instant, kind: Kind) -> usize {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = all.iter().rev().take_while(|(at, _)| *at >= then);
        recent.filter(|(_, known)| *known == kind).count()
    }
}

/// Disturbs a site for ever, once in `pause`. Sites do not take turns.
pub(super) async fn disturb(site: Arc<Site>, pause: Duration) {
    // Not all at the same time.
    let offset = u32::try_from(site.number).unwrap_or_default();
    tokio::time::sleep(pause * (offset + 1) / 5).await;
    for kind in Kind::ROUND.into_iter().cycle() {
        // Note the disturbance first, so that no failure is older than the note of its cause.
        site.disturbances.note(kind);
        match (kind, &site.front) {
            (Kind::CutBehind, _) => site.behind.cut(),
            (Kind::FrozenBehind, _) => site.behind.freeze(),
            (Kind::CutFront, Some(front)) => front.cut(),
            (Kind::FrozenFront, Some(front)) => front.freeze(),
            (_, None) => {}
        }
        tokio::time::sleep(pause).await;
    }
}
