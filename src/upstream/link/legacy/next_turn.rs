//! The next free turn of several connections.

use std::sync::Arc;

use futures_util::future::select_all;

use super::connection::LegacyConnection;
use super::input_turn::TurnGuard;

/// Waits for the turn of any connection, in order of arrival at each; `None` as soon as all of them wait for their
/// clients, which may take as long as people do.
///
/// # Cancel safety
/// A turn that was just granted goes on to the next waiter.
pub(super) async fn next_turn(
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
