//! `[mcp]` and `[endpoints.<name>]`.

use super::endpoint_types::{MergedConfig, NamedEndpoint, PrefixRule};
use super::reader::{ConfigSection, read_keys};
use super::units;
use super::upstream_types::UpstreamConfig;

/// Reads `[mcp]`; the returned function fills in the list of upstreams if the file has none.
pub(super) fn merged(
    s: &mut ConfigSection<'_>,
) -> impl FnOnce(&[UpstreamConfig]) -> MergedConfig + use<> {
    let enabled = s.key("enabled", "Whether /mcp is served.").flag(true);
    let listed = read_keys!(s =>
        /// Upstreams shown, in this order. Default: all with merged = true, in file order.
        upstreams: optional_list("files", |text| Ok(text.to_owned())));
    let config = read_keys!(s => MergedConfig {
        /// Whether names carry their upstream's: auto has none for a single upstream.
        prefix: choice(PrefixRule::Auto),
        /// How long a merged list waits for one upstream before it goes on without it; a second at most for one that
        /// failed or overran the last time. initialize and server/discover wait a second at most.
        connect_wait: duration_or_zero("3s"),
        /// Until when a merged list waits for an upstream that starts for the first time since the gateway did, counted
        /// from the beginning of that start. While no upstream has answered at all it waits up to 25 s, unless this is
        /// 0s.
        first_wait: duration_or_zero("8s"),
        /// Upstreams that are started and listed when the gateway starts, so that the first client need not wait for
        /// them.
        warm: texts(),
        /// Whether clients of any endpoint are told when a list changes, and that they are. false: for clients that
        /// fail at `list_changed`; `list_changed` of an upstream says it for that one.
        list_changed: flag(true),
        /// What clients show as the name of merged endpoints.
        title: text("Drawbridge"),
        /// Text for models that comes before what upstreams say of themselves, on merged endpoints.
        instructions: optional("Ask before you delete anything."),
        required_scopes: scopes(s),
        login_scopes: login_scopes(s),
        audiences: audiences(s),
        ; enabled, upstreams: Vec::new()
    });
    move |all| {
        let shown = all.iter().filter(|upstream| upstream.merged);
        MergedConfig {
            upstreams: listed.unwrap_or_else(|| shown.map(|one| one.name.clone()).collect()),
            ..config
        }
    }
}

/// Reads one `[endpoints.<name>]`.
pub(super) fn named(s: &mut ConfigSection<'_>) -> NamedEndpoint {
    read_keys!(s => NamedEndpoint {
        /// Upstreams shown, in this order.
        upstreams: required_list("files", |text| Ok(text.to_owned())),
        /// Tools shown, as upstream:pattern with * for any run; empty means all. For example ["files:read_*"].
        tools: texts(),
        required_scopes: scopes(s),
        login_scopes: login_scopes(s),
        audiences: audiences(s),
        /// Issuers accepted here; empty means all of [[auth.issuers]].
        issuers: texts(),
    })
}

/// `required_scopes` of one endpoint.
pub(super) fn scopes(s: &mut ConfigSection<'_>) -> Vec<String> {
    read_keys!(s =>
        /// Scopes needed here; empty means auth.required_scopes.
        required_scopes: list(units::scope))
}

/// `login_scopes` of one endpoint.
pub(super) fn login_scopes(s: &mut ConfigSection<'_>) -> Vec<String> {
    read_keys!(s =>
        /// Scopes that clients ask for at login here, besides required ones; empty means auth.login_scopes.
        login_scopes: list(units::scope))
}

/// `audiences` of one endpoint.
pub(super) fn audiences(s: &mut ConfigSection<'_>) -> Vec<String> {
    read_keys!(s =>
        /// Audiences accepted here besides the resource identifier.
        audiences: texts())
}
