//! All children of the gateway: opening one, ending all.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admission::{Admission, ChildSlot, ChildSlots, SlotRequest, WaitPolicy};
use super::backoff::{BackoffRefusal, CrashBackoff, CredentialMark};
use super::child::StdioConnection;
use super::child_lines::ChildEvent;
use super::environment::{self, ChildConfig, HostEnvironment};
use super::full::{ChildCap, NoChildSlot};
use super::guardian::Guardian;
use super::home_dirs::HomeDirs;
use super::isolation::ChildIsolation;
use super::keeper::StopHurry;
use super::launcher::ProcessLauncher;
use super::open_error::OpenError;
use super::reap;
use super::start_limiter::{StartLimiter, StartPermit};
use super::stdout_reader::StdoutReader;
use super::stop_reason::StopReason;
use crate::call::OwnerKey;
use crate::cause::chain;
use crate::config::{self, CarrierConfig};
use crate::process::holders::SessionHolders;
use crate::runtime::lifecycle::TaskSpawner;
use crate::secret::Secret;
use crate::telemetry::metrics::{GAUGES, LABELED};

/// A shorter wait is waited for instead of refused.
const SHORT_BACKOFF: Duration = Duration::from_secs(1);

/// Between two looks for children that were being started at the end.
const LOOK: Duration = Duration::from_millis(5);

/// Time that killing and reaping the last children may take.
const KILLING: Duration = Duration::from_millis(300);

/// Between two looks for crash series that are over.
const TIDY: Duration = Duration::from_secs(15);

/// Numbers of children, waiters and map entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildCounts {
    /// Children, including starting and ending ones.
    pub children: usize,
    /// Callers that wait for a place.
    pub waiting: usize,
    /// Entries in all maps that grow with children, principals or crashes.
    pub entries: usize,
}

/// All children of the gateway.
pub struct StdioRuntime {
    pub(super) host: HostEnvironment,
    pub(super) settings: config::StdioConfig,
    pub(super) max_message: usize,
    pub(super) isolation: ChildIsolation,
    /// Keeper tasks, apart from all others: they outlive the hard stop of the rest, so that children still end by the
    /// ladder.
    pub(super) keepers: TaskSpawner,
    homes: Arc<HomeDirs>,
    pub(super) slots: Arc<ChildSlots>,
    starts: Arc<StartLimiter>,
    pub(super) backoff: Arc<CrashBackoff>,
    pub(super) guardian: Arc<Guardian>,
    launcher: ProcessLauncher,
    /// Cancelled when no child may start any more.
    pub(super) ended: CancellationToken,
    pub(super) hurry: StopHurry,
}

impl fmt::Debug for StdioRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StdioRuntime").field(&self.counts()).finish()
    }
}

impl StdioRuntime {
    /// Starts the guardian process and the thread that starts children. Must be called within a
    /// Tokio runtime.
    ///
    /// # Errors
    /// No private directory can be made, or no process can be started.
    pub fn start(
        settings: &config::StdioConfig,
        limits: &config::LimitsConfig,
        host: HostEnvironment,
        tasks: &TaskSpawner,
    ) -> io::Result<Arc<Self>> {
        if let Err(error) = reap::adopt_orphans() {
            tracing::warn!(
                error = chain(&error),
                "orphans of stdio children cannot be adopted"
            );
        }
        let isolation = ChildIsolation::available(settings.trust_children);
        if let Some(complaint) = isolation.complaint() {
            tracing::warn!("{complaint}");
        }
        let homes = HomeDirs::open(&host.state_dirs)?;
        let guardian = Arc::new(Guardian::start(&host.exe, &homes)?);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let launcher = ProcessLauncher::start(
            Arc::clone(&guardian),
            Arc::clone(&homes),
            cores.saturating_mul(4),
        )?;
        let runtime = Arc::new(Self {
            homes,
            slots: ChildSlots::new(settings),
            starts: StartLimiter::new(cores),
            ended: CancellationToken::new(),
            hurry: StopHurry::default(),
            backoff: Arc::new(CrashBackoff::default()),
            guardian,
            launcher,
            settings: settings.clone(),
            max_message: limits.upstream_message,
            isolation,
            host,
            keepers: TaskSpawner::new(),
        });
        let backoff = Arc::downgrade(&runtime.backoff);
        tasks.spawn_service(async move {
            while let Some(backoff) = backoff.upgrade() {
                backoff.forget_old(Instant::now());
                drop(backoff);
                tokio::time::sleep(TIDY).await;
            }
        });
        Ok(runtime)
    }

    /// Starts a child of `upstream` for `owner` and the sessions that hold it, waiting for a place with this patience.
    /// `own` is a variable of this child alone, name and value, which logs and last words mask. The child counts as in use
    /// until its first message; afterwards, hold a [`BusyGuard`](super::BusyGuard) for the time of each request.
    ///
    /// # Errors
    /// See [`OpenError`]. A program that starts and ends at once is no error here: its lines end.
    ///
    /// # Cancel safety
    /// A child that was started meanwhile is stopped.
    pub async fn open(
        &self,
        owner: OwnerKey,
        upstream: &config::UpstreamConfig,
        patience: WaitPolicy,
        holders: &SessionHolders,
        own: Option<(&str, &Secret)>,
    ) -> Result<(StdioConnection, StdoutReader), OpenError> {
        let opened = self
            .try_open((owner, upstream), patience, holders, own)
            .await;
        if let Err(error) = &opened {
            LABELED.spawns_refused.add(error.reason(), 1);
        }
        opened
    }

