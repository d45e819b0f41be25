//! `check --online`: the parts of a gateway without its ports, and one look at every issuer, upstream and store through them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::{AssembledApp, asked_stores, assemble};
use crate::auth::accepts_issuer;
use crate::clock::{Clock, SystemClock};
use crate::config::{self, CarrierConfig, Config, ConfigDoubt};
use crate::connect;
use crate::descriptors;
use crate::endpoint::{self, Endpoint};
use crate::fault::Fault;
use crate::process::{self, HostEnvironment};
use crate::protocol::methods::ListKind;
use crate::runtime::lifecycle::{ProcessSignals, TaskSpawner};
use crate::runtime::workers;
use crate::status::{
    AskedLogin, AskedOnce, AskedStore, AskedUpstream, UpstreamState, UpstreamStatus,
};
use crate::telemetry;

/// For the lists of an upstream, on top of its `connect_timeout`.
const LISTS: Duration = Duration::from_secs(8);
/// Upstreams that are asked at the same time.
const AT_ONCE: usize = 64;
/// From the last answer to the end of all sessions and children.
const END: Duration = Duration::from_secs(2);
/// Of [`END`], for sessions to end politely.
const SESSIONS: Duration = Duration::from_millis(700);
/// From a signal to the end of all sessions and children.
const END_AT_ONCE: Duration = Duration::from_millis(900);

/// The outcome of the question.
#[derive(Debug)]
pub enum ProbeOutcome {
    /// Everything was asked.
    Asked(AskedOnce),
    /// This signal came first.
    Stopped(&'static str),
}

/// Lengths of the lists of one upstream, or why there are none.
type ListLengths = Result<Vec<(ListKind, usize)>, Fault>;

/// The answers of all upstreams and issuers.
struct CheckAnswers {
    listed: HashMap<Arc<str>, ListLengths>,
    logins: Vec<AskedLogin>,
    stores: Vec<AskedStore>,
    doubts: Vec<ConfigDoubt>,
}

/// Loads the keys of every issuer, and opens and lists every upstream, each once and as `serve` does; binds no port.
/// No child of ours is left when this returns. With `lines`, log lines go to standard error.
///
/// Takes 10 s more than the longest `connect_timeout`; where more stdio upstreams than may start at once hang, that
/// long for each batch of them. SIGINT and SIGTERM end it within a second.
///
/// # Errors
/// The parts of a gateway cannot be made: there is no guardian process, for instance.
pub fn ask(config: Config, lines: bool) -> anyhow::Result<ProbeOutcome> {
    process::hide_memory().context("memory cannot be hidden")?;
    let settings = &config.telemetry;
    let lines = lines.then(|| telemetry::setup::lines_to_stderr(settings));
    let lines = lines.transpose().context("log lines")?;
    let host = HostEnvironment {
        descriptors: descriptors::raise().inherited,
        ..HostEnvironment::current()
    };
    let runtime = workers::alone().context("the runtime cannot be started")?;
    let outcome = runtime.block_on(Box::pin(look(config, host)));
    // A name that is being resolved occupies a thread that cannot be interrupted.
    runtime.shutdown_background();
    drop(lines);
    outcome
}

async fn look(config: Config, host: HostEnvironment) -> anyhow::Result<ProbeOutcome> {
    let mut signals = ProcessSignals::install().context("signal handlers")?;
    let tasks = TaskSpawner::new();
    let config = Arc::new(config);
    let endpoints: Vec<_> = endpoint::endpoints(&config)
        .into_iter()
        .map(Arc::new)
        .collect();
    let parts = assemble(&config, (host, None, None), &endpoints, &tasks)?;
    let look = ProbeContext {
        config,
        endpoints,
        parts,
    };
    let found = tokio::select! {
        found = Box::pin(look.all()) => Ok(found),
        signal = signals.next() => Err(signal),
    };
    let (end, sessions) = match found {
        Ok(_) => (END, SESSIONS),
        Err(_) => (END_AT_ONCE, Duration::ZERO),
    };
    let by = Instant::now() + end;
    tasks.shut_down(sessions).await;
    look.parts.sessions.close_all(sessions).await;
    look.parts.upstreams.shut_down(by).await;
    Ok(match found {
        Ok(found) => ProbeOutcome::Asked(look.report(found)),
        Err(signal) => ProbeOutcome::Stopped(signal),
    })
}

/// The parts of the gateway that are asked through.
struct ProbeContext {
    config: Arc<Config>,
    endpoints: Vec<Arc<Endpoint>>,
    parts: AssembledApp,
}

impl ProbeContext {
    /// Asks all issuers and upstreams concurrently, within the limits on sessions and children.
    async fn all(&self) -> CheckAnswers {
        let limits = &self.config.sessions;
        let sessions = AT_ONCE.min(limits.max_per_principal).min(limits.max_total);
        let sessions = &Semaphore::new(sessions.max(1));
        let children = &Semaphore::new(self.parts.upstreams.children_at_once());
        let upstreams = self.config.upstreams.iter().map(|upstream| async move {
            // The place for a child first: a session is never held while waiting for one.
            let _child = match upstream.carrier {
                CarrierConfig::Stdio(_) => children.acquire().await.ok(),
                CarrierConfig::Http(_) => None,
            };
            let _session = sessions.acquire().await;
            let name = Arc::from(upstream.name.as_str());
            let listed = self.one(upstream, &name).await;
            (name, listed)
        });
        let issuers = self.parts.service.auth.ask_issuers();
        let logins = connect::ask_logins(&self.config);
        let stores = asked_stores::ask(&self.config);
        let (listed, (), (logins, mut doubts), (stores, doubt)) =
            tokio::join!(join_all(upstreams), issuers, logins, stores);
        doubts.extend(doubt);
        CheckAnswers {
            listed: listed.into_iter().collect(),
            logins,
            stores,
            doubts,
        }
    }

