//! The sending half of a WebSocket toward an upstream: a queue, and the task that writes it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::Message;
use tokio_util::sync::CancellationToken;

use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::error::LinkError;

/// Time between two pings, whatever else is written: only their pongs come from an upstream that works on long calls.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long one write may take.
const WRITE_WITHIN: Duration = Duration::from_secs(30);
/// How long the closing handshake may take, and a running write before it.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Queued messages, at most; each belongs to a waiting call.
const WAITING: usize = 64;
/// Queued cancellations, at most; each of a call that was running.
const CANCELLATIONS: usize = 4096;

/// The sending half of a socket.
#[derive(Debug)]
pub(crate) struct SocketWriter {
    outbox: mpsc::Sender<QueuedMessage>,
    /// Cancellations of requests that were written, or are being written.
    cancellations: mpsc::Sender<Bytes>,
    closed: CancellationToken,
    /// Cancelled when the writer has ended.
    ended: CancellationToken,
}

/// A queued message.
#[derive(Debug)]
struct QueuedMessage {
    text: Bytes,
    /// Told whether it left for sure; dropped when it did not leave. `None` where no sender waits.
    left: Option<oneshot::Sender<bool>>,
}

impl QueuedMessage {
    /// Whether the sender was dropped before the write.
    fn is_withdrawn(&self) -> bool {
        self.left.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// Queued messages and cancellations.
struct WriteQueue {
    cancellations: mpsc::Receiver<Bytes>,
    messages: mpsc::Receiver<QueuedMessage>,
}

impl WriteQueue {
    /// The next message to write, cancellations first; `None` once the writer is gone. A withdrawn message is skipped,
    /// so that no cancellation overtakes its request.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    async fn next(&mut self) -> Option<QueuedMessage> {
        loop {
            tokio::select! {
                biased;
                Some(text) = self.cancellations.recv() => return Some(QueuedMessage { text, left: None }),
                next = self.messages.recv() => match next {
                    Some(message) if message.is_withdrawn() => {}
                    next => return next,
                },
            }
        }
    }
}

async fn write<S>(
    mut sink: S,
    mut waiting: WriteQueue,
    closed: CancellationToken,
    ended: CancellationToken,
) where
    S: Sink<Message, Error = WsError> + Unpin,
{
    let _ended = ended.drop_guard();
    let mut ping_at = Instant::now() + PING_EVERY;
    loop {
        let next = tokio::select! {
            biased;
            () = closed.cancelled() => break,
            // Before the messages: there may always be one.
            () = sleep_until(ping_at) => Err(()),
            next = waiting.next() => Ok(next),
        };
        let (frame, left) = match next {
            Err(()) => {
                ping_at = Instant::now() + PING_EVERY;
                (Message::Ping(Bytes::new()), None)
            }
            Ok(None) => break,
            Ok(Some(QueuedMessage { text, left })) => match text.try_into() {
                Ok(text) => (Message::Text(text), left),
                // Messages are JSON and thus UTF-8.
                Err(_) => continue,
            },
        };
        let hurried = async {
            closed.cancelled().await;
            sleep(CLOSE_WITHIN).await;
        };
        let written = tokio::select! {
            biased;
            written = sink.send(frame) => Some(written),
            () = sleep(WRITE_WITHIN) => None,
            () = hurried => None,
        };
        match written {
            Some(Ok(())) => tell(left, true),
            // The upstream closed first: the frame was not written.
            Some(Err(
                WsError::ConnectionClosed
                | WsError::AlreadyClosed
                | WsError::Protocol(ProtocolError::SendAfterClosing),
            )) => {
                closed.cancel();
                break;
            }
            Some(Err(_)) | None => {
                tell(left, false);
                break;
            }
        }
    }
    closed.cancel();
    drop(timeout(CLOSE_WITHIN, sink.close()).await);
}

/// Reports to the sender of a message whether the message left; a dropped sender is ignored.
fn tell(sender: Option<oneshot::Sender<bool>>, left: bool) {
    if let Some(sender) = sender {
        sender.send(left).unwrap_or_default();
    }
}

impl SocketWriter {
    pub(super) fn new<S>(sink: S, tasks: &TaskSpawner) -> Self
    where
        S: Sink<Message, Error = WsError> + Unpin + Send + 'static,
    {
        let (outbox, messages) = mpsc::channel(WAITING);
        let (sender, cancellations) = mpsc::channel(CANCELLATIONS);
        let waiting = WriteQueue {
            cancellations,
            messages,
        };
        let (closed, ended) = (CancellationToken::new(), CancellationToken::new());
        tasks.spawn_service(write(sink, waiting, closed.clone(), ended.clone()));
        Self {
            outbox,
            cancellations: sender,
            closed,
            ended,
        }
    }

    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Writes one message. A dropped send is not written, unless the write has begun.
    ///
    /// # Errors
    /// [`LinkError::SessionGone`] when the message did not leave, so that the upstream cannot have seen it;
    /// [`LinkError::Lost`] when it may have left.
    pub(super) async fn send(&self, text: Bytes) -> Result<(), LinkError> {
        if self.closed.is_cancelled() {
            return Err(LinkError::SessionGone);
        }
        let (left, told) = oneshot::channel();
        let left = Some(left);
        let queued = self.outbox.send(QueuedMessage { text, left }).await;
        queued.map_err(|_| LinkError::SessionGone)?;
        match told.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(LinkError::Lost { last_words: None }),
            Err(_) => Err(LinkError::SessionGone),
        }
    }

