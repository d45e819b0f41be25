//! Expected outcome of each feature in each cell, computed from the revisions: BRIDGING §2, §3, §6.

use super::cells::{Back, Cell, Front, R3, R4, R5, Shape};
use super::features::{Feature, Outcome};

/// The expected outcome of a feature in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) outcome: Outcome,
    /// The reason if the outcome is not simply "works"; else empty.
    pub(super) why: &'static str,
    /// Actual outcome and reason, where a known gap differs from `outcome`.
    pub(super) gap: Option<(Outcome, &'static str)>,
}

impl Claim {
    /// The outcome that a test must observe.
    pub(super) fn today(self) -> Outcome {
        self.gap.map_or(self.outcome, |(outcome, _)| outcome)
    }
}

/// The expected outcome of `feature` in `cell`; `None` where the feature cannot occur.
pub(super) fn claim(feature: Feature, cell: Cell) -> Option<Claim> {
    let (outcome, why) = expected(feature, cell)?;
    let gap = gap(feature, cell);
    Some(Claim { outcome, why, gap })
}

/// Known gaps between expected and actual outcomes.
fn gap(_feature: Feature, _cell: Cell) -> Option<(Outcome, &'static str)> {
    None
}

#[expect(
    clippy::match_same_arms,
    reason = "one feature after the other, each with its own reason"
)]
fn expected(feature: Feature, cell: Cell) -> Option<(Outcome, &'static str)> {
    let Cell {
        client,
        front,
        upstream,
        back,
        shape,
    } = cell;
    let modern = client.is_modern();
    let streamable = front == Front::Streamable;
    let works = Some((Outcome::Works, ""));
    match feature {
        Feature::Lists
        | Feature::Pages
        | Feature::Call
        | Feature::Read
        | Feature::Prompt
        | Feature::Complete
        | Feature::ListChanged
        | Feature::ResourceUpdated
        | Feature::Roots
        | Feature::Sampling => works,
        // A JSON response has no room for messages before the reply.
        Feature::Progress => (back != Back::Json).then_some((Outcome::Works, "")),
        Feature::Logs if back == Back::Json && upstream.is_modern() => None,
        Feature::Logs if back == Back::Json && modern => Some((Outcome::Dropped, UNATTRIBUTED)),
        Feature::Logs => works,
        Feature::Form | Feature::Declined | Feature::Two => {
            (upstream >= R3).then(|| asked(cell, client >= R3))
        }
        Feature::Url => (upstream >= R4).then(|| asked(cell, client >= R4)),
        // In the modern era a question has no error as its answer; the client just stays away.
        Feature::SamplingRefused if modern => None,
        Feature::SamplingRefused if upstream.is_modern() => Some((Outcome::ToolError, NO_ERROR)),
        Feature::SamplingRefused => works,
        // Two designs, each with its own methods.
        Feature::Task => (client >= R4 && upstream >= R4).then_some((Outcome::Works, "")),
        Feature::CancelNotice if modern && streamable => Some((Outcome::RunsOn, CLOSE_CANCELS)),
        Feature::CancelNotice => Some((Outcome::Cancelled, "")),
        Feature::CancelClose if modern => Some((Outcome::Cancelled, "")),
        Feature::CancelClose if !streamable => Some((Outcome::Cancelled, SESSION_OVER)),
        Feature::CancelClose => Some((Outcome::RunsOn, MAY_COME_BACK)),
        Feature::CancelEnd => (streamable && !modern).then_some((Outcome::Cancelled, "")),
        Feature::NoResource if modern => Some((Outcome::Error(-32602), NOT_FOUND)),
        Feature::NoResource => Some((Outcome::Error(-32002), NOT_FOUND)),
        Feature::NoTool => Some((Outcome::Error(-32602), "")),
        Feature::NoMethod => Some((Outcome::Error(-32601), "")),
        Feature::Crash => Some((Outcome::ToolError, LOST)),
        Feature::Unauthorized => {
            matches!(back, Back::Json | Back::Sse).then_some((Outcome::ToolError, NO_401))
        }
        Feature::Forgotten => {
            let has_none = upstream.is_modern() && matches!(back, Back::Json | Back::Sse);
            (!has_none).then_some((Outcome::Works, ""))
        }
        Feature::Slow => Some((Outcome::ToolError, TIMEOUT)),
        Feature::StolenSession => {
            (streamable && !modern).then_some((Outcome::Status(404), AS_UNKNOWN))
        }
        Feature::StolenEvent => (streamable && !modern && back != Back::Json)
            .then_some((Outcome::Status(405), AS_UNKNOWN)),
        Feature::StolenUrl => {
            (front == Front::Events).then_some((Outcome::Status(404), AS_UNKNOWN))
        }
        // A merged list has one page.
        Feature::StolenCursor => {
            (shape == Shape::Pure).then_some((Outcome::Error(-32602), AS_UNKNOWN))
        }
        Feature::StolenState => {
            (modern && upstream >= R3).then_some((Outcome::Error(-32602), AS_UNKNOWN))
        }
        Feature::StolenTask => {
            (client >= R4 && upstream >= R4).then_some((Outcome::Error(-32602), AS_UNKNOWN))
        }
    }
}

/// A question that the client's revision has, or not.
fn asked(cell: Cell, has: bool) -> (Outcome, &'static str) {
    match has {
        true => (Outcome::Works, ""),
        false if cell.upstream == R5 => (Outcome::ToolError, CANNOT_BE_ASKED),
        false => (Outcome::Refused, NEVER_SHOWN),
    }
}

const UNATTRIBUTED: &str = "a log message that names no call cannot be given to one";
const NO_ERROR: &str = "the upstream can only be answered with a result, so the call fails";
const CLOSE_CANCELS: &str = "a posted notification could name anybody's call; closing cancels";
const MAY_COME_BACK: &str = "the client may come back with `Last-Event-ID`";
const SESSION_OVER: &str = "the connection is the session";
const NOT_FOUND: &str = "-32602 since 2026-07-28, -32002 before";
const LOST: &str = "whether the call ran is unknown, so it is not repeated";
const NO_401: &str = "what is between the gateway and its upstream is no challenge to the client";
const TIMEOUT: &str = "the upstream is told that the call is cancelled";
const AS_UNKNOWN: &str = "as if the handle had never existed";
const CANNOT_BE_ASKED: &str = "the upstream learns beforehand that the client cannot be asked";
const NEVER_SHOWN: &str = "the upstream is told -32601 and goes on";
