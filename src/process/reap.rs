//! Reaping: the processes that the kernel counts as our children, and which code waits for each.
//!
//! The gateway adopts the orphans of its children (sub-reaper), so that no grandchild stays a
//! zombie where nothing else reaps. A child that we started is waited for by its keeper alone;
//! everything else is reaped here.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard};

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};

use crate::lock::lock;

/// Children with a keeper that waits for them by pid. Static, as children belong to the process: two runtimes in one
/// process would otherwise reap each other's.
static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn awaited() -> MutexGuard<'static, BTreeSet<u32>> {
    lock(&AWAITED)
}

/// Asks the kernel to hand us the orphans of our descendants.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Starts `command`; its pid is safe from [`orphans`] until [`forget`].
pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    // The lock spans both steps: a child that dies at once must not look like an orphan.
    let mut awaited = awaited();
    let child = command.spawn()?;
    awaited.insert(child.id());
    Ok(child)
}

/// The child `pid` was waited for, or never will be: from now on [`orphans`] may reap it.
pub(super) fn forget(pid: u32) {
    awaited().remove(&pid);
}

/// Reaps every dead process that was handed to us; returns the living ones.
pub(super) fn orphans() -> Vec<u32> {
    let awaited = awaited();
    let mut alive = Vec::new();
    for pid in children() {
        if awaited.contains(&pid) {
            continue;
        }
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            continue;
        };
        // `None`: the process still runs. An error: it was reaped elsewhere.
        if let Ok(None) = waitpid(Some(raw), WaitOptions::NOHANG) {
            alive.push(pid);
        }
    }
    alive
}

/// Every child of every thread of ours, adopted ones included.
fn children() -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return found;
    };
    for thread in threads.flatten() {
        if let Ok(text) = std::fs::read_to_string(thread.path().join("children")) {
            found.extend(
                text.split_ascii_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
    }
    found
}
