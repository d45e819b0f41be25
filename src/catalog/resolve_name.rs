//! Requests of a merged endpoint that name a tool, prompt or resource: finds the owning upstream and
//! rewrites the name for it. An unknown name is refused, never guessed (DESIGN §4). Spec: BRIDGING §4.1.

use std::borrow::Cow;
use std::sync::Arc;

use super::connect_tool::own_spelling;
use super::cursors::PageCursors;
use super::merged_lists::MergedLists;
use super::uris::{is_uri, malformed};
use crate::call::Call;
use crate::fault::{Fault, FaultKind};
use crate::outbound::{
    EditDepth, SessionLinks, UpstreamTarget, check_provided, invalid, provides, required_text,
    unknown_method,
};
use crate::protocol::json;
use crate::protocol::methods::{self, ListKind, MethodRow, NeededCapability, UpstreamParam};
use crate::session::Session;
use crate::translate::naming::{FoundName, ResolvedName, is_fetchable};
use crate::translate::rewrite::CompletionRef;

/// Whose a name is, and how its owner spells it.
type NameOwner = (Arc<str>, String);

/// Finds the upstream that a name, a URI or a reference belongs to.
#[derive(Debug)]
pub(crate) struct NameResolver {
    pub(super) links: Arc<SessionLinks>,
    pub(super) lists: Arc<MergedLists>,
    pub(super) cursors: PageCursors,
    pub(super) edits: EditDepth,
}

impl NameResolver {
    /// Where a request of a merged endpoint goes.
    pub(crate) async fn merged_target(
        &self,
        call: &Call,
        session: &Arc<Session>,
    ) -> Result<UpstreamTarget, Fault> {
        let message = &call.message;
        let method = message.method().unwrap_or_default();
        let known = methods::lookup(method);
        let Some(named) = known.and_then(|known| known.target) else {
            return Err(unknown_method(method));
        };
        if named == UpstreamParam::Reference {
            return self.completion(call, session).await;
        }
        let kind = named.list().ok_or_else(|| unknown_method(method))?;
        let param = named.param();
        let given = required_text(message, param)?;
        let (upstream, mut original) = self.owner(call, session, kind, &given).await?;
        if kind == ListKind::Tools
            && let Cow::Owned(own) = own_spelling(&self.links, &upstream, &original)
        {
            original = own;
        }
        check_provided(&self.links, session, method, &upstream).await?;
        let mut edit = message.edit().param(param, json::quote(&original));
        if known.is_some_and(MethodRow::is_paged) {
            edit = match self.cursors.opened(call, &upstream)? {
                Some(cursor) => edit.param("cursor", cursor),
                None => edit.remove_param("cursor"),
            };
        }
        let view = self.links.views.of(&call.endpoint, &upstream);
        let request = self.edits.parse(edit.finish())?;
        let spelled = (given.into_owned(), original);
        Ok(UpstreamTarget::naming(upstream, view, spelled, request))
    }

