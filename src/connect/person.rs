//! `Person`: whose accounts the pages are about.

use crate::call::{OwnerKey, Principal};

/// The one who opened a page.
#[derive(Debug, Clone)]
pub(super) struct Person {
    owner: OwnerKey,
    /// The gateway account in words.
    name: String,
    /// Where they logged in; `None` where nobody logs in.
    issuer: Option<String>,
}

impl Person {
    /// Everybody on this machine, with `auth.mode = "none"`: the principal of all calls.
    pub(super) fn local() -> Self {
        Self {
            owner: Principal::anonymous().owner(),
            name: "every program on this machine (auth.mode = \"none\")".to_owned(),
            issuer: None,
        }
    }

    /// The one whom `principal` names; `name` is a further name, for people.
    pub(super) fn logged_in(principal: &Principal, name: Option<&str>) -> Self {
        let (subject, issuer) = (principal.subject(), principal.issuer());
        let name = match name.filter(|name| *name != subject) {
            Some(name) => format!("{name} ({subject}) of {issuer}"),
            None => format!("{subject} of {issuer}"),
        };
        Self {
            owner: principal.owner(),
            name,
            issuer: Some(issuer.to_owned()),
        }
    }

    pub(super) fn owner(&self) -> OwnerKey {
        self.owner
    }

    /// The gateway account in words.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Where they logged in; `None` where nobody logs in.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.issuer.as_deref()
    }
}
