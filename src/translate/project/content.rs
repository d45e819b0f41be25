//! Content blocks that an older client does not know. Spec: BRIDGING §3.9.

use std::borrow::Cow;

use super::object::{MemberFate, array, object, string_member};
use crate::protocol::Revision;
use crate::protocol::json::{self, JsonError, ObjectWriter, member};

/// Content blocks for a client of this revision.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContentProjection(pub(super) Revision);

impl ContentProjection {
    /// Projects one content block, or an array of blocks.
    pub(super) fn content(self, text: &str) -> Result<Cow<'_, str>, JsonError> {
        if text.starts_with('[') {
            array(text, |block| Ok(self.block(block).into()))
        } else {
            Ok(self.block(text))
        }
    }

    /// Messages of a prompt.
    pub(super) fn messages(self, text: &str) -> Result<Cow<'_, str>, JsonError> {
        array(text, |message| {
            let message = object(message, |name, value| match name {
                "content" => Ok(self.content(value)?.into()),
                _ => Ok(MemberFate::Keep),
            })?;
            Ok(message.into())
        })
    }

    fn block(self, block: &str) -> Cow<'_, str> {
        let kind = string_member(block, "type").unwrap_or_default();
        let shown = match &*kind {
            "resource_link" if !self.0.has_structured_content() => {
                let part = |key| string_member(block, key).unwrap_or_default();
                let (name, uri) = (part("name"), part("uri"));
                if name.is_empty() {
                    uri.into_owned()
                } else {
                    format!("{name}: {uri}")
                }
            }
            "audio" if !self.0.has_audio() => {
                let mime = string_member(block, "mimeType").unwrap_or_default();
                format!("[audio {mime}, which this client cannot play]")
            }
            _ => return Cow::Borrowed(block),
        };
        let mut out = ObjectWriter::default();
        out.member("type", "\"text\"");
        out.member("text", &json::quote(&shown));
        if let Some(annotations) = member(block, "annotations") {
            out.member("annotations", annotations);
        }
        Cow::Owned(out.finish())
    }
}