    /// The name as its upstream spells it, where a pure endpoint shows the tool under another one.
    pub(crate) fn own_spelling<'n>(&self, upstream: &Arc<str>, name: &'n str) -> Cow<'n, str> {
        own_spelling(&self.links, upstream, name)
    }

    async fn completion(
        &self,
        call: &Call,
        session: &Arc<Session>,
    ) -> Result<UpstreamTarget, Fault> {
        let text = call.message.param("ref").unwrap_or_default();
        let reference = CompletionRef::read(text)
            .ok_or_else(|| invalid("params.ref must be a ref/prompt or ref/resource"))?;
        let (kind, given) = match &reference {
            CompletionRef::Prompt(name) => (ListKind::Prompts, name),
            CompletionRef::Resource(uri) => (ListKind::Templates, uri),
        };
        let (upstream, original) = self.owner(call, session, kind, given).await?;
        let renamed = reference
            .renamed(text, &original)
            .map_err(|_| invalid("params.ref is ambiguous"))?;
        let edited = call.message.edit().param("ref", renamed).finish();
        let view = self.links.views.of(&call.endpoint, &upstream);
        let request = self.edits.parse(edited)?;
        let names = (given.clone().into_owned(), original);
        Ok(UpstreamTarget::naming(upstream, view, names, request))
    }

    pub(crate) async fn owner(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
        given: &str,
    ) -> Result<NameOwner, Fault> {
        let resolved = match kind {
            ListKind::Tools | ListKind::Prompts => self.links.views.prefixes.resolve_name(given),
            ListKind::Resources | ListKind::Templates | ListKind::Skills => {
                self.links.views.prefixes.resolve_uri(given)
            }
        };
        match resolved {
            ResolvedName::Exact { upstream, original }
                if call.endpoint.upstreams.contains(&upstream) =>
            {
                Ok((upstream, original.into_owned()))
            }
            ResolvedName::Exact { .. } | ResolvedName::Unknown => Err(nobody(kind, given)),
            ResolvedName::NeedsIndex => self.listed_owner(call, session, kind, given).await,
        }
    }

    async fn listed_owner(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
        given: &str,
    ) -> Result<NameOwner, Fault> {
        let mut index = self.lists.index(call, session, kind, given).await;
        // Skills need not be listed as resources, and texts name them as their own server does.
        if kind == ListKind::Resources && index.find(given) == FoundName::Nobody {
            let skills = self
                .lists
                .index(call, session, ListKind::Skills, given)
                .await;
            if skills.find(given) != FoundName::Nobody {
                index = skills;
            }
        }
        match index.find(given) {
            FoundName::One { upstream, original } => {
                Ok((Arc::clone(upstream), original.to_owned()))
            }
            FoundName::Several(candidates) => Err(invalid(format!(
                "{given:?} is offered by several upstreams; use one of {}",
                candidates.join(", ")
            ))),
            FoundName::Nobody => match index.find_by_start(given) {
                Some(upstream) => Ok((Arc::clone(upstream), given.to_owned())),
                None if kind == ListKind::Resources && is_fetchable(given) => {
                    let templates = self
                        .lists
                        .index(call, session, ListKind::Templates, given)
                        .await;
                    let owner = templates.find_by_template(given);
                    let owner = owner.ok_or_else(|| nobody(kind, given))?;
                    Ok((Arc::clone(owner), given.to_owned()))
                }
                None => Err(nobody(kind, given)),
            },
        }
    }

    /// Refuses to read, on a pure endpoint, what is no URI and stands in none of the upstream's lists. Where
    /// the lists cannot be had, the upstream decides.
    ///
    /// # Errors
    /// `uri` is no URI.
    ///
    /// # Cancel safety
    /// Lists that were asked for may go on in the background.
    pub(crate) async fn check_listed(
        &self,
        call: &Call,
        session: &Arc<Session>,
        uri: &str,
    ) -> Result<(), Fault> {
        let Some(upstream) = session.endpoint.upstreams.first() else {
            return Ok(());
        };
        // Some upstreams serve undeclared resources; their lists are not requested.
        let is_declared = match self.links.learn(session, upstream, None).await {
            Ok(declared) => provides(&declared, NeededCapability::Resources),
            Err(_) => false,
        };
        if is_declared && !self.lists.is_listed(call, session, uri).await {
            return Err(malformed());
        }
        Ok(())
    }
}

fn nobody(kind: ListKind, given: &str) -> Fault {
    let given: String = given.chars().take(200).collect();
    match kind {
        ListKind::Resources if !is_uri(&given) => malformed(),
        ListKind::Resources | ListKind::Templates => Fault::downstream(
            FaultKind::ResourceNotFound,
            "there is no such resource here",
        )
        .with_data(json::object([("uri", json::quote(&given))])),
        ListKind::Skills => invalid(format!("there is no skill {given:?} here")),
        ListKind::Tools => invalid(format!("unknown tool {given:?}")),
        ListKind::Prompts => invalid(format!("unknown prompt {given:?}")),
    }
}
