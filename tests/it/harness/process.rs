//! Processes as `/proc` shows them: descendants, and survivors.

use std::collections::HashSet;
use std::fs;

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    started: u64,
}

struct Stat {
    process: Process,
    parent: u32,
    is_asleep: bool,
    is_zombie: bool,
}

fn stat(pid: u32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold spaces: fields are counted after the last one.
    let fields: Vec<&str> = line[line.rfind(')')? + 2..].split(' ').collect();
    Some(Stat {
        process: Process {
            pid,
            started: fields[19].parse().ok()?,
        },
        parent: fields[1].parse().ok()?,
        is_asleep: fields[0] == "S",
        is_zombie: fields[0] == "Z",
    })
}

fn all() -> Vec<Stat> {
    let entries = fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(stat)
        .collect()
}

/// Every living descendant of `root`, itself excluded.
pub(crate) fn descendants(root: u32) -> Vec<Process> {
    let all = all();
    let mut family = HashSet::from([root]);
    let mut found = Vec::new();
    loop {
        let more: Vec<&Stat> = all
            .iter()
            .filter(|stat| family.contains(&stat.parent) && !family.contains(&stat.process.pid))
            .collect();
        if more.is_empty() {
            return found;
        }
        for stat in more {
            family.insert(stat.process.pid);
            if !stat.is_zombie {
                found.push(stat.process);
            }
        }
    }
}

/// Children of `root` that ended and were not waited for.
pub(crate) fn zombies(root: u32) -> usize {
    all()
        .iter()
        .filter(|stat| stat.parent == root && stat.is_zombie)
        .count()
}

/// Whether it runs still; a zombie does not.
pub(crate) fn is_alive(process: Process) -> bool {
    stat(process.pid).is_some_and(|stat| stat.process == process && !stat.is_zombie)
}

/// The names of its threads.
pub(crate) fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .collect()
}

/// Whether the process sleeps.
pub(crate) fn is_asleep(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.is_asleep)
}

/// The live process with a reported pid.
pub(crate) fn find(pid: u32) -> Option<Process> {
    stat(pid)
        .filter(|stat| !stat.is_zombie)
        .map(|stat| stat.process)
}

/// Resident memory in bytes.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}
