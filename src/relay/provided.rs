//! Methods of extensions on merged endpoints: there if any upstream declares the extension, and
//! refused for the things of one that does not. Spec: BRIDGING §5.1; SPEC N-01, N-04.

use std::sync::Arc;

use super::Relay;
use super::route::{invalid, unknown_method};
use super::visit::provides;
use crate::call::Declared;
use crate::fault::Fault;
use crate::protocol::methods::{self, Needs};
use crate::session::Session;

/// What a method of an extension needs; nothing for methods of the core, which every merged
/// endpoint has.
fn extension_of(method: &str) -> Option<Needs> {
    let needs = methods::lookup(method)?.needs;
    matches!(needs, Needs::Skills | Needs::DirectoryRead).then_some(needs)
}

impl Relay {
    /// Refuses a method whose extension no upstream of the endpoint declares.
    pub(super) async fn check_anybody_provides(
        &self,
        session: &Arc<Session>,
        method: &str,
    ) -> Result<(), Fault> {
        let Some(needs) = extension_of(method) else {
            return Ok(());
        };
        let provided = |declared: &Declared| provides(declared, needs);
        if self.any_declares(session, provided).await {
            Ok(())
        } else {
            Err(unknown_method(method))
        }
    }

    /// Refuses a method for what belongs to `upstream`, which does not declare its extension.
    pub(super) async fn check_provided(
        &self,
        session: &Arc<Session>,
        method: &str,
        upstream: &Arc<str>,
    ) -> Result<(), Fault> {
        let Some(needs) = extension_of(method) else {
            return Ok(());
        };
        if provides(&*self.learn(session, upstream, None).await?, needs) {
            return Ok(());
        }
        self.check_anybody_provides(session, method).await?;
        Err(invalid(
            "the server that this belongs to has no such method",
        ))
    }
}
