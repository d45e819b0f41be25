//! What an upstream sends besides replies: notifications and questions, and whose they are.
//! Spec: SPEC C-01…C-03, C-70…C-72, C-80; BRIDGING §2.3, §2.4; DESIGN §6.

use std::sync::Arc;

use bytes::Bytes;

use super::answers::{error, refusal, response};
use super::connection::LegacyConnection;
use super::open_questions::QuestionRefusal;
use super::pending_reply::PendingReply;
use super::question::UpstreamQuestion;
use super::wire::LegacyWire;
use crate::call::{Notice, NoticeArrival, NoticeKind};
use crate::protocol::input_request_rules;
use crate::protocol::{Era, Message, MessageKind, RequestId};
use crate::telemetry::metrics::LABELED;
use crate::upstream::breach_log;
use crate::upstream::carrier::AskedClient;

impl LegacyConnection {
    /// Takes one message; `origin` is our request if the message came on its stream. Returns the message if it is the reply
    /// to that request.
    pub(super) fn on_message(
        self: &Arc<Self>,
        message: Message,
        origin: Option<&Arc<PendingReply>>,
    ) -> Option<Message> {
        if let Some(pending) = origin {
            pending.activity.touch();
        }
        match message.kind() {
            MessageKind::Request => self.on_question(&message, origin.map(|pending| pending.id)),
            MessageKind::Notification => self.on_notice(&message, origin),
            MessageKind::Response => match message.number() {
                Some(id) if origin.is_some_and(|pending| pending.id == id) => return Some(message),
                Some(id) => {
                    // A pipe has made room for it before.
                    if self.is_pipe() || self.pending.counts_stray(id, message.bytes().len()) {
                        self.deliver(id, message);
                    }
                }
                // An error that names no request, in place of a reply: it could not read ours.
                // Spec: JSON-RPC 2.0 §5.
                None if origin.is_some() && message.id().is_none() => return Some(message),
                None => self.suspect("it sent a response with an id that is not ours"),
            },
        }
        None
    }

    fn on_notice(self: &Arc<Self>, message: &Message, origin: Option<&Arc<PendingReply>>) {
        let method = message.method().unwrap_or_default();
        let kind = match method {
            "notifications/progress" => return self.on_progress(message, origin),
            "notifications/cancelled" => return self.on_withdrawn(message),
            "notifications/tasks/status" => {
                let (intake, name) = (&self.settings.intake, &self.settings.name);
                self.task_progress.stands(message.params().unwrap_or("{}"));
                let call = self.pending.named(message, "taskId", |call, task| {
                    call.task.as_deref() == Some(task)
                });
                return intake.task_changed(name, message, call);
            }
            "notifications/message" => NoticeKind::Log,
            "notifications/tools/list_changed" => NoticeKind::ListChanged { what: "tools" },
            "notifications/prompts/list_changed" => NoticeKind::ListChanged { what: "prompts" },
            "notifications/resources/list_changed" => NoticeKind::ListChanged { what: "resources" },
            "notifications/resources/updated" => {
                let uri = message.param_str("uri").unwrap_or_default().into_owned();
                NoticeKind::ResourceUpdated { uri }
            }
            "notifications/elicitation/complete" => NoticeKind::ElicitationComplete,
            _ => NoticeKind::Other,
        };
        let own = match &kind {
            // A log message belongs to its call. On a pipe with several calls it goes to the newest call, so that the
            // client gets the log message before the reply behind it.
            NoticeKind::Log => origin.cloned().or_else(|| self.newest()),
            // A modern client has no stream but those of its calls.
            NoticeKind::Other if self.settings.client == Era::Modern => {
                origin.cloned().or_else(|| self.newest())
            }
            NoticeKind::Other => origin.cloned(),
            _ => None,
        };
        let notice = Notice {
            kind,
            bytes: message.bytes().clone(),
        };
        if let Some(link) = own.as_ref().and_then(|pending| pending.link.as_ref()) {
            return link.notify(notice);
        }
        let call = match (&notice.kind, origin) {
            (_, Some(origin)) => origin.number(),
            (NoticeKind::ElicitationComplete, None) => {
                self.pending
                    .named(message, "elicitationId", PendingReply::has_asked)
            }
            _ => None,
        };
        let (intake, name) = (&self.settings.intake, &self.settings.name);
        if let NoticeKind::ListChanged { what } = notice.kind {
            intake.list_changed(name, what);
        }
        intake.notice(name, notice, NoticeArrival::now(call));
    }

    fn newest(&self) -> Option<Arc<PendingReply>> {
        // Over HTTP the stream says whose a message is: one on the GET stream is no call's
        // (SPEC T-22).
        if let LegacyWire::Http(_) = self.wire {
            return None;
        }
        // It may be of another owner's call, or of one that is over. Spec: BRIDGING §3.5.
        if self.settings.intake.serves_several_owners() {
            return None;
        }
        // A modern client runs calls side by side and must see no message of another one (SPEC M-42).
        let guesses = self.settings.unattributed == AskedClient::Session;
        self.pending.newest(guesses)
    }

