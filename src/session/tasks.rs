//! Tasks of 2025-11-25 that a session began, and their handles for the client. A *hosted* task is run by the gateway itself.
//! Spec: SPEC K-02 to K-05, A-30; BRIDGING §3.8.

mod adopted;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{GatewayTask, lock};

/// A task of a session.
#[derive(Debug, Clone)]
pub struct SessionTask {
    /// The `taskId` shown to the client: valid in this session alone.
    pub handle: Arc<str>,
    /// The upstream whose tool the task runs.
    pub upstream: Arc<str>,
    /// Where the task is run.
    pub run: TaskSite,
}

/// Where a task is run.
#[derive(Debug, Clone)]
pub enum TaskSite {
    /// By its upstream.
    There {
        /// The upstream's `taskId`.
        id: Arc<str>,
        /// The last known stage.
        stage: TaskStage,
        /// The terminal status, once the upstream reported one.
        ended: Option<&'static str>,
    },
    /// By the gateway.
    Here(Arc<GatewayTask>),
}

/// Stage of a task at its upstream, as last reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskStage {
    /// Not known to have ended.
    Running,
    /// Ended; the result may still be fetched.
    Over,
    /// The result was fetched, or there is none.
    Fetched,
}

/// The handle of a task that is about to begin.
#[derive(Debug)]
pub struct TaskHandle(Arc<str>);

impl TaskHandle {
    /// A new random handle.
    #[must_use]
    pub fn mint() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()).into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A task that is known to its session.
#[derive(Debug, Clone)]
pub struct TrackedTask {
    /// Its handle for the client.
    pub handle: Arc<str>,
    /// The task evicted to make room, if it was still running or its result had not been fetched.
    pub forgotten: Option<SessionTask>,
}

/// The tasks of one session. When full, an older task is evicted for a new one: if run by its upstream
/// it runs on there, if hosted it is cancelled.
#[derive(Debug, Default)]
pub struct SessionTasks {
    known: Mutex<VecDeque<SessionTask>>,
    /// Hosted tasks that are running.
    pub(super) running: AtomicUsize,
}

impl SessionTasks {
    /// Adds a task that has begun at `upstream`, as `handle`; if `max` are known already, one is evicted.
    /// An earlier task with the same id is removed: the upstream restarted and counts from the beginning.
    pub fn add(
        &self,
        upstream: &Arc<str>,
        id: &str,
        handle: TaskHandle,
        max: usize,
    ) -> TrackedTask {
        let mut tasks = lock(&self.known);
        tasks.retain(|task| !task.is(upstream, id));
        let run = TaskSite::There {
            id: id.into(),
            stage: TaskStage::Running,
            ended: None,
        };
        remember(&mut tasks, upstream, run, handle, max)
    }

    /// Adds a hosted task; if `max` are known already, one is evicted.
    pub fn host(&self, upstream: &Arc<str>, task: &Arc<GatewayTask>, max: usize) -> TrackedTask {
        let mut tasks = lock(&self.known);
        let run = TaskSite::Here(Arc::clone(task));
        remember(&mut tasks, upstream, run, TaskHandle::mint(), max)
    }

    /// Advances a task at its upstream to stage `to`; the stage never decreases.
    pub fn advance(&self, handle: &str, to: TaskStage) {
        let mut tasks = lock(&self.known);
        let known = tasks.iter_mut().find(|task| *task.handle == *handle);
        if let Some(TaskSite::There { stage, .. }) = known.map(|task| &mut task.run) {
            *stage = to.max(*stage);
        }
    }

