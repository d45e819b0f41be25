//! All that a hostile caller does at once, and for as long as it may.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, try_join_all};

use super::pace::Pace;
use super::{bodies, connections};
use crate::client::Caller;
use crate::outcome::Outcome;

/// How many of each attack are under way.
const NOTIFIERS: usize = 4;
const CALLS: usize = 60;
const HALF_BODIES: usize = 150;
const HALF_MESSAGES: usize = 60;
const STRANGERS: usize = 150;
const STREAMING: usize = 20;
const SILENT: usize = 1100;
/// After something was refused, closed or done.
const AGAIN: Duration = Duration::from_millis(200);
/// Between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// The endpoints that are attacked, with the hostile caller's tokens.
#[derive(Debug)]
pub(super) struct Victims {
    /// Before an HTTP upstream.
    pub(super) http: Caller,
    /// Before a stdio upstream.
    pub(super) stdio: Caller,
}

/// Counts of the hostile caller's outcomes, by kind.
#[derive(Debug, Default)]
pub(super) struct Done(BTreeMap<String, u64>);

impl Done {
    /// Notes everything as facts.
    pub(super) fn report(&self, outcome: &mut Outcome) {
        for (what, times) in &self.0 {
            outcome.fact(&format!("hostile_{what}"), *times);
        }
    }
}

/// What all attacks share: they run on one thread.
#[derive(Debug)]
pub(super) struct Field<'a> {
    pub(super) victims: &'a Victims,
    pace: Pace,
    done: RefCell<Done>,
}

impl Field<'_> {
    /// Notes that something was begun.
    pub(super) fn began(&self, what: &str) {
        *self.done.borrow_mut().0.entry(what.to_owned()).or_default() += 1;
    }

    /// Notes what became of something, then waits for its turn on the thread's half of a core.
    pub(super) async fn did(&self, what: &str, how: impl ToString) -> anyhow::Result<()> {
        self.began(&format!("{what}_{}", how.to_string()));
        tokio::time::sleep(AGAIN).await;
        self.pace.turn().await
    }
}

/// Starts an attack that runs until its future is dropped.
type Begin = for<'a> fn(&'a Field<'_>) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// Attacks until `stop`.
pub(super) fn run(victims: &Victims, stop: &AtomicBool) -> anyhow::Result<Done> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let field = Field {
        victims,
        pace: Pace::begin()?,
        done: RefCell::default(),
    };
    runtime.block_on(async {
        let kinds: [(usize, Begin); 8] = [
            (1, |field| Box::pin(bodies::stall_the_child(field))),
            (NOTIFIERS, |field| Box::pin(bodies::notify(field))),
            (CALLS, |field| Box::pin(bodies::hold_calls(field))),
            (HALF_BODIES, |field| Box::pin(bodies::half_bodies(field))),
            (HALF_MESSAGES, |field| {
                Box::pin(bodies::half_messages(field))
            }),
            (STRANGERS, |field| Box::pin(connections::refused(field))),
            (STREAMING, |field| Box::pin(connections::streams(field))),
            (SILENT, |field| Box::pin(connections::silent(field))),
        ];
        let attacks = kinds
            .iter()
            .flat_map(|(count, attack)| (0..*count).map(|_| attack(&field)));
        tokio::select! {
            ended = try_join_all(attacks) => ended.map(drop),
            () = stopped(stop) => Ok(()),
        }
    })?;
    Ok(field.done.take())
}

async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
}
