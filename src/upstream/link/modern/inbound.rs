//! Messages of a modern upstream other than replies, and their receivers.
//! Spec: SPEC M-42, M-45, U-14, C-01…C-03, C-20, D-09, D-11.

use std::sync::Arc;

use bytes::Bytes;

use super::connection::{ANSWERS_UNASKED, ModernConnection};
use super::pipe::OpenPipe;
use super::running_request::{ReplyOwner, RunningRequest};
use crate::call::{LogLevel, Notice, NoticeKind};
use crate::protocol::salvage;
use crate::protocol::{DecodeError, Message, json, meta, methods};
use crate::telemetry::metrics::{COUNTERS, LABELED};
use crate::upstream::breach_log;
use crate::upstream::error::LinkError;
use crate::upstream::salvage::salvage;

/// Where a notice came from: the stream of a request, or a child.
type NoticeOrigin<'a> = (Option<&'a Arc<RunningRequest>>, Option<&'a OpenPipe>);

/// What is wrong with a request of a modern server.
const ASKS: &str = "a modern server sends no requests";

impl ModernConnection {
    /// Takes one message of the stream of `running`. Returns the message if it is the reply to `running`.
    pub(super) fn on_message(
        &self,
        message: Message,
        running: &Arc<RunningRequest>,
    ) -> Option<Message> {
        running.activity.touch();
        match (message.method(), message.id()) {
            // An HTTP stream has no way back. Spec: SPEC M-42
            (Some(_), Some(_)) => self.suspect(ASKS),
            (Some(method), None) => self.on_notice(method, &message, (Some(running), None)),
            // An error without an id counts as the reply. Spec: JSON-RPC 2.0 §5
            (None, None) => return Some(message),
            (None, Some(_)) if message.number() == Some(running.id) => return Some(message),
            (None, Some(_)) => self.suspect(ANSWERS_UNASKED),
        }
        None
    }

    /// Takes one message of the child `from`; `None` where the child has been replaced and has no calls left.
    pub(super) fn on_line(&self, message: Message, from: Option<&Arc<OpenPipe>>) {
        match (message.method(), message.id()) {
            // A pipe gets an error answer. Spec: SPEC D-09
            (Some(method), Some(id)) => {
                self.suspect(ASKS);
                if let Some(from) = from {
                    self.answer_request(from, method, id);
                }
            }
            (Some("notifications/message"), None) => self.on_log_of_child(&message, from),
            (Some(method), None) => {
                self.on_notice(method, &message, (None, from.map(|from| &**from)));
            }
            (None, _) => match message.number() {
                Some(id) => self.deliver(id, message, from.map(|from| &**from)),
                None => self.suspect(ANSWERS_UNASKED),
            },
        }
    }

    /// Takes a notice of the stream of `running`, or of the child `from`.
    fn on_notice(&self, method: &str, message: &Message, (running, from): NoticeOrigin<'_>) {
        match method {
            "notifications/progress" => self.on_progress(message, (running, from)),
            "notifications/message" => self.on_log(message, running),
            "notifications/cancelled" => self.on_listen_ended(message, from),
            // The gateway requests no task notices, and the task id is the upstream's, not the client's. Spec: SPEC
            // K-16
            "notifications/tasks" => self.suspect("it told of a task that nobody follows"),
            _ => match (
                self.subscription(message, (running, from)),
                kind(method, message),
            ) {
                (Some(running), kind) => {
                    running.activity.touch();
                    if let ReplyOwner::Listen(sink) = &running.whose {
                        sink.take(method, kind, message);
                    }
                }
                (None, NoticeKind::Other) => self.on_unknown(method, message, running),
                (None, _) => self.suspect("it announced a change to nobody who had asked"),
            },
        }
    }

    /// Passes an unknown notification on, if an extension that both sides declare may define it. Spec: SPEC N-01
    fn on_unknown(&self, method: &str, message: &Message, running: Option<&Arc<RunningRequest>>) {
        if let Some(ReplyOwner::Call { link, .. }) = running.map(|running| &running.whose)
            && methods::lookup(method).is_none()
            && self.shares_extension(link.capabilities())
        {
            return link.notify(Notice {
                kind: NoticeKind::Other,
                bytes: message.bytes().clone(),
            });
        }
        LABELED.notices_unknown.add("upstream", 1);
        let method: String = method.chars().take(64).collect();
        tracing::debug!(upstream = %self.settings.name, %method, "dropped a notification");
    }

    /// The running `subscriptions/listen` that a notice belongs to. Spec: SPEC M-72, D-11
    fn subscription(
        &self,
        message: &Message,
        (running, from): NoticeOrigin<'_>,
    ) -> Option<Arc<RunningRequest>> {
        let id = json::number(message.meta(meta::SUBSCRIPTION_ID)?)?;
        let found = match running {
            Some(running) => (running.id == id).then(|| Arc::clone(running)),
            None => self.running(id, from),
        };
        found.filter(|running| matches!(running.whose, ReplyOwner::Listen(_)))
    }

