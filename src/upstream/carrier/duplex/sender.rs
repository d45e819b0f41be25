//! `DuplexSender`: the sending half of a connection that carries messages both ways.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::departure::DepartureFlag;
use super::events::{self, PostRelease};
use super::socket_writer::SocketWriter;
use crate::config::Isolation;
use crate::grants::HeldToken;
use crate::process::{BusyGuard, HoldGuard, SendError, StdioConnection, UnusedGuard};
use crate::upstream::error::LinkError;

/// The sending half of a connection, shared by its clones; the connection ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) enum DuplexSender {
    /// A child's input, and the token in its environment.
    Child(StdioConnection, Option<Arc<HeldToken>>),
    /// Posts beside an event stream.
    Events(Arc<events::PostSender>),
    /// A socket's writer.
    Socket(Arc<SocketWriter>),
}

impl DuplexSender {
    /// Sends one message.
    ///
    /// # Errors
    /// [`LinkError::SessionGone`] when the message did not leave, as the connection is over: the upstream cannot have
    /// seen it. Any other [`LinkError`] when the upstream did not take the message.
    pub(crate) async fn send(&self, message: Bytes) -> Result<(), LinkError> {
        self.send_request(message, &DepartureFlag::default()).await
    }

    /// Sends one request, and notes its progress in `departure`.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    ///
    /// # Cancel safety
    /// After a dropped send, [`withdraw`](Self::withdraw) tells whether the upstream may see the request.
    pub(crate) async fn send_request(
        &self,
        message: Bytes,
        departure: &DepartureFlag,
    ) -> Result<(), LinkError> {
        self.depart(message, departure, &PostRelease::default())
            .await
    }

    async fn depart(
        &self,
        message: Bytes,
        departure: &DepartureFlag,
        release: &PostRelease,
    ) -> Result<(), LinkError> {
        match self {
            Self::Child(child, _) => {
                let sent = child.send(message).await;
                sent.map(|line| departure.waits_as(line))
                    .map_err(|error| match error {
                        SendError::Gone => LinkError::SessionGone,
                        SendError::TooLong => LinkError::Unsendable(error.to_string()),
                    })
            }
            Self::Events(posts) => {
                departure.has_left();
                posts.send(message, release).await
            }
            Self::Socket(writer) => {
                departure.has_left();
                writer.send(message).await
            }
        }
    }

    /// Takes back a request whose send was dropped or is done; `true` where the upstream cannot see it.
    pub(crate) fn withdraw(&self, departure: &DepartureFlag) -> bool {
        departure.is_undone(|line| self.child().is_some_and(|child| child.withdraw(line)))
    }

    /// Sends the cancellation of a request that [`withdraw`](Self::withdraw) could not take back, ahead of queued
    /// messages. Never refused while the connection lasts. For destructors.
    pub(crate) fn cancel(&self, message: Bytes) {
        match self {
            Self::Child(child, _) => child.cancel(message),
            Self::Events(posts) => posts.cancel(message),
            Self::Socket(writer) => writer.cancel(message),
        }
    }

