//! The tasks of 2025-11-25 that a session began, and what its client calls them.
//! Spec: SPEC K-02 to K-05, A-30; BRIDGING §3.8.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::lock;

/// Tasks that are remembered, the newest.
const REMEMBERED: usize = 64;

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

/// The tasks of one session. An older one is forgotten for a new one, and runs on.
#[derive(Debug, Default)]
pub struct Tasks(Mutex<VecDeque<Task>>);

impl Tasks {
    /// Remembers a task; what the client calls it.
    pub fn add(&self, upstream: &Arc<str>, id: &str) -> Arc<str> {
        let mut tasks = lock(&self.0);
        if let Some(known) = find(&tasks, upstream, id) {
            return Arc::clone(&known.handle);
        }
        let handle: Arc<str> = format!("{:032x}", rand::random::<u128>()).into();
        if tasks.len() >= REMEMBERED {
            tasks.pop_front();
        }
        tasks.push_back(Task {
            handle: Arc::clone(&handle),
            upstream: Arc::clone(upstream),
            id: id.into(),
        });
        handle
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
        let handle = tasks.add(&up, "1");
        assert_eq!(tasks.add(&up, "1"), handle);
        assert_ne!(tasks.add(&other, "1"), handle);
        let found = tasks.find(&handle).unwrap();
        assert_eq!((&*found.upstream, &*found.id), ("up", "1"));
        assert_eq!(tasks.find("1"), None);
        assert_eq!(tasks.handle_of("up", "2"), None);
    }

    #[test]
    fn only_the_newest_are_remembered() {
        let (tasks, up): (_, Arc<str>) = (Tasks::default(), "up".into());
        for number in 0..=REMEMBERED {
            tasks.add(&up, &number.to_string());
        }
        assert_eq!(tasks.all().len(), REMEMBERED);
        assert_eq!(tasks.handle_of("up", "0"), None);
    }
}