    /// Passes progress on to the request whose id is the token.
    fn on_progress(&self, message: &Message, (running, from): NoticeOrigin<'_>) {
        let token = message.param_number(meta::PROGRESS_TOKEN);
        let found = match (token, running) {
            (Some(id), Some(running)) if running.id == id => Some(Arc::clone(running)),
            (Some(id), None) => self.running(id, from),
            _ => None,
        };
        let Some(running) = found else {
            // Over a pipe the upstream may not know yet that the call is over.
            let is_late = running.is_none() && token.is_some_and(|id| self.has_used(id));
            let counter = if is_late {
                &LABELED.notices_late
            } else {
                &LABELED.upstream_garbage
            };
            counter.add(&self.settings.name, 1);
            return;
        };
        running.activity.touch();
        let ReplyOwner::Call {
            link,
            progress: Some(toward),
            ..
        } = &running.whose
        else {
            return;
        };
        if !toward.is_further(message.param("progress")) {
            return;
        }
        link.notify(Notice {
            bytes: message
                .edit()
                .param(meta::PROGRESS_TOKEN, &*toward.token)
                .finish(),
            kind: NoticeKind::Progress {
                token: Arc::clone(&toward.token),
            },
        });
    }

    /// Passes a log message of the child `from` on to the call that runs on it.
    fn on_log_of_child(&self, message: &Message, from: Option<&Arc<OpenPipe>>) {
        // A pipe shared by several owners: the message may be about another owner. Spec: BRIDGING §3.5
        if self.settings.intake.serves_several_owners() {
            return COUNTERS.notices_unread.add(1);
        }
        let call = from.and_then(|from| self.only_call(from));
        self.on_log(message, call.as_ref());
    }

    /// Passes a log message on if it reaches the level of the request. Spec: SPEC C-20
    fn on_log(&self, message: &Message, running: Option<&Arc<RunningRequest>>) {
        let Some(ReplyOwner::Call {
            link,
            level: Some(wanted),
            ..
        }) = running.map(|running| &running.whose)
        else {
            LABELED.upstream_garbage.add(&self.settings.name, 1);
            return;
        };
        let level = message.param_str("level");
        let level = level.as_deref().and_then(LogLevel::parse);
        if level.is_none_or(|level| level >= *wanted) {
            link.notify(Notice {
                kind: NoticeKind::Log,
                bytes: message.bytes().clone(),
            });
        }
    }

    /// Ends a `subscriptions/listen`, the only request that a server may cancel. Spec: SPEC M-45
    fn on_listen_ended(&self, message: &Message, from: Option<&OpenPipe>) {
        let id = message.param_number("requestId");
        let running = id.and_then(|id| self.running(id, from));
        match running.as_ref().map(|running| &running.whose) {
            Some(ReplyOwner::Listen(sink)) => sink.end(),
            _ => self.suspect("it cancelled what is not its own"),
        }
    }

    /// Records a line of the child `from` that is not a message. If the line names an awaited id, that request fails at
    /// once, as no other reply will follow.
    pub(super) fn not_read(&self, line: &Bytes, error: &DecodeError, from: Option<&Arc<OpenPipe>>) {
        let child = from.map(|from| &**from);
        let is_awaited = |id| self.running(id, child).is_some();
        let depth = self.settings.message_depth;
        if let Some(reply) = salvage(&self.settings.name, line, depth, is_awaited) {
            return self.on_line(reply, from);
        }
        if let Some(from) = from {
            from.keep_stray(line);
        }
        self.suspect(&format!("a line is no JSON-RPC message: {error}"));
        if let (Some(pipe), Some(id)) = (self.pipe(), salvage::answered(line)) {
            drop(pipe.deliver(id, Err(LinkError::Invalid(error.to_string())), child));
        }
    }

    /// Records a breach of the protocol that has no further consequences (SPEC U-14).
    pub(super) fn suspect(&self, what: &str) {
        breach_log::note(&self.settings.name, what);
    }
}

fn kind(method: &str, message: &Message) -> NoticeKind {
    match method {
        "notifications/tools/list_changed" => NoticeKind::ListChanged { what: "tools" },
        "notifications/prompts/list_changed" => NoticeKind::ListChanged { what: "prompts" },
        "notifications/resources/list_changed" => NoticeKind::ListChanged { what: "resources" },
        "notifications/resources/updated" => NoticeKind::ResourceUpdated {
            uri: message.param_str("uri").unwrap_or_default().into_owned(),
        },
        _ => NoticeKind::Other,
    }
}
