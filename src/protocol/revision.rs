//! Protocol revisions and what each allows.

/// Which generation of the protocol a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// `initialize` handshake, sessions.
    Legacy,
    /// Self-contained requests.
    Modern,
}

/// A published protocol revision, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Revision {
    /// 2024-11-05
    V2024_11_05,
    /// 2025-03-26
    V2025_03_26,
    /// 2025-06-18
    V2025_06_18,
    /// 2025-11-25
    V2025_11_25,
    /// 2026-07-28
    V2026_07_28,
}

impl Revision {
    /// Every legacy revision, newest first.
    pub const LEGACY: [Self; 4] = [
        Self::V2025_11_25,
        Self::V2025_06_18,
        Self::V2025_03_26,
        Self::V2024_11_05,
    ];

    /// Every revision that the gateway serves, newest first. Spec: SPEC M-53.
    pub const SERVED: [Self; 5] = [
        Self::V2026_07_28,
        Self::V2025_11_25,
        Self::V2025_06_18,
        Self::V2025_03_26,
        Self::V2024_11_05,
    ];

    /// The newest legacy revision: offered to upstreams, answered to unknown versions (SPEC L-01).
    pub const LATEST_LEGACY: Self = Self::V2025_11_25;

    /// Reads the wire form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "2024-11-05" => Self::V2024_11_05,
            "2025-03-26" => Self::V2025_03_26,
            "2025-06-18" => Self::V2025_06_18,
            "2025-11-25" => Self::V2025_11_25,
            "2026-07-28" => Self::V2026_07_28,
            _ => return None,
        })
    }

    /// The wire form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The era it belongs to.
    #[must_use]
    pub fn era(self) -> Era {
        if self < Self::V2026_07_28 {
            Era::Legacy
        } else {
            Era::Modern
        }
    }

    /// Whether a body may be an array of messages. Spec: SPEC T-09.
    #[must_use]
    pub fn supports_batches(self) -> bool {
        self == Self::V2025_03_26
    }

    /// Whether event streams open with an empty event that carries an id, and may be closed early
    /// with a reconnection time. Spec: SPEC T-26, T-28.
    #[must_use]
    pub fn has_priming_event(self) -> bool {
        self == Self::V2025_11_25
    }

    /// Whether two peers may use capabilities beyond the revision that both negotiated: SDKs negotiate
    /// 2024-11-05 over HTTP+SSE even where newer ones are known. An exception to SPEC L-02 and L-04.
    #[must_use]
    pub fn allows_beyond(self, peer: Self) -> bool {
        self == Self::V2024_11_05 && peer == self
    }

    /// Whether `completions` is a capability that servers declare. Spec: SPEC C-30.
    #[must_use]
    pub fn has_completions_capability(self) -> bool {
        self >= Self::V2025_03_26
    }

    /// Whether progress may carry a `message`. Spec: SPEC C-03.
    #[must_use]
    pub fn has_progress_message(self) -> bool {
        self >= Self::V2025_03_26
    }

    /// Whether content may be audio.
    #[must_use]
    pub fn has_audio(self) -> bool {
        self >= Self::V2025_03_26
    }

    /// Whether servers may ask the user. Spec: SPEC C-80.
    #[must_use]
    pub fn has_elicitation(self) -> bool {
        self >= Self::V2025_06_18
    }

    /// Whether questions have a `mode`, and may name a URL. Spec: SPEC C-80.
    #[must_use]
    pub fn has_url_elicitation(self) -> bool {
        self >= Self::V2025_11_25
    }

    /// Whether results may hold `structuredContent` and links to resources.
    #[must_use]
    pub fn has_structured_content(self) -> bool {
        self >= Self::V2025_06_18
    }

    /// Whether sampling requests may bring tools. Spec: SPEC C-70.
    #[must_use]
    pub fn has_sampling_tools(self) -> bool {
        self >= Self::V2025_11_25
    }

    /// Whether `tasks` is a capability, for both sides. Spec: SPEC K-15.
    #[must_use]
    pub fn has_tasks_capability(self) -> bool {
        self == Self::V2025_11_25
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_forms_round_trip() {
        for revision in Revision::LEGACY.into_iter().chain([Revision::V2026_07_28]) {
            assert_eq!(Revision::parse(revision.as_str()), Some(revision));
        }
        assert_eq!(Revision::parse("2025-11-25 "), None);
    }

    // SPEC T-09, T-26.
    #[test]
    fn arrays_and_priming_belong_to_one_revision_each() {
        let all = || Revision::LEGACY.into_iter().chain([Revision::V2026_07_28]);
        let batches: Vec<_> = all().filter(|r| r.supports_batches()).collect();
        let priming: Vec<_> = all().filter(|r| r.has_priming_event()).collect();
        assert_eq!(
            (batches, priming),
            (vec![Revision::V2025_03_26], vec![Revision::V2025_11_25])
        );
    }
}
