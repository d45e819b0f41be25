//! `TaskRequest`: a request that is or concerns a task, on its way to its upstream.

use std::sync::Arc;
use std::time::Duration;

use crate::call::{Call, UpstreamLink};
use crate::outbound::{SessionLinks, UpstreamTarget};
use crate::policy::Permit;
use crate::session::Session;

/// A request that may become a task, or is about one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskRequest<'a> {
    pub(crate) permit: &'a Permit,
    pub(crate) link: &'a Arc<dyn UpstreamLink>,
    pub(crate) call: &'a Call,
    pub(crate) session: &'a Arc<Session>,
    pub(crate) target: &'a UpstreamTarget,
}

impl TaskRequest<'_> {
    /// How long a task may take.
    pub(super) fn patience(&self, links: &SessionLinks) -> Duration {
        let settings = links.upstreams.settings(&self.target.upstream);
        settings.map_or(Duration::ZERO, |settings| settings.total_timeout)
    }
}
