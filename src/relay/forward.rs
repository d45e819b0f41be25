//! `Forward`: a request on its way to one upstream, and the steps that all methods share. What one method adds
//! stands in its file below `methods`.

use std::sync::Arc;

use super::consents::ConsentParts;
use super::levels::LogLevels;
use super::map_reply::{ReplyMapper, explain_missing_answer};
use crate::audit;
use crate::call::{Call, Reply, UpstreamLink};
use crate::catalog::Catalog;
use crate::fault::Fault;
use crate::outbound::{
    AuditedPolicy, EditDepth, RelayFailure, ReplySource, ReplySources, SessionLinks,
    UpstreamTarget, check_declared, outcome,
};
use crate::policy::Permit;
use crate::session::Session;
use crate::tasks::{TaskRequest, Tasks, marking};

/// What requests use on their way to one upstream.
#[derive(Debug)]
pub(super) struct ForwardParts {
    pub(super) links: Arc<SessionLinks>,
    pub(super) policy: Arc<AuditedPolicy>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) levels: Arc<LogLevels>,
    pub(super) replies: ReplyMapper,
    pub(super) sources: ReplySources,
    pub(super) consents: ConsentParts,
    pub(super) edits: EditDepth,
}

impl ForwardParts {
    pub(super) fn new(
        links: Arc<SessionLinks>,
        policy: Arc<AuditedPolicy>,
        catalog: Arc<Catalog>,
        tasks: Arc<Tasks>,
        sources: ReplySources,
        consents: ConsentParts,
        edits: EditDepth,
    ) -> Self {
        Self {
            levels: Arc::new(LogLevels {
                links: Arc::clone(&links),
                policy: Arc::clone(&policy),
                edits,
            }),
            replies: ReplyMapper {
                policy: Arc::clone(&policy),
                catalog: Arc::clone(&catalog),
                tasks: Arc::clone(&tasks),
                edits,
            },
            links,
            policy,
            catalog,
            tasks,
            sources,
            consents,
            edits,
        }
    }
}

/// A request that was routed to one upstream and is allowed.
#[derive(Debug)]
pub(super) struct Forward<'a> {
    pub(super) parts: &'a ForwardParts,
    pub(super) call: &'a Call,
    pub(super) session: &'a Arc<Session>,
    pub(super) target: &'a UpstreamTarget,
    pub(super) permit: Permit,
}

/// The open link of a [`Forward`], and its audit record, which is written when this is dropped.
#[derive(Debug)]
pub(super) struct OpenedForward<'a> {
    pub(super) link: Arc<dyn UpstreamLink>,
    audited: audit::PendingRecord<'a>,
    /// The call with another way back to its client, if the session has tasks.
    marked: Option<Call>,
}

impl<'a> Forward<'a> {
    /// The method that the client asked for; empty if there is none.
    pub(super) fn method(&self) -> &'a str {
        self.call.message.method().unwrap_or_default()
    }

    /// The audit record, begun.
    pub(super) fn audit(&self) -> audit::PendingRecord<'a> {
        self.parts.policy.audit(self.call, self.target)
    }

    /// Opens the session's link: its upstream must declare what the method needs. Raises the upstream's log level
    /// if the request names one.
    ///
    /// # Errors
    /// There is no such upstream, it cannot be reached, or it does not declare the method.
    pub(super) async fn open(
        &self,
        audited: audit::PendingRecord<'a>,
    ) -> Result<OpenedForward<'a>, RelayFailure> {
        let link = self.parts.links.link(self.session, &self.target.upstream)?;
        let declared = check_declared(&*link, self.call, self.target);
        if let Err(fault) = declared.await {
            audited.end(audit::AuditOutcome::Failed);
            return Err(fault.into());
        }
        self.call.link.routed(&self.target.upstream);
        let opened = OpenedForward {
            link,
            audited,
            marked: marking(self.call, self.session, self.target),
        };
        if self.call.link.level().is_some() {
            let call = opened.call(self);
            Box::pin(self.parts.levels.raise(call, self.session, &*opened.link)).await;
        }
        Ok(opened)
    }

    /// The request in the form for `tasks`.
    pub(super) fn task_request<'o>(&'o self, opened: &'o OpenedForward<'a>) -> TaskRequest<'o> {
        TaskRequest {
            permit: &self.permit,
            link: &opened.link,
            call: opened.call(self),
            session: self.session,
            target: self.target,
        }
    }

    /// Sends the request as it is, in the words of its upstream's revision.
    pub(super) async fn send(&self, opened: &OpenedForward<'a>) -> Result<Reply, Fault> {
        let call = opened.call(self);
        self.target
            .send(&self.permit, &*opened.link, call, self.parts.edits)
            .await
    }

    /// The origin of the reply.
    pub(super) fn source(&self, opened: &OpenedForward<'a>) -> ReplySource {
        let declared = opened.link.declared();
        let sources = &self.parts.sources;
        sources.of(opened.call(self), declared, &self.target.view)
    }

    /// Writes the audit record, and puts the reply in the client's words.
    pub(super) fn respond(
        &self,
        opened: OpenedForward<'a>,
        reply: Result<Reply, Fault>,
    ) -> Result<Reply, RelayFailure> {
        let source = self.source(&opened);
        self.respond_from(opened, &source, reply)
    }

    /// [`respond`](Self::respond) with a source that the method knows more of.
    pub(super) fn respond_from(
        &self,
        opened: OpenedForward<'a>,
        source: &ReplySource,
        reply: Result<Reply, Fault>,
    ) -> Result<Reply, RelayFailure> {
        opened.audited.end(outcome(&reply));
        let call = opened.marked.as_ref().unwrap_or(self.call);
        let reply = explain_missing_answer(call, source, reply)?;
        let replies = &self.parts.replies;
        replies.bring_back(call, self.target, source, reply)
    }
}

impl OpenedForward<'_> {
    /// The call as the upstream's link gets it.
    pub(super) fn call<'c>(&'c self, forward: &Forward<'c>) -> &'c Call {
        self.marked.as_ref().unwrap_or(forward.call)
    }
}
