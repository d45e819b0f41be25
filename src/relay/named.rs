//! Requests of a merged endpoint that name a tool, prompt or resource: finds the owning upstream and
//! rewrites the name for it. An unknown name is refused, never guessed (DESIGN §4). Spec: BRIDGING §4.1.

use std::sync::Arc;

use super::Relay;
use super::route::{Target, invalid, unknown_method};
use super::uris::{is_uri, malformed};
use crate::call::Call;
use crate::fault::{Fault, FaultKind};
use crate::protocol::json;
use crate::protocol::methods::{self, ListKind};
use crate::session::Session;
use crate::translate::naming::{Found, Resolved, is_fetchable};
use crate::translate::rewrite::Reference;

/// Whose a name is, and how its owner spells it.
type Owner = (Arc<str>, String);

impl Relay {
    /// Where a request of a merged endpoint goes.
    pub(super) async fn merged_target(
        &self,
        call: &Call,
        session: &Arc<Session>,
    ) -> Result<Target, Fault> {
        let message = &call.message;
        let method = message.method().unwrap_or_default();
        let kind = match method {
            "tools/call" => ListKind::Tools,
            "prompts/get" => ListKind::Prompts,
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                ListKind::Resources
            }
            "skills/get" => ListKind::Skills,
            "resources/directory/read" => ListKind::Resources,
            "completion/complete" => return self.completion(call, session).await,
            _ => return Err(unknown_method(method)),
        };
        let param = match kind {
            ListKind::Tools | ListKind::Prompts => "name",
            ListKind::Resources | ListKind::Templates | ListKind::Skills => "uri",
        };
        let given = message
            .param_str(param)
            .ok_or_else(|| invalid(format!("params.{param} must be a string")))?;
        let (upstream, original) = self.owner(call, session, kind, &given).await?;
        self.check_provided(session, method, &upstream).await?;
        let mut edit = message.edit().param(param, json::quote(&original));
        if is_paged(method) {
            edit = match self.cursor(call, &upstream)? {
                Some(cursor) => edit.param("cursor", cursor),
                None => edit.remove_param("cursor"),
            };
        }
        Ok(Target {
            request: Some(self.reparse(edit.finish())?),
            page: None,
            view: self.view(&call.endpoint, &upstream),
            shown: Some(given.into_owned()),
            name: Some(original),
            home: None,
            upstream,
        })
    }

    async fn completion(&self, call: &Call, session: &Arc<Session>) -> Result<Target, Fault> {
        let text = call.message.param("ref").unwrap_or_default();
        let reference = Reference::read(text)
            .ok_or_else(|| invalid("params.ref must be a ref/prompt or ref/resource"))?;
        let (kind, given) = match &reference {
            Reference::Prompt(name) => (ListKind::Prompts, name),
            Reference::Resource(uri) => (ListKind::Templates, uri),
        };
        let (upstream, original) = self.owner(call, session, kind, given).await?;
        let renamed = reference
            .renamed(text, &original)
            .map_err(|_| invalid("params.ref is ambiguous"))?;
        let edited = call.message.edit().param("ref", renamed).finish();
        Ok(Target {
            request: Some(self.reparse(edited)?),
            page: None,
            view: self.view(&call.endpoint, &upstream),
            shown: Some(given.clone().into_owned()),
            name: Some(original),
            home: None,
            upstream,
        })
    }

    pub(super) async fn owner(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
        given: &str,
    ) -> Result<Owner, Fault> {
        let resolved = match kind {
            ListKind::Tools | ListKind::Prompts => self.prefixes.resolve_name(given),
            ListKind::Resources | ListKind::Templates | ListKind::Skills => {
                self.prefixes.resolve_uri(given)
            }
        };
        match resolved {
            Resolved::Exact { upstream, original }
                if call.endpoint.upstreams.contains(&upstream) =>
            {
                Ok((upstream, original.into_owned()))
            }
            Resolved::Exact { .. } | Resolved::Unknown => Err(nobody(kind, given)),
            Resolved::NeedsIndex => self.listed_owner(call, session, kind, given).await,
        }
    }

    async fn listed_owner(
        &self,
        call: &Call,
        session: &Arc<Session>,
        kind: ListKind,
        given: &str,
    ) -> Result<Owner, Fault> {
        let mut index = self.index(call, session, kind, given).await;
        // Skills need not be listed as resources, and texts name them as their own server does.
        if kind == ListKind::Resources && index.find(given) == Found::Nobody {
            let skills = self.index(call, session, ListKind::Skills, given).await;
            if skills.find(given) != Found::Nobody {
                index = skills;
            }
        }
        match index.find(given) {
            Found::One { upstream, original } => Ok((Arc::clone(upstream), original.to_owned())),
            Found::Several(candidates) => Err(invalid(format!(
                "{given:?} is offered by several upstreams; use one of {}",
                candidates.join(", ")
            ))),
            Found::Nobody => match index.find_by_start(given) {
                Some(upstream) => Ok((Arc::clone(upstream), given.to_owned())),
                None if kind == ListKind::Resources && is_fetchable(given) => {
                    let templates = self.index(call, session, ListKind::Templates, given).await;
                    let owner = templates.find_by_template(given);
                    let owner = owner.ok_or_else(|| nobody(kind, given))?;
                    Ok((Arc::clone(owner), given.to_owned()))
                }
                None => Err(nobody(kind, given)),
            },
        }
    }
}

fn is_paged(method: &str) -> bool {
    methods::lookup(method).is_some_and(methods::MethodRow::is_paged)
}

fn nobody(kind: ListKind, given: &str) -> Fault {
    let given: String = given.chars().take(200).collect();
    match kind {
        ListKind::Resources if !is_uri(&given) => malformed(),
        ListKind::Resources | ListKind::Templates => Fault::downstream(
            FaultKind::ResourceNotFound,
            "there is no such resource here",
        )
        .with_data(format!("{{\"uri\":{}}}", json::quote(&given))),
        ListKind::Skills => invalid(format!("there is no skill {given:?} here")),
        ListKind::Tools => invalid(format!("unknown tool {given:?}")),
        ListKind::Prompts => invalid(format!("unknown prompt {given:?}")),
    }
}
