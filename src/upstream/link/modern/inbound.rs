//! Messages of a modern upstream other than replies, and their receivers.
//! Spec: SPEC M-42, M-45, U-14, C-01…C-03, C-20, D-09, D-11.

use std::sync::Arc;

use bytes::Bytes;

use super::ModernServerLink;
use super::running_request::{ReplyOwner, RunningRequest};
use crate::call::{LogLevel, Notice, NoticeKind};
use crate::protocol::salvage;
use crate::protocol::{DecodeError, Message, json, meta, methods};
use crate::telemetry::metrics::{COUNTERS, LABELED};
use crate::upstream::error::LinkError;
use crate::upstream::salvage::salvage;

impl ModernServerLink {
    /// Takes one message of the stream of `flight`, or of the shared pipe. Returns the message if it is the reply to
    /// `flight`.
    pub(super) fn on_message(
        &self,
        message: Message,
        flight: Option<&Arc<RunningRequest>>,
    ) -> Option<Message> {
        if let Some(flight) = flight {
            flight.activity.touch();
        }
        match (message.method(), message.id()) {
            // A pipe gets an error answer; an HTTP stream has no way back. Spec: SPEC D-09, M-42
            (Some(method), Some(id)) => {
                self.suspect("a modern server sends no requests");
                if flight.is_none() {
                    self.answer_request(method, id);
                }
            }
            (Some(method), None) => self.on_notice(method, &message, flight),
            (None, _) => match (message.number(), flight) {
                (Some(id), Some(flight)) if id == flight.id => return Some(message),
                (Some(id), None) => self.deliver(id, message),
                // An error without an id counts as the reply. Spec: JSON-RPC 2.0 §5
                (None, Some(_)) if message.id().is_none() => return Some(message),
                _ => self.suspect("it answered a request that we did not make"),
            },
        }
        None
    }

    fn on_notice(&self, method: &str, message: &Message, flight: Option<&Arc<RunningRequest>>) {
        match method {
            "notifications/progress" => self.on_progress(message, flight),
            "notifications/message" => self.on_log(message, flight),
            "notifications/cancelled" => self.on_listen_ended(message),
            // The gateway requests no task notices, and the task id is the upstream's, not the client's. Spec: SPEC
            // K-16
            "notifications/tasks" => self.suspect("it told of a task that nobody follows"),
            _ => match (self.subscription(message, flight), kind(method, message)) {
                (Some(flight), kind) => {
                    flight.activity.touch();
                    if let ReplyOwner::Listen(sink) = &flight.whose {
                        sink.take(method, kind, message);
                    }
                }
                (None, NoticeKind::Other) => self.on_unknown(method, message, flight),
                (None, _) => self.suspect("it announced a change to nobody who had asked"),
            },
        }
    }

    /// Passes an unknown notification on, if an extension that both sides declare may define it. Spec: SPEC N-01
    fn on_unknown(&self, method: &str, message: &Message, flight: Option<&Arc<RunningRequest>>) {
        if let Some(ReplyOwner::Call { link, .. }) = flight.map(|flight| &flight.whose)
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
        flight: Option<&Arc<RunningRequest>>,
    ) -> Option<Arc<RunningRequest>> {
        let id = json::number(message.meta(meta::SUBSCRIPTION_ID)?)?;
        let found = match flight {
            Some(flight) => (flight.id == id).then(|| Arc::clone(flight)),
            None => self.flight(id),
        };
        found.filter(|flight| matches!(flight.whose, ReplyOwner::Listen(_)))
    }

    /// Passes progress on to the request whose id is the token.
    fn on_progress(&self, message: &Message, flight: Option<&Arc<RunningRequest>>) {
        let token = message.param_number(meta::PROGRESS_TOKEN);
        let found = match (token, flight) {
            (Some(id), Some(flight)) if flight.id == id => Some(Arc::clone(flight)),
            (Some(id), None) => self.flight(id),
            _ => None,
        };
        let Some(flight) = found else {
            // Over a pipe the upstream may not know yet that the call is over.
            let is_late = flight.is_none() && token.is_some_and(|id| self.has_used(id));
            let counter = if is_late {
                &LABELED.notices_late
            } else {
                &LABELED.upstream_garbage
            };
            counter.add(&self.settings.name, 1);
            return;
        };
        flight.activity.touch();
        let ReplyOwner::Call {
            link,
            progress: Some(toward),
            ..
        } = &flight.whose
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

    /// Passes a log message on if it reaches the level of the request. Spec: SPEC C-20
    fn on_log(&self, message: &Message, flight: Option<&Arc<RunningRequest>>) {
        // A pipe shared by several owners: the message may be about another owner. Spec: BRIDGING §3.5
        if flight.is_none() && self.settings.intake.serves_several_owners() {
            return COUNTERS.notices_unread.add(1);
        }
        let alone = || self.only_call();
        let flight = flight.cloned().or_else(alone);
        let Some(ReplyOwner::Call {
            link,
            level: Some(wanted),
            ..
        }) = flight.as_ref().map(|flight| &flight.whose)
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
    fn on_listen_ended(&self, message: &Message) {
        let id = message.param_number("requestId");
        let flight = id.and_then(|id| self.flight(id));
        match flight.as_ref().map(|flight| &flight.whose) {
            Some(ReplyOwner::Listen(sink)) => sink.end(),
            _ => self.suspect("it cancelled what is not its own"),
        }
    }

    /// Records a line that is not a message. If the line names an awaited id, that request fails at once, as no other
    /// reply will follow.
    pub(super) fn not_read(&self, line: &Bytes, error: &DecodeError) {
        let is_awaited = |id| self.flight(id).is_some();
        let depth = self.settings.message_depth;
        if let Some(reply) = salvage(&self.settings.name, line, depth, is_awaited) {
            drop(self.on_message(reply, None));
            return;
        }
        if let Some(pipe) = self.pipe() {
            pipe.keep_stray(line);
        }
        self.suspect(&format!("a line is no JSON-RPC message: {error}"));
        if let (Some(pipe), Some(id)) = (self.pipe(), salvage::answered(line)) {
            drop(pipe.deliver(id, Err(LinkError::Invalid(error.to_string()))));
        }
    }

    /// Records a breach of the protocol that has no further consequences (SPEC U-14).
    pub(super) fn suspect(&self, what: &str) {
        LABELED.upstream_garbage.add(&self.settings.name, 1);
        tracing::warn!(upstream = %self.settings.name, what, "upstream breaks the protocol");
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
