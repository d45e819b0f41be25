//! Methods that not every upstream has. On a merged endpoint a method is refused for the things of an
//! upstream that does not declare it; on a pure one the upstream answers itself, but for methods of
//! extensions. Spec: BRIDGING §2.2, §5.1; SPEC L-04, C-21, C-50, N-01, N-04.

use std::sync::Arc;

use super::client_error::{invalid, unknown_method};
use super::links::SessionLinks;
use super::target::UpstreamTarget;
use super::unknown_methods::is_shared;
use super::view::EndpointView;
use crate::call::{Call, ServerDeclaration, UpstreamLink};
use crate::fault::{Fault, FaultKind};
use crate::protocol::methods::{self, MethodRow, NeededCapability};
use crate::protocol::{Era, Revision, extensions, json};
use crate::session::Session;

/// The extension required by a method; `None` for core methods, available on every merged endpoint.
fn extension_of(method: &str) -> Option<NeededCapability> {
    let needs = methods::lookup(method)?.needs;
    matches!(
        needs,
        NeededCapability::Skills | NeededCapability::DirectoryRead
    )
    .then_some(needs)
}

/// Refuses a method whose extension no upstream of the endpoint declares.
pub(crate) async fn check_anybody_provides(
    links: &SessionLinks,
    session: &Arc<Session>,
    method: &str,
) -> Result<(), Fault> {
    let Some(needs) = extension_of(method) else {
        return Ok(());
    };
    let provided = |declared: &ServerDeclaration| provides(declared, needs);
    let is_provided = links.any_declares(session, provided).await;
    is_provided
        .then_some(())
        .ok_or_else(|| unknown_method(method))
}

/// Refuses a method for what belongs to `upstream`, which does not declare its extension.
pub(crate) async fn check_provided(
    links: &SessionLinks,
    session: &Arc<Session>,
    method: &str,
    upstream: &Arc<str>,
) -> Result<(), Fault> {
    let Some(needs) = extension_of(method) else {
        return Ok(());
    };
    if provides(&*links.learn(session, upstream, None).await?, needs) {
        return Ok(());
    }
    check_anybody_provides(links, session, method).await?;
    Err(invalid(
        "the server that this belongs to has no such method",
    ))
}

/// Refuses a method of an extension that the upstream of a pure endpoint does not declare to a modern
/// client, and an unknown method unless a common extension may define it. If that is undecidable, and for
/// every core method, the upstream answers: some servers serve undeclared methods.
///
/// # Errors
/// The method is unknown, or the upstream cannot be reached.
pub(crate) async fn check_extension(
    links: &SessionLinks,
    session: &Arc<Session>,
    method: &str,
    known: Option<&MethodRow>,
) -> Result<(), Fault> {
    let needs = known.map(|known| known.needs);
    if needs.is_some_and(is_of_core) {
        return Ok(());
    }
    let Some(upstream) = session.endpoint.upstreams.first() else {
        return Ok(());
    };
    let has = |declared: &ServerDeclaration| match needs {
        Some(needs) => provides(declared, needs),
        None => is_shared(&session.capabilities, declared),
    };
    // The declaration on the session's own link suffices.
    let open = session
        .links()
        .get(upstream)
        .and_then(|link| link.declared());
    if open.is_some_and(|declared| has(&declared)) {
        return Ok(());
    }
    let has = has(&*links.learn(session, upstream, None).await?);
    has.then_some(()).ok_or_else(|| unknown_method(method))
}

/// Refuses a method of the core for what a merged endpoint shows of an upstream that does not declare
/// it. Opens the link, as the request would.
///
/// # Errors
/// The method is unknown there, or the upstream cannot be reached.
///
/// # Cancel safety
/// As that of [`UpstreamLink::open`]; a cancelled call waits no longer.
pub(crate) async fn check_declared(
    link: &dyn UpstreamLink,
    call: &Call,
    target: &UpstreamTarget,
) -> Result<(), Fault> {
    if matches!(target.view, EndpointView::Pure) {
        return Ok(());
    }
    let method = call.message.method().unwrap_or_default();
    let needs = methods::lookup(method).map_or(NeededCapability::Nothing, |known| known.needs);
    if !is_of_core(needs) {
        return Ok(());
    }
    let declared = match link.declared() {
        Some(declared) => declared,
        // Rare, and larger than the rest.
        None => Box::pin(open(link, call)).await?,
    };
    if provides(&declared, needs) {
        Ok(())
    } else {
        Err(unknown_method(method))
    }
}

/// Refuses a log level on a merged endpoint none of whose upstreams logs. A missing upstream counts by its
/// presumed declaration, as in `initialize`. Spec: SPEC C-21.
pub(crate) async fn check_anybody_logs(
    links: &SessionLinks,
    session: &Arc<Session>,
) -> Result<(), Fault> {
    let logs = |declared: &ServerDeclaration| declares(declared, "logging");
    let presumed = |upstream: &Arc<str>| links.presumed(session, upstream);
    let may_log = |upstream| presumed(upstream).is_some_and(|declared| logs(&declared));
    let may_any_log =
        links.any_declares(session, logs).await || session.endpoint.upstreams.iter().any(may_log);
    let unknown = || unknown_method("logging/setLevel");
    may_any_log.then_some(()).ok_or_else(unknown)
}
/// Waits for the handshake with an upstream, as long as the call is not cancelled.
pub(crate) async fn open(
    link: &dyn UpstreamLink,
    call: &Call,
) -> Result<Arc<ServerDeclaration>, Fault> {
    tokio::select! {
        biased;
        () = call.cancel.cancelled() => {
            Err(Fault::downstream(FaultKind::Cancelled, "the request was cancelled"))
        }
        opened = link.open() => opened,
    }
}

/// Whether no extension defines it.
fn is_of_core(needs: NeededCapability) -> bool {
    !matches!(
        needs,
        NeededCapability::Tasks | NeededCapability::Skills | NeededCapability::DirectoryRead
    )
}

fn declares(declared: &ServerDeclaration, capability: &str) -> bool {
    json::member(&declared.capabilities, capability).is_some()
}

/// Whether an upstream declared what a method needs. Log levels are for all upstreams.
pub(crate) fn provides(declared: &ServerDeclaration, needs: NeededCapability) -> bool {
    let text = || &*declared.capabilities;
    let is_legacy = declared.revision.era() == Era::Legacy;
    match needs {
        NeededCapability::Nothing | NeededCapability::Logging => true,
        NeededCapability::Tools => declared.has_tools(),
        NeededCapability::Prompts => declares(declared, "prompts"),
        // A modern upstream is listened to. Spec: SPEC C-50.
        NeededCapability::Subscribe if is_legacy => {
            let resources = json::member(text(), "resources");
            let subscribe = resources.and_then(|resources| json::member(resources, "subscribe"));
            subscribe.is_some_and(|subscribe| !matches!(subscribe, "false" | "null"))
        }
        NeededCapability::Resources | NeededCapability::Subscribe => {
            declares(declared, "resources")
        }
        // Undeclared in the first revision. Spec: SPEC C-30.
        NeededCapability::Completions => {
            declared.revision == Revision::V2024_11_05 || declares(declared, "completions")
        }
        NeededCapability::Tasks if is_legacy => declared.takes_tasks(),
        NeededCapability::Tasks => extensions::declares(text(), extensions::TASKS),
        NeededCapability::Skills => extensions::declares(text(), extensions::SKILLS),
        NeededCapability::DirectoryRead => extensions::reads_directories(text()),
    }
}
