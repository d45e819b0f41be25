//! How the gateway presents itself where it is the server. Spec: BRIDGING §5.2, §5.3.

use std::sync::Arc;

use crate::config;
use crate::protocol::json;
use crate::translate::naming::clean;

/// Characters of the title.
const MAX_TITLE: usize = 80;

/// The gateway as clients of merged endpoints see it.
#[derive(Debug)]
pub(crate) struct GatewayInfo {
    /// JSON text of its `Implementation`.
    pub(crate) info: Arc<str>,
    /// The operator's instructions, which precede those of the upstreams.
    pub(crate) instructions: Option<String>,
    /// Whether it tells of changed lists.
    pub(crate) tells_changes: bool,
}

impl GatewayInfo {
    /// From the configuration.
    pub(crate) fn new(settings: &config::MergedConfig) -> Self {
        let info = json::object([
            ("name", json::quote("drawbridge")),
            ("title", json::quote(&clean(&settings.title, MAX_TITLE))),
            ("version", json::quote(env!("CARGO_PKG_VERSION"))),
        ]);
        Self {
            info: info.into(),
            instructions: settings.instructions.clone(),
            tells_changes: settings.list_changed,
        }
    }

    /// A fixed value for tests.
    #[cfg(test)]
    pub(super) fn sample(instructions: Option<&str>) -> Self {
        Self {
            info: r#"{"name":"drawbridge"}"#.into(),
            instructions: instructions.map(str::to_owned),
            tells_changes: true,
        }
    }
}
