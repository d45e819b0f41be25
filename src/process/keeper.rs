//! The life of one child after its start: its keeper writes the queue, drains standard error, notices the end, and ends
//! it by the ladder (SPEC D-04).

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, pidfd_open,
    test_kill_process_group, waitid, waitpgid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use super::guardian::Guardian;
use super::home_dirs::HomeDir;
use super::reap;
use super::state::ChildState;
use super::stderr::StderrReader;
use super::stdin_writer::StdinWriter;
use super::stop_reason::StopReason;
use crate::telemetry::metrics::COUNTERS;

/// How long a start may hold back others.
const START_WINDOW: Duration = Duration::from_secs(2);

/// Between two looks at a process or group that nothing announces the end of.
const LOOK: Duration = Duration::from_millis(10);

/// How long we wait for a group after SIGKILL; only the kernel can keep it longer.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// The waits of the stop ladder.
#[derive(Debug, Clone)]
pub(super) struct StopLadder {
    /// From closed standard input to SIGTERM.
    pub(super) eof: Duration,
    /// From SIGTERM to SIGKILL.
    pub(super) term: Duration,
    /// Cuts both waits short when the gateway ends.
    pub(super) hurry: StopHurry,
}

/// When the gateway ends, waits of stop ladders end early, so that it is gone in time.
#[derive(Debug, Clone, Default)]
pub(super) struct StopHurry {
    /// Children that were only asked to end are sent SIGTERM.
    pub(super) term: CancellationToken,
    /// Remaining processes are killed.
    pub(super) kill: CancellationToken,
}

/// Waits for `full`, or until there is no time left.
async fn wait(full: Duration, cut: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(full) => {}
        () = cut.cancelled() => {}
    }
}

/// Everything that ends with the child.
#[derive(Debug)]
pub(super) struct ChildKeeper {
    pub(super) state: Arc<ChildState>,
    pub(super) outbox: Arc<StdinWriter>,
    pub(super) stderr: StderrReader,
    pub(super) group: ProcessGroup,
    pub(super) ladder: StopLadder,
    /// An unused child is stopped after this.
    pub(super) idle: Duration,
    pub(super) home: HomeDir,
}

impl ChildKeeper {
    /// Keeps the child until it and its group have ended.
    pub(super) async fn run(mut self) {
        let state = Arc::clone(&self.state);
        let log = &state.log;
        let status = tokio::select! {
            status = self.group.last(&state, &self.outbox, &self.ladder) => status,
            () = serve(&state, &self.outbox, self.idle) => None,
            () = self.stderr.run(&state.upstream, log) => None,
        };
        self.stderr.finish(&state.upstream, log);
        self.outbox.abandon();
        state.ended(status);
        self.group.sweep(&self.ladder).await;
        // Dropped after the sweep: until then a process of the group may use the directory.
        drop(self.home);
    }
}

/// Serves a running child: its input, its start permit and its idle stop. Never ends.
async fn serve(state: &ChildState, outbox: &StdinWriter, idle: Duration) {
    tokio::join!(
        write(state, outbox),
        free_start(state),
        stop_idle(state, idle)
    );
    std::future::pending::<()>().await;
}

/// Writes the queue, and stops a child that closes its input before it: no other message may come to notice that.
async fn write(state: &ChildState, outbox: &StdinWriter) {
    outbox.pump().await;
    state.stop(StopReason::ClosedInput);
}

async fn free_start(state: &ChildState) {
    tokio::time::sleep(START_WINDOW).await;
    state.start_took_long();
}

async fn stop_idle(state: &ChildState, idle: Duration) {
    loop {
        let due = state.uses.last_used() + idle;
        if due > tokio::time::Instant::now() {
            tokio::time::sleep_until(due).await;
        } else if state.is_idle() && !state.uses.is_held() {
            return state.stop(StopReason::Idle);
        } else {
            tokio::time::sleep(idle).await;
        }
    }
}

