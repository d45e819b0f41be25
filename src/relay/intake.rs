//! Messages of upstreams outside calls: mapped, filtered, and put on a stream of the session.
//! Spec: BRIDGING §2.4; SPEC C-50, C-61, T-21.

use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;

use super::Relay;
use super::list_changes::{LISTS, SharedChanges};
use crate::budget::ReplyShare;
use crate::call::{
    InputOutcome, InputRequest, Notice, NoticeArrival, NoticeIntake, NoticeKind, ServerDeclaration,
};
use crate::catalog::ListPages;
use crate::config::Isolation;
use crate::outbound::{EndpointView, IntakeFactory, is_loud_enough};
use crate::protocol::{Era, Message};
use crate::session::{NoticeSource, Session, UnattributedQuestion};
use crate::tasks;
use crate::translate::project::{self, RevisionProjection};
use crate::upstream::declaration_cache::{DeclarationCache, DeclarationKey};

/// A session as one of its upstreams sees it.
#[derive(Debug)]
struct SessionIntake {
    session: Weak<Session>,
    view: EndpointView,
    declarations: DeclarationCache,
    key: DeclarationKey,
    /// The pages that a change makes stale.
    pages: Weak<ListPages>,
    /// Whether other sessions subscribe over the same link: only updates that this session asked for are passed on.
    shared: bool,
    /// Whether the client is told of changed lists.
    tells_changes: bool,
    /// Tells other replicas of changes.
    changes: SharedChanges,
}

impl IntakeFactory for Relay {
    fn intake(&self, session: &Arc<Session>, upstream: &Arc<str>) -> Arc<dyn NoticeIntake> {
        let links = &self.parts.links;
        let settings = links.upstreams.settings(upstream);
        let shared = settings.is_some_and(|settings| settings.isolation != Isolation::Session);
        let pages = &self.parts.catalog.pages;
        Arc::new(SessionIntake {
            session: Arc::downgrade(session),
            view: links.views.of(&session.endpoint, upstream),
            declarations: links.declarations.clone(),
            key: links.knowledge_key(session, upstream),
            pages: Arc::downgrade(pages),
            shared,
            tells_changes: links.tells_changes(upstream),
            changes: self.changes.clone(),
        })
    }
}

impl NoticeIntake for SessionIntake {
    fn reply_share(&self) -> Option<ReplyShare> {
        self.session.upgrade()?.reply_share().cloned()
    }

    /// Corrects a session that was answered from the declaration cache (DESIGN §5).
    fn opened(&self, upstream: &Arc<str>, declared: &Arc<ServerDeclaration>) {
        if let Some(session) = self.session.upgrade() {
            session.list_validity().reconnected(upstream);
            session.record_changed();
        }
        let icons = declared.icons_left_out();
        if icons > 0 {
            tracing::debug!(%upstream, icons, "a server's own icons are left out: no client may load them");
        }
        if self.declarations.learn(self.key.clone(), declared)
            && self.tells_changes
            && let Some(session) = self.session.upgrade()
        {
            for what in LISTS {
                session.tell(Notice::list_changed(what), NoticeSource::of(upstream));
            }
        }
    }

    fn heard(&self, upstream: &Arc<str>, lists: &[&'static str], is_late: bool) {
        if let (Some(pages), Some(session)) = (self.pages.upgrade(), self.session.upgrade()) {
            pages.heard(&session, upstream, lists, is_late);
        }
    }

    fn notice(&self, upstream: &Arc<str>, notice: Notice, arrival: NoticeArrival) {
        let Some(session) = self.session.upgrade() else {
            return;
        };
        if let NoticeKind::ListChanged { what } = &notice.kind {
            // Before the client is told and asks again (BRIDGING §5.6).
            if let Some(pages) = self.pages.upgrade() {
                pages.changed(&session, upstream, what, arrival.number);
            }
        }
        if notice.kind == NoticeKind::ElicitationComplete
            && let Some(id) = elicitation_id(&notice)
        {
            session.completions().add(upstream, &id);
        }
        let mut source = NoticeSource {
            call: arrival.call,
            ..NoticeSource::of(upstream)
        };
        let wanted = match &notice.kind {
            // No call's message: a modern client has no stream for it (SPEC C-20). Before a legacy
            // one has set a level the upstream's own choice stands (SPEC C-21).
            NoticeKind::Log if session.revision.era() == Era::Modern => false,
            NoticeKind::Log => session
                .levels()
                .wanted()
                .is_none_or(|wanted| is_loud_enough(&notice, wanted)),
            NoticeKind::ResourceUpdated { uri } => {
                source.is_subscribed = session.subscriptions().covers(upstream, uri);
                !self.shared || source.is_subscribed
            }
            NoticeKind::ListChanged { .. } => self.tells_changes,
            _ => true,
        };
        if !wanted {
            return;
        }
        let notice = if session.revision.has_tasks_capability() {
            tasks::renamed(&session, upstream, notice)
        } else {
            notice
        };
        let declared = declared(&session, upstream);
        let projection = projection(&session, declared.as_deref());
        let (client, declared) = (&session.capabilities, declared.as_deref());
        if let Some(notice) = self.view.notice(projection, notice, client, declared) {
            session.tell(notice, source);
        }
    }

    fn list_changed(&self, upstream: &Arc<str>, what: &'static str) {
        let session = self.session.upgrade();
        let declared = session.and_then(|session| declared(&session, upstream));
        let era = declared.map(|declared| declared.revision.era());
        self.changes.publish(upstream, what, era);
    }

    fn task_changed(&self, upstream: &Arc<str>, status: &Message, call: Option<u64>) {
        let Some(session) = self.session.upgrade() else {
            return;
        };
        if let Some(implicit_session) = session.implicit_session() {
            implicit_session.task_changed();
        } else if let Some(bytes) = tasks::status(&session, upstream, status) {
            let kind = NoticeKind::Other;
            let source = NoticeSource {
                call,
                ..NoticeSource::of(upstream)
            };
            session.tell(Notice { kind, bytes }, source);
        }
    }

    fn question(&self, upstream: &Arc<str>, question: InputRequest) -> BoxFuture<'_, InputOutcome> {
        let upstream = Arc::clone(upstream);
        Box::pin(async move {
            let Some(session) = self.session.upgrade() else {
                return InputOutcome::Unanswered;
            };
            let declared = declared(&session, &upstream);
            let projection = projection(&session, declared.as_deref());
            let question = match self.view.question(projection, question) {
                Ok(question) => question,
                Err(why) => return InputOutcome::CannotAsk(why),
            };
            let entries = [(String::new(), question)];
            let methods = project::methods(&entries);
            let [(_, question)] = entries;
            let question = UnattributedQuestion {
                session: &session,
                upstream: &upstream,
                request: &question,
            };
            let asked = question.ask().await;
            projection.asked(&methods, asked)
        })
    }
}

/// What the upstream of the session's open link declares.
fn declared(session: &Session, upstream: &str) -> Option<Arc<ServerDeclaration>> {
    session.links().get(upstream)?.declared()
}

/// The projection from the upstream's present revision to that of the session's client.
fn projection(session: &Session, declared: Option<&ServerDeclaration>) -> RevisionProjection {
    RevisionProjection::of(declared.map(|declared| declared.revision), session.revision)
}

fn elicitation_id(notice: &Notice) -> Option<String> {
    let message = Message::parse(notice.bytes.clone(), usize::MAX).ok()?;
    message
        .param_str("elicitationId")
        .map(std::borrow::Cow::into_owned)
}
