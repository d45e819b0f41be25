//! `Person`: the visitor of the pages, whose accounts they show.

use std::sync::Arc;

use crate::call::{OwnerKey, Principal};

/// The visitor of a page.
#[derive(Debug, Clone)]
pub(super) struct Person {
    /// The principal of their programs' calls, without a client.
    principal: Arc<Principal>,
    /// The gateway account, as shown on pages.
    name: String,
    /// The issuer where the person logged in; `None` without logins.
    issuer: Option<String>,
}

impl Person {
    /// Every user of this machine, with `auth.mode = "none"`: the principal of all calls.
    pub(super) fn local() -> Self {
        Self {
            principal: Arc::new(Principal::anonymous()),
            name: "every program on this machine (auth.mode = \"none\")".to_owned(),
            issuer: None,
        }
    }

    /// The person that `principal` identifies; `name` is a readable name for the pages.
    pub(super) fn logged_in(principal: &Principal, name: Option<&str>) -> Self {
        let (subject, issuer) = (principal.subject(), principal.issuer());
        let name = match name.filter(|name| *name != subject) {
            Some(name) => format!("{name} ({subject}) of {issuer}"),
            None => format!("{subject} of {issuer}"),
        };
        Self {
            principal: Arc::new(principal.clone()),
            name,
            issuer: Some(issuer.to_owned()),
        }
    }

    pub(super) fn owner(&self) -> OwnerKey {
        self.principal.owner()
    }

    /// The principal of their programs' calls, without a client.
    pub(super) fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// The gateway account, as shown on pages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The issuer where the person logged in; `None` without logins.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.issuer.as_deref()
    }
}
