//! Missing upstreams of an answer about several, with the reasons: a code of a closed list for programs, and a
//! sentence of the gateway for models. No text of an upstream is shown. Spec: SPEC G-03; BRIDGING §5.3, §5.6.

use std::sync::Arc;

use crate::call::ServerDeclaration;
use crate::fault::{Fault, FaultKind};
use crate::protocol::json;

/// Why an upstream is missing from an answer, or only its last known list is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingReason {
    /// Its first start since that of the gateway still runs.
    Starting,
    /// It did not answer in time.
    Late,
    /// It cannot be reached or started, or refuses the gateway.
    Unreachable,
    /// It broke off.
    Lost,
    /// It sent an invalid answer.
    Invalid,
    /// A cap is reached: of the gateway, or of the caller.
    Busy,
    /// Its last known list is shown instead.
    LastKnown,
    /// Anything else.
    Failed,
}

impl MissingReason {
    /// The code that clients are shown.
    fn code(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Late => "late",
            Self::Unreachable => "unreachable",
            Self::Lost => "lost",
            Self::Invalid => "invalid",
            Self::Busy => "busy",
            Self::LastKnown => "last_known",
            Self::Failed => "failed",
        }
    }

    /// Whether it may be ready soon, without an operator.
    fn is_on_its_way(self) -> bool {
        matches!(
            self,
            Self::Starting | Self::Late | Self::Busy | Self::LastKnown
        )
    }
}

impl From<&Fault> for MissingReason {
    fn from(fault: &Fault) -> Self {
        match fault.kind {
            FaultKind::UpstreamTimeout => Self::Late,
            FaultKind::UpstreamUnavailable => Self::Unreachable,
            FaultKind::UpstreamLost => Self::Lost,
            FaultKind::UpstreamInvalid => Self::Invalid,
            FaultKind::GatewayBusy | FaultKind::CallerBusy => Self::Busy,
            _ => Self::Failed,
        }
    }
}

/// One upstream of a merged endpoint, and its known or presumed declaration.
#[derive(Debug, Clone)]
pub(crate) struct MergedMember {
    pub(crate) upstream: Arc<str>,
    /// Declaration of the upstream; while missing, the last known or a presumed declaration.
    pub(crate) declared: Option<Arc<ServerDeclaration>>,
    /// Why it was not there; its list may come later.
    pub(crate) missing: Option<MissingReason>,
}

impl MergedMember {
    /// The upstream and the reason, if missing.
    pub(super) fn absence(&self) -> Option<(&Arc<str>, MissingReason)> {
        Some((&self.upstream, self.missing?))
    }
}

/// JSON text of the object that names the missing upstreams: `{"<upstream>":"<code>"}`; `None`
/// if none is missing.
pub(crate) fn codes<'m>(
    missing: impl IntoIterator<Item = (&'m Arc<str>, MissingReason)>,
) -> Option<String> {
    let mut codes = missing
        .into_iter()
        .map(|(upstream, why)| (&**upstream, json::quote(why.code())))
        .peekable();
    codes.peek()?;
    Some(json::object(codes))
}

/// A sentence for models: names the missing upstreams, and says that their lists may appear later.
pub(super) fn sentence<'m>(
    missing: impl IntoIterator<Item = (&'m Arc<str>, MissingReason)>,
) -> Option<String> {
    let (mut soon, mut down) = (Vec::new(), Vec::new());
    for (upstream, why) in missing {
        let names = if why.is_on_its_way() {
            &mut soon
        } else {
            &mut down
        };
        names.push(format!("`{upstream}`"));
    }
    let mut said = Vec::new();
    if !soon.is_empty() {
        said.push(format!("Not ready yet: {}.", soon.join(", ")));
    }
    if !down.is_empty() {
        said.push(format!("Not available now: {}.", down.join(", ")));
    }
    if said.is_empty() {
        return None;
    }
    said.push(LATER.to_owned());
    Some(said.join(" "))
}

const LATER: &str =
    "Their tools, prompts and resources may appear later: list again when you miss something.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_name_each_missing_upstream() {
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        let missing = [
            (&a, MissingReason::Starting),
            (&b, MissingReason::Unreachable),
        ];
        assert_eq!(
            codes(missing).unwrap(),
            r#"{"a":"starting","b":"unreachable"}"#
        );
        assert_eq!(codes([]), None);
    }

    #[test]
    fn sentence_tells_those_who_come_from_those_who_are_down() {
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        let said = sentence([(&a, MissingReason::Lost), (&b, MissingReason::Late)]).unwrap();
        assert_eq!(
            said,
            format!("Not ready yet: `b`. Not available now: `a`. {LATER}")
        );
        assert_eq!(sentence([]), None);
    }
}
