//! Messages of a task of 2025-11-25: they name the task on any stream, and so do the answers. Spec: MCP 2025-11-25,
//! tasks, "Associating Task-Related Messages".

use bytes::Bytes;

use crate::protocol::{Message, json, meta};

/// The task that a question belongs to.
#[derive(Debug)]
pub(super) struct RelatedQuestion {
    /// JSON text of the mark.
    mark: String,
    /// The upstream's name of the task.
    pub(super) task: String,
}

/// The task in the `_meta` of `message`, if any.
pub(super) fn of(message: &Message) -> Option<RelatedQuestion> {
    let mark = message.meta(meta::RELATED_TASK)?;
    let task = json::string(json::member(mark, "taskId")?)?;
    Some(RelatedQuestion {
        mark: mark.to_owned(),
        task: task.into_owned(),
    })
}

/// The parameters of a question without the mark, which is for this hop.
pub(super) fn unmarked(message: &Message) -> Option<Bytes> {
    if message.meta(meta::RELATED_TASK).is_none() {
        let params = message.params()?;
        return Some(Bytes::copy_from_slice(params.as_bytes()));
    }
    let bytes = message.edit().remove_meta(meta::RELATED_TASK).finish();
    // A whole message is still whole without one member.
    let bare = Message::parse(bytes, usize::MAX).ok()?;
    Some(Bytes::copy_from_slice(bare.params()?.as_bytes()))
}

impl RelatedQuestion {
    /// The result of a client, JSON text of an object, with the mark; anything else as it is.
    pub(super) fn marked(&self, result: Bytes) -> Bytes {
        let text = std::str::from_utf8(&result).unwrap_or_default();
        let Ok(members) = json::members(text) else {
            return result;
        };
        json::object_with(&members, "_meta", meta::RELATED_TASK, &self.mark).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = r#""io.modelcontextprotocol/related-task":{"taskId":"t"}"#;

    fn question(meta: &str) -> Message {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{{"message":"?","_meta":{{{meta}}}}}}}"#
        );
        Message::parse(text.into(), 128).unwrap()
    }

    #[test]
    fn a_question_is_put_without_the_mark_of_its_task() {
        let asked = question(&format!(r#"{MARK},"a":1"#));
        assert_eq!(of(&asked).unwrap().task, "t");
        assert_eq!(
            unmarked(&asked).unwrap(),
            r#"{"message":"?","_meta":{"a":1}}"#
        );
        assert!(of(&question("")).is_none());
        assert_eq!(
            unmarked(&question(r#""a":1"#)).unwrap(),
            r#"{"message":"?","_meta":{"a":1}}"#
        );
    }

    // SPEC K-03.
    #[test]
    fn an_answer_names_the_task_of_its_question() {
        let related = of(&question(MARK)).unwrap();
        assert_eq!(
            related.marked(Bytes::from_static(br#"{"action":"cancel"}"#)),
            format!(r#"{{"action":"cancel","_meta":{{{MARK}}}}}"#)
        );
        assert_eq!(
            related.marked(Bytes::from_static(br#"{"_meta":{"a":1}}"#)),
            format!(r#"{{"_meta":{{{MARK},"a":1}}}}"#)
        );
    }
}
