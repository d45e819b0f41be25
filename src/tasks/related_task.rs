//! `io.modelcontextprotocol/related-task` marks for tasks of 2025-11-25: questions, progress and log messages
//! on any stream name the task by the handle of the client. The task id of the upstream stays on its hop.
//! Spec: MCP 2025-11-25, tasks, "Associating Task-Related Messages"; SPEC K-03.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::request::wanted;
use crate::call::{
    Call, DownstreamLink, InputOutcome, InputRequest, InputRequests, Notice, NoticeKind,
    ProgressBatch,
};
use crate::outbound::UpstreamTarget;
use crate::protocol::{Message, json, meta};
use crate::session::Session;

/// Depth limit for messages that were already checked on arrival.
const ANY_DEPTH: usize = usize::MAX;

/// The mark of messages that belong to a task, JSON text.
pub(super) fn mark(handle: &str) -> String {
    json::object([("taskId", json::quote(handle))])
}

/// The call with a link that marks messages for the client: questions and progress with the task that the call
/// is about, log messages with the task that they belong to. `None` if the session has no tasks, or if the call
/// asks for one (see [`beginning`]).
pub(crate) fn marking(
    call: &Call,
    session: &Arc<Session>,
    target: &UpstreamTarget,
) -> Option<Call> {
    if session.implicit_session().is_some() || !call.revision.has_tasks_capability() {
        return None;
    }
    let there = || RelatedTasks::of(session, &target.upstream);
    let link: Arc<dyn DownstreamLink> = match &target.shown {
        Some(handle) if call.message.method() == Some("tasks/result") => Arc::new(TaggingLink {
            inner: Arc::clone(&call.link),
            mark: mark(handle),
            is_known: true,
            there: Some(there()),
        }),
        _ if session.tasks().is_empty() || wanted(&call.message).is_some() => return None,
        _ => Arc::new(RenamingLink {
            inner: Arc::clone(&call.link),
            there: there(),
        }),
    };
    Some(Call {
        link,
        ..call.clone()
    })
}

/// Wraps a link so that every message is marked with a task that the gateway runs.
pub(super) fn marked(link: &Arc<dyn DownstreamLink>, handle: &str) -> Arc<dyn DownstreamLink> {
    Arc::new(TaggingLink {
        inner: Arc::clone(link),
        mark: mark(handle),
        is_known: true,
        there: None,
    })
}

/// Wraps the link of a call that begins a task at `upstream`: once the task exists, every message is
/// marked with it; before, only messages that the upstream itself marked.
pub(super) fn beginning(
    link: &Arc<dyn DownstreamLink>,
    handle: &str,
    session: &Arc<Session>,
    upstream: &Arc<str>,
) -> Arc<dyn DownstreamLink> {
    Arc::new(TaggingLink {
        inner: Arc::clone(link),
        mark: mark(handle),
        is_known: false,
        there: Some(RelatedTasks::of(session, upstream)),
    })
}

/// The tasks that a message may belong to.
#[derive(Debug, Clone)]
struct RelatedTasks {
    session: Arc<Session>,
    upstream: Arc<str>,
}

impl RelatedTasks {
    fn of(session: &Arc<Session>, upstream: &Arc<str>) -> Self {
        Self {
            session: Arc::clone(session),
            upstream: Arc::clone(upstream),
        }
    }
}

/// Translates the mark of an upstream to the mark that the client knows (JSON texts); `None` for a task unknown to the
/// client.
fn mark_of(session: &Session, upstream: &str, theirs: &str) -> Option<String> {
    let id = json::member(theirs, "taskId").and_then(json::string)?;
    let handle = session.tasks().handle_of(upstream, &id)?;
    Some(mark(&handle))
}

/// A log message about any task of an upstream, with the client's handle of that task. The mark is removed if
/// the client does not know the task.
pub(crate) fn renamed(session: &Session, upstream: &str, notice: Notice) -> Notice {
    let names_task =
        || memchr::memmem::find(&notice.bytes, meta::RELATED_TASK.as_bytes()).is_some();
    if notice.kind != NoticeKind::Log || !names_task() {
        return notice;
    }
    remarked(notice, |_, theirs| match theirs {
        Some(theirs) => mark_of(session, upstream, theirs).map_or(TagChange::Goes, TagChange::Is),
        None => TagChange::Stays,
    })
}

