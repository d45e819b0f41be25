//! The state of a task as an upstream reports it, in either design. Spec: SPEC K-02, K-04, K-11, K-12.

use std::time::Duration;

use crate::call::Reply;
use crate::protocol::json::{self, ObjectMembers};

/// The design of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskDialect {
    /// Of 2025-11-25: `tasks/result` answers at the end, and questions arrive while it is open.
    Legacy,
    /// Of the extension: everything is in the answer to `tasks/get`.
    Extension,
}

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskStatus {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

impl TaskStatus {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "working" => Self::Working,
            "input_required" => Self::InputRequired,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ => return None,
        })
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A task as its upstream shows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UpstreamTask<'t> {
    pub(crate) id: String,
    pub(crate) status: TaskStatus,
    /// For people.
    pub(crate) message: Option<String>,
    /// How long the upstream wants to be left alone between two questions.
    pub(crate) interval: Option<Duration>,
    members: ObjectMembers<'t>,
}

impl<'t> UpstreamTask<'t> {
    /// Reads a task, JSON text of an object; nothing when it is none.
    pub(crate) fn read(text: &'t str) -> Option<Self> {
        let members = json::members(text).ok()?;
        let text_of = |name: &str| json::string(find(&members, name)?);
        let id = text_of("taskId")?.into_owned();
        let status = TaskStatus::parse(&text_of("status")?)?;
        let message = text_of("statusMessage").map(std::borrow::Cow::into_owned);
        let interval = find(&members, "pollIntervalMs").or_else(|| find(&members, "pollInterval"));
        let interval = interval.and_then(json::whole_number);
        Some(Self {
            id,
            status,
            message,
            interval: interval.map(Duration::from_millis),
            members,
        })
    }

    /// The task that a reply to `tools/call` begins; `None` if the reply is the result of the call.
    pub(crate) fn begun(reply: &'t Reply, design: TaskDialect) -> Option<Self> {
        let Reply::Relayed(message) = reply else {
            return None;
        };
        match design {
            TaskDialect::Legacy => Self::read(message.result_member("task")?),
            TaskDialect::Extension if message.result_member("resultType") == Some("\"task\"") => {
                Self::read(message.result()?)
            }
            TaskDialect::Extension => None,
        }
    }

    /// JSON text of one of its members.
    pub(crate) fn member(&self, name: &str) -> Option<&'t str> {
        find(&self.members, name)
    }
}

fn find<'t>(members: &ObjectMembers<'t>, name: &str) -> Option<&'t str> {
    let found = members.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Message;

    fn reply(result: &str) -> Reply {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        Reply::Relayed(Message::parse(text.into(), 128).unwrap())
    }

    // SPEC K-02, K-11.
    #[test]
    fn a_task_is_nested_in_one_design_and_flat_in_the_other() {
        let nested = reply(r#"{"task":{"taskId":"a","status":"working","pollInterval":50}}"#);
        let flat = reply(
            r#"{"resultType":"task","taskId":"b","status":"working","pollIntervalMs":70,"statusMessage":"m"}"#,
        );
        let begun = UpstreamTask::begun(&nested, TaskDialect::Legacy).unwrap();
        assert_eq!(
            (begun.id.as_str(), begun.interval),
            ("a", Some(Duration::from_millis(50)))
        );
        let begun = UpstreamTask::begun(&flat, TaskDialect::Extension).unwrap();
        assert_eq!(
            (begun.id.as_str(), begun.interval),
            ("b", Some(Duration::from_millis(70)))
        );
        assert_eq!(begun.message.as_deref(), Some("m"));
        assert_eq!(UpstreamTask::begun(&nested, TaskDialect::Extension), None);
        assert_eq!(UpstreamTask::begun(&flat, TaskDialect::Legacy), None);
    }

    // SPEC K-04.
    #[test]
    fn what_has_no_known_status_is_no_task() {
        assert_eq!(
            UpstreamTask::read(r#"{"taskId":"a","status":"dreaming"}"#),
            None
        );
        assert_eq!(
            UpstreamTask::read(r#"{"taskId":7,"status":"working"}"#),
            None
        );
        assert_eq!(UpstreamTask::read("[]"), None);
    }
}
