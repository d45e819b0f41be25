//! Tools that ask before they finish; all state is in the request.

use serde_json::{Value, json};

use super::CAPABILITIES;
use crate::outlet::Outlet;
use crate::rpc::{Outcome, notification};

/// Characters that a careless relay would change.
const STATE: &str = "é/\u{1F600} \"quoted\" \\ <&> 100%";

const NAMES: &[&str] = &[
    "ask_form",
    "ask_url",
    "ask_sampling",
    "ask_roots",
    "ask_two",
    "ask_thrice",
    "ask_state",
    "ask_forever",
    "ask_form_forever",
    "ask_unasked",
    "ask_url_still",
];

/// Tools missing in the legacy list.
pub(super) fn tools() -> Vec<Value> {
    ["ask_thrice", "ask_state", "ask_forever", "ask_unasked"]
        .map(|name| json!({"name": name, "inputSchema": {"type": "object"}}))
        .into()
}

pub(super) fn knows(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Sends progress 1 and 2 for a request with a progress token. Every round starts at 1 again: the stub is stateless and
/// does not know the progress of earlier rounds.
pub(super) fn report(params: &Value, outlet: &Outlet) {
    let token = &params["_meta"]["progressToken"];
    for progress in [1, 2].iter().filter(|_| !token.is_null()) {
        let params = json!({"progressToken": token, "progress": progress});
        outlet.message(notification("notifications/progress", &params));
    }
}

pub(super) fn run(name: &str, params: &Value) -> Outcome {
    let state = params["requestState"].as_str();
    let answers = params.get("inputResponses");
    match name {
        "ask_state" => match state {
            None => interim(None, Some("wait-1")),
            Some("wait-1") if answers.is_none() => interim(None, Some("wait-2")),
            Some("wait-2") if answers.is_none() => Outcome::text("waited twice"),
            _ => Outcome::text("wrong state"),
        },
        "ask_url_still" if answers.is_some() => interim(Some(questions("ask_url")), Some("still")),
        "ask_forever" => interim(None, Some("more")),
        "ask_form_forever" => interim(Some(questions("ask_form")), Some("more")),
        "ask_thrice" => thrice(state, answers),
        // No state is given, so none may come back.
        "ask_roots" => match (state, answers) {
            (None, Some(answers)) => Outcome::text(&answers.to_string()),
            (Some(_), _) => Outcome::text("state out of nowhere"),
            (None, None) => interim(
                Some(json!({"roots": question("roots/list", json!({}))})),
                None,
            ),
        },
        _ => {
            let offered = &params["_meta"][CAPABILITIES];
            let needed = if name == "ask_sampling" {
                "sampling"
            } else {
                "elicitation"
            };
            if offered.get(needed).is_none() && name != "ask_unasked" {
                return Outcome::Error(-32021, "a capability is missing".to_owned());
            }
            match (state, answers) {
                (Some(STATE), Some(answers)) => Outcome::text(&answers.to_string()),
                (None, None) => {
                    let mut questions = questions(name);
                    if let Some(url) = params["arguments"].get("url") {
                        questions["visit"]["params"]["url"] = url.clone();
                    }
                    interim(Some(questions), Some(STATE))
                }
                _ => Outcome::text(&format!("wrong state: {state:?}")),
            }
        }
    }
}

/// A resource that needs an answer.
pub(super) fn read(params: &Value) -> Outcome {
    match params.get("inputResponses") {
        Some(answers) => Outcome::Result(
            json!({"contents": [{"uri": "stub://asks", "text": answers.to_string()}]}).to_string(),
        ),
        None => interim(Some(json!({"q": form("who reads?")})), Some(STATE)),
    }
}

/// The question before the errand's task exists.
pub(super) fn before_errand() -> Outcome {
    interim(Some(json!({"who": form("Whose errand?")})), Some(STATE))
}

fn thrice(state: Option<&str>, answers: Option<&Value>) -> Outcome {
    let round = match (state, answers) {
        (None, None) => 1,
        (Some("round-1"), Some(_)) => 2,
        (Some("round-2"), Some(_)) => 3,
        (Some("round-3"), Some(answers)) => return Outcome::text(&answers.to_string()),
        _ => return Outcome::text("wrong round"),
    };
    let key = format!("r{round}");
    let question = form(&format!("round {round}"));
    interim(
        Some(json!({ key: question })),
        Some(&format!("round-{round}")),
    )
}

fn interim(requests: Option<Value>, state: Option<&str>) -> Outcome {
    let mut result = json!({"resultType": "input_required"});
    if let Some(requests) = requests {
        result["inputRequests"] = requests;
    }
    if let Some(state) = state {
        result["requestState"] = state.into();
    }
    Outcome::Result(result.to_string())
}

fn questions(name: &str) -> Value {
    match name {
        "ask_url" | "ask_url_still" => json!({"visit": question("elicitation/create", json!({
            "mode": "url", "message": "Please sign in", "url": "https://consent.example/start"}))}),
        "ask_sampling" => json!({"sample": question("sampling/createMessage", json!({
            "messages": [{"role": "user", "content": {"type": "text", "text": "Say hello"}}],
            "includeContext": "thisServer", "maxTokens": 16}))}),
        "ask_two" => json!({"first": form("first"), "second": form("second")}),
        "ask_unasked" => json!({"bad": question("tools/call", json!({}))}),
        _ => json!({"name": form("Your name, please")}),
    }
}

fn form(message: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    question("elicitation/create", params)
}

fn question(method: &str, params: Value) -> Value {
    json!({"method": method, "params": params})
}