/// The message with another mark. `change` derives it from the kind of the message and its present mark.
fn remarked(notice: Notice, change: impl FnOnce(&NoticeKind, Option<&str>) -> TagChange) -> Notice {
    let Ok(message) = Message::parse(notice.bytes.clone(), ANY_DEPTH) else {
        return notice;
    };
    let edit = match change(&notice.kind, message.meta(meta::RELATED_TASK)) {
        TagChange::Stays => return notice,
        TagChange::Is(mark) => message.edit().meta(meta::RELATED_TASK, mark),
        TagChange::Goes => message.edit().remove_meta(meta::RELATED_TASK),
    };
    Notice {
        bytes: edit.finish(),
        kind: notice.kind,
    }
}

/// A client's link that translates the task marks of log messages from an upstream.
#[derive(Debug)]
struct RenamingLink {
    inner: Arc<dyn DownstreamLink>,
    there: RelatedTasks,
}

impl DownstreamLink for RenamingLink {
    fn notify(&self, notice: Notice) {
        let notice = renamed(&self.there.session, &self.there.upstream, notice);
        self.inner.notify(notice);
    }

    fn progress(&self, token: &Arc<str>, burst: ProgressBatch) {
        self.inner.progress(token, burst);
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.inner)
    }
}

/// A client's link that adds a task mark to messages.
#[derive(Debug)]
struct TaggingLink {
    inner: Arc<dyn DownstreamLink>,
    /// JSON text.
    mark: String,
    /// Whether the client has been told of the task.
    is_known: bool,
    /// Set if log messages of other tasks, or of no task, may arrive as well: all log output of a child is
    /// routed to one of its calls. `None` if every message is of this task.
    there: Option<RelatedTasks>,
}

/// Change to the mark of a message.
#[derive(Debug, PartialEq, Eq)]
enum TagChange {
    Stays,
    /// JSON text.
    Is(String),
    Goes,
}

impl TaggingLink {
    /// Decides the mark of a message that the upstream marked with `theirs`. `mark_of` is set if messages of
    /// other tasks may arrive, and translates an upstream's mark to the client's.
    fn change(
        &self,
        kind: &NoticeKind,
        theirs: Option<&str>,
        mark_of: Option<impl FnOnce(&str) -> Option<String>>,
    ) -> TagChange {
        let own = || TagChange::Is(self.mark.clone());
        match (theirs, mark_of) {
            (None, _) if !self.is_known => TagChange::Stays,
            (None, Some(_)) if *kind == NoticeKind::Log => TagChange::Stays,
            (Some(theirs), Some(mark_of)) if *kind == NoticeKind::Log => match mark_of(theirs) {
                Some(mark) => TagChange::Is(mark),
                // Possibly the task that begins, whose handle is not registered yet.
                None if !self.is_known => own(),
                None => TagChange::Goes,
            },
            _ => own(),
        }
    }

    fn marked(&self, notice: Notice) -> Notice {
        if !matches!(notice.kind, NoticeKind::Progress { .. } | NoticeKind::Log) {
            return notice;
        }
        let there = self.there.as_ref();
        let mark_of =
            there.map(|there| |theirs: &str| mark_of(&there.session, &there.upstream, theirs));
        remarked(notice, |kind, theirs| self.change(kind, theirs, mark_of))
    }
}