/// A child and the process group it leads. Dropped early, the group is killed.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    child: Child,
    id: Pid,
    guardian: Arc<Guardian>,
    /// Readable when the leader has ended; `None` on kernels without pidfd.
    end: Option<AsyncFd<OwnedFd>>,
    is_reaped: bool,
    is_swept: bool,
}

impl ProcessGroup {
    /// Takes over a started child that leads its own group.
    ///
    /// # Errors
    /// The runtime cannot watch it; the group is killed then.
    pub(super) fn new(child: Child, guardian: Arc<Guardian>) -> io::Result<Self> {
        let id = Pid::from_child(&child);
        let mut group = Self {
            child,
            id,
            guardian,
            end: None,
            is_reaped: false,
            is_swept: false,
        };
        if let Ok(end) = pidfd_open(id, PidfdFlags::empty()) {
            #[expect(
                deprecated,
                reason = "sound for an `OwnedFd`; its successor is unsafe to call"
            )]
            let end = AsyncFd::with_interest(end, Interest::READABLE)?;
            group.end = Some(end);
        }
        Ok(group)
    }

    /// Waits for the leader's end, helping it along once the child is to be stopped, and reaps it.
    async fn last(
        &mut self,
        state: &ChildState,
        outbox: &StdinWriter,
        ladder: &StopLadder,
    ) -> Option<ExitStatus> {
        tokio::select! {
            () = self.ended() => {}
            () = self.climb(state, outbox, ladder) => {}
        }
        // The leader is dead, so `wait` returns at once.
        let status = self.child.wait().ok();
        self.is_reaped = true;
        reap::forget(self.child.id());
        status
    }

    // Spec: SPEC D-04
    async fn climb(&self, state: &ChildState, outbox: &StdinWriter, ladder: &StopLadder) {
        state.closed().cancelled().await;
        outbox.close();
        // A child that never spoke may not read its input yet, and would not see the end of it.
        if state.has_spoken() || state.ends_by_itself() {
            wait(ladder.eof, &ladder.hurry.term).await;
        }
        state.lingers();
        self.signal(Signal::TERM);
        wait(ladder.term, &ladder.hurry.kill).await;
        self.signal(Signal::KILL);
        COUNTERS.children_killed.add(1);
        self.ended().await;
    }

    /// Resolves when the leader has ended; does not reap it.
    async fn ended(&self) {
        if let Some(end) = &self.end
            && end.readable().await.is_ok()
        {
            return;
        }
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Ok(None) = waitid(WaitId::Pid(self.id), look) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends the processes that the leader left behind: SIGTERM, a wait, SIGKILL.
    async fn sweep(&mut self, ladder: &StopLadder) {
        let never = CancellationToken::new();
        for (signal, limit, cut) in [
            (Signal::TERM, ladder.term, &ladder.hurry.kill),
            (Signal::KILL, KILL_WAIT, &never),
        ] {
            if self.is_empty() {
                break;
            }
            self.signal(signal);
            let emptied = async {
                while !self.is_empty() {
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::select! {
                () = emptied => break,
                () = wait(limit, cut) => {}
            }
        }
        self.is_swept = true;
        self.guardian.release(self.id.as_raw_pid());
    }

    /// Whether the group has no members left; reaps members that the gateway adopted.
    fn is_empty(&self) -> bool {
        while let Ok(Some(_)) = waitpgid(self.id, WaitOptions::NOHANG) {}
        test_kill_process_group(self.id).is_err()
    }

    fn signal(&self, signal: Signal) {
        // The only error is `ESRCH`: the group is empty.
        let _ = kill_process_group(self.id, signal);
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if !self.is_swept {
            self.signal(Signal::KILL);
            self.guardian.release(self.id.as_raw_pid());
        }
        if !self.is_reaped {
            // The launcher reaps it with the orphans.
            reap::forget(self.child.id());
        }
    }
}
