//! `SessionTasks` in the record of their session.

use super::super::lock;
use super::{SessionTask, SessionTasks, TaskSite};
use crate::store::records::{RecordedSite, RecordedTask};

impl SessionTasks {
    /// The tasks for the record of the session. A task that is run here is left out once its outcome was fetched.
    pub(in crate::session) fn recorded(&self) -> Vec<RecordedTask> {
        let recorded = |task: &SessionTask| {
            let site = match &task.run {
                TaskSite::There { id, .. } => RecordedSite::Upstream(id.to_string()),
                TaskSite::Here(here) if here.is_missed() => RecordedSite::Gateway {
                    created: here.created(),
                    ttl: here.ttl(),
                },
                TaskSite::Here(_) => return None,
            };
            Some(RecordedTask {
                handle: task.handle.to_string(),
                upstream: task.upstream.to_string(),
                site,
            })
        };
        lock(&self.known).iter().filter_map(recorded).collect()
    }
}
