//! The tasks of 2025-11-25 that a session began, and what its client calls them.
//! Spec: SPEC K-02 to K-05, A-30; BRIDGING §3.8.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::lock;

/// A task of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// What the client calls it: good in this session alone.
    pub handle: Arc<str>,
    /// Who runs it.
    pub upstream: Arc<str>,
    /// What its upstream calls it.
    pub id: Arc<str>,
}

/// A task that is known to its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// What the client calls it.
    pub handle: Arc<str>,
    /// What was forgotten to make room for it.
    pub forgotten: Option<Task>,
}

/// The tasks of one session. An older one is forgotten for a new one, and runs on.
#[derive(Debug, Default)]
pub struct Tasks(Mutex<VecDeque<Task>>);

impl Tasks {
    /// Remembers a task; where `max` are remembered already, the oldest is forgotten.
    pub fn add(&self, upstream: &Arc<str>, id: &str, max: usize) -> Known {
        let mut tasks = lock(&self.0);
        if let Some(known) = find(&tasks, upstream, id) {
            return Known {
                handle: Arc::clone(&known.handle),
                forgotten: None,
            };
        }
        let handle: Arc<str> = format!("{:032x}", rand::random::<u128>()).into();
        let is_full = tasks.len() >= max;
        let forgotten = is_full.then(|| tasks.pop_front()).flatten();
        tasks.push_back(Task {
            handle: Arc::clone(&handle),
            upstream: Arc::clone(upstream),
            id: id.into(),
        });
        Known { handle, forgotten }
    }

    /// The task that the client calls so.
    #[must_use]
    pub fn find(&self, handle: &str) -> Option<Task> {
        let tasks = lock(&self.0);
        tasks.iter().find(|task| *task.handle == *handle).cloned()
    }

    /// What the client calls a task of `upstream`.
    #[must_use]
    pub fn handle_of(&self, upstream: &str, id: &str) -> Option<Arc<str>> {
        find(&lock(&self.0), upstream, id).map(|task| Arc::clone(&task.handle))
    }

    /// All of them, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Task> {
        lock(&self.0).iter().cloned().collect()
    }
}

fn find<'t>(tasks: &'t VecDeque<Task>, upstream: &str, id: &str) -> Option<&'t Task> {
    let mut known = tasks.iter();
    known.find(|task| *task.upstream == *upstream && *task.id == *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_one_name_and_each_upstream_its_own() {
        let (tasks, up, other): (_, Arc<str>, Arc<str>) =
            (Tasks::default(), "up".into(), "other".into());
        let handle = tasks.add(&up, "1", 9).handle;
        assert_eq!(tasks.add(&up, "1", 9).handle, handle);
        assert_ne!(tasks.add(&other, "1", 9).handle, handle);
        let found = tasks.find(&handle).unwrap();
        assert_eq!((&*found.upstream, &*found.id), ("up", "1"));
        assert_eq!(tasks.find("1"), None);
        assert_eq!(tasks.handle_of("up", "2"), None);
    }

    #[test]
    fn only_the_newest_are_remembered() {
        let (tasks, up): (_, Arc<str>) = (Tasks::default(), "up".into());
        let first = tasks.add(&up, "0", 2).handle;
        assert_eq!(tasks.add(&up, "1", 2).forgotten, None);
        assert_eq!(tasks.add(&up, "1", 2).forgotten, None, "it is known");
        let forgotten = tasks.add(&up, "2", 2).forgotten.unwrap();
        assert_eq!((forgotten.handle, &*forgotten.id), (first, "0"));
        assert_eq!(tasks.all().len(), 2);
        assert_eq!(tasks.handle_of("up", "0"), None);
    }
}
