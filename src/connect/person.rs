//! `Person`: whose accounts the pages are about.

use crate::call::{OwnerKey, Principal};

/// The one who opened a page.
#[derive(Debug)]
pub(super) struct Person {
    principal: Principal,
    name: &'static str,
}

impl Person {
    /// Everybody on this machine, with `auth.mode = "none"`: the principal of all calls.
    pub(super) fn local() -> Self {
        Self {
            principal: Principal::anonymous(),
            name: "every program on this machine (auth.mode = \"none\")",
        }
    }

    pub(super) fn owner(&self) -> OwnerKey {
        self.principal.owner()
    }

    /// The gateway account in words.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }
}
