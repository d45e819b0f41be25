//! What belongs to a task of 2025-11-25 says so, by the name that its client knows: questions, progress
//! and log messages, whatever stream they come on. What its upstream calls it is of the other hop.
//! Spec: MCP 2025-11-25, tasks, "Associating Task-Related Messages"; SPEC K-03.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::call::{
    Asked, Burst, Call, ClientCapabilities, DownstreamLink, Notice, NoticeKind, Question, Round,
};
use crate::protocol::{Message, json, meta};
use crate::relay::route::Target;
use crate::session::Session;

/// Nesting of what was within bounds when it came.
const ANY_DEPTH: usize = usize::MAX;

/// The mark of what belongs to a task, JSON text.
pub(super) fn mark(handle: &str) -> String {
    format!(r#"{{"taskId":{}}}"#, json::quote(handle))
}

/// The call with a way back on which everything says that it belongs to the task that the call is
/// about, or by its right name to which other one; nothing where the link itself is that.
pub(in crate::relay) fn marking(
    call: &Call,
    session: &Arc<Session>,
    target: &Target,
) -> Option<Call> {
    if session.visit().is_some() || !call.revision.has_tasks_capability() {
        return None;
    }
    let link = match &target.shown {
        Some(handle) if call.message.method() == Some("tasks/result") => marked(&call.link, handle),
        _ if session.tasks().is_empty() => return None,
        _ => Arc::new(Renaming {
            inner: Arc::clone(&call.link),
            session: Arc::clone(session),
            upstream: Arc::clone(&target.upstream),
        }),
    };
    Some(Call {
        link,
        ..call.clone()
    })
}

/// The link as one on which everything says that it belongs to a task.
pub(super) fn marked(link: &Arc<dyn DownstreamLink>, handle: &str) -> Arc<dyn DownstreamLink> {
    Arc::new(Marking {
        inner: Arc::clone(link),
        mark: mark(handle),
        is_known: true,
    })
}

/// The link of a call that begins a task: what comes afterwards says that it belongs to it, and before
/// that only what its upstream says it of.
pub(super) fn beginning(link: &Arc<dyn DownstreamLink>, handle: &str) -> Arc<dyn DownstreamLink> {
    Arc::new(Marking {
        inner: Arc::clone(link),
        mark: mark(handle),
        is_known: false,
    })
}

/// A log message that an upstream sends of any of its tasks, with the name of that which the client
/// knows; a task that the client does not know is not named.
pub(in crate::relay) fn renamed(session: &Session, upstream: &str, notice: Notice) -> Notice {
    let names_task =
        || memchr::memmem::find(&notice.bytes, meta::RELATED_TASK.as_bytes()).is_some();
    if notice.kind != NoticeKind::Log || !names_task() {
        return notice;
    }
    let Ok(message) = Message::parse(notice.bytes.clone(), ANY_DEPTH) else {
        return notice;
    };
    let Some(theirs) = message.meta(meta::RELATED_TASK) else {
        return notice;
    };
    let id = json::member(theirs, "taskId").and_then(json::string);
    let handle = id.and_then(|id| session.tasks().handle_of(upstream, &id));
    let edit = match handle {
        Some(handle) => message.edit().meta(meta::RELATED_TASK, mark(&handle)),
        None => message.edit().remove_meta(meta::RELATED_TASK),
    };
    Notice {
        bytes: edit.finish(),
        kind: notice.kind,
    }
}

/// A client's link on which log messages may come of tasks, which its upstream names.
#[derive(Debug)]
struct Renaming {
    inner: Arc<dyn DownstreamLink>,
    session: Arc<Session>,
    upstream: Arc<str>,
}

impl DownstreamLink for Renaming {
    fn capabilities(&self) -> &ClientCapabilities {
        self.inner.capabilities()
    }

    fn notify(&self, notice: Notice) {
        let notice = renamed(&self.session, &self.upstream, notice);
        self.inner.notify(notice);
    }

    fn progress(&self, token: &Arc<str>, burst: Burst) {
        self.inner.progress(token, burst);
    }

    fn ask(&self, round: Round) -> BoxFuture<'_, Asked> {
        self.inner.ask(round)
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.inner)
    }
}

/// A client's link on which what comes names a task.
#[derive(Debug)]
struct Marking {
    inner: Arc<dyn DownstreamLink>,
    /// JSON text.
    mark: String,
    /// Whether the client has been told of the task.
    is_known: bool,
}

impl Marking {
    fn marked(&self, notice: Notice) -> Notice {
        if !matches!(notice.kind, NoticeKind::Progress { .. } | NoticeKind::Log) {
            return notice;
        }
        let Ok(message) = Message::parse(notice.bytes.clone(), ANY_DEPTH) else {
            return notice;
        };
        if !self.is_known && message.meta(meta::RELATED_TASK).is_none() {
            return notice;
        }
        let edit = message.edit().meta(meta::RELATED_TASK, self.mark.as_str());
        Notice {
            bytes: edit.finish(),
            kind: notice.kind,
        }
    }
}

impl DownstreamLink for Marking {
    fn capabilities(&self) -> &ClientCapabilities {
        self.inner.capabilities()
    }

    fn notify(&self, notice: Notice) {
        self.inner.notify(self.marked(notice));
    }

    fn ask(&self, round: Round) -> BoxFuture<'_, Asked> {
        if !self.is_known {
            return self.inner.ask(round);
        }
        let marked = |question: Question| {
            let params = question.params.as_deref().map(std::str::from_utf8);
            let params = params.and_then(Result::ok).unwrap_or("{}");
            let members = json::members(params).unwrap_or_default();
            let params = json::object_with(&members, "_meta", meta::RELATED_TASK, &self.mark);
            Question {
                params: Some(params.into()),
                ..question
            }
        };
        let entries = round.entries.into_iter();
        self.inner.ask(Round {
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
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A client that keeps what it is told, also when its call has its reply.
    #[derive(Debug, Clone)]
    struct Client(ClientCapabilities, Arc<Mutex<Vec<String>>>);

    impl DownstreamLink for Client {
        fn capabilities(&self) -> &ClientCapabilities {
            &self.0
        }

        fn notify(&self, notice: Notice) {
            let text = String::from_utf8(notice.bytes.to_vec()).unwrap();
            self.1.lock().unwrap().push(text);
        }

        fn ask(&self, _round: Round) -> BoxFuture<'_, Asked> {
            Box::pin(std::future::ready(Asked::Unanswered))
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
        let client: Arc<dyn DownstreamLink> =
            Arc::new(Client(ClientCapabilities::none(), Arc::clone(&told)));
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
            let link = beginning(client, "ours");
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
}
