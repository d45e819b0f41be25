//! What upstreams send a session outside any call: mapped, filtered, and put on its stream.
//! Spec: BRIDGING §2.4; SPEC C-50, C-61, T-21.

use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;

use super::Relay;
use super::view::View;
use crate::call::{Asked, Declared, Intake, Level, Notice, NoticeKind, Question};
use crate::config::Isolation;
use crate::protocol::{Message, json};
use crate::session::Session;
use crate::upstream::Seat;
use crate::upstream::knowledge::{Key, Knowledge};

/// A session as one of its upstreams sees it.
#[derive(Debug)]
struct SessionIntake {
    session: Weak<Session>,
    view: View,
    knowledge: Knowledge,
    key: Key,
    /// Set where other sessions subscribe over the same link: only what this one asked for.
    shared: bool,
}

impl Relay {
    /// The session's seat at an upstream.
    pub(super) fn seat(&self, session: &Arc<Session>, upstream: &Arc<str>) -> Seat {
        let shared = self
            .parts
            .upstreams
            .settings(upstream)
            .is_some_and(|settings| settings.isolation != Isolation::Session);
        Seat {
            owner: session.owner(),
            capabilities: self
                .parts
                .upstreams
                .declarable(upstream, &session.capabilities),
            client_info: session.client_info.clone(),
            offer: session.revision,
            intake: Arc::new(SessionIntake {
                session: Arc::downgrade(session),
                view: self.view(&session.endpoint, upstream),
                knowledge: self.knowledge.clone(),
                key: self.knowledge_key(session, upstream),
                shared,
            }),
        }
    }
}

impl Intake for SessionIntake {
    /// A session that was answered from knowledge learns when that was wrong (DESIGN §5).
    fn opened(&self, _upstream: &Arc<str>, declared: &Arc<Declared>) {
        if self.knowledge.learn(self.key.clone(), declared)
            && let Some(session) = self.session.upgrade()
        {
            for what in ["tools", "prompts", "resources"] {
                session.standalone().notify(Notice::list_changed(what));
            }
        }
    }

    fn notice(&self, _upstream: &Arc<str>, notice: Notice) {
        let Some(session) = self.session.upgrade() else {
            return;
        };
        let wanted = match &notice.kind {
            NoticeKind::Log => is_loud_enough(&notice, session.level()),
            NoticeKind::ResourceUpdated { uri } => {
                !self.shared || session.subscriptions().covers(uri)
            }
            _ => true,
        };
        if wanted && let Some(notice) = self.view.notice(notice) {
            session.standalone().notify(notice);
        }
    }

    fn question(&self, _upstream: &Arc<str>, question: Question) -> BoxFuture<'_, Asked> {
        Box::pin(async move {
            match self.session.upgrade() {
                Some(session) => session.ask_unattributed(self.view.question(question)).await,
                None => Asked::CannotAsk("the session has ended".to_owned()),
            }
        })
    }
}

/// Before a client has set a level the upstream's own choice stands (SPEC C-21).
fn is_loud_enough(notice: &Notice, wanted: Option<Level>) -> bool {
    let Some(wanted) = wanted else { return true };
    let level = Message::parse(notice.bytes.clone(), usize::MAX)
        .ok()
        .and_then(|message| Level::parse(&json::string(message.param("level")?)?));
    level.is_none_or(|level| level >= wanted)
}
