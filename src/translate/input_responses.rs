//! The answers of a client as `inputResponses` of the upstream that asked. Spec: BRIDGING §3.2; SPEC C-71.

use crate::call::InputResponse;
use crate::protocol::input_request_rules;
use crate::protocol::json::{self, ObjectWriter};

/// A question that was put to a client.
pub(crate) struct PutQuestion<'q> {
    pub(crate) key: &'q str,
    pub(crate) method: &'q str,
    /// The question in words, for a sentence.
    pub(crate) what: String,
}

/// JSON text of `inputResponses`. A form that the client refused with an error, or left unanswered, counts as cancelled.
///
/// # Errors
/// A sentence about any other question that was refused or has no answer.
pub(crate) fn input_responses<'q>(
    questions: impl IntoIterator<Item = PutQuestion<'q>>,
    answers: &[(String, InputResponse)],
) -> Result<String, String> {
    let mut responses = ObjectWriter::default();
    for PutQuestion { key, method, what } in questions {
        let answer = answers.iter().find(|(known, _)| known == key);
        let text = match answer.map(|(_, answer)| answer) {
            // Spec: SPEC C-71.
            Some(InputResponse::Result(result))
                if method == "roots/list" && !input_request_rules::are_files(result) =>
            {
                return Err("the client's roots are no file: URIs".to_owned());
            }
            Some(InputResponse::Result(result)) => String::from_utf8_lossy(result).into_owned(),
            _ if method == "elicitation/create" => r#"{"action":"cancel"}"#.to_owned(),
            Some(InputResponse::Error(error)) => return Err(refusal(&what, error)),
            None => return Err(format!("the client did not answer {what}")),
        };
        responses.member(key, &text);
    }
    Ok(responses.finish())
}

fn refusal(what: &str, error: &[u8]) -> String {
    let error = std::str::from_utf8(error).unwrap_or_default();
    let message = json::member(error, "message").and_then(json::string);
    let message: String = message.unwrap_or_default().chars().take(200).collect();
    format!("the client refused {what}: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responses(method: &str, answers: &[(String, InputResponse)]) -> Result<String, String> {
        let asked = PutQuestion {
            key: "k",
            method,
            what: method.to_owned(),
        };
        input_responses([asked], answers)
    }

    // SPEC C-71.
    #[test]
    fn roots_that_are_no_files_are_no_answer() {
        let given = |uri: &str| {
            let roots = format!(r#"{{"roots":[{{"uri":"{uri}"}}]}}"#);
            let answer = InputResponse::Result(roots.into());
            responses("roots/list", &[("k".to_owned(), answer)])
        };
        assert!(given("file:///a").is_ok());
        assert!(given("https://a.test/").is_err());
    }

    #[test]
    fn only_a_form_can_be_left_unanswered() {
        assert_eq!(
            responses("elicitation/create", &[]).unwrap(),
            r#"{"k":{"action":"cancel"}}"#
        );
        assert!(responses("sampling/createMessage", &[]).is_err());
    }

    #[test]
    fn refusal_of_the_client_is_told_to_the_upstream() {
        let error = InputResponse::Error(r#"{"code":-1,"message":"not now"}"#.into());
        let answers = [("k".to_owned(), error)];
        let refused = responses("sampling/createMessage", &answers).unwrap_err();
        assert!(
            refused.ends_with("sampling/createMessage: not now"),
            "{refused}"
        );
        assert!(responses("elicitation/create", &answers).is_ok());
    }
}
