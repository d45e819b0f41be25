//! Questions of an upstream to the client, and the client's answers. Spec: BRIDGING §2.3, §3.9; SPEC C-70, C-80…C-82.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;

use super::RevisionProjection;
use super::object::{MemberFate, array, object, string_member};
use crate::call::{InputOutcome, InputRequest, InputResponse};
use crate::protocol::error_codes::INTERNAL_ERROR;
use crate::protocol::json::{self, JsonError, ObjectWriter, member};
use crate::protocol::{Era, Revision, meta, rpc, sampling};

/// Why a question cannot be put to a client.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnaskableReason {
    /// Its revision has no words for it.
    #[error("the client's protocol revision cannot express {0}")]
    Inexpressible(&'static str),
    /// The question repeats a member.
    #[error("the question is ambiguous")]
    Ambiguous(#[from] JsonError),
}

impl RevisionProjection {
    /// A question as the client's revision puts it. `mint` makes an elicitation id.
    ///
    /// # Errors
    /// [`UnaskableReason`]: the upstream is told that the client cannot be asked.
    pub(crate) fn question(
        self,
        question: InputRequest,
        mint: impl FnOnce() -> String,
    ) -> Result<InputRequest, UnaskableReason> {
        let Some(params) = question.params.as_ref().filter(|_| !self.is_identity()) else {
            return Ok(question);
        };
        let Ok(text) = std::str::from_utf8(params) else {
            return Ok(question);
        };
        let projected = match question.method.as_str() {
            "elicitation/create" => self.elicitation(text, mint)?,
            "sampling/createMessage" => self.sampling(text)?,
            _ => Cow::Borrowed(text),
        };
        let Cow::Owned(projected) = projected else {
            return Ok(question);
        };
        Ok(InputRequest {
            params: Some(Bytes::from(projected)),
            ..question
        })
    }

    fn elicitation(
        self,
        params: &str,
        mint: impl FnOnce() -> String,
    ) -> Result<Cow<'_, str>, UnaskableReason> {
        let url = string_member(params, "mode").is_some_and(|mode| mode == "url");
        if !self.to.has_elicitation() {
            return Err(UnaskableReason::Inexpressible("questions to the user"));
        }
        if url && !self.to.has_url_elicitation() {
            return Err(UnaskableReason::Inexpressible("a visit to a URL"));
        }
        let mut schema = None;
        if self.to < Revision::V2025_11_25
            && let Some(given) = member(params, "requestedSchema")
        {
            schema = Some(plain_form(given)?);
        }
        let projected = object(params, |name, value| {
            Ok(match name {
                "mode" if !self.to.has_url_elicitation() => MemberFate::Drop,
                "requestedSchema" => schema.take().map_or(MemberFate::Keep, MemberFate::from),
                // Spec: SPEC C-82.
                "elicitationId" if self.to.era() == Era::Modern => MemberFate::Drop,
                _ => self.common(name, value)?,
            })
        })?;
        // Some serialisers write null for none.
        let has_id = || member(params, "elicitationId").is_some_and(|id| id != "null");
        if url && self.to.era() == Era::Legacy && !has_id() {
            let id = ("elicitationId", &*json::quote(&mint()));
            let members = json::members(&projected)?;
            let members = members.iter().filter(|(name, _)| name != id.0);
            let members = members.map(|(name, value)| (&**name, *value));
            return Ok(Cow::Owned(json::object(members.chain([id]))));
        }
        Ok(projected)
    }

    fn sampling(self, params: &str) -> Result<Cow<'_, str>, UnaskableReason> {
        if self.to.has_sampling_tools() {
            return Ok(object(params, |name, value| self.common(name, value))?);
        }
        if sampling::offers_tools(params) {
            return Err(UnaskableReason::Inexpressible(
                "tools in a sampling request",
            ));
        }
        let messages = match member(params, "messages") {
            Some(messages) => self.sampling_messages(messages)?,
            None => Cow::Borrowed(""),
        };
        let mut messages = Some(messages);
        Ok(object(params, |name, value| {
            Ok(match name {
                "messages" => messages.take().map_or(MemberFate::Keep, MemberFate::from),
                // Null, as none are offered.
                "tools" | "toolChoice" => MemberFate::Drop,
                _ => self.common(name, value)?,
            })
        })?)
    }

    /// Messages with one block each: a message of several becomes several of the same role.
    fn sampling_messages(self, text: &str) -> Result<Cow<'_, str>, UnaskableReason> {
        let mut tools = false;
        let messages = array(text, |one| {
            let Some(content) = member(one, "content") else {
                return Ok(MemberFate::Keep);
            };
            let blocks = if content.starts_with('[') {
                json::elements(content)?
            } else {
                vec![content]
            };
            tools |= blocks.iter().any(|block| {
                string_member(block, "type").is_some_and(|kind| kind.starts_with("tool_"))
            });
            let mut split = Vec::with_capacity(blocks.len());
            for block in blocks {
                let block = self.blocks().content(block)?;
                let same = matches!(&block, Cow::Borrowed(same) if *same == content);
                if same {
                    return Ok(MemberFate::Keep);
                }
                let mut block = Some(block);
                let message = object(one, |name, _| {
                    Ok(match name {
                        "content" => block.take().map_or(MemberFate::Keep, |block| {
                            MemberFate::Put(Cow::Owned(block.into_owned()))
                        }),
                        _ => MemberFate::Keep,
                    })
                })?;
                split.push(message.into_owned());
            }
            Ok(if split.is_empty() {
                MemberFate::Drop
            } else {
                MemberFate::Put(split.join(",").into())
            })
        })?;
        if tools {
            return Err(UnaskableReason::Inexpressible(
                "tool use in a sampling request",
            ));
        }
        Ok(messages)
    }

    /// Members that every question may have.
    fn common<'t>(self, name: &str, value: &'t str) -> Result<MemberFate<'t>, JsonError> {
        let modern = self.to.era() == Era::Modern;
        Ok(match name {
            // Only 2025-11-25 has tasks for questions.
            "task" if !self.to.has_tasks_capability() => MemberFate::Drop,
            "_meta" if modern => object(value, |name, _| {
                let own = name == meta::PROGRESS_TOKEN || name == meta::RELATED_TASK;
                Ok(if own {
                    MemberFate::Drop
                } else {
                    MemberFate::Keep
                })
            })?
            .into(),
            _ => MemberFate::Keep,
        })
    }
}