    async fn try_open(
        &self,
        (owner, upstream): (OwnerKey, &config::UpstreamConfig),
        patience: WaitPolicy,
        holders: &SessionHolders,
        own: Option<(&str, &Secret)>,
    ) -> Result<(StdioConnection, StdoutReader), OpenError> {
        let CarrierConfig::Stdio(carrier) = &upstream.carrier else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        };
        let name: Arc<str> = upstream.name.as_str().into();
        let credential = self.backoff.mark(own.map(|(_, secret)| secret));
        self.back_off(owner, &name, credential).await?;
        let deadline = Instant::now() + self.settings.spawn_wait;
        let request = SlotRequest {
            owner,
            upstream: Arc::clone(&name),
            max_of_upstream: carrier.max_children,
            patience,
            holders: holders.clone(),
        };
        let (slot, permit) = tokio::select! {
            biased;
            () = self.ended.cancelled() => return Err(OpenError::Stopping),
            place = self.place(request, deadline) => place.map_err(|full| self.at_capacity(full))?,
        };
        let home = self.homes.home(owner, &name);
        let no_program = |error| OpenError::no_program(&carrier.command, error);
        let config = ChildConfig { carrier, own };
        let command = self.command(config, &home).map_err(no_program)?;
        if let Some(directory) = &carrier.cwd {
            environment::check_directory(directory).map_err(OpenError::NoDirectory)?;
        }
        let launched = self.launcher.launch(command, home).await?;
        LABELED.children_spawned.add(&name, 1);
        let has_failed = self.starts.has_failed(&name);
        let lines = &self.starts.lines;
        if !has_failed || lines.admit(&name, ChildEvent::Start).is_some() {
            tracing::info!(
                upstream = &*name, principal = %owner, pid = launched.child.id(),
                "started an upstream process"
            );
        }
        Ok(self.connect(launched, owner, name, config, slot, permit)?)
    }

    /// Starts no child any more, stops every one by its ladder and waits until all have ended:
    /// as long as the longest `stop` of an upstream, but not beyond `by`. Half of the time that is left
    /// until then is for children that end when their input does, most of the rest for those that
    /// need SIGTERM. Only the kernel can make it longer, by two seconds.
    ///
    /// # Cancel safety
    /// No child is started afterwards in any case, and running ones are stopped.
    pub async fn shut_down(&self, by: Instant) {
        self.ended.cancel();
        let now = Instant::now();
        let left = by.saturating_duration_since(now);
        let hurry = async {
            tokio::time::sleep_until(now + left / 2).await;
            self.hurry.term.cancel();
            tokio::time::sleep_until(now + left.saturating_sub(KILLING)).await;
            self.hurry.kill.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.stop_all() => {}
            () = hurry => {}
        }
    }

    async fn stop_all(&self) {
        loop {
            let children = self.slots.children();
            for child in &children {
                child.stop(StopReason::ShutDown);
            }
            for child in &children {
                child.reaped().cancelled().await;
            }
            if self.slots.counts().0 == 0 {
                return;
            }
            // A place without a child is a start under way, which fails on `ended`.
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The current numbers.
    #[must_use]
    pub fn counts(&self) -> ChildCounts {
        let (children, waiting) = self.slots.counts();
        let entries = self.slots.entries() + self.homes.in_use() + self.backoff.len();
        ChildCounts {
            children,
            waiting,
            entries,
        }
    }

    /// Children of one principal that can start at the same time: bounded by the processor and by the caps.
    pub(crate) fn starts_at_once(&self) -> usize {
        let settings = &self.settings;
        let most = settings
            .max_children
            .min(settings.max_children_per_principal);
        self.starts.at_once().min(most)
    }

    /// Whether its children can read what is in each other's environment.
    #[must_use]
    pub fn isolation(&self) -> ChildIsolation {
        self.isolation
    }

    /// The pid of the guardian process, if it runs.
    #[must_use]
    pub fn guardian_pid(&self) -> Option<u32> {
        self.guardian.pid()
    }

    async fn back_off(
        &self,
        owner: OwnerKey,
        upstream: &Arc<str>,
        credential: CredentialMark,
    ) -> Result<(), OpenError> {
        let check = || {
            self.backoff
                .check(owner, upstream, credential, Instant::now())
        };
        while let Some(BackoffRefusal { left, last_words }) = check() {
            if left > SHORT_BACKOFF {
                return Err(OpenError::Backoff {
                    retry_after: left,
                    last_words,
                });
            }
            tokio::time::sleep(left).await;
        }
        Ok(())
    }

    /// A place under the caps and leave to start, both before `deadline`.
    async fn place(
        &self,
        request: SlotRequest,
        deadline: Instant,
    ) -> Result<(ChildSlot, StartPermit), NoChildSlot> {
        let (owner, upstream) = (request.owner, Arc::clone(&request.upstream));
        let slot = match self.slots.take(request.clone()) {
            Admission::Taken(slot) => slot,
            Admission::Later(later) => {
                let _awaited = GAUGES.children_awaited.enter();
                let granted = tokio::time::timeout_at(deadline, later).await;
                let granted = granted.ok().and_then(Result::ok);
                granted.ok_or_else(|| self.slots.full(&request))?
            }
            Admission::Refused(full) => return Err(full),
        };
        let permit = self.starts.permit(owner, &upstream);
        let permit = tokio::time::timeout_at(deadline, permit).await;
        let cap = ChildCap::Starts;
        let permit = permit
            .ok()
            .flatten()
            .ok_or(NoChildSlot { cap, is_own: false })?;
        Ok((slot, permit))
    }

    fn at_capacity(&self, full: NoChildSlot) -> OpenError {
        let longest = Duration::from_secs(30);
        let retry_after = self
            .settings
            .spawn_wait
            .clamp(Duration::from_secs(1), longest);
        OpenError::AtCapacity { full, retry_after }
    }
}