    /// Advances a task to `to` and records the upstream's `status`; returns the status to show. Once a
    /// terminal status is recorded, later reports are ignored (SPEC K-04).
    pub fn stand(&self, handle: &str, to: TaskStage, status: &'static str) -> &'static str {
        let mut tasks = lock(&self.known);
        let known = tasks.iter_mut().find(|task| *task.handle == *handle);
        let Some(TaskSite::There { stage, ended, .. }) = known.map(|task| &mut task.run) else {
            return status;
        };
        if let Some(ended) = *ended {
            return ended;
        }
        *stage = to.max(*stage);
        *ended = (to >= TaskStage::Over).then_some(status);
        status
    }

    /// Removes the task with this handle.
    pub fn remove(&self, handle: &str) {
        lock(&self.known).retain(|task| *task.handle != *handle);
    }

    /// Evicts ended hosted tasks, fetched ones first, until `bytes` of results are released; returns the
    /// evicted tasks whose results had not been fetched. `None`, evicting nothing, if all results together
    /// are fewer bytes.
    pub fn give_up(&self, bytes: usize) -> Option<Vec<SessionTask>> {
        let mut tasks = lock(&self.known);
        let mut kept: Vec<_> = tasks
            .iter()
            .filter(|task| task.kept() > 0)
            .cloned()
            .collect();
        kept.sort_by_cached_key(SessionTask::is_missed);
        let (mut given, mut missed) = (0, Vec::new());
        let enough = kept.iter().position(|task| {
            given += task.kept();
            given >= bytes
        });
        kept.truncate(enough? + 1);
        for task in kept {
            tasks.retain(|known| known.handle != task.handle);
            missed.extend(task.forget());
        }
        Some(missed)
    }

    /// Whether no task is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.known).is_empty()
    }

    /// Whether a hosted task is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// The task with this handle.
    #[must_use]
    pub fn find(&self, handle: &str) -> Option<SessionTask> {
        let tasks = lock(&self.known);
        tasks.iter().find(|task| *task.handle == *handle).cloned()
    }

    /// The handle of the task that `upstream` calls `id`.
    #[must_use]
    pub fn handle_of(&self, upstream: &str, id: &str) -> Option<Arc<str>> {
        let known = lock(&self.known);
        let task = known.iter().find(|task| task.is(upstream, id));
        task.map(|task| Arc::clone(&task.handle))
    }

    /// All of them, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<SessionTask> {
        lock(&self.known).iter().cloned().collect()
    }
}

impl SessionTask {
    /// Whether `upstream` runs this task as `id`.
    fn is(&self, upstream: &str, id: &str) -> bool {
        let runs_as = matches!(&self.run, TaskSite::There { id: known, .. } if **known == *id);
        runs_as && *self.upstream == *upstream
    }

    /// Whether the task is known to have ended.
    fn is_over(&self) -> bool {
        match &self.run {
            TaskSite::Here(task) => task.is_over(),
            TaskSite::There { stage, .. } => *stage >= TaskStage::Over,
        }
    }

    /// Whether evicting the task now loses a run or an unfetched result.
    fn is_missed(&self) -> bool {
        match &self.run {
            TaskSite::Here(task) => task.is_missed(),
            TaskSite::There { stage, .. } => *stage < TaskStage::Fetched,
        }
    }

    /// Bytes of the outcome that the gateway holds; 0 for a task at its upstream.
    fn kept(&self) -> usize {
        match &self.run {
            TaskSite::Here(task) => task.kept(),
            TaskSite::There { .. } => 0,
        }
    }

    /// Cancels a hosted run; returns the task if [`is_missed`](Self::is_missed).
    fn forget(self) -> Option<Self> {
        let is_missed = self.is_missed();
        if let TaskSite::Here(task) = &self.run {
            task.forget();
        }
        is_missed.then_some(self)
    }
}