/// A form of 2025-11-25 in the words of 2025-06-18.
fn plain_form(schema: &str) -> Result<Cow<'_, str>, UnaskableReason> {
    let mut refused = None;
    let form = object(schema, |name, value| {
        if name != "properties" {
            return Ok(MemberFate::Keep);
        }
        let fields = object(value, |_, field| {
            if let Some(field) = plain_field(field)? {
                return Ok(field.into());
            }
            refused = Some(UnaskableReason::Inexpressible("a choice of several values"));
            Ok(MemberFate::Keep)
        })?;
        Ok(fields.into())
    })?;
    match refused {
        Some(refused) => Err(refused),
        None => Ok(form),
    }
}

/// One field; nothing when it cannot be expressed.
fn plain_field(field: &str) -> Result<Option<Cow<'_, str>>, JsonError> {
    let kind = string_member(field, "type").unwrap_or_default();
    if matches!(&*kind, "array" | "object") {
        return Ok(None);
    }
    let mut out = ObjectWriter::default();
    let mut changed = false;
    let has_choices = member(field, "oneOf").is_some();
    for (name, value) in json::members(field)? {
        match &*name {
            // Written from the choices.
            "enum" | "enumNames" if has_choices => {}
            "default" if kind != "boolean" => changed = true,
            "oneOf" => {
                let (mut values, mut titles) = (Vec::new(), Vec::new());
                for choice in json::elements(value)? {
                    let Some(constant) = member(choice, "const") else {
                        return Ok(None);
                    };
                    values.push(constant);
                    titles.push(member(choice, "title").unwrap_or(constant));
                }
                out.member("enum", &json::array(values));
                out.member("enumNames", &json::array(titles));
                changed = true;
            }
            name => out.member(name, value),
        }
    }
    if !changed {
        return Ok(Some(Cow::Borrowed(field)));
    }
    Ok(Some(Cow::Owned(out.finish())))
}

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
    rpc::error(INTERNAL_ERROR, why, None).into()
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
