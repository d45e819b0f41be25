//! `CallsUnderWay`: the calls of a task that writes behind, sent in rounds. A round waits for its calls a moment only,
//! so that one slow shard of the store does not hold up the others.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, Sleep, sleep};

use super::scripts::{ScriptCall, ScriptResult, ScriptRunner};

/// How long a round waits for its calls. Later ones go on beside the next rounds.
const ROUND: Duration = Duration::from_millis(20);
/// Pieces of work of one round at most.
const OF_ROUND: usize = 256;
/// Pieces of work under way at once, those of former rounds included.
const UNDER_WAY: usize = 1024;

/// Where the work of one session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkStage {
    /// There is none, or it waits after a failed call.
    Idle,
    /// It stands in the list of its task.
    Listed,
    /// A call has it.
    UnderWay,
}

/// Calls without a result yet. Each piece of work `W` has one call or several, which are settled together.
pub(super) struct CallsUnderWay<'a, W> {
    store: &'a dyn ScriptRunner,
    calls: FuturesUnordered<BoxFuture<'a, EndedCalls<W>>>,
    /// Number of the present round.
    round: u64,
    /// Pieces of work that the present round waits for.
    open: usize,
    end_of_round: Pin<Box<Sleep>>,
}

struct EndedCalls<W> {
    round: u64,
    work: W,
    results: Vec<ScriptResult>,
}

impl<'a, W: Send + 'a> CallsUnderWay<'a, W> {
    /// None yet.
    pub(super) fn new(store: &'a dyn ScriptRunner) -> Self {
        Self {
            store,
            calls: FuturesUnordered::new(),
            round: 0,
            open: 0,
            end_of_round: Box::pin(sleep(ROUND)),
        }
    }

    /// Begins a round once the present one is over; `false` before.
    pub(super) fn begin_round(&mut self) -> bool {
        let is_over = self.open == 0;
        self.round += u64::from(is_over);
        is_over
    }

    /// Whether one more piece of work may be sent in this round.
    pub(super) fn has_room(&self) -> bool {
        self.open < OF_ROUND && self.calls.len() < UNDER_WAY
    }

    /// Whether no call is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Sends the calls of a piece of work.
    pub(super) fn send(&mut self, work: W, calls: Vec<ScriptCall>) {
        if self.open == 0 {
            self.end_of_round.as_mut().reset(Instant::now() + ROUND);
        }
        self.open += 1;
        let (store, round) = (self.store, self.round);
        self.calls.push(Box::pin(async move {
            let results = store.run(calls).await;
            EndedCalls {
                round,
                work,
                results,
            }
        }));
    }

    /// Waits for the results of a piece of work; `None` once the round is over and `more` is ready: the next round may
    /// begin.
    ///
    /// # Cancel safety
    /// No result is lost.
    pub(super) async fn next(
        &mut self,
        more: impl Future<Output = ()>,
    ) -> Option<(W, Vec<ScriptResult>)> {
        let is_round_over = self.open == 0;
        tokio::select! {
            biased;
            Some(ended) = self.calls.next() => {
                self.open -= usize::from(ended.round == self.round && !is_round_over);
                Some((ended.work, ended.results))
            }
            () = more, if is_round_over => None,
            () = self.end_of_round.as_mut(), if !is_round_over => {
                self.open = 0;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;

    use super::super::scripts::Script;
    use super::*;
    use crate::redis_client::Value;

    /// A store whose shard of the key `silent` never answers.
    #[derive(Debug)]
    struct HalfSilent;

    impl ScriptRunner for HalfSilent {
        fn run(&self, calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
            if calls.iter().any(|call| call.keys == ["silent"]) {
                return pending().boxed();
            }
            ready(calls.iter().map(|_| Ok(Value::Int(1))).collect()).boxed()
        }
    }

    fn call(key: &str) -> Vec<ScriptCall> {
        let script = Box::leak(Box::new(Script::new("test", "return 1")));
        let keys = vec![key.to_owned()];
        let args = Vec::new();
        vec![ScriptCall { script, keys, args }]
    }

    #[tokio::test(start_paused = true)]
    async fn silent_call_holds_up_its_own_round_only_and_briefly() {
        let mut calls = CallsUnderWay::new(&HalfSilent);
        assert!(calls.begin_round());
        calls.send("dark", call("silent"));
        calls.send("one", call("a"));
        let (work, results) = calls.next(ready(())).await.unwrap();
        assert_eq!((work, results.len()), ("one", 1));
        assert!(!calls.begin_round(), "the round waits for the other");
        let started = Instant::now();
        assert!(calls.next(ready(())).await.is_none());
        assert_eq!(started.elapsed(), ROUND);
        for _ in 0..10 {
            assert!(calls.begin_round());
            calls.send("two", call("a"));
            let (work, _) = calls.next(pending()).await.unwrap();
            assert_eq!(work, "two");
        }
        assert_eq!(started.elapsed(), ROUND, "no round waits for it again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_bounded() {
        let mut calls = CallsUnderWay::new(&HalfSilent);
        let mut sent = 0;
        for _ in 0..10 {
            calls.begin_round();
            while calls.has_room() {
                calls.send((), call("silent"));
                sent += 1;
            }
            calls.next(ready(())).await;
        }
        assert_eq!(sent, UNDER_WAY);
    }
}
