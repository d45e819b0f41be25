//! `OutgoingCall`: one call on its way to the upstream, through all its rounds.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock};

use super::ModernServerLink;
use super::running_request::{HighestProgress, RunningRequest};
use super::schemas::KnownTools;
use crate::call::Call;
use crate::protocol::{Message, methods};
use crate::upstream::deadlines::CallActivity;
use crate::upstream::lock;

/// One call on its way to the upstream, through all its rounds.
#[derive(Debug)]
pub(super) struct OutgoingCall<'a> {
    pub(super) request: &'a Message,
    /// The name of the requested tool or prompt, the URI of the resource, or the id of the task.
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) call: &'a Call,
    pub(super) activity: Arc<CallActivity>,
    /// The running request, which records why the call is dropped.
    pub(super) running: Mutex<Option<Arc<RunningRequest>>>,
    /// Highest progress of all requests of the call, once a client wants progress.
    pub(super) told: OnceLock<Arc<HighestProgress>>,
}

impl<'a> OutgoingCall<'a> {
    pub(super) fn new(request: &'a Message, call: &'a Call, activity: Arc<CallActivity>) -> Self {
        let param = methods::name_param(request.method().unwrap_or_default());
        Self {
            request,
            name: param.and_then(|param| request.param_str(param)),
            call,
            activity,
            running: Mutex::default(),
            told: OnceLock::new(),
        }
    }

    /// The tool that is called.
    pub(super) fn tool(&self) -> Option<&str> {
        self.name
            .as_deref()
            .filter(|_| self.method() == "tools/call")
    }

    /// The tools known for the caller.
    pub(super) fn tools(&self, link: &ModernServerLink) -> Arc<KnownTools> {
        let begun = self.activity.started();
        link.schemas.of(link.settings.owner, &link.tools, begun)
    }

    pub(super) fn method(&self) -> &str {
        self.request.method().unwrap_or_default()
    }

    pub(super) fn abort(&self, reason: &str) {
        if let Some(running) = &*lock(&self.running) {
            running.abort(reason);
        }
    }
}
