//! The tasks of 2025-11-25 that a session began, and what its client calls them.
//! Spec: SPEC K-02 to K-05, A-30; BRIDGING §3.8.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{HostedTask, lock};

/// A task of a session.
#[derive(Debug, Clone)]
pub struct Task {
    /// What the client calls it: good in this session alone.
    pub handle: Arc<str>,
    /// Whose tool it runs.
    pub upstream: Arc<str>,
    /// Where it is run.
    pub run: Run,
}

/// Where a task is run.
#[derive(Debug, Clone)]
pub enum Run {
    /// By its upstream, which calls it so.
    There(Arc<str>),
    /// By the gateway.
    Here(Arc<HostedTask>),
}

/// A task that is known to its session.
#[derive(Debug, Clone)]
pub struct Known {
    /// What the client calls it.
    pub handle: Arc<str>,
    /// What was forgotten to make room for it though it ran, or nobody had fetched what it came to.
    pub forgotten: Option<Task>,
}

/// The tasks of one session. An older one is forgotten for a new one: it runs on at its upstream, and
/// not here.
#[derive(Debug, Default)]
pub struct Tasks {
    known: Mutex<VecDeque<Task>>,
    /// How many run here.
    pub(super) running: AtomicUsize,
}

impl Tasks {
    /// Remembers a task of `upstream`; where `max` are remembered already, one is forgotten.
    pub fn add(&self, upstream: &Arc<str>, id: &str, max: usize) -> Known {
        let mut tasks = lock(&self.known);
        if let Some(known) = find(&tasks, upstream, id) {
            return Known {
                handle: Arc::clone(&known.handle),
                forgotten: None,
            };
        }
        remember(&mut tasks, upstream, Run::There(id.into()), max)
    }

    /// Remembers a task that is run here; where `max` are remembered already, one is forgotten.
    pub fn host(&self, upstream: &Arc<str>, task: &Arc<HostedTask>, max: usize) -> Known {
        let mut tasks = lock(&self.known);
        remember(&mut tasks, upstream, Run::Here(Arc::clone(task)), max)
    }

    /// Forgets the task that the client calls so.
    pub fn remove(&self, handle: &str) {
        lock(&self.known).retain(|task| *task.handle != *handle);
    }

    /// Forgets tasks that were run here and are over, those first whose results have been fetched, until
    /// `bytes` of results are given up; those that nobody had fetched. Nothing is forgotten when all
    /// together are not enough.
    pub fn give_up(&self, bytes: usize) -> Option<Vec<Task>> {
        let mut tasks = lock(&self.known);
        let mut kept: Vec<_> = tasks
            .iter()
            .filter(|task| task.kept() > 0)
            .cloned()
            .collect();
        kept.sort_by_cached_key(Task::is_missed);
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

    /// Whether any runs here.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// The task that the client calls so.
    #[must_use]
    pub fn find(&self, handle: &str) -> Option<Task> {
        let tasks = lock(&self.known);
        tasks.iter().find(|task| *task.handle == *handle).cloned()
    }

    /// What the client calls a task of `upstream`.
    #[must_use]
    pub fn handle_of(&self, upstream: &str, id: &str) -> Option<Arc<str>> {
        find(&lock(&self.known), upstream, id).map(|task| Arc::clone(&task.handle))
    }

    /// All of them, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Task> {
        lock(&self.known).iter().cloned().collect()
    }
}

impl Task {
    /// Whether it was run here and nothing about it will change.
    fn is_over(&self) -> bool {
        matches!(&self.run, Run::Here(task) if task.is_over())
    }

    /// Whether something is lost when it is forgotten now; of one that runs elsewhere nobody can tell.
    fn is_missed(&self) -> bool {
        match &self.run {
            Run::Here(task) => task.is_missed(),
            Run::There(_) => true,
        }
    }

    /// Bytes that are kept here of what it came to.
    fn kept(&self) -> usize {
        match &self.run {
            Run::Here(task) => task.kept(),
            Run::There(_) => 0,
        }
    }

    /// It does not run on here. Itself, where something is lost with it.
    fn forget(self) -> Option<Self> {
        let is_missed = self.is_missed();
        if let Run::Here(task) = &self.run {
            task.forget();
        }
        is_missed.then_some(self)
    }
}

/// Where there are too many, one that is over makes room, best one whose result has been fetched, else
/// the oldest.
fn remember(tasks: &mut VecDeque<Task>, upstream: &Arc<str>, run: Run, max: usize) -> Known {
    let handle: Arc<str> = format!("{:032x}", rand::random::<u128>()).into();
    let is_full = tasks.len() >= max;
    let spare = || {
        let fetched = tasks.iter().position(|task| !task.is_missed());
        fetched
            .or_else(|| tasks.iter().position(Task::is_over))
            .unwrap_or(0)
    };
    let spare = is_full.then(spare);
    let forgotten = spare.and_then(|place| tasks.remove(place));
    tasks.push_back(Task {
        handle: Arc::clone(&handle),
        upstream: Arc::clone(upstream),
        run,
    });
    Known {
        handle,
        forgotten: forgotten.and_then(Task::forget),
    }
}

fn find<'t>(tasks: &'t VecDeque<Task>, upstream: &str, id: &str) -> Option<&'t Task> {
    let is_it = |run: &Run| matches!(run, Run::There(known) if **known == *id);
    let mut known = tasks.iter();
    known.find(|task| *task.upstream == *upstream && is_it(&task.run))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::TestClock;
    use crate::session::Outcome;

    #[test]
    fn a_task_has_one_name_and_each_upstream_its_own() {
        let (tasks, up, other): (_, Arc<str>, Arc<str>) =
            (Tasks::default(), "up".into(), "other".into());
        let handle = tasks.add(&up, "1", 9).handle;
        assert_eq!(tasks.add(&up, "1", 9).handle, handle);
        assert_ne!(tasks.add(&other, "1", 9).handle, handle);
        let found = tasks.find(&handle).unwrap();
        assert!(matches!(&found.run, Run::There(id) if &**id == "1"));
        assert_eq!(&*found.upstream, "up");
        assert!(tasks.find("1").is_none());
        assert_eq!(tasks.handle_of("up", "2"), None);
    }

    #[test]
    fn only_the_newest_are_remembered() {
        let (tasks, up): (_, Arc<str>) = (Tasks::default(), "up".into());
        let first = tasks.add(&up, "0", 2).handle;
        assert!(tasks.add(&up, "1", 2).forgotten.is_none());
        assert!(tasks.add(&up, "1", 2).forgotten.is_none(), "it is known");
        let forgotten = tasks.add(&up, "2", 2).forgotten.unwrap();
        assert_eq!(forgotten.handle, first);
        assert_eq!(tasks.all().len(), 2);
        assert_eq!(tasks.handle_of("up", "0"), None);
    }

    #[test]
    fn what_is_over_here_makes_room_before_what_runs() {
        let (tasks, up): (_, Arc<str>) = (Tasks::default(), "up".into());
        let clock = TestClock::at(0);
        let host = || {
            let task = HostedTask::begin(clock.clone(), Duration::from_mins(1));
            (tasks.host(&up, &task, 2), task)
        };
        let ((first, running), (_, over)) = (host(), host());
        over.end(Outcome::Cancelled);
        let (third, _) = host();
        assert!(third.forgotten.is_none(), "nobody misses it");
        assert!(over.forgotten().is_cancelled());
        let (fourth, _) = host();
        assert_eq!(fourth.forgotten.unwrap().handle, first.handle);
        assert!(running.stopped().is_cancelled(), "it does not run on");
    }
}
