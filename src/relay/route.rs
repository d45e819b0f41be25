//! Routes a request: to the gateway itself, one upstream, or all upstreams. Spec: BRIDGING §2.2, §4.1.

use std::sync::Arc;

use bytes::Bytes;

use super::view::EndpointView;
use super::{EMPTY, Relay, cursor_context, tasks, uris};
use crate::call::{Call, LogLevel, Reply};
use crate::config::PrefixRule;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::protocol::methods::{self, ListKind, MethodRow};
use crate::protocol::{Message, json};
use crate::seal::SealPurpose;
use crate::session::Session;

/// Cursor sent by some clients for the first page; many servers refuse `null`.
const NO_CURSOR: &str = "null";

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
    Task(tasks::OwnTask),
}

/// One upstream, and the request rewritten for that upstream.
#[derive(Debug)]
pub(super) struct UpstreamTarget {
    pub(super) upstream: Arc<str>,
    /// Tool, prompt or URI as the upstream spells it.
    pub(super) name: Option<String>,
    /// The client's spelling of `name`, if different.
    pub(super) shown: Option<String>,
    /// The requested page, if the request is a plain list request.
    pub(super) page: Option<(ListKind, Option<String>)>,
    /// The request, where it differs from the client's.
    pub(super) request: Option<Message>,
    pub(super) view: EndpointView,
    /// The implicit session that a task of 2025-11-25 lives in, where the request is about one.
    pub(super) home: Option<Arc<Session>>,
}

impl Relay {
    /// How an endpoint shows one of its upstreams.
    pub(super) fn view(&self, endpoint: &Endpoint, upstream: &Arc<str>) -> EndpointView {
        let always =
            self.parts.settings.mcp.prefix == PrefixRule::Always && &*endpoint.name == "mcp";
        match self.prefixes.of(upstream) {
            Some(prefix) if !endpoint.pure || always => {
                EndpointView::Merged(Arc::new(prefix.clone()))
            }
            _ => EndpointView::Pure,
        }
    }

    pub(super) fn is_pure(&self, endpoint: &Endpoint) -> bool {
        endpoint
            .upstreams
            .first()
            .is_some_and(|upstream| matches!(self.view(endpoint, upstream), EndpointView::Pure))
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
                let is_pure = self.is_pure(&call.endpoint);
                if !is_pure {
                    Box::pin(self.check_anybody_logs(session)).await?;
                }
                session.levels().want(level);
                if !is_pure {
                    return Ok(RequestRoute::Everywhere);
                }
            }
            "server/discover" => return Err(unknown_method(method)),
            _ if session.implicit_session().is_none() && tasks::is_of_tasks(method) => {
                // A task that the gateway runs: no upstream is contacted or checked.
                if let Some(own) = tasks::OwnTask::find(call, session) {
                    return Ok(RequestRoute::Task(own));
                }
                Box::pin(self.check_tasks(session, method)).await?;
                if method == "tasks/list" {
                    let list = Box::pin(self.list_tasks(call, session)).await?;
                    return Ok(RequestRoute::Here(list));
                }
                let target = self.own_task_target(call, session)?;
                return Ok(RequestRoute::One(Box::new(target)));
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
        let pure = self.is_pure(&call.endpoint);
        if pure && session.implicit_session().is_some() {
            self.check_extension(session, method, known).await?;
        }
        if pure && let Some(uri) = uris::odd(call, known) {
            // Rare, and larger than the rest.
            Box::pin(self.check_listed(call, session, &uri)).await?;
        }
        let target =
            if session.implicit_session().is_some() && known.is_some_and(tasks::concerns_one) {
                self.task_target(call)?
            } else if pure {
                self.pure_target(call, known)?
            } else {
                if let Some(kind) = known.and_then(|known| known.list) {
                    return Ok(RequestRoute::List(kind));
                }
                self.merged_target(call, session).await?
            };
        Ok(RequestRoute::One(Box::new(target)))
    }

    fn pure_target(&self, call: &Call, known: Option<&MethodRow>) -> Result<UpstreamTarget, Fault> {
        let message = &call.message;
        let upstream = call.endpoint.upstreams.first().map(Arc::clone);
        let upstream = upstream.ok_or_else(|| invalid("this endpoint shows no upstream"))?;
        let named = match message.method() {
            Some("tools/call" | "prompts/get") => "name",
            Some(
                "resources/read"
                | "resources/subscribe"
                | "resources/unsubscribe"
                | "skills/get"
                | "resources/directory/read",
            ) => "uri",
            _ => "",
        };
        let name = message.param_str(named).map(std::borrow::Cow::into_owned);
        if name.is_none() && !named.is_empty() {
            return Err(invalid(format!("params.{named} must be a string")));
        }
        let is_paged = known.is_some_and(MethodRow::is_paged);
        let cursor = if is_paged {
            self.cursor(call, &upstream)?
        } else {
            None
        };
        let edited = match (cursor.as_deref(), message.param("cursor")) {
            (Some(cursor), _) => Some(message.edit().param("cursor", cursor)),
            (None, Some(NO_CURSOR)) if is_paged => Some(message.edit().remove_param("cursor")),
            (None, _) => None,
        };
        let request = edited.map(|edit| self.reparse(edit.finish())).transpose()?;
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

    /// The upstream's cursor inside ours, as JSON text, where the method pages. Spec: SPEC C-40.
    pub(super) fn cursor(&self, call: &Call, upstream: &str) -> Result<Option<String>, Fault> {
        let known = methods::lookup(call.message.method().unwrap_or_default());
        if !known.is_some_and(MethodRow::is_paged) {
            return Ok(None);
        }
        let Some(given) = given_cursor(&call.message) else {
            return Ok(None);
        };
        let context = cursor_context(call, upstream);
        let opened = json::string(given)
            .and_then(|text| self.parts.sealer.open(SealPurpose::Cursor, &context, &text))
            .and_then(|plain| String::from_utf8(plain).ok())
            .ok_or_else(|| invalid("unknown cursor, list again from the start"))?;
        Ok(Some(opened))
    }

    pub(super) fn reparse(&self, bytes: Bytes) -> Result<Message, Fault> {
        Message::parse(bytes, self.parts.settings.limits.json_depth + 2).map_err(Fault::internal)
    }
}

/// The cursor that a client names.
pub(super) fn given_cursor(message: &Message) -> Option<&str> {
    message.param("cursor").filter(|given| *given != NO_CURSOR)
}

pub(super) fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Fault {
    Fault::downstream(FaultKind::InvalidParams, text)
}

pub(super) fn unknown_method(method: &str) -> Fault {
    let method: String = method.chars().take(64).collect();
    Fault::downstream(
        FaultKind::UnknownMethod,
        format!("unknown method {method:?}"),
    )
}
