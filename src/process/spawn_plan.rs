//! Assembly of one child: its command, and the parts around its process.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tokio::net::unix::pipe;

use super::admission::ChildSlot;
use super::child::StdioConnection;
use super::environment::{self, ChildConfig};
use super::exec_child::ExecPlan;
use super::home_dirs::HomeDir;
use super::isolation::ChildIsolation;
use super::keeper::{ChildKeeper, ProcessGroup, StopLadder};
use super::launcher::LaunchedProcess;
use super::start_limiter::StartPermit;
use super::state::{ChildParams, ChildState};
use super::stderr::{StderrLog, StderrReader};
use super::stdin_writer::StdinWriter;
use super::stdout_reader::StdoutReader;
use super::stop_reason::StopReason;
use super::supervisor::StdioRuntime;
use crate::call::OwnerKey;
use crate::telemetry::metrics::{GAUGES, GaugeGuard, LoadGuard, UpstreamLoad};

impl StdioRuntime {
    /// The helper that will become the child.
    pub(super) fn command(&self, config: ChildConfig<'_>, home: &HomeDir) -> io::Result<Command> {
        let carrier = config.carrier;
        let environment = environment::variables(&self.host.environment, config, home);
        let program = environment::find_program(&carrier.command, &environment)?;
        let plan = ExecPlan {
            parent: rustix::process::getpid().as_raw_pid(),
            cwd: carrier
                .cwd
                .clone()
                .unwrap_or_else(|| home.path().to_owned()),
            descriptors: self.host.descriptors,
            isolated: self.isolation == ChildIsolation::Isolated,
            rlimits: carrier
                .rlimits
                .iter()
                .map(|(name, value)| (name.clone(), *value))
                .collect(),
            command: std::iter::once(program)
                .chain(carrier.args.iter().map(Into::into))
                .collect(),
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that starts children"
        )]
        let mut command = Command::new(&self.host.exe);
        command
            .arg0("drawbridge")
            .args(plan.encode())
            .env_clear()
            .envs(environment);
        command.process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Assembles the connection and the keeper of a started child.
    pub(super) fn connect(
        &self,
        launched: LaunchedProcess,
        owner: OwnerKey,
        upstream: Arc<str>,
        config: ChildConfig<'_>,
        slot: ChildSlot,
        permit: StartPermit,
    ) -> io::Result<(StdioConnection, StdoutReader)> {
        let carrier = config.carrier;
        let pid = launched.child.id();
        let group = ProcessGroup::new(launched.child, Arc::clone(&self.guardian))?;
        let outbox = pipe::Sender::from_owned_fd(launched.stdin)?;
        let outbox = Arc::new(StdinWriter::new(outbox, self.max_message));
        let stdout = pipe::Receiver::from_owned_fd(launched.stdout)?;
        let stderr = StderrReader::new(pipe::Receiver::from_owned_fd(launched.stderr)?, pid);
        let log = StderrLog::new(
            environment::secrets(&self.host.environment, config),
            environment::paths(carrier, &launched.home),
        )
        .among(Arc::clone(permit.starts()));
        let backoff = Arc::clone(&self.backoff);
        let credential = backoff.mark(config.own.map(|(_, secret)| secret));
        let state = Arc::new(ChildState::new(ChildParams {
            upstream,
            owner,
            pid,
            log,
            backoff,
            credential,
            slots: Arc::clone(&self.slots),
            start_permit: permit,
        }));
        slot.settle(Arc::clone(&state));
        if self.ended.is_cancelled() {
            state.stop(StopReason::ShutDown);
        }
        let ladder = StopLadder {
            eof: carrier.stop_eof,
            term: carrier.stop_term,
            hurry: self.hurry.clone(),
        };
        let keeper = ChildKeeper {
            state: Arc::clone(&state),
            outbox: Arc::clone(&outbox),
            stderr,
            group,
            ladder,
            idle: self.settings.idle,
            home: launched.home,
        };
        let reaped = Arc::clone(&state);
        let load = UpstreamLoad::of(&state.upstream);
        self.keepers.spawn(async move {
            let end = EndOfChild {
                slot: Some(slot),
                state: reaped,
                _running: GAUGES.children_running.enter(),
                _of_upstream: load.child(),
            };
            keeper.run().await;
            drop(end);
        });
        let lines = StdoutReader::new(stdout, Arc::clone(&state), self.max_message);
        Ok((StdioConnection::new(state, outbox), lines))
    }
}

/// Frees the place and cancels `reaped`, even when the keeper is dropped unfinished.
struct EndOfChild {
    slot: Option<ChildSlot>,
    state: Arc<ChildState>,
    _running: GaugeGuard,
    _of_upstream: LoadGuard,
}

impl Drop for EndOfChild {
    fn drop(&mut self) {
        self.state.ended(None);
        self.slot = None;
        self.state.reaped().cancel();
    }
}