/// Adds a task. At `max`, evicts the first whose result has been fetched, else the first that has ended,
/// else the oldest.
fn remember(
    tasks: &mut VecDeque<SessionTask>,
    upstream: &Arc<str>,
    run: TaskSite,
    TaskHandle(handle): TaskHandle,
    max: usize,
) -> TrackedTask {
    let is_full = tasks.len() >= max;
    let spare = || {
        let fetched = tasks.iter().position(|task| !task.is_missed());
        fetched
            .or_else(|| tasks.iter().position(SessionTask::is_over))
            .unwrap_or(0)
    };
    let spare = is_full.then(spare);
    let forgotten = spare.and_then(|place| tasks.remove(place));
    tasks.push_back(SessionTask {
        handle: Arc::clone(&handle),
        upstream: Arc::clone(upstream),
        run,
    });
    TrackedTask {
        handle,
        forgotten: forgotten.and_then(SessionTask::forget),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::TestClock;
    use crate::session::TaskOutcome;

    #[test]
    fn a_task_has_one_name_and_each_upstream_its_own() {
        let (tasks, up, other): (_, Arc<str>, Arc<str>) =
            (SessionTasks::default(), "up".into(), "other".into());
        let handle = tasks.add(&up, "1", TaskHandle::mint(), 9).handle;
        assert_ne!(tasks.add(&other, "1", TaskHandle::mint(), 9).handle, handle);
        let found = tasks.find(&handle).unwrap();
        assert!(matches!(&found.run, TaskSite::There { id, .. } if &**id == "1"));
        assert_eq!(&*found.upstream, "up");
        assert!(tasks.find("1").is_none());
        assert_eq!(tasks.handle_of("up", "2"), None);
    }

    #[test]
    fn repeated_task_id_of_a_restarted_upstream_is_a_new_task() {
        let (tasks, up): (_, Arc<str>) = (SessionTasks::default(), "up".into());
        let add = || tasks.add(&up, "1", TaskHandle::mint(), 9).handle;
        let before = add();
        tasks.advance(&before, TaskStage::Fetched);
        let now = add();
        assert_eq!(tasks.handle_of("up", "1").as_ref(), Some(&now));
        assert!(tasks.find(&before).is_none());
        assert!(tasks.find(&now).unwrap().is_missed());
    }

    // SPEC K-04.
    #[test]
    fn what_has_ended_keeps_the_status_with_which_it_did() {
        let tasks = SessionTasks::default();
        let handle = tasks.add(&"up".into(), "1", TaskHandle::mint(), 9).handle;
        assert_eq!(
            tasks.stand(&handle, TaskStage::Running, "working"),
            "working"
        );
        for (to, said) in [
            (TaskStage::Over, "completed"),
            (TaskStage::Running, "working"),
            (TaskStage::Over, "failed"),
            (TaskStage::Fetched, "cancelled"),
        ] {
            assert_eq!(tasks.stand(&handle, to, said), "completed", "{said}");
        }
        assert!(
            tasks.find(&handle).unwrap().is_missed(),
            "nobody fetched it"
        );
    }

    #[test]
    fn only_the_newest_are_remembered() {
        let (tasks, up): (_, Arc<str>) = (SessionTasks::default(), "up".into());
        let first = tasks.add(&up, "0", TaskHandle::mint(), 2).handle;
        assert!(
            tasks
                .add(&up, "1", TaskHandle::mint(), 2)
                .forgotten
                .is_none()
        );
        let again = tasks.add(&up, "1", TaskHandle::mint(), 2);
        assert!(again.forgotten.is_none(), "it is known");
        let forgotten = tasks
            .add(&up, "2", TaskHandle::mint(), 2)
            .forgotten
            .unwrap();
        assert_eq!(forgotten.handle, first);
        assert_eq!(tasks.all().len(), 2);
        assert_eq!(tasks.handle_of("up", "0"), None);
    }

    #[test]
    fn what_is_over_at_its_upstream_makes_room_before_what_runs() {
        let (tasks, up): (_, Arc<str>) = (SessionTasks::default(), "up".into());
        let add = |id| tasks.add(&up, id, TaskHandle::mint(), 3);
        let [running, over, fetched] = ["0", "1", "2"].map(|id| add(id).handle);
        tasks.advance(&over, TaskStage::Over);
        tasks.advance(&fetched, TaskStage::Fetched);
        tasks.advance(&fetched, TaskStage::Running);
        assert!(add("3").forgotten.is_none(), "nobody misses it");
        assert!(tasks.find(&fetched).is_none());
        assert_eq!(add("4").forgotten.unwrap().handle, over);
        assert_eq!(add("5").forgotten.unwrap().handle, running);
    }

    #[test]
    fn what_is_over_here_makes_room_before_what_runs() {
        let (tasks, up): (_, Arc<str>) = (SessionTasks::default(), "up".into());
        let clock = TestClock::at(0);
        let host = || {
            let task = GatewayTask::begin(clock.clone(), Duration::from_mins(1));
            (tasks.host(&up, &task, 2), task)
        };
        let ((first, running), (_, over)) = (host(), host());
        over.end(TaskOutcome::Cancelled);
        let (third, _) = host();
        assert!(third.forgotten.is_none(), "nobody misses it");
        assert!(over.forgotten().is_cancelled());
        let (fourth, _) = host();
        assert_eq!(fourth.forgotten.unwrap().handle, first.handle);
        assert!(running.stopped().is_cancelled(), "it does not run on");
    }
}
