//! Tasks of an adopted session: a task at an upstream goes on, a task that the former owner ran has failed.

use std::sync::Arc;
use std::time::Duration;

use super::super::{GatewayTask, Session, lock};
use super::{SessionTask, SessionTasks, TaskSite, TaskStage};
use crate::clock::SharedClock;
use crate::store::records::{RecordedSite, RecordedTask};

/// A task that ran in a replica that is lost.
#[derive(Debug)]
pub(in crate::session) struct LostTask {
    handle: Arc<str>,
    /// Of its lifetime.
    left: Duration,
}

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

    /// Takes over tasks of a former owner of the session. Tasks that the former owner ran have failed; they are
    /// returned, to be removed at the end of their `ttl`.
    pub(in crate::session) fn take_over(
        &self,
        tasks: &[RecordedTask],
        clock: &SharedClock,
    ) -> Vec<LostTask> {
        let (mut lost, now) = (Vec::new(), clock.now());
        for task in tasks {
            let handle: Arc<str> = task.handle.as_str().into();
            let run = match &task.site {
                RecordedSite::Upstream(id) => TaskSite::There {
                    id: id.as_str().into(),
                    stage: TaskStage::Running,
                    ended: None,
                },
                RecordedSite::Gateway { created, ttl } => {
                    let left = (*created + *ttl).saturating_sub(now);
                    if left.is_zero() {
                        continue;
                    }
                    let handle = Arc::clone(&handle);
                    lost.push(LostTask { handle, left });
                    TaskSite::Here(GatewayTask::lost(Arc::clone(clock), *created, *ttl))
                }
            };
            lock(&self.known).push_back(SessionTask {
                handle,
                upstream: task.upstream.as_str().into(),
                run,
            });
        }
        lost
    }
}

impl LostTask {
    /// Removes the task from `session` when its time is over.
    pub(in crate::session) async fn expire(self, session: Arc<Session>) {
        tokio::select! {
            () = tokio::time::sleep(self.left) => session.tasks.remove(&self.handle),
            () = session.closed.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::TaskHandle;
    use super::*;
    use crate::clock::TestClock;
    use crate::session::TaskOutcome;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn task_of_the_former_owner_has_failed_and_one_of_an_upstream_goes_on() {
        let clock = TestClock::at(1_000);
        let shared: SharedClock = Arc::clone(&clock) as _;
        let (former, up): (_, Arc<str>) = (SessionTasks::default(), "up".into());
        let there = former.add(&up, "17", TaskHandle::mint(), 9).handle;
        let begin = || GatewayTask::begin(Arc::clone(&shared), MINUTE);
        let here = former.host(&up, &begin(), 9).handle;
        let cancelled = begin();
        let over = former.host(&up, &cancelled, 9).handle;
        cancelled.end(TaskOutcome::Cancelled);
        clock.advance(MINUTE / 2);
        let next = SessionTasks::default();
        let lost = next.take_over(&former.recorded(), &shared);
        assert_eq!(next.handle_of("up", "17"), Some(there));
        assert!(next.find(&over).is_none(), "nothing of it is missed");
        let TaskSite::Here(task) = next.find(&here).unwrap().run else {
            panic!("it ran in the gateway");
        };
        assert_eq!(task.status(), "failed");
        let shown = task.shown(&here);
        assert!(shown.contains("outcome is unknown"), "{shown}");
        assert!(
            shown.contains("00:16:40.000Z"),
            "as it was created: {shown}"
        );
        assert_eq!((lost.len(), lost[0].left), (1, MINUTE / 2));
    }

    #[test]
    fn task_whose_time_is_over_is_not_taken_over() {
        let clock = TestClock::at(1_000);
        let shared: SharedClock = Arc::clone(&clock) as _;
        let former = SessionTasks::default();
        former.host(
            &"up".into(),
            &GatewayTask::begin(Arc::clone(&shared), MINUTE),
            9,
        );
        let recorded = former.recorded();
        clock.advance(MINUTE);
        let next = SessionTasks::default();
        assert!(next.take_over(&recorded, &shared).is_empty() && next.is_empty());
    }
}
