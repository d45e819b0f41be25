//! Processes that left their child's group, recognised by a path in their environment.
//!
//! A grandchild may start a session of its own, where no signal to the group reaches it. Its environment still names
//! directories below the root of [`HomeDirs`](super::home_dirs::HomeDirs), which only our children are given.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Rounds over all processes: a process started during one round is seen in the next, and one in the middle of `execve`
/// has no environment to read for a moment.
const ROUNDS: usize = 10;

/// Rounds without a find that end the search.
const EMPTY_ROUNDS: usize = 2;

/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(20);

/// The values below `root` in the environment of process `pid`; empty when it cannot be read.
pub(super) fn marks(pid: u32, root: &Path) -> Vec<PathBuf> {
    let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else {
        return Vec::new();
    };
    let values = environment.split(|byte| *byte == 0).filter_map(|variable| {
        let at = memchr::memchr(b'=', variable)?;
        let value = variable.get(at + 1..)?;
        Some(Path::new(std::ffi::OsStr::from_bytes(value)))
    });
    values
        .filter(|value| value.starts_with(root))
        .map(Path::to_owned)
        .collect()
}

/// Kills one process.
pub(super) fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // The only error is `ESRCH`: the process is gone.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills every process whose environment names a directory below `root`.
pub(super) fn kill_all(root: &Path) {
    let own = std::process::id();
    let mut empty = 0;
    for _ in 0..ROUNDS {
        let marked: Vec<u32> = processes()
            .filter(|pid| *pid != own && !marks(*pid, root).is_empty())
            .collect();
        empty = if marked.is_empty() { empty + 1 } else { 0 };
        if empty == EMPTY_ROUNDS {
            return;
        }
        marked.into_iter().for_each(kill);
        std::thread::sleep(PAUSE);
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
