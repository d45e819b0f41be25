//! What a process costs, read from `/proc`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// CPU time of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cpu {
    /// Of each thread, in nanoseconds.
    threads: BTreeMap<u32, u64>,
    /// Of all, as the kernel's clock met them.
    ticks: Ticks,
}

/// How often the kernel's clock, 100 times a second, met a process in its own code and in the kernel's: too coarse for
/// a time, good for the share of each when there are hundreds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ticks {
    pub(crate) user: u64,
    pub(crate) kernel: u64,
}

impl Ticks {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let file = format!("/proc/{pid}/stat");
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        // After the name, which may hold anything, come the third field and so on.
        let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = fields.split_whitespace().skip(11);
        let mut next = || fields.next()?.parse().ok();
        Ok(Self {
            user: next().context("no time in user mode")?,
            kernel: next().context("no time in kernel mode")?,
        })
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            kernel: self.kernel.saturating_sub(earlier.kernel),
        }
    }

    /// The share of user mode.
    pub(crate) fn user_share(self) -> Option<f64> {
        let all = self.user + self.kernel;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let share = self.user as f64 / all as f64;
        (all > 0).then_some(share)
    }
}

impl std::iter::Sum for Ticks {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, ticks| Self {
            user: sum.user + ticks.user,
            kernel: sum.kernel + ticks.kernel,
        })
    }
}

impl Cpu {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let mut threads = BTreeMap::new();
        let tasks = format!("/proc/{pid}/task");
        for entry in std::fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
            let path = entry?.path();
            let tid = path
                .file_name()
                .and_then(|name| name.to_str()?.parse().ok());
            // A thread may end while we look.
            if let (Some(tid), Ok(text)) = (tid, std::fs::read_to_string(path.join("schedstat"))) {
                let running = text.split(' ').next().and_then(|ns| ns.parse().ok());
                threads.insert(tid, running.unwrap_or(0));
            }
        }
        Ok(Self {
            threads,
            ticks: Ticks::of(pid)?,
        })
    }

    /// Nanoseconds spent since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> u64 {
        let spent = |(tid, ns): (&u32, &u64)| {
            ns.saturating_sub(earlier.threads.get(tid).copied().unwrap_or_default())
        };
        self.threads.iter().map(spent).sum()
    }

    /// Ticks since `earlier`.
    pub(crate) fn ticks_since(&self, earlier: &Self) -> Ticks {
        self.ticks.since(earlier.ticks)
    }
}

/// Resident memory in KiB.
pub(crate) fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    status_kib(pid, "VmRSS:")
}

/// Anonymous resident memory in KiB: what the process has allocated, without mapped pages of files such as the program.
pub(crate) fn anonymous_kib(pid: u32) -> anyhow::Result<u64> {
    status_kib(pid, "RssAnon:")
}

fn status_kib(pid: u32, name: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    let line = status.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .with_context(|| format!("no {name}"))
}

/// One process, as `/proc/<pid>/stat` shows it.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) is_zombie: bool,
}

/// All processes.
pub(crate) fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let stats = entries.flatten().map(|entry| entry.path().join("stat"));
    stats.filter_map(|stat| read_process(&stat)).collect()
}

fn read_process(file: &Path) -> Option<Process> {
    let text = std::fs::read_to_string(file).ok()?;
    let (start, rest) = text.rsplit_once(')')?;
    let (pid, _name) = start.split_once(" (")?;
    let mut fields = rest.split_whitespace();
    Some(Process {
        pid: pid.parse().ok()?,
        is_zombie: fields.next()? == "Z",
        parent: fields.next()?.parse().ok()?,
    })
}

/// All processes that descend from `root`, zombies included.
pub(crate) fn descendants(root: u32) -> Vec<Process> {
    let all = processes();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            parents.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

/// Whether the process still exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    read_process(Path::new(&format!("/proc/{pid}/stat"))).is_some_and(|p| !p.is_zombie)
}

/// Live or dead, all processes one of whose arguments is `argument`.
pub(crate) fn with_argument(argument: &str) -> Vec<Process> {
    let carries = |process: &Process| {
        let file = format!("/proc/{}/cmdline", process.pid);
        let line = std::fs::read(file).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == argument.as_bytes())
    };
    let mut found = processes();
    found.retain(carries);
    found
}

/// The file that a live process runs.
pub(crate) fn program(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}
