//! `InputTurn` of a connection: one call at a time whose client the upstream may ask, so that a question without a call
//! can only belong to this call. Spec: BRIDGING §1.3; DESIGN §6.

use std::sync::Arc;

use futures_util::future::select_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::connection::LegacyConnection;
use crate::sync::on_drop::OnDrop;

/// Permits of one connection: a turn takes `PERMITS`, a call beside others takes one.
const PERMITS: u32 = 1 << 20;

/// The right to be asked on a connection.
#[derive(Debug)]
pub(super) struct InputTurn {
    permits: Arc<Semaphore>,
    /// Open questions of the call whose turn it is.
    questions: watch::Sender<usize>,
}

/// A call's turn, or its permit beside others; free again when it is dropped.
#[derive(Debug)]
pub(super) struct TurnGuard {
    _permit: OwnedSemaphorePermit,
}

impl InputTurn {
    pub(super) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(PERMITS as usize)),
            questions: watch::Sender::new(0),
        }
    }

    /// The turn, if no call has it and none runs beside others.
    pub(super) fn take(&self) -> Option<TurnGuard> {
        let permits = Arc::clone(&self.permits);
        let permit = permits.try_acquire_many_owned(PERMITS).ok()?;
        Some(TurnGuard { _permit: permit })
    }

    /// A permit beside other calls of the same client, if no call has the turn.
    pub(super) fn beside(&self) -> Option<TurnGuard> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(TurnGuard { _permit: permit })
    }

    /// Notes a question to the client of the call whose turn it is; the call is parked until the guard is dropped.
    pub(super) fn park(&self) -> OnDrop<impl FnOnce()> {
        self.questions.send_modify(|open| *open += 1);
        OnDrop::new(|| self.questions.send_modify(|open| *open -= 1))
    }

    fn is_parked(&self) -> bool {
        *self.questions.borrow() > 0
    }

    async fn wait(&self) -> Option<TurnGuard> {
        let permits = Arc::clone(&self.permits);
        let permit = permits.acquire_many_owned(PERMITS).await.ok()?;
        Some(TurnGuard { _permit: permit })
    }
}

/// Waits for the turn of any connection, in order of arrival at each; `None` as soon as all of them wait for their
/// clients, which may take as long as people do.
///
/// # Cancel safety
/// A turn that was just granted goes on to the next waiter.
pub(super) async fn next(
    all: &[Arc<LegacyConnection>],
) -> Option<(Arc<LegacyConnection>, TurnGuard)> {
    let turns = all.iter().map(|connection| {
        Box::pin(async move {
            let guard = connection.turn.wait().await;
            guard.map(|guard| (Arc::clone(connection), guard))
        })
    });
    tokio::select! {
        biased;
        (taken, _, _) = select_all(turns) => taken,
        () = all_parked(all) => None,
    }
}

async fn all_parked(all: &[Arc<LegacyConnection>]) {
    loop {
        for connection in all {
            let mut questions = connection.turn.questions.subscribe();
            drop(questions.wait_for(|open| *open > 0).await);
        }
        if all.iter().all(|connection| connection.turn.is_parked()) {
            return;
        }
    }
}
