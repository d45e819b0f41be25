//! The one thread that starts processes.
//!
//! A parent-death signal is tied to the *thread* that started the child: a runtime's worker may
//! end, this thread lives as long as the runtime of children does. Between orders it looks after
//! orphans and the guardian.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::oneshot;

use super::guardian::Guardian;
use super::home_dirs::{HomeDir, HomeDirs};
use super::{orphan_sweep, reap};

/// Between two looks at orphans and the guardian, while there is something to look after.
const ROUND: Duration = Duration::from_secs(1);

/// Rounds after the last sign of life before the thread sleeps until the next order.
const QUIET_ROUNDS: u32 = 3;

/// A started process with our ends of its pipes.
#[derive(Debug)]
pub(super) struct LaunchedProcess {
    pub(super) child: Child,
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) home: HomeDir,
}

struct LaunchOrder {
    command: Command,
    home: HomeDir,
    reply: oneshot::Sender<io::Result<LaunchedProcess>>,
}

/// A handle to the thread; the thread ends with the last handle.
#[derive(Debug, Clone)]
pub(super) struct ProcessLauncher(SyncSender<LaunchOrder>);

impl ProcessLauncher {
    /// Starts the thread; at most `queue` orders wait for it.
    pub(super) fn start(
        guardian: Arc<Guardian>,
        homes: Arc<HomeDirs>,
        queue: usize,
    ) -> io::Result<Self> {
        let (orders, inbox) = sync_channel(queue);
        std::thread::Builder::new()
            .name("stdio-launcher".to_owned())
            .spawn(move || serve(&inbox, &guardian, &homes))?;
        Ok(Self(orders))
    }

    /// Creates the directories of `home`, starts `command` and announces it to the guardian.
    ///
    /// # Errors
    /// Errors of the system; `WouldBlock` when too many orders wait.
    ///
    /// # Cancel safety
    /// A process whose order was dropped is ended by the launcher.
    pub(super) async fn launch(
        &self,
        command: Command,
        home: HomeDir,
    ) -> io::Result<LaunchedProcess> {
        let (reply, launched) = oneshot::channel();
        self.0
            .try_send(LaunchOrder {
                command,
                home,
                reply,
            })
            .map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        launched
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?
    }
}

fn serve(inbox: &Receiver<LaunchOrder>, guardian: &Guardian, homes: &HomeDirs) {
    let mut quiet = 0;
    loop {
        let order = if quiet < QUIET_ROUNDS {
            inbox.recv_timeout(ROUND)
        } else {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match order {
            Ok(order) => {
                quiet = 0;
                let launched = launch(order.command, order.home, guardian);
                if let Err(Ok(unwanted)) = order.reply.send(launched) {
                    discard(unwanted, guardian);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let orphans = reap::orphans();
                end_strays(&orphans, homes);
                let is_guarding = guardian.check();
                quiet = if is_guarding || !orphans.is_empty() {
                    0
                } else {
                    quiet + 1
                };
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn launch(mut command: Command, home: HomeDir, guardian: &Guardian) -> io::Result<LaunchedProcess> {
    home.create()?;
    let mut child = reap::spawn(&mut command)?;
    guardian.watch(group_of(&child));
    let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
    Ok(LaunchedProcess {
        stdin: child.stdin.take().ok_or_else(missing)?.into(),
        stdout: child.stdout.take().ok_or_else(missing)?.into(),
        stderr: child.stderr.take().ok_or_else(missing)?.into(),
        child,
        home,
    })
}

/// Ends orphans that outlived the child they came from by leaving its group.
fn end_strays(orphans: &[u32], homes: &HomeDirs) {
    for pid in orphans {
        let marks = orphan_sweep::marks(*pid, homes.root());
        if !marks.is_empty() && !homes.are_used(&marks) {
            tracing::warn!(
                pid,
                "ended a process that left its upstream's process group"
            );
            orphan_sweep::kill(*pid);
        }
    }
}

/// The process group that a child leads.
pub(super) fn group_of(child: &Child) -> i32 {
    child.id().cast_signed()
}

/// Kills a child whose order was dropped.
fn discard(mut unwanted: LaunchedProcess, guardian: &Guardian) {
    if let Some(group) = Pid::from_raw(group_of(&unwanted.child)) {
        // The only error is `ESRCH`: the group is empty.
        let _ = kill_process_group(group, Signal::KILL);
    }
    drop(unwanted.child.wait());
    reap::forget(unwanted.child.id());
    guardian.release(group_of(&unwanted.child));
}