    async fn one(&self, upstream: &config::UpstreamConfig, name: &Arc<str>) -> ListLengths {
        let limit = upstream.connect_timeout + LISTS;
        let by = Instant::now() + limit;
        if is_of_callers(upstream) {
            // What it lists is a caller's, and no caller is here.
            let upstreams = &self.parts.upstreams;
            let issuers = self.issuers_at(name);
            tokio::join!(
                upstreams.look_once(name),
                upstreams.look_up_account(name, &issuers)
            );
            return Ok(Vec::new());
        }
        let endpoint = self.endpoint_of(name);
        let listing = self.parts.service.relay.list_alone(&endpoint, name, limit);
        let listed = Box::pin(listing).await;
        if listed.is_err() {
            // A cause without the issuer's name is a cause as well.
            drop(timeout_at(by, self.parts.upstreams.name_issuer(name)).await);
        }
        listed
    }

    /// Whether the upstream is started for each caller, with the caller's token.
    fn has_children_of_callers(&self, name: &str) -> bool {
        let mut upstreams = self.config.upstreams.iter();
        let found = upstreams.find(|one| one.name == name);
        found.is_some_and(|one| one.carrier.is_stdio() && is_of_callers(one))
    }

    /// The issuers whose tokens callers of the upstream may have.
    fn issuers_at(&self, name: &Arc<str>) -> Vec<String> {
        let shows = |endpoint: &&Arc<Endpoint>| endpoint.upstreams.contains(name);
        let endpoints: Vec<_> = self.endpoints.iter().filter(shows).collect();
        let issuers = self.config.auth.issuers.iter().map(|issuer| &issuer.issuer);
        let is_taken = |issuer: &&String| {
            endpoints
                .iter()
                .any(|endpoint| accepts_issuer(endpoint, issuer))
        };
        issuers.filter(is_taken).cloned().collect()
    }

    /// An endpoint that shows the upstream; where none does, an endpoint without a URL.
    fn endpoint_of(&self, name: &Arc<str>) -> Arc<Endpoint> {
        let shows = |endpoint: &&Arc<Endpoint>| endpoint.upstreams.contains(name);
        let found = self.endpoints.iter().find(shows).map(Arc::clone);
        found.unwrap_or_else(|| Arc::new(Endpoint::unreachable(name)))
    }

    fn report(&self, found: CheckAnswers) -> AskedOnce {
        let CheckAnswers {
            mut listed,
            logins,
            stores,
            doubts,
        } = found;
        let upstreams = self.parts.upstreams.status(SystemClock.now(), None);
        let upstreams = upstreams.into_iter().map(|mut status| {
            let (mut lengths, mut is_unopened) = (Vec::new(), false);
            match listed.remove(&*status.name) {
                Some(Ok(listed)) => {
                    lengths = listed;
                    is_unopened = self.has_children_of_callers(&status.name);
                }
                Some(Err(fault)) => self.note_failure(&mut status, &fault),
                None => {}
            }
            AskedUpstream {
                status,
                lists: lengths.into_iter().map(entry).collect(),
                is_unopened,
            }
        });
        AskedOnce {
            issuers: self.parts.service.auth.status(),
            upstreams: upstreams.collect(),
            logins,
            stores,
            doubts,
        }
    }

    /// Notes a failure: a second attempt, after which the health of the upstream would say `down`, is not made.
    fn note_failure(&self, status: &mut UpstreamStatus, fault: &Fault) {
        status.state = match status.state {
            UpstreamState::Up => UpstreamState::Degraded,
            UpstreamState::Connecting | UpstreamState::Degraded | UpstreamState::Down => {
                UpstreamState::Down
            }
        };
        if status.cause.is_none() {
            let cause = self.parts.upstreams.cause_of(&status.name, fault);
            status.cause = cause.map(Into::into);
        }
    }
}

fn is_of_callers(upstream: &config::UpstreamConfig) -> bool {
    let auth = upstream.auth.as_ref();
    auth.is_some_and(|auth| auth.kind().is_of_callers())
}

fn entry((kind, length): (ListKind, usize)) -> (String, u64) {
    (kind.member().to_owned(), length as u64)
}
