//! The guardian: a second process that outlives the gateway just long enough to end its children.
//!
//! A parent-death signal reaches the children themselves, not what they started. So every process
//! group is announced to the guardian over a pipe; when the pipe closes, however the gateway
//! died, the guardian kills the groups that are left and ends.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::{Mutex, MutexGuard};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

use super::home_dirs::HomeDirs;
use super::{orphan_sweep, reap};

use crate::cause::chain;
use crate::lock::lock;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "guardian";

/// Longest line the gateway sends: a sign, a number, a line feed.
const MAX_LINE: u64 = 16;

/// Runs the hidden subcommand: reads group ids from standard input until it closes. The argument
/// is the directory that only descendants of the children carry in their environment.
///
/// Must be called before any other thread exists.
#[must_use]
pub fn guardian(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    // A signal to the gateway's group, or a terminal's hang-up, must not reach us. The handlers
    // stay installed for the life of the process; the streams are never read.
    let _ = rustix::process::setsid();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
    else {
        return ExitCode::FAILURE;
    };
    let entered = runtime.enter();
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ] {
        drop(signal(kind));
    }
    drop(entered);
    for group in watch(io::stdin().lock())
        .into_iter()
        .filter_map(Pid::from_raw)
    {
        let _ = kill_process_group(group, Signal::KILL);
    }
    if let Some(root) = args
        .next()
        .map(PathBuf::from)
        .filter(|root| root.is_absolute())
    {
        orphan_sweep::kill_all(&root);
    }
    ExitCode::SUCCESS
}

/// The groups still announced when `input` ends.
fn watch(mut input: impl io::BufRead) -> BTreeSet<i32> {
    let mut groups = BTreeSet::new();
    let mut line = String::new();
    loop {
        line.clear();
        match (&mut input).take(MAX_LINE).read_line(&mut line) {
            Ok(0) | Err(_) => return groups,
            Ok(_) => {}
        }
        let (sign, number) = line.trim_end().split_at_checked(1).unwrap_or_default();
        let Some(group) = number.parse().ok().filter(|group| *group > 1) else {
            continue;
        };
        match sign {
            "+" => drop(groups.insert(group)),
            "-" => drop(groups.remove(&group)),
            _ => {}
        }
    }
}

/// The gateway's end of the pipe.
#[derive(Debug)]
pub(super) struct Guardian {
    program: GuardianProgram,
    link: Mutex<GuardianPipe>,
}

#[derive(Debug)]
struct GuardianProgram {
    exe: PathBuf,
    root: PathBuf,
    lock: File,
}

#[derive(Debug)]
struct GuardianPipe {
    process: Option<(Child, ChildStdin)>,
    groups: BTreeSet<i32>,
}

impl Guardian {
    /// Starts the guardian process from the program `exe`; strays are recognised by the root of `homes`.
    pub(super) fn start(exe: &Path, homes: &HomeDirs) -> io::Result<Self> {
        let mut link = GuardianPipe {
            process: None,
            groups: BTreeSet::new(),
        };
        let program = GuardianProgram {
            exe: exe.to_owned(),
            root: homes.root().to_owned(),
            lock: homes.lock()?,
        };
        link.revive(&program)?;
        Ok(Self {
            program,
            link: Mutex::new(link),
        })
    }

    /// Announces the group `id`, which from now on dies with the gateway.
    pub(super) fn watch(&self, id: i32) {
        let mut link = self.link();
        link.groups.insert(id);
        link.tell(&self.program, '+', id);
    }

    /// Releases the group `id`, which is gone: its number may be reused for an unrelated group.
    pub(super) fn release(&self, id: i32) {
        let mut link = self.link();
        if link.groups.remove(&id) {
            link.tell(&self.program, '-', id);
        }
    }

    /// Replaces a guardian that died; returns whether any group is announced.
    pub(super) fn check(&self) -> bool {
        let mut link = self.link();
        let lost = match &mut link.process {
            Some((child, _)) => !matches!(child.try_wait(), Ok(None)),
            None => true,
        };
        if lost {
            link.replace(&self.program);
        }
        !link.groups.is_empty()
    }

    /// The pid of the guardian process, if it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.link().process.as_ref().map(|(child, _)| child.id())
    }

    fn link(&self) -> MutexGuard<'_, GuardianPipe> {
        lock(&self.link)
    }
}

impl GuardianPipe {
    /// Sends one line; a guardian that cannot take it is replaced, and the new process gets every group.
    fn tell(&mut self, program: &GuardianProgram, sign: char, id: i32) {
        let sent = match &mut self.process {
            Some((_, pipe)) => pipe.write_all(format!("{sign}{id}\n").as_bytes()).is_ok(),
            None => false,
        };
        if !sent {
            self.replace(program);
        }
    }

    fn replace(&mut self, program: &GuardianProgram) {
        self.end();
        if let Err(error) = self.revive(program) {
            tracing::error!(
                error = chain(&error),
                "the guardian of stdio children cannot be restarted"
            );
        }
    }

    /// Ends the process without letting it believe that the gateway died.
    fn end(&mut self) {
        if let Some((mut child, pipe)) = self.process.take() {
            drop(child.kill());
            drop(child.wait());
            reap::forget(child.id());
            drop(pipe);
        }
    }

    fn revive(&mut self, program: &GuardianProgram) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "the guardian of crate::process")]
        let mut command = Command::new(&program.exe);
        command
            .arg0("drawbridge")
            .arg(SUBCOMMAND)
            .arg(&program.root)
            .env_clear()
            .current_dir("/")
            .process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(program.lock.try_clone()?)
            .stderr(Stdio::null());
        let mut child = reap::spawn(&mut command)?;
        let mut pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let tell = |id| pipe.write_all(format!("+{id}\n").as_bytes());
        // A stopped guardian must not stop us: a full pipe counts as a lost guardian.
        let told = self
            .groups
            .iter()
            .try_for_each(tell)
            .and_then(|()| Ok(rustix::io::ioctl_fionbio(&pipe, true)?));
        self.process = Some((child, pipe));
        told
    }
}

impl Drop for GuardianPipe {
    fn drop(&mut self) {
        if let Some((mut child, pipe)) = self.process.take() {
            drop(pipe);
            drop(child.wait());
            reap::forget(child.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(input: &str) -> Vec<i32> {
        watch(input.as_bytes()).into_iter().collect()
    }

    #[test]
    fn only_groups_that_were_not_released_are_left() {
        assert_eq!(left("+10\n+20\n-10\n+30\n"), [20, 30]);
    }

    #[test]
    fn garbage_never_names_a_group() {
        assert_eq!(left("+0\n+1\n+-5\n\n+\nx9\n10\n+é\n+7"), [7]);
    }
}
