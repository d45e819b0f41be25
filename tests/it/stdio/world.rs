//! A runtime of children inside the test, and scripts to run in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drawbridge::call::{OwnerKey, Principal};
use drawbridge::config::{
    CarrierConfig, EraPin, HostedTaskLimits, Isolation, LimitsConfig, RateConfig, StdioCarrier,
    StdioConfig, UpstreamConfig,
};
use drawbridge::process::holders::SessionHolders;
use drawbridge::process::{
    HostEnvironment, OpenError, StdioConnection, StdioRuntime, StdoutReader, WaitPolicy,
};
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::secret::Secret;

use crate::harness::{eventually, within};

/// Largest message in these tests, bytes.
pub(super) const MAX_MESSAGE: usize = 64 * 1024;

/// A script that answers every line with itself.
pub(super) const ECHO: &str = "while IFS= read -r line; do printf '%s\\n' \"$line\"; done";

/// The runtime under test with its own state directory.
pub(super) struct World {
    pub(super) runtime: Arc<StdioRuntime>,
    pub(super) tasks: TaskSpawner,
    pub(super) state: PathBuf,
    directory: Option<tempfile::TempDir>,
}

impl World {
    /// Defaults of the configuration, short waits.
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    /// The same, with other settings.
    pub(super) fn with(change: impl FnOnce(&mut StdioConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut world = Self::at(&directory.path().join("state"), change);
        world.directory = Some(directory);
        world
    }

    /// The same in a directory owned by the caller.
    pub(super) fn at(state: &Path, change: impl FnOnce(&mut StdioConfig)) -> Self {
        let mut settings = StdioConfig {
            max_children: 256,
            max_children_per_principal: 64,
            idle: Duration::from_mins(10),
            spawn_wait: Duration::from_secs(10),
            trust_children: false,
        };
        change(&mut settings);
        let host = host(state);
        let tasks = TaskSpawner::new();
        let runtime = StdioRuntime::start(&settings, &limits(), host, &tasks).unwrap();
        Self {
            runtime,
            tasks,
            state: state.to_owned(),
            directory: None,
        }
    }

    /// A child of `upstream` for `who`.
    pub(super) async fn open(
        &self,
        who: &str,
        upstream: &UpstreamConfig,
    ) -> (StdioConnection, StdoutReader) {
        self.try_open(who, upstream).await.unwrap()
    }

    /// The same where it may be refused.
    pub(super) async fn try_open(
        &self,
        who: &str,
        upstream: &UpstreamConfig,
    ) -> Result<(StdioConnection, StdoutReader), OpenError> {
        within(
            "open",
            self.runtime.open(
                owner(who),
                upstream,
                WaitPolicy::SpawnWait,
                &SessionHolders::default(),
                None,
            ),
        )
        .await
    }

    /// Shuts the runtime down and checks that no child and no waiter is left.
    pub(super) async fn end(self) {
        within("shut down", self.runtime.shut_down(in_a_minute())).await;
        eventually("no entries", async || {
            let counts = self.runtime.counts();
            (counts.children == 0 && counts.waiting == 0).then_some(())
        })
        .await;
    }
}

/// A variable of the host's that children may inherit, and its value.
pub(super) const LENT: (&str, &str) = ("LENT", "what the operator lends to a child");

/// A host whose children live below `state`: with the environment of the test, and one variable more.
pub(super) fn host(state: &Path) -> HostEnvironment {
    let (name, value) = LENT;
    HostEnvironment {
        exe: env!("CARGO_BIN_EXE_drawbridge").into(),
        state_dirs: vec![state.to_owned()],
        environment: std::env::vars_os()
            .chain([(name.into(), value.into())])
            .collect(),
        descriptors: None,
    }
}

pub(super) fn limits() -> LimitsConfig {
    LimitsConfig {
        body: 4 << 20,
        bytes_per_principal: 128 << 20,
        bytes_total: 512 << 20,
        replies_per_principal: 128 << 20,
        replies_total: 512 << 20,
        headers: 16 << 10,
        upstream_message: MAX_MESSAGE,
        sse_event: 16 << 20,
        json_depth: 128,
        json_values: 524_288,
        batch: 50,
        streams_per_session: 8,
        subscriptions_per_session: 64,
        calls_per_session: 256,
        calls_per_principal: 1024,
        call_wait: Duration::from_secs(5),
        parked_per_principal: 16,
        parked_per_upstream: 5000,
        parked_total: 10000,
        tasks_per_session: 64,
        hosted_tasks: HostedTaskLimits {
            ttl: Duration::from_hours(1),
            results_per_principal: 16 << 20,
            results_total: 256 << 20,
        },
        tasks_per_subscription: 64,
        unread: 1 << 20,
        rate: RateConfig {
            count: 100,
            per: Duration::from_secs(1),
        },
    }
}

/// The key of a principal of that name.
pub(super) fn owner(name: &str) -> OwnerKey {
    Principal::new("https://issuer.example", name, "", Vec::new(), None).owner()
}

/// An upstream that runs `script` with `sh`.
pub(super) fn sh(script: &str) -> UpstreamConfig {
    upstream("sh", &["-c", script])
}

/// An upstream that runs `script` with `python3`.
pub(super) fn python(script: &str) -> UpstreamConfig {
    upstream("python3", &["-u", "-c", script])
}

/// An upstream that runs a program, with a short stop ladder.
pub(super) fn upstream(command: &str, args: &[&str]) -> UpstreamConfig {
    UpstreamConfig {
        name: "up".to_owned(),
        auth: None,
        carrier: CarrierConfig::Stdio(StdioCarrier {
            command: command.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            cwd: None,
            env: BTreeMap::new(),
            inherit: Vec::new(),
            rlimits: BTreeMap::new(),
            stop_eof: Duration::from_millis(300),
            stop_term: Duration::from_millis(300),
            max_children: 128,
        }),
        isolation: Isolation::Session,
        era: EraPin::Auto,
        era_recheck: Duration::from_hours(1),
        merged: true,
        direct: true,
        required_scopes: Vec::new(),
        login_scopes: Vec::new(),
        audiences: Vec::new(),
        connect_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_mins(1),
        total_timeout: Duration::from_mins(30),
        ask_timeout: Duration::from_mins(10),
        ask_wait: Duration::from_secs(2),
        open_questions: 64,
        restartable: false,
        retry_safe: Vec::new(),
        run_tasks: true,
        list_changed: true,
    }
}

/// `upstream` with its carrier changed.
pub(super) fn tuned(
    mut upstream: UpstreamConfig,
    change: impl FnOnce(&mut StdioCarrier),
) -> UpstreamConfig {
    let CarrierConfig::Stdio(carrier) = &mut upstream.carrier else {
        panic!("a stdio upstream")
    };
    change(carrier);
    upstream
}

/// `upstream` with a variable set.
pub(super) fn with_env(upstream: UpstreamConfig, name: &str, value: &str) -> UpstreamConfig {
    tuned(upstream, |carrier| {
        carrier.env.insert(name.to_owned(), Secret::new(value));
    })
}

/// The same with a variable of our own.
pub(super) fn with_inherited(upstream: UpstreamConfig, name: &str) -> UpstreamConfig {
    tuned(upstream, |carrier| carrier.inherit.push(name.to_owned()))
}

/// The next line as text.
pub(super) async fn next(lines: &mut StdoutReader) -> Option<String> {
    let line = within("a line", lines.next()).await?;
    Some(String::from_utf8(line.to_vec()).unwrap())
}

/// Sends `text`.
pub(super) async fn send(connection: &StdioConnection, text: &str) {
    let message = Bytes::copy_from_slice(text.as_bytes());
    within("send", connection.send(message)).await.unwrap();
}

/// Whether a process exists that is more than a zombie.
pub(super) fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| !rest.starts_with(" Z"))
    })
}

/// Whether a process exists at all, as a zombie perhaps.
pub(super) fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// A deadline that no test reaches.
pub(super) fn in_a_minute() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_mins(1)
}
