//! A load balancer without stickiness.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;

use super::tally::Tally;
use crate::harness::{Actor, Answer, Gateway};

/// For so long a request may be refused, and sent again.
const REFUSALS: Duration = Duration::from_secs(15);
/// Between two of these attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Gives requests to the replicas in turn.
pub(super) struct Front {
    replicas: Vec<Actor>,
    turn: AtomicUsize,
    pub(super) is_over: AtomicBool,
    pub(super) tally: Tally,
}

impl Front {
    pub(super) fn new(replicas: &[Gateway]) -> Arc<Self> {
        Arc::new(Self {
            replicas: replicas.iter().map(Gateway::anonymous).collect(),
            turn: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            tally: Tally::default(),
        })
    }

    /// Leaves out one replica.
    pub(super) fn skip(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The answer of the next replica that does not refuse; `None` where a connection broke, or a replica says so of its
    /// own to another one.
    pub(super) async fn send(
        &self,
        method: Method,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Answer> {
        let deadline = Instant::now() + REFUSALS;
        loop {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let actor = &self.replicas[turn % self.replicas.len()];
            let body = Bytes::copy_from_slice(body.as_bytes());
            let sent = actor.try_send(method.clone(), "/mcp/stub", headers, body);
            let answer = match tokio::time::timeout(REFUSALS, sent).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    self.tally.reason(format!("{method}: {error}"));
                    return None;
                }
                Err(_) => {
                    self.tally
                        .wrong(format!("{method}: no answer in {REFUSALS:?}"));
                    return None;
                }
            };
            match answer.status() {
                502 => {
                    let error = answer.json().await["error"].to_string();
                    self.tally.reason(format!("{method}: {error}"));
                    return None;
                }
                503 if answer.header("retry-after").is_some() => {}
                _ => return Some(answer),
            }
            Tally::count(&self.tally.refused);
            if Instant::now() > deadline {
                self.tally.wrong(format!("refused for {REFUSALS:?}"));
                return None;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