impl DownstreamLink for TaggingLink {
    fn notify(&self, notice: Notice) {
        self.inner.notify(self.marked(notice));
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        if !self.is_known {
            return self.inner.ask(round);
        }
        let marked = |question: InputRequest| {
            let params = question.params.as_deref().map(std::str::from_utf8);
            let params = params.and_then(Result::ok).unwrap_or("{}");
            let members = json::members(params).unwrap_or_default();
            let params = json::object_with(&members, "_meta", meta::RELATED_TASK, &self.mark);
            InputRequest {
                params: Some(params.into()),
                ..question
            }
        };
        let entries = round.entries.into_iter();
        self.inner.ask(InputRequests {
            entries: entries
                .map(|(key, question)| (key, marked(question)))
                .collect(),
            limit: round.limit,
            carry: round.carry,
        })
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.inner)
    }

    fn afterwards(&self) -> Option<Arc<dyn DownstreamLink>> {
        Some(Arc::new(Self {
            inner: self.inner.afterwards()?,
            mark: self.mark.clone(),
            is_known: true,
            there: self.there.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rstest::rstest;

    use super::*;

    /// A client that records its notifications, also after the reply.
    #[derive(Debug, Clone, Default)]
    struct Client(Arc<Mutex<Vec<String>>>);

    impl DownstreamLink for Client {
        fn notify(&self, notice: Notice) {
            let text = String::from_utf8(notice.bytes.to_vec()).unwrap();
            self.0.lock().unwrap().push(text);
        }

        fn afterwards(&self) -> Option<Arc<dyn DownstreamLink>> {
            Some(Arc::new(self.clone()))
        }
    }

    const OURS: &str = r#""_meta":{"io.modelcontextprotocol/related-task":{"taskId":"ours"}}"#;
    const THEIRS: &str = r#""_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"}}"#;

    fn progress(params: &str) -> Notice {
        let method = "notifications/progress";
        Notice {
            kind: NoticeKind::Progress { token: "1".into() },
            bytes: format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{{params}}}}}"#)
                .into(),
        }
    }

    fn told(by: impl Fn(&Arc<dyn DownstreamLink>)) -> Vec<String> {
        let told = Arc::default();
        let client: Arc<dyn DownstreamLink> = Arc::new(Client(Arc::clone(&told)));
        by(&client);
        let told = told.lock().unwrap();
        let params = |text: &String| {
            let message = Message::parse(text.clone().into(), 128).unwrap();
            message.params().unwrap_or("none").to_owned()
        };
        told.iter().map(params).collect()
    }

    // SPEC K-03.
    #[test]
    fn what_comes_of_a_task_names_it_as_its_client_does() {
        let told = told(|client| {
            let link = marked(client, "ours");
            link.notify(progress(r#""progress":1"#));
            link.notify(progress(THEIRS));
            link.notify(Notice::list_changed("tools"));
        });
        let [bare, named, other] = told.try_into().unwrap();
        assert_eq!(bare, format!(r#"{{"progress":1,{OURS}}}"#));
        assert_eq!(named, format!("{{{OURS}}}"));
        assert_eq!(other, "none");
    }

    #[test]
    fn a_call_names_its_task_when_that_has_begun() {
        let told = told(|client| {
            let link = TaggingLink {
                inner: Arc::clone(client),
                mark: mark("ours"),
                is_known: false,
                there: None,
            };
            link.notify(progress(r#""progress":1"#));
            link.notify(progress(THEIRS));
            link.afterwards()
                .unwrap()
                .notify(progress(r#""progress":2"#));
        });
        let [before, named, after] = told.try_into().unwrap();
        assert_eq!(before, r#"{"progress":1}"#);
        assert_eq!(named, format!("{{{OURS}}}"));
        assert_eq!(after, format!(r#"{{"progress":2,{OURS}}}"#));
    }

    // All log output of a child is routed to one of its calls.
    #[rstest]
    #[case::of_another(true, Some("other"), TagChange::Is("known".to_owned()))]
    #[case::of_none(true, None, TagChange::Stays)]
    #[case::of_one_that_is_no_more(true, Some("gone"), TagChange::Goes)]
    #[case::of_another_before(false, Some("other"), TagChange::Is("known".to_owned()))]
    #[case::of_that_which_begins(false, Some("new"), TagChange::Is("own".to_owned()))]
    #[case::of_none_before(false, None, TagChange::Stays)]
    fn a_log_message_names_the_task_that_it_is_of(
        #[case] is_known: bool,
        #[case] theirs: Option<&str>,
        #[case] expected: TagChange,
    ) {
        let marking = TaggingLink {
            inner: Arc::new(Client::default()),
            mark: "own".to_owned(),
            is_known,
            there: None,
        };
        let mark_of = |theirs: &str| (theirs == "other").then(|| "known".to_owned());
        let log = marking.change(&NoticeKind::Log, theirs, Some(mark_of));
        assert_eq!(log, expected);
        // Progress belongs to the call with its token, whatever the upstream's mark.
        let progress = NoticeKind::Progress { token: "1".into() };
        let of_call = if is_known || theirs.is_some() {
            TagChange::Is("own".to_owned())
        } else {
            TagChange::Stays
        };
        assert_eq!(marking.change(&progress, theirs, Some(mark_of)), of_call);
    }
}
