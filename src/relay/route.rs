//! Routes a request: to the gateway itself, one upstream, or all upstreams. Spec: BRIDGING §2.2, §4.1.

use std::borrow::Cow;
use std::sync::Arc;

use crate::call::{Call, LogLevel, Reply};
use crate::catalog::{Catalog, called_connect_tool, odd};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::outbound::{
    EMPTY, EditDepth, EndpointView, SessionLinks, UpstreamTarget, check_anybody_logs,
    check_extension, given_cursor, invalid, required_text, unknown_method,
};
use crate::protocol::methods::{self, ListKind, MethodRow};
use crate::protocol::{Message, json};
use crate::session::Session;
use crate::tasks::{OwnTask, TaskRoute, Tasks, is_of_tasks};
use crate::translate::naming::ResolvedName;

/// Where a request goes.
#[derive(Debug)]
pub(super) enum RequestRoute {
    /// Nowhere: this is the answer.
    Here(Reply),
    /// To one upstream.
    One(Box<UpstreamTarget>),
    /// A list that several upstreams contribute to.
    List(ListKind),
    /// To every upstream that knows the method.
    Everywhere,
    /// To a task that is run here.
    Task(OwnTask),
    /// To the gateway's own tool that connects an account at the upstream.
    Connect(Box<UpstreamTarget>),
}

/// Finds out where requests go.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) links: Arc<SessionLinks>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) edits: EditDepth,
}

impl Router {
    /// Whether a request calls a tool that stands in `retry_safe` of its upstream, judged by the message alone. A call that
    /// begins a task never does.
    pub(super) fn is_retry_safe(&self, endpoint: &Endpoint, message: &Message) -> bool {
        let links = &self.links;
        let is_safe = |upstream: &str, tool: &str| {
            let settings = links.upstreams.settings(upstream);
            settings.is_some_and(|settings| settings.retry_safe.iter().any(|safe| safe == tool))
        };
        if message.method() != Some("tools/call") || message.param("task").is_some() {
            return false;
        }
        let Some(name) = message.param_str("name") else {
            return false;
        };
        if let [upstream] = endpoint.upstreams.as_slice()
            && links.views.is_pure(endpoint)
        {
            return is_safe(upstream, &name);
        }
        match links.views.prefixes.resolve_name(&name) {
            ResolvedName::Exact { upstream, original } => is_safe(&upstream, &original),
            ResolvedName::NeedsIndex | ResolvedName::Unknown => false,
        }
    }

    /// Decides where a request goes.
    pub(super) async fn route(
        &self,
        call: &Call,
        session: &Arc<Session>,
    ) -> Result<RequestRoute, Fault> {
        let method = call.message.method().unwrap_or_default();
        match method {
            // Spec: SPEC L-07.
            "ping" => return Ok(RequestRoute::Here(Reply::Result(EMPTY))),
            "logging/setLevel" => {
                let level = call.message.param_str("level");
                let level = level
                    .and_then(|word| LogLevel::parse(&word))
                    .ok_or_else(|| invalid("params.level must be one of debug … emergency"))?;
                let is_pure = self.links.views.is_pure(&call.endpoint);
                if !is_pure {
                    Box::pin(check_anybody_logs(&self.links, session)).await?;
                }
                session.want_level(level);
                if !is_pure {
                    return Ok(RequestRoute::Everywhere);
                }
            }
            "server/discover" => return Err(unknown_method(method)),
            "tools/call" => {
                if let Some(upstream) = called_connect_tool(call, &self.links) {
                    return Ok(RequestRoute::Connect(Box::new(UpstreamTarget {
                        upstream: Arc::clone(upstream),
                        name: call.message.param_str("name").map(Cow::into_owned),
                        shown: None,
                        page: None,
                        request: None,
                        view: self.links.views.of(&call.endpoint, upstream),
                        home: None,
                    })));
                }
            }
            _ if session.implicit_session().is_none() && is_of_tasks(method) => {
                return Ok(match self.tasks.route(call, session, method).await? {
                    TaskRoute::Here(own) => RequestRoute::Task(own),
                    TaskRoute::Listed(list) => RequestRoute::Here(list),
                    TaskRoute::There(target) => RequestRoute::One(Box::new(target)),
                });
            }
            _ => {}
        }
        let known = methods::lookup(method);
        // Requests of modern clients are checked on arrival; in an `ImplicitSession` the gateway itself subscribes.
        if session.implicit_session().is_none()
            && known.is_some_and(|known| !known.is_for_servers(session.revision))
        {
            return Err(unknown_method(method));
        }
        let pure = self.links.views.is_pure(&call.endpoint);
        if pure && session.implicit_session().is_some() {
            check_extension(&self.links, session, method, known).await?;
        }
        if pure && let Some(uri) = odd(call, known) {
            // Rare, and larger than the rest.
            Box::pin(self.catalog.names.check_listed(call, session, &uri)).await?;
        }
        let about_task = match session.implicit_session() {
            Some(_) => {
                if let Some(lost) = self.tasks.lost(call, known) {
                    return Ok(RequestRoute::Here(lost));
                }
                self.tasks.target(call, known)?
            }
            None => None,
        };
        let target = if let Some(target) = about_task {
            target
        } else if pure {
            self.pure_target(call, known)?
        } else {
            if let Some(kind) = known.and_then(|known| known.list) {
                return Ok(RequestRoute::List(kind));
            }
            self.catalog.names.merged_target(call, session).await?
        };
        Ok(RequestRoute::One(Box::new(target)))
    }

    fn pure_target(&self, call: &Call, known: Option<&MethodRow>) -> Result<UpstreamTarget, Fault> {
        let message = &call.message;
        let upstream = call.endpoint.upstreams.first().map(Arc::clone);
        let upstream = upstream.ok_or_else(|| invalid("this endpoint shows no upstream"))?;
        let named = known.and_then(|known| known.target);
        let name = named
            .filter(|named| named.list().is_some())
            .map(|named| required_text(message, named.param()).map(Cow::into_owned))
            .transpose()?;
        let is_paged = known.is_some_and(MethodRow::is_paged);
        let cursor = if is_paged {
            self.catalog.cursors.opened(call, &upstream)?
        } else {
            None
        };
        let own = name
            .as_deref()
            .filter(|_| message.method() == Some("tools/call"))
            .map(|name| self.catalog.names.own_spelling(&upstream, name));
        if let Some(Cow::Owned(own)) = own {
            let edited = message.edit().param("name", json::quote(&own)).finish();
            let request = self.edits.parse(edited)?;
            let spelled = (name.unwrap_or_default(), own);
            let view = EndpointView::Pure;
            return Ok(UpstreamTarget::naming(upstream, view, spelled, request));
        }
        let edited = match (cursor.as_deref(), message.param("cursor")) {
            (Some(cursor), _) => Some(message.edit().param("cursor", cursor)),
            (None, Some(_)) if is_paged && given_cursor(message).is_none() => {
                Some(message.edit().remove_param("cursor"))
            }
            (None, _) => None,
        };
        let request = edited
            .map(|edit| self.edits.parse(edit.finish()))
            .transpose()?;
        let kind = known.and_then(|known| known.list);
        let page = kind
            .filter(|_| message.has_only_params(&["cursor", "_meta"]))
            .map(|kind| (kind, cursor));
        Ok(UpstreamTarget {
            upstream,
            name,
            shown: None,
            page,
            request,
            view: EndpointView::Pure,
            home: None,
        })
    }
}