    pub(super) fn try_send(&self, text: Bytes) -> bool {
        let message = QueuedMessage { text, left: None };
        !self.closed.is_cancelled() && self.outbox.try_send(message).is_ok()
    }

    /// Queues the cancellation of a request ahead of messages. A socket whose upstream leaves `CANCELLATIONS` of them
    /// unread is closed, which cancels every call.
    pub(super) fn cancel(&self, text: Bytes) {
        if self.cancellations.try_send(text).is_err() {
            self.closed.cancel();
        }
    }

    /// Sends a close frame and waits for the end of the writer: two seconds at most, even if the other end does not
    /// read.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        self.ended.cancelled().await;
    }
}

impl Drop for SocketWriter {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, pending, ready};

    use futures_util::sink;

    use super::*;

    /// Outcomes of two sends whose frames are written by `write`.
    async fn sent<F>(write: impl Fn() -> F + Send + 'static) -> [Result<(), LinkError>; 2]
    where
        F: Future<Output = Result<(), WsError>> + Send + 'static,
    {
        let sink = sink::unfold((), move |(), _: Message| write());
        let writer = SocketWriter::new(Box::pin(sink), &TaskSpawner::new());
        let message = || writer.send(Bytes::from_static(b"{}"));
        let (first, second) = tokio::join!(message(), message());
        [first, second]
    }

    #[tokio::test]
    async fn messages_leave_one_after_the_other() {
        assert!(matches!(sent(|| ready(Ok(()))).await, [Ok(()), Ok(())]));
    }

    #[tokio::test]
    async fn after_a_goodbye_nothing_has_run() {
        let after_goodbye = || ready(Err(ProtocolError::SendAfterClosing.into()));
        let outcome = sent(after_goodbye).await;
        assert!(
            matches!(
                outcome,
                [Err(LinkError::SessionGone), Err(LinkError::SessionGone)]
            ),
            "{outcome:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pings_leave_between_messages_too() {
        let (pings, pinged) = mpsc::channel(8);
        let sink = sink::unfold((), move |(), frame: Message| {
            if frame.is_ping() {
                pings.try_send(()).unwrap();
            }
            ready(Ok(()))
        });
        let writer = SocketWriter::new(Box::pin(sink), &TaskSpawner::new());
        for _ in 0..4 {
            writer.send(Bytes::from_static(b"{}")).await.unwrap();
            sleep(PING_EVERY * 3 / 4).await;
        }
        // Three times as long as the time between two pings.
        assert!(pinged.len() >= 2, "{} pings", pinged.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_does_not_hold_up_the_end() {
        let sink = sink::unfold((), |(), _: Message| pending());
        let writer = SocketWriter::new(Box::pin(sink), &TaskSpawner::new());
        let sending = writer.send(Bytes::from_static(b"{}"));
        let closing = async {
            tokio::task::yield_now().await;
            let began = Instant::now();
            writer.close().await;
            began.elapsed()
        };
        let (outcome, took) = tokio::join!(sending, closing);
        assert!(
            matches!(outcome, Err(LinkError::Lost { .. })),
            "{outcome:?}"
        );
        assert!(
            took <= 2 * CLOSE_WITHIN + Duration::from_millis(10),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_that_waits_is_written_after_the_end_has_begun() {
        // Without `biased` in `write`, some of these rounds would write on.
        for _ in 0..30 {
            let sink = sink::unfold((), |(), _: Message| async {
                sleep(CLOSE_WITHIN * 9 / 10).await;
                Ok(())
            });
            let writer = SocketWriter::new(Box::pin(sink), &TaskSpawner::new());
            for _ in 0..10 {
                assert!(writer.try_send(Bytes::from_static(b"{}")));
            }
            tokio::task::yield_now().await;
            let began = Instant::now();
            writer.close().await;
            let took = began.elapsed();
            assert!(took <= CLOSE_WITHIN, "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_waited_behind_a_broken_write_has_surely_not_run() {
        let broken = || {
            ready(Err(
                std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
            ))
        };
        for outcome in [sent(broken).await, sent(pending).await] {
            assert!(
                matches!(
                    outcome,
                    [Err(LinkError::Lost { .. }), Err(LinkError::SessionGone)]
                ),
                "{outcome:?}"
            );
        }
    }
}
