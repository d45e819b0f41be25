//! A task of 2025-11-25 in the words of the extension. Spec: BRIDGING §3.8; SPEC K-11 to K-13.

use super::state::{TaskStatus, UpstreamTask};
use crate::call::{InputRequest, Reply};
use crate::protocol::json::{self, ObjectWriter};

/// What a task of the extension shows besides its status.
#[derive(Debug)]
pub(crate) enum ShownTask<'a> {
    /// No further members: the task is working or cancelled.
    Bare,
    /// Open questions of the task, by key.
    Asks(&'a [(String, InputRequest)]),
    /// The response that the call would have had.
    Came(&'a Reply),
}

/// JSON text of the task's members, under the id `handle`.
pub(crate) fn task(state: &UpstreamTask<'_>, handle: &str, shown: &ShownTask<'_>) -> String {
    let status = match shown {
        ShownTask::Bare if state.status == TaskStatus::Cancelled => "cancelled",
        ShownTask::Bare => "working",
        ShownTask::Asks(_) => "input_required",
        // A tool's error is a result here; only an error of the protocol is a failure.
        ShownTask::Came(reply) if reply.error().is_some() => "failed",
        ShownTask::Came(_) => "completed",
    };
    let mut out = ObjectWriter::default();
    out.member("taskId", &json::quote(handle));
    out.member("status", &json::quote(status));
    out.member("ttlMs", state.member("ttl").unwrap_or("null"));
    let renamed = [
        ("statusMessage", "statusMessage"),
        ("createdAt", "createdAt"),
        ("lastUpdatedAt", "lastUpdatedAt"),
        ("pollInterval", "pollIntervalMs"),
    ];
    for (theirs, ours) in renamed {
        // Some serialisers write null for none, which no task of the extension has there.
        if let Some(value) = state.member(theirs).filter(|value| *value != "null") {
            out.member(ours, value);
        }
    }
    match shown {
        ShownTask::Bare => {}
        ShownTask::Asks(questions) => out.member("inputRequests", &requests(questions)),
        ShownTask::Came(reply) => match (reply.result(), reply.error()) {
            (Some(result), _) => out.member("result", result),
            (None, error) => out.member("error", error.unwrap_or("{}")),
        },
    }
    out.finish()
}

fn requests(questions: &[(String, InputRequest)]) -> String {
    json::object(questions.iter().map(|(key, question)| {
        let mut out = ObjectWriter::default();
        out.member("method", &json::quote(&question.method));
        if question.params.is_some() {
            out.member("params", question.params_text());
        }
        (key, out.finish())
    }))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const THEIRS: &str = r#"{"taskId":"raw","status":"failed","statusMessage":"m","ttl":60000,"pollInterval":50,"createdAt":"c","lastUpdatedAt":"l"}"#;

    fn shown(text: &str, shown: &ShownTask<'_>) -> serde_json::Value {
        let state = UpstreamTask::read(text).unwrap();
        serde_json::from_str(&task(&state, "ours", shown)).unwrap()
    }

    // SPEC K-11, K-13.
    #[test]
    fn a_tools_error_is_completed_and_an_error_of_the_protocol_is_failed() {
        let result = Reply::Result(Bytes::from_static(br#"{"isError":true}"#));
        let said = shown(THEIRS, &ShownTask::Came(&result));
        assert_eq!(
            said,
            serde_json::json!({
                "taskId": "ours", "status": "completed", "ttlMs": 60000, "statusMessage": "m",
                "createdAt": "c", "lastUpdatedAt": "l", "pollIntervalMs": 50,
                "result": {"isError": true},
            })
        );
        let error = Reply::Error(Bytes::from_static(br#"{"code":-1,"message":"no"}"#));
        let said = shown(THEIRS, &ShownTask::Came(&error));
        assert_eq!(
            (&said["status"], &said["error"]["code"]),
            (&"failed".into(), &(-1).into())
        );
    }

    #[test]
    fn what_is_null_is_left_out_but_for_the_lifetime() {
        let text = r#"{"taskId":"raw","status":"working","statusMessage":null,"ttl":null,"pollInterval":null}"#;
        assert_eq!(
            shown(text, &ShownTask::Bare),
            serde_json::json!({"taskId": "ours", "status": "working", "ttlMs": null})
        );
    }

    #[test]
    fn a_task_that_asks_shows_its_questions_and_one_without_a_lifetime_lasts() {
        let text = r#"{"taskId":"raw","status":"input_required"}"#;
        let question = InputRequest {
            method: "roots/list".to_owned(),
            params: None,
        };
        let questions = [("k".to_owned(), question)];
        let said = shown(text, &ShownTask::Asks(&questions));
        assert_eq!(said["inputRequests"]["k"]["method"], "roots/list");
        assert_eq!(
            (&said["status"], &said["ttlMs"]),
            (&"input_required".into(), &().into())
        );
        assert_eq!(shown(text, &ShownTask::Bare)["status"], "working");
    }
}
