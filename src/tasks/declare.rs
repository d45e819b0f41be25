//! Declares tasks to upstreams: for clients that know them, and on behalf of the gateway for a single call
//! whose upstream runs the tool only as a task. Spec: SPEC K-10; BRIDGING §3.8.

use std::sync::Arc;

use crate::call::{Call, ClientCapabilities, DownstreamLink, Reply};
use crate::protocol::error_codes::MISSING_CLIENT_CAPABILITY;
use crate::protocol::{extensions, json};
use crate::translate::project;

/// A client's link that declares tasks in addition to the client's capabilities.
#[derive(Debug)]
struct TaskDeclaringLink {
    inner: Arc<dyn DownstreamLink>,
    capabilities: ClientCapabilities,
}

/// Whether the client of a call declares the extension.
pub(crate) fn is_declared(call: &Call) -> bool {
    extensions::declares(call.link.capabilities().text(), extensions::TASKS)
}

/// The call as one whose client declares tasks.
pub(crate) fn declaring(call: &Call) -> Call {
    let capabilities = call.link.capabilities().with_extension(extensions::TASKS);
    Call {
        link: Arc::new(TaskDeclaringLink {
            inner: Arc::clone(&call.link),
            capabilities,
        }),
        ..call.clone()
    }
}

/// Whether a reply refuses a call for want of the extension, and of nothing else that its client
/// lacks.
pub(crate) fn would_help(reply: &Reply, call: &Call) -> bool {
    if reply.error_code() != Some(MISSING_CLIENT_CAPABILITY) {
        return false;
    }
    let required = reply
        .error()
        .and_then(|error| json::member(error, "data"))
        .and_then(|data| json::member(data, "requiredCapabilities"));
    let Some(required) = required.filter(|text| extensions::declares(text, extensions::TASKS))
    else {
        return false;
    };
    let with = call.link.capabilities().with_extension(extensions::TASKS);
    project::covers(with.text(), required)
}

impl DownstreamLink for TaskDeclaringLink {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.inner)
    }
}