    /// Routed by token, wherever it came (SPEC C-02).
    fn on_progress(&self, message: &Message, origin: Option<&Arc<PendingReply>>) {
        let token = message.param_number("progressToken");
        let found = token.and_then(|id| match origin {
            Some(own) if own.id == id => Some(Arc::clone(own)),
            _ => {
                let found = self.pending.get(id)?;
                found.activity.touch();
                Some(found)
            }
        });
        let wanted = found
            .as_ref()
            .and_then(|pending| Some((pending.link.as_ref()?, pending.progress.as_ref()?)));
        if let Some((link, token)) = wanted {
            return link.notify(progress(message, token));
        }
        match token.and_then(|token| self.task_progress.progress(token)) {
            Some(task) => task.link.notify(progress(message, &task.token)),
            // Streams do not keep their order among each other, and an upstream may hear late that its call is over.
            None if found.is_none() && token.is_some_and(|token| self.pending.has_used(token)) => {
                LABELED.notices_late.add(&self.settings.name, 1);
            }
            None => LABELED.upstream_garbage.add(&self.settings.name, 1),
        }
    }

    /// The upstream no longer wants an answer to its question.
    fn on_withdrawn(&self, message: &Message) {
        let id = message.param("requestId").and_then(RequestId::parse);
        if let Some(id) = id {
            self.questions.withdraw(&id);
        }
    }

    fn on_question(self: &Arc<Self>, message: &Message, origin: Option<u64>) {
        let (Some(method), Some(id)) = (message.method(), message.id()) else {
            return;
        };
        let Some(key) = RequestId::parse(id) else {
            return;
        };
        if method == "ping" {
            return self.answer_later(id, &Ok(Bytes::from_static(b"{}")));
        }
        // No capability declares a message that is no question.
        let params = message.params().unwrap_or("{}");
        let revision = self.declared().revision;
        let capabilities = self.settings.capabilities.towards(revision);
        if let Some(missing) = capabilities.missing(method, params) {
            return self.answer_later(id, &Err(refusal(&missing)));
        }
        // Roots are the client's, whichever call is asked for them.
        if self.is_pipe() && method != "roots/list" {
            self.settings.asks.note();
        }
        if let Some(flaw) = input_request_rules::flaw(method, params) {
            LABELED.upstream_garbage.add(&self.settings.name, 1);
            if let Some(muted) = breach_log::admit(&self.settings.name, flaw) {
                tracing::warn!(upstream = %self.settings.name, method, flaw, muted, "refused an input request");
            }
            return self.answer_later(id, &Err(error(-32602, flaw)));
        }
        let withdrawn = match self.questions.open(&key) {
            Ok(withdrawn) => withdrawn,
            Err(QuestionRefusal::InUse) => {
                return self.answer_later(id, &Err(error(-32600, "the id is in use")));
            }
            Err(QuestionRefusal::TooMany) => {
                LABELED
                    .upstream_questions_refused
                    .add(&self.settings.name, 1);
                let what = "too many input requests are open";
                if let Some(muted) = breach_log::admit(&self.settings.name, what) {
                    tracing::warn!(
                        upstream = %self.settings.name,
                        open_questions = self.settings.upstream.open_questions,
                        muted,
                        "refused an input request: too many are open"
                    );
                }
                return self.answer_later(id, &Err(error(-32603, "too many open questions")));
            }
        };
        if let Some(url_elicitation) = message.param_str("elicitationId")
            && let Some(call) = origin.and_then(|id| self.pending.get(id))
        {
            call.note_asked(&url_elicitation);
        }
        let question = UpstreamQuestion::new(self, method, message, origin);
        let (this, id) = (Arc::clone(self), id.to_owned());
        self.settings.tasks.spawn_service(async move {
            let answer = tokio::select! {
                answer = question.ask() => Some(answer),
                () = withdrawn.cancelled() => None,
            };
            this.questions.close(&key, &withdrawn);
            if let Some(answer) = answer {
                this.send(response(&id, &answer)).await;
            }
        });
    }

    fn answer_later(self: &Arc<Self>, id: &str, answer: &Result<Bytes, Bytes>) {
        let Some(place) = self.questions.answer_permit() else {
            return self.suspect("it asks faster than it reads answers");
        };
        let (this, bytes) = (Arc::clone(self), response(id, answer));
        self.settings.tasks.spawn_service(async move {
            this.send(bytes).await;
            drop(place);
        });
    }
}

/// Progress under the client's own token, JSON text.
fn progress(message: &Message, token: &Arc<str>) -> Notice {
    Notice {
        bytes: message.with_param("progressToken", token),
        kind: NoticeKind::Progress {
            token: Arc::clone(token),
        },
    }
}
