//! Questions of an upstream toward the client. Spec: BRIDGING §2.3, §3.9; SPEC C-70, C-80…C-82.

use std::borrow::Cow;

use bytes::Bytes;

use super::RevisionProjection;
use super::object::{MemberFate, array, object, string_member};
use crate::call::InputRequest;
use crate::protocol::json::{self, JsonError, ObjectWriter, member};
use crate::protocol::{Era, Revision, meta};

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
        if url && self.to.era() == Era::Legacy && member(params, "elicitationId").is_none() {
            let id = ("elicitationId", &*json::quote(&mint()));
            let members = json::members(&projected)?;
            let members = members.iter().map(|(name, value)| (&**name, *value));
            return Ok(Cow::Owned(json::object(members.chain([id]))));
        }
        Ok(projected)
    }

    fn sampling(self, params: &str) -> Result<Cow<'_, str>, UnaskableReason> {
        if self.to.has_sampling_tools() {
            return Ok(object(params, |name, value| self.common(name, value))?);
        }
        if member(params, "tools").is_some() || member(params, "toolChoice").is_some() {
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
                let block = self.content(block)?;
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
    for (name, value) in json::members(field)? {
        match &*name {
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
