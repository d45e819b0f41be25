//! Questions of an upstream during a call.

use serde_json::{Value, json};

use super::{Outcome, Place};
use crate::harness::session::text_of;
use crate::matrix::cells::Back;
use crate::matrix::client::{Answer, Ear, Talk};

/// Parameters of a call of a tool that asks, and the stream that has to be open meanwhile.
pub(super) async fn asking<'p>(place: &'p Place, tool: &str) -> (Value, Option<Ear<'p>>) {
    let mut arguments = json!({});
    let mut ear = None;
    if place.cell.back == Back::Json && !place.cell.upstream.is_modern() {
        // The upstream answers the call with JSON: its only stream is the GET stream.
        arguments["via"] = "get".into();
        ear = Some(place.client.listen(&[]).await);
    }
    let params = json!({"name": place.cell.name(tool), "arguments": arguments});
    (params, ear)
}

/// Calls a tool that asks; `answer` is the user's answer.
async fn ask(place: &Place, tool: &str, answer: impl Fn(&Value) -> Answer) -> Talk {
    let (params, _ear) = asking(place, tool).await;
    place.client.talk("tools/call", params, answer).await
}

/// Outcome of the talk, where the tool's text must contain `expected`.
fn outcome(talk: &Talk, method: &str, expected: &str) -> Outcome {
    let result = match &talk.reply {
        Err(error) => return Outcome::Error(error["code"].as_i64().expect("a code")),
        Ok(result) if result["isError"] == true => return Outcome::ToolError,
        Ok(result) => result,
    };
    let text = text_of(result);
    if talk.questions.is_empty() {
        return match text {
            text if text.contains("-32601") => Outcome::Refused,
            text if text.contains("cancel") => Outcome::Cancel,
            _ => panic!("nobody asked, but the tool says {text}"),
        };
    }
    assert!(
        talk.questions.iter().all(|asked| asked["method"] == method),
        "{talk:?}"
    );
    assert!(text.contains(expected), "{expected:?} is not in {text}");
    Outcome::Works
}

fn accepted(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

pub(super) async fn form(place: &Place) -> Outcome {
    let talk = ask(place, "ask_form", |_| Ok(accepted("Ada"))).await;
    if let [question] = &talk.questions[..] {
        let schema = &question["params"]["requestedSchema"];
        assert_eq!(schema["properties"]["name"]["type"], "string", "{question}");
    }
    outcome(&talk, "elicitation/create", "Ada")
}

pub(super) async fn url(place: &Place) -> Outcome {
    let talk = ask(place, "ask_url", |_| Ok(json!({"action": "accept"}))).await;
    if let [question] = &talk.questions[..] {
        let params = &question["params"];
        assert_eq!(params["mode"], "url", "{question}");
        assert_eq!(params["url"], "https://consent.example/start", "{question}");
        // `elicitationId` is present where the revision has a notice that names it.
        let has_id = params["elicitationId"].is_string();
        assert_eq!(has_id, !place.cell.client.is_modern(), "{question}");
    }
    outcome(&talk, "elicitation/create", "accept")
}

pub(super) async fn declined(place: &Place) -> Outcome {
    let talk = ask(place, "ask_form", |_| Ok(json!({"action": "decline"}))).await;
    outcome(&talk, "elicitation/create", "decline")
}

pub(super) async fn two(place: &Place) -> Outcome {
    let said = |question: &Value| question["params"]["message"].as_str().unwrap().to_owned();
    let talk = ask(place, "ask_two", |question| Ok(accepted(&said(question)))).await;
    let outcome = outcome(&talk, "elicitation/create", "first");
    if outcome == Outcome::Works {
        assert_eq!(talk.questions.len(), 2, "{talk:?}");
        assert!(text_of(&talk.reply.unwrap()).contains("second"));
    }
    outcome
}

pub(super) async fn sampling(place: &Place) -> Outcome {
    let said = json!({"role": "assistant", "model": "m",
                      "content": {"type": "text", "text": "Hello there"}});
    let talk = ask(place, "ask_sampling", |_| Ok(said.clone())).await;
    outcome(&talk, "sampling/createMessage", "Hello there")
}

pub(super) async fn sampling_refused(place: &Place) -> Outcome {
    let refusal = json!({"code": -1, "message": "the user said no"});
    let talk = ask(place, "ask_sampling", |_| Err(refusal.clone())).await;
    outcome(&talk, "sampling/createMessage", "the user said no")
}

pub(super) async fn roots(place: &Place) -> Outcome {
    let roots = json!({"roots": [{"uri": "file:///home/ada", "name": "home"}]});
    let talk = ask(place, "ask_roots", |_| Ok(roots.clone())).await;
    outcome(&talk, "roots/list", "file:///home/ada")
}
