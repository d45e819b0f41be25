//! The connection for a call: the first one of the link, or one whose turn is taken, if the client may be asked and a
//! question can only be matched to the call by its turn. Spec: DESIGN §6; BRIDGING §1.3.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::connection::{LegacyConnection, TakenConnection};
use super::extra_connections::ExtraConnections;
use super::input_turn::TurnGuard;
use super::link_connections::LinkConnections;
use super::next_turn::next_turn;
use super::pending_reply::may_be_asked;
use crate::call::Call;
use crate::cause::chain;
use crate::protocol::Message;
use crate::protocol::json::quote;
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::{AskedClient, LinkSettings};
use crate::upstream::deadlines::before_sending;
use crate::upstream::error::LinkError;

/// The connection a call runs on. Dropping it gives the turn back, if the call had one.
#[derive(Debug)]
pub(super) struct ConnectionLease {
    pub(super) connection: TakenConnection,
    turn: Option<(TurnGuard, Arc<ExtraConnections>)>,
}

impl ConnectionLease {
    /// A place without a turn, beside any other calls.
    pub(super) fn beside(connection: TakenConnection) -> Self {
        Self {
            connection,
            turn: None,
        }
    }

    /// A place with the turn: alone among the calls of the connection whose clients may be asked, or beside others of
    /// the same client where the upstream never asked anything.
    pub(super) fn with_turn(
        (connection, turn): (TakenConnection, TurnGuard),
        extra_connections: &Arc<ExtraConnections>,
    ) -> Self {
        Self {
            connection,
            turn: Some((turn, Arc::clone(extra_connections))),
        }
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        if let Some((turn, extra_connections)) = self.turn.take() {
            drop(turn);
            extra_connections.tidy();
        }
    }
}

impl LinkConnections {
    /// Finds a connection for a call: the first one, or one whose turn is taken.
    ///
    /// # Errors
    /// [`LinkError::Cancelled`] when the call is cancelled first, [`LinkError::AwaitsAnswer`] when it
    /// gets no turn within `ask_wait`.
    ///
    /// # Cancel safety
    /// A turn that was just granted goes on to the next waiter.
    pub(super) async fn place(
        &self,
        request: &Message,
        call: &Call,
    ) -> Result<ConnectionLease, LinkError> {
        let first = self.first_for(call).await?;
        if !first.is_pipe() || !needs_turn(&self.settings, request, call) {
            return Ok(ConnectionLease::beside(first));
        }
        // An upstream that never asked is trusted not to: calls of one client run side by side (ADR 9).
        let is_alone = self.settings.exclusive && !self.settings.asks.is_known();
        let free = if is_alone {
            first.turn.beside()
        } else {
            first.turn.take()
        };
        let turn = if let Some(turn) = free {
            (first, turn)
        } else {
            // Its child may have the only place, and has to end before another one is started.
            drop(first);
            Box::pin(self.turn(call)).await?
        };
        Ok(ConnectionLease::with_turn(turn, &self.extra))
    }

    /// The first connection, as long as the call is wanted and may last.
    async fn first_for(&self, call: &Call) -> Result<TakenConnection, LinkError> {
        let limit = self.settings.upstream.total_timeout;
        before_sending(&call.cancel, limit, self.connection()).await
    }

    /// Waits for the turn of a connection, and opens another one meanwhile if the caps allow it.
    async fn turn(&self, call: &Call) -> Result<(TakenConnection, TurnGuard), LinkError> {
        let limit = Instant::now() + self.settings.upstream.ask_wait;
        loop {
            let first = self.first_for(call).await?;
            let mut all = vec![Arc::clone(&first.connection)];
            let extra = self.extra.all().into_iter();
            all.extend(extra.filter(|connection| !connection.is_outdated()));
            let free = all.iter().find_map(|connection| {
                let turn = connection.turn.take()?;
                Some((Arc::clone(connection), turn))
            });
            let (connection, turn) = match free {
                Some(free) => free,
                None => self.wait_for_turn(call, &all, limit).await?,
            };
            // Before `first` is given back, which may be the same.
            let taken = TakenConnection::new(&connection);
            if !taken.is_closed() && !taken.is_outdated() {
                return Ok((taken, turn));
            }
        }
    }

    /// Waits for the turn of any of `all` until `limit`, or for a further connection until its opening ends.
    async fn wait_for_turn(
        &self,
        call: &Call,
        all: &[Arc<LegacyConnection>],
        limit: Instant,
    ) -> Result<(Arc<LegacyConnection>, TurnGuard), LinkError> {
        let level = self.state.level().map(|level| quote(level.as_str()));
        let mut opening = Box::pin(Arc::clone(&self.extra).open(level));
        let (mut no_other, mut no_turn) = (false, false);
        loop {
            tokio::select! {
                biased;
                taken = next_turn(all), if !no_turn => match taken {
                    Some(taken) => {
                        // The opening begun for this call goes on, and serves the next one.
                        if !no_other {
                            let opening = async move { drop(opening.await) };
                            self.settings.tasks.spawn_service(opening);
                        }
                        return Ok(taken);
                    }
                    None => no_turn = true,
                },
                opened = &mut opening, if !no_other => match opened {
                    Ok(opened) => return Ok(opened),
                    Err(error) => {
                        tracing::debug!(upstream = %self.settings.name, error = chain(&error), "no further connection");
                        no_other = true;
                    }
                },
                () = sleep_until(limit), if no_other => no_turn = true,
                () = call.cancel.cancelled() => return Err(LinkError::Cancelled),
            }
            if no_other && no_turn {
                LABELED.calls_ask_refused.add(&self.settings.name, 1);
                tracing::warn!(
                    upstream = %self.settings.name, principal = %call.principal.owner(),
                    "a call was refused: another one may be asked, and no further connection may be opened"
                );
                return Err(LinkError::AwaitsAnswer);
            }
        }
    }
}

/// Whether a call needs the turn of its connection: its client may be asked, and only the turn matches the question to
/// the call. Requests about a task go to the first connection, where the task is.
pub(super) fn needs_turn(settings: &LinkSettings, request: &Message, call: &Call) -> bool {
    settings.unattributed == AskedClient::Call
        && settings.capabilities.allow_any()
        && may_be_asked(request, call)
        && request.method() != Some("tasks/result")
        && request.param("task").is_none()
}