    /// Sends a notification or a response.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(crate) async fn tell(&self, message: Bytes) -> Result<(), LinkError> {
        match self {
            Self::Events(posts) => posts.tell(message).await,
            Self::Child(..) | Self::Socket(_) => self.send(message).await,
        }
    }

    /// [`tell`](Self::tell) during the handshake, when no session can be gone yet.
    ///
    /// # Errors
    /// [`LinkError`] when the upstream did not take the message; `SessionGone` becomes `Lost`.
    pub(crate) async fn tell_first(&self, message: Bytes) -> Result<(), LinkError> {
        self.tell(message).await.map_err(|error| self.first(error))
    }

    /// Sends one request and waits for its answer, `reply`, which may arrive before the send is confirmed. `departure`
    /// notes the send.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) if the connection is lost, as they tell whether the request can have run.
    pub(crate) async fn ask<T>(
        &self,
        message: Bytes,
        departure: &DepartureFlag,
        reply: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        let release = PostRelease::default();
        let sent = self.depart(message, departure, &release);
        let (mut sent, mut reply) = (pin!(sent), pin!(reply));
        tokio::select! {
            biased;
            sent = &mut sent => {
                let Err(error) = sent else {
                    return reply.await;
                };
                // A request with a reply was taken, even if its send failed.
                match reply.now_or_never() {
                    Some(Ok(reply)) => Ok(reply),
                    _ => Err(error),
                }
            }
            reply = &mut reply => {
                if let Err(LinkError::Lost { .. }) = reply {
                    sent.await?;
                } else {
                    release.give();
                }
                reply
            }
        }
    }

    /// [`ask`](Self::ask) during the handshake, when no session can be gone yet.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask), and as for [`tell_first`](Self::tell_first).
    pub(crate) async fn ask_first<T>(
        &self,
        message: Bytes,
        reply: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        let asked = self.ask(message, &DepartureFlag::default(), reply).await;
        asked.map_err(|error| self.first(error))
    }

    fn first(&self, error: LinkError) -> LinkError {
        match error {
            LinkError::SessionGone => self.lost(),
            other => other,
        }
    }

    /// Sends one message without waiting; returns whether it was accepted. For destructors.
    pub(crate) fn try_send(&self, message: Bytes) -> bool {
        match self {
            Self::Child(child, _) => child.try_send(message),
            Self::Events(posts) => posts.try_send(message),
            Self::Socket(writer) => writer.try_send(message),
        }
    }

    /// The error of a connection that was lost.
    pub(crate) fn lost(&self) -> LinkError {
        LinkError::Lost {
            last_words: self.last_words(),
        }
    }

    /// The exit status and last standard error of a child.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.child()?.last_words()
    }

    /// Keeps a line that failed to parse for the error of a call that times out.
    pub(crate) fn keep_stray(&self, line: &[u8]) {
        if let Some(child) = self.child() {
            child.keep_stray(line);
        }
    }

    /// The error of a request sent at `since` and not answered in time. It quotes lines of the child that are no
    /// messages, unless the child serves several principals.
    pub(in crate::upstream) fn timed_out(&self, since: Instant, isolation: Isolation) -> LinkError {
        let is_shared = isolation == Isolation::Shared;
        let child = self.child().filter(|_| !is_shared);
        let strays = child.and_then(|child| child.strays(since));
        strays.map_or(LinkError::Timeout, |strays| LinkError::Garbled { strays })
    }

    /// Whether the messages ended without a stop by the gateway, such as that of an idle child.
    pub(crate) fn broke_off(&self) -> bool {
        self.child().is_none_or(StdioConnection::broke_off)
    }

    /// Whether the peer has read everything that was sent; `true` unless the peer is a child.
    pub(crate) fn is_read(&self) -> bool {
        self.child().is_none_or(StdioConnection::is_read)
    }

    /// Whether the connection is a child process.
    pub(crate) fn is_child(&self) -> bool {
        self.child().is_some()
    }

    fn child(&self) -> Option<&StdioConnection> {
        match self {
            Self::Child(child, _) => Some(child),
            Self::Events(_) | Self::Socket(_) => None,
        }
    }

    /// Whether it takes no new calls though it lasts: the token in the child's environment has ended. What the child says
    /// of its token counts for nothing, as no word of the protocol means that.
    pub(crate) fn is_outdated(&self) -> bool {
        match self {
            Self::Child(_, Some(token)) => token.has_ended(),
            Self::Child(_, None) | Self::Events(_) | Self::Socket(_) => false,
        }
    }

    /// Whether a call can be sent on it: it is not over, nor outdated.
    pub(crate) fn takes_calls(&self) -> bool {
        !self.closed().is_cancelled() && !self.is_outdated()
    }

    /// Keeps a child from being stopped as idle until the guard is dropped.
    pub(crate) fn busy(&self) -> Option<BusyGuard> {
        self.child().map(StdioConnection::busy)
    }

    /// While the guard lives, output of a child does not count as use; `None` for other connections and a child in use.
    pub(crate) fn unused(&self) -> Option<UnusedGuard> {
        self.child()?.unused()
    }

    /// Keeps an unused child from being stopped as idle until the guard is dropped.
    pub(crate) fn hold(&self) -> Option<HoldGuard> {
        self.child().map(StdioConnection::hold)
    }

    /// Cancelled as soon as the connection is over.
    pub(crate) fn closed(&self) -> &CancellationToken {
        match self {
            Self::Child(child, _) => child.closed(),
            Self::Events(posts) => posts.closed(),
            Self::Socket(writer) => writer.closed(),
        }
    }

    /// Ends the connection politely.
    pub(crate) async fn close(&self) {
        match self {
            Self::Child(child, _) => child.close().await,
            Self::Events(posts) => posts.closed().cancel(),
            Self::Socket(writer) => writer.close().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::sink;
    use tokio_tungstenite::tungstenite::{Error, Message};

    use super::*;
    use crate::runtime::lifecycle::TaskSpawner;

    /// A closed socket.
    async fn closed() -> DuplexSender {
        let taken = sink::unfold((), |(), _: Message| ready(Ok::<_, Error>(())));
        let writer = SocketWriter::new(Box::pin(taken), &TaskSpawner::new());
        writer.close().await;
        DuplexSender::Socket(Arc::new(writer))
    }

    // A request with a reply has run: a retry would run it twice.
    #[tokio::test]
    async fn a_reply_counts_more_than_what_is_said_of_its_request() {
        let socket = closed().await;
        let message = || Bytes::from_static(b"{}");
        let departure = DepartureFlag::default();
        let replied = socket.ask(message(), &departure, ready(Ok("reply"))).await;
        assert!(matches!(replied, Ok("reply")), "{replied:?}");
        for reply in [None, Some(LinkError::Timeout)] {
            let reply = async {
                match reply {
                    None => pending().await,
                    Some(error) => Err::<(), _>(error),
                }
            };
            let failed = socket.ask(message(), &departure, reply).await;
            assert!(matches!(failed, Err(LinkError::SessionGone)), "{failed:?}");
        }
    }
}
