//! Questions in the form of the modern revision, and the client's answers.
//! Spec: SPEC M-61, M-62; BRIDGING §3.1.

use bytes::Bytes;

use crate::call::InputRequest;
use crate::protocol::json::{self, ObjectWriter, member};
use crate::protocol::meta;

/// JSON text of the `input_required` result that asks `entries`.
pub(super) fn input_required<'q>(
    entries: impl IntoIterator<Item = (String, &'q InputRequest)>,
    state: &str,
    server_info: &str,
) -> Bytes {
    let mut requests = ObjectWriter::default();
    for (key, question) in entries {
        let mut request = ObjectWriter::default();
        request.member("method", &json::quote(&question.method));
        // `params` stands there also where the upstream sent none: the Go SDK (1.8) fails to read a request without.
        request.member("params", question.params_text());
        requests.member(&key, &request.finish());
    }
    let mut out = ObjectWriter::default();
    out.member("resultType", "\"input_required\"");
    if !requests.is_empty() {
        out.member("inputRequests", &requests.finish());
    }
    out.member("requestState", &json::quote(state));
    out.member("_meta", &json::object([(meta::SERVER_INFO, server_info)]));
    out.finish().into()
}

/// Whether a question sends the client to a page.
pub(super) fn is_page(question: &InputRequest) -> bool {
    question.method == "elicitation/create"
        && member(question.params_text(), "mode") == Some("\"url\"")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn question_without_params_gets_empty_ones() {
        let question = InputRequest {
            method: "roots/list".to_owned(),
            params: None,
        };
        let text = input_required([("i1".to_owned(), &question)], "s", "{}");
        let said: Value = serde_json::from_slice(&text).unwrap();
        let expected = json!({"method": "roots/list", "params": {}});
        assert_eq!(said["inputRequests"]["i1"], expected);
    }

    // SPEC M-61.
    #[test]
    fn a_round_names_its_questions_and_its_state() {
        let question = InputRequest {
            method: "roots/list".to_owned(),
            params: Some(r#"{"x":1}"#.into()),
        };
        let text = input_required([("i1".to_owned(), &question)], "s\"", "{}");
        let said: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            said["inputRequests"]["i1"],
            json!({"method": "roots/list", "params": {"x": 1}})
        );
        assert_eq!(
            (&said["resultType"], &said["requestState"]),
            (&json!("input_required"), &json!("s\""))
        );
        let text = input_required([], "s", "{}");
        let said: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(said.get("inputRequests"), None);
    }
}
