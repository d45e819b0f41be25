//! Projects answers of clients to the revision of the asking upstream. Spec: BRIDGING §2.3, §3.9; SPEC C-70.

use std::collections::HashMap;

use bytes::Bytes;

use super::RevisionProjection;
use super::object::{MemberFate, object, string_member};
use crate::call::{InputOutcome, InputRequest, InputResponse};
use crate::protocol::json::{self, JsonError, member};

/// The methods of a round's questions, by key.
pub(crate) type RequestMethods = HashMap<String, String>;

/// What was asked, to read the answers by.
pub(crate) fn methods(entries: &[(String, InputRequest)]) -> RequestMethods {
    let of = |(key, question): &(String, InputRequest)| (key.clone(), question.method.clone());
    entries.iter().map(of).collect()
}

impl RevisionProjection {
    /// What became of a round, in the words of the upstream's revision.
    pub(crate) fn asked(self, methods: &RequestMethods, asked: InputOutcome) -> InputOutcome {
        let InputOutcome::Answered(answers) = asked else {
            return asked;
        };
        let projected = |(key, answer): (String, InputResponse)| {
            let answer = match methods.get(&key) {
                Some(method) => self.answer(method, answer),
                None => answer,
            };
            (key, answer)
        };
        InputOutcome::Answered(answers.into_iter().map(projected).collect())
    }

    /// The answer to a question of `method`. Before 2025-11-25 a completion had one block: of several
    /// the first is left that the upstream knows.
    pub(crate) fn answer(self, method: &str, answer: InputResponse) -> InputResponse {
        let is_narrowed = method == "sampling/createMessage"
            && !self.is_identity()
            && !self.from.has_sampling_tools();
        match answer {
            InputResponse::Result(result) if is_narrowed => match self.completion(&result) {
                Ok(Some(text)) => InputResponse::Result(text.into()),
                Ok(None) => InputResponse::Result(result),
                Err(why) => InputResponse::Error(error(&why)),
            },
            answer => answer,
        }
    }

    /// A completion reduced to one content block known to the upstream; `None` if no change is needed.
    fn completion(self, result: &Bytes) -> Result<Option<String>, String> {
        let text = std::str::from_utf8(result).unwrap_or("{}");
        let Some(content) = member(text, "content") else {
            return Ok(None);
        };
        let ambiguous = |error: JsonError| format!("the client's answer is ambiguous: {error}");
        let is_list = content.starts_with('[');
        let blocks = if is_list {
            json::elements(content).map_err(ambiguous)?
        } else {
            vec![content]
        };
        let first = blocks.into_iter().find(|block| self.is_known(block));
        let first = first.ok_or("the client's answer has no content that this revision knows")?;
        if !is_list {
            return Ok(None);
        }
        let one = object(text, |name, _| {
            Ok(if name == "content" {
                MemberFate::Put(first.into())
            } else {
                MemberFate::Keep
            })
        });
        Ok(Some(one.map_err(ambiguous)?.into_owned()))
    }

    /// Whether the upstream knows blocks of this kind in a completion.
    fn is_known(self, block: &str) -> bool {
        match string_member(block, "type").as_deref() {
            Some("text" | "image") => true,
            Some("audio") => self.from.has_audio(),
            _ => false,
        }
    }
}

/// JSON text of the error that the upstream gets in place of an answer.
fn error(why: &str) -> Bytes {
    format!(r#"{{"code":-32603,"message":{}}}"#, json::quote(why)).into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::Revision::{
        self, V2024_11_05 as R1, V2025_03_26 as R2, V2025_06_18 as R3, V2025_11_25 as R4,
        V2026_07_28 as R5,
    };

    fn answered(from: Revision, to: Revision, content: &Value) -> Result<Value, Value> {
        let answer = json!({"role": "assistant", "content": content, "model": "m"});
        let answer = InputResponse::Result(Bytes::from(answer.to_string()));
        let read = |bytes: Bytes| serde_json::from_slice::<Value>(&bytes).unwrap();
        match RevisionProjection::new(from, to).answer("sampling/createMessage", answer) {
            InputResponse::Result(result) => Ok(read(result)["content"].take()),
            InputResponse::Error(error) => Err(read(error)),
        }
    }

    // SPEC C-70; BRIDGING §2.3, §3.9.
    #[test]
    fn a_completion_of_several_blocks_has_one_for_an_upstream_that_knows_no_more() {
        let text = json!({"type": "text", "text": "hi"});
        let audio = json!({"type": "audio", "data": "", "mimeType": "audio/wav"});
        let tool = json!({"type": "tool_use", "id": "1", "name": "t", "input": {}});
        let several = json!([tool, audio, text]);
        for to in [R4, R5] {
            assert_eq!(answered(R4, to, &several).unwrap(), several);
            assert_eq!(answered(R3, to, &several).unwrap(), audio);
            assert_eq!(answered(R2, to, &several).unwrap(), audio);
            assert_eq!(answered(R1, to, &several).unwrap(), text);
            assert_eq!(answered(R3, to, &text).unwrap(), text);
            assert_eq!(answered(R2, to, &audio).unwrap(), audio);
            assert_eq!(answered(R4, to, &tool).unwrap(), tool);
            for (from, unknown) in [
                (R3, &json!([tool])),
                (R3, &tool),
                (R1, &json!([audio])),
                (R1, &audio),
            ] {
                let error = answered(from, to, unknown).unwrap_err();
                assert_eq!(error["code"], -32603, "{unknown}");
            }
        }
    }
}
