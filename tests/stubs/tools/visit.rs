//! A tool that first requires a URL elicitation, and the tool that completes the elicitation.

use serde_json::json;

use super::{Call, ask};
use crate::rpc::{Outcome, notification};

pub(super) fn run(call: &Call) -> Outcome {
    let visit = ask::url(call);
    if call.name == "end_visit" {
        call.session.with(|inner| inner.visited = true);
        let params = json!({"elicitationId": visit.get("elicitationId")});
        let over = notification("notifications/elicitation/complete", &params);
        call.session.general.message(over);
        return Outcome::text("ended");
    }
    call.world.count("needs_visit");
    if call.session.with(|inner| inner.visited) {
        return Outcome::text("visited");
    }
    Outcome::Refusal(json!({
        "code": -32042, "message": "a visit comes first", "data": {"elicitations": [visit]},
    }))
}
