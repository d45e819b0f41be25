//! `InputTurn` of a connection: one call at a time whose client the upstream may ask, so that a question without a call
//! can only belong to this call. Spec: BRIDGING §1.3; DESIGN §6.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::sync::on_drop::OnDrop;

/// Permits of one connection: a turn takes `PERMITS`, a call beside others takes one.
const PERMITS: u32 = 1 << 20;

/// The right to be asked on a connection.
#[derive(Debug)]
pub(super) struct InputTurn {
    permits: Arc<Semaphore>,
    /// Open questions of the call whose turn it is.
    pub(super) questions: watch::Sender<usize>,
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

    pub(super) fn is_parked(&self) -> bool {
        *self.questions.borrow() > 0
    }

    pub(super) async fn wait(&self) -> Option<TurnGuard> {
        let permits = Arc::clone(&self.permits);
        let permit = permits.acquire_many_owned(PERMITS).await.ok()?;
        Some(TurnGuard { _permit: permit })
    }
}
