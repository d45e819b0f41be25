//! `EndpointView`: how an endpoint presents an upstream, unchanged or under mapped names and URIs, and projected
//! to the revision of the client.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::unknown_methods::{is_shared, may_notify};
use crate::call::{
    Call, ClientCapabilities, DownstreamLink, InputOutcome, InputRequest, InputRequests, LogLevel,
    Notice, NoticeKind, ServerDeclaration,
};
use crate::config::{Config, PrefixRule};
use crate::endpoint::Endpoint;
use crate::translate::mapping;
use crate::translate::naming::{NamePrefix, NamePrefixes};
use crate::translate::project::{self, RevisionProjection};

/// How an upstream's names and URIs look on an endpoint (BRIDGING §4).
#[derive(Debug, Clone)]
pub(crate) enum EndpointView {
    /// Exactly as the upstream spells them.
    Pure,
    /// Mapped under the upstream's configured name.
    Merged(Arc<NamePrefix>),
}

impl EndpointView {
    /// A notification on its way to a client that declares `client`, from an upstream that
    /// declared `declared`; nothing when it cannot be shown.
    pub(crate) fn notice(
        &self,
        projection: RevisionProjection,
        notice: Notice,
        client: &ClientCapabilities,
        declared: Option<&ServerDeclaration>,
    ) -> Option<Notice> {
        let shared = || declared.is_some_and(|declared| is_shared(client, declared));
        if notice.kind == NoticeKind::Other
            && !may_notify(matches!(self, Self::Pure), projection, &notice, shared)
        {
            return None;
        }
        let notice = projection.notice(notice)?;
        match self {
            Self::Pure => Some(notice),
            Self::Merged(prefix) => mapping::notice(prefix, notice),
        }
    }

    /// A question on its way to the client.
    ///
    /// # Errors
    /// Why the client cannot be asked.
    pub(crate) fn question(
        &self,
        projection: RevisionProjection,
        question: InputRequest,
    ) -> Result<InputRequest, String> {
        let question = projection
            .question(question, elicitation_id)
            .map_err(|why| why.to_string())?;
        Ok(match self {
            Self::Pure => question,
            Self::Merged(prefix) => mapping::question(prefix, question),
        })
    }

    /// Wraps the call's link for an upstream that declared `declared`; `None` if no wrapping is needed.
    pub(crate) fn link(
        &self,
        call: &Call,
        projection: RevisionProjection,
        declared: Option<Arc<ServerDeclaration>>,
    ) -> Option<Arc<dyn DownstreamLink>> {
        if matches!(self, Self::Pure) && projection.is_identity() {
            return None;
        }
        Some(Arc::new(ShownLink {
            inner: Arc::clone(&call.link),
            view: self.clone(),
            projection,
            declared,
        }))
    }
}

/// How every endpoint shows its upstreams.
#[derive(Debug)]
pub(crate) struct EndpointViews {
    /// The marks of all upstreams.
    pub(crate) prefixes: NamePrefixes,
    rule: PrefixRule,
}

impl EndpointViews {
    pub(crate) fn new(settings: &Config) -> Self {
        let upstreams = settings.upstreams.iter();
        Self {
            prefixes: NamePrefixes::new(upstreams.map(|upstream| upstream.name.as_str().into())),
            rule: settings.mcp.prefix,
        }
    }

    /// How an endpoint shows one of its upstreams.
    pub(crate) fn of(&self, endpoint: &Endpoint, upstream: &Arc<str>) -> EndpointView {
        let always = self.rule == PrefixRule::Always && &*endpoint.name == "mcp";
        match self.prefixes.of(upstream) {
            Some(prefix) if !endpoint.pure || always => {
                EndpointView::Merged(Arc::new(prefix.clone()))
            }
            _ => EndpointView::Pure,
        }
    }

    /// Whether an endpoint shows one upstream as it is.
    pub(crate) fn is_pure(&self, endpoint: &Endpoint) -> bool {
        endpoint
            .upstreams
            .first()
            .is_some_and(|upstream| matches!(self.of(endpoint, upstream), EndpointView::Pure))
    }
}

/// A downstream link behind a view.
#[derive(Debug)]
struct ShownLink {
    inner: Arc<dyn DownstreamLink>,
    view: EndpointView,
    projection: RevisionProjection,
    declared: Option<Arc<ServerDeclaration>>,
}

impl DownstreamLink for ShownLink {
    fn notify(&self, notice: Notice) {
        // A legacy upstream logs for everybody; a modern client gets what this call asked for
        // (SPEC C-20).
        if self.projection.is_up()
            && notice.kind == NoticeKind::Log
            && !self
                .inner
                .level()
                .is_some_and(|wanted| is_loud_enough(&notice, wanted))
        {
            return;
        }
        let (client, declared) = (self.inner.capabilities(), self.declared.as_deref());
        if let Some(notice) = self.view.notice(self.projection, notice, client, declared) {
            self.inner.notify(notice);
        }
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        let shown = |(key, question)| {
            let question = self.view.question(self.projection, question)?;
            Ok((key, question))
        };
        let entries: Vec<_> = match round.entries.into_iter().map(shown).collect() {
            Ok(entries) => entries,
            Err(why) => return Box::pin(std::future::ready(InputOutcome::CannotAsk(why))),
        };
        let methods = project::methods(&entries);
        Box::pin(async move {
            let asked = self.inner.ask(InputRequests { entries, ..round }).await;
            self.projection.asked(&methods, asked)
        })
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.inner)
    }

    fn afterwards(&self) -> Option<Arc<dyn DownstreamLink>> {
        Some(Arc::new(Self {
            inner: self.inner.afterwards()?,
            view: self.view.clone(),
            projection: self.projection,
            declared: self.declared.clone(),
        }))
    }
}

/// Whether a log message is at least as severe as `wanted`; a message without a level passes.
pub(crate) fn is_loud_enough(notice: &Notice, wanted: LogLevel) -> bool {
    notice.level().is_none_or(|level| level >= wanted)
}

/// Random id of a URL elicitation, for clients whose revision requires one (SPEC C-82).
fn elicitation_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
