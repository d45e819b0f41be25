//! `StdinWriter`: standard input of a child. One line per message, written at once when the pipe takes it, else queued
//! within a bound.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Buf as _, Bytes};
use rustix::io::ioctl_fionread;
use tokio::net::unix::pipe::Sender;
use tokio::sync::Notify;

use crate::lock::lock;

/// Bytes that may wait for a slow child before senders have to wait.
const QUEUE_BYTES: usize = 1024 * 1024;

/// Bytes beyond `QUEUE_BYTES` that requests sent from destructors may use.
const RESERVE_BYTES: usize = 64 * 1024;

/// Slices handed to the kernel at once.
const BATCH: usize = 64;

static LINE_FEED: &[u8] = b"\n";

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The child is gone or being stopped.
    #[error("the upstream process has ended")]
    Gone,
    /// The message is longer than `limits.upstream_message`.
    #[error("the message is too long for the upstream")]
    TooLong,
}

/// One child's standard input.
#[derive(Debug)]
pub(super) struct StdinWriter {
    queue: Mutex<StdinQueue>,
    /// Notified when bytes are queued for the pump, or the outbox closes.
    work: Notify,
    /// Notified when the queue got shorter, or the outbox closes.
    room: Notify,
    max_message: usize,
}

#[derive(Debug, Default)]
struct StdinQueue {
    /// Absent once closed.
    pipe: Option<Arc<Sender>>,
    /// Ordered by the numbers of their lines.
    parts: VecDeque<StdinPart>,
    bytes: usize,
    /// The number of the newest line.
    newest: u64,
    /// The newest line with a byte in the pipe.
    begun: u64,
    /// Whether new messages are refused; the pipe closes when the queue is empty.
    closing: bool,
}

/// A message, or the line feed behind one.
#[derive(Debug)]
struct StdinPart {
    line: u64,
    bytes: Bytes,
}

impl StdinWriter {
    pub(super) fn new(pipe: Sender, max_message: usize) -> Self {
        let queue = StdinQueue {
            pipe: Some(Arc::new(pipe)),
            ..StdinQueue::default()
        };
        Self {
            queue: Mutex::new(queue),
            work: Notify::new(),
            room: Notify::new(),
            max_message,
        }
    }

    /// Takes `message`, waiting for room; returns the number of its line, from 1 on.
    ///
    /// # Errors
    /// The child takes nothing more, or `message` is too long.
    ///
    /// # Cancel safety
    /// A dropped send has sent nothing or the whole message.
    pub(super) async fn send(&self, message: Bytes) -> Result<u64, SendError> {
        let message = self.line(message)?;
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            if let Some(line) = self.offer(&message, QUEUE_BYTES)? {
                return Ok(line);
            }
            room.await;
        }
    }

    /// Takes `message` unless the queue is full; returns whether it was taken.
    pub(super) fn try_send(&self, message: Bytes) -> bool {
        let Ok(message) = self.line(message) else {
            return false;
        };
        let taken = self.offer(&message, QUEUE_BYTES + RESERVE_BYTES);
        taken.is_ok_and(|line| line.is_some())
    }

    /// Takes the cancellation of a request, however full the queue is. Only requests that have left are cancelled, so
    /// the excess is bounded by the requests that were running or in the pipe when the child stopped reading.
    pub(super) fn cancel(&self, message: Bytes) {
        if let Ok(message) = self.line(message) {
            // An error means that the child is ending, which cancels the request too.
            let _ = self.offer(&message, usize::MAX);
        }
    }

    /// Takes back a line with no byte in the pipe; `false` where it is too late.
    pub(super) fn withdraw(&self, line: u64) -> bool {
        let withdrawn = self.queue().withdraw(line);
        if withdrawn {
            self.room.notify_waiters();
        }
        withdrawn
    }

    /// Whether the child has read everything that was sent to it.
    pub(super) fn is_read(&self) -> bool {
        let queue = self.queue();
        // If `FIONREAD` fails, the pipe counts as read.
        let unread = |pipe: &Arc<Sender>| ioctl_fionread(&**pipe).is_ok_and(|bytes| bytes > 0);
        queue.parts.is_empty() && !queue.pipe.as_ref().is_some_and(unread)
    }

    /// Refuses new messages; the pipe closes as soon as the queue is written.
    pub(super) fn close(&self) {
        let mut queue = self.queue();
        queue.closing = true;
        if queue.parts.is_empty() {
            queue.pipe = None;
        }
        drop(queue);
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Refuses new messages and drops the queue: the child is dead.
    pub(super) fn abandon(&self) {
        let mut queue = self.queue();
        queue.closing = true;
        queue.break_off();
        drop(queue);
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Writes the queue until the outbox is closed and empty, or the child stops reading.
    ///
    /// # Cancel safety
    /// Nothing is lost or written twice.
    pub(super) async fn pump(&self) {
        loop {
            let pipe = {
                let queue = self.queue();
                match &queue.pipe {
                    None => return,
                    Some(pipe) if !queue.parts.is_empty() => Some(Arc::clone(pipe)),
                    Some(_) => None,
                }
            };
            match pipe {
                None => self.work.notified().await,
                Some(pipe) => match pipe.writable().await {
                    Ok(()) => self.queue().flush(),
                    Err(_) => self.queue().break_off(),
                },
            }
            self.room.notify_waiters();
        }
    }

    /// `message` as one line.
    // Spec: SPEC D-01
    fn line(&self, message: Bytes) -> Result<Bytes, SendError> {
        if message.len() > self.max_message {
            return Err(SendError::TooLong);
        }
        if memchr::memchr2(b'\n', b'\r', &message).is_none() {
            return Ok(message);
        }
        // Raw line breaks are whitespace between tokens: inside strings JSON forbids them.
        let blank = |byte: &u8| {
            if matches!(byte, b'\n' | b'\r') {
                b' '
            } else {
                *byte
            }
        };
        Ok(message.iter().map(blank).collect())
    }

    /// Takes `message` unless the queue would exceed `bound` bytes; returns the number of its line.
    fn offer(&self, message: &Bytes, bound: usize) -> Result<Option<u64>, SendError> {
        let mut queue = self.queue();
        if queue.closing || queue.pipe.is_none() {
            return Err(SendError::Gone);
        }
        if !queue.parts.is_empty() && queue.bytes + message.len() > bound {
            return Ok(None);
        }
        let idle = queue.parts.is_empty();
        queue.push(message.clone());
        let line = queue.newest;
        if idle {
            queue.flush();
            if queue.pipe.is_none() {
                return Err(SendError::Gone);
            }
            if !queue.parts.is_empty() {
                drop(queue);
                self.work.notify_one();
            }
        }
        Ok(Some(line))
    }

    fn queue(&self) -> MutexGuard<'_, StdinQueue> {
        lock(&self.queue)
    }
}

impl StdinQueue {
    fn push(&mut self, message: Bytes) {
        self.bytes += message.len() + LINE_FEED.len();
        self.newest += 1;
        let parts = [message, Bytes::from_static(LINE_FEED)];
        let line = self.newest;
        self.parts
            .extend(parts.map(|bytes| StdinPart { line, bytes }));
    }

    fn withdraw(&mut self, line: u64) -> bool {
        if line <= self.begun {
            return false;
        }
        let from = self.parts.partition_point(|part| part.line < line);
        let to = self.parts.partition_point(|part| part.line <= line);
        let withdrawn: usize = self
            .parts
            .drain(from..to)
            .map(|part| part.bytes.len())
            .sum();
        self.bytes -= withdrawn.min(self.bytes);
        withdrawn > 0
    }

    /// Writes as much of the queue as the pipe takes, in batches of one system call.
    fn flush(&mut self) {
        while !self.parts.is_empty() {
            let Some(pipe) = &self.pipe else { return };
            let slices: [IoSlice<'_>; BATCH] = std::array::from_fn(|at| {
                IoSlice::new(self.parts.get(at).map_or(&[][..], |part| &part.bytes))
            });
            let filled = slices.get(..self.parts.len().min(BATCH)).unwrap_or(&slices);
            match pipe.try_write_vectored(filled) {
                Ok(written) => self.written(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.break_off(),
            }
        }
        self.parts.shrink_to(BATCH);
        if self.closing {
            self.pipe = None;
        }
    }

    fn written(&mut self, mut bytes: usize) {
        self.bytes -= bytes.min(self.bytes);
        while let Some(part) = self.parts.front_mut().filter(|_| bytes > 0) {
            self.begun = part.line;
            if bytes < part.bytes.len() {
                part.bytes.advance(bytes);
                return;
            }
            bytes -= part.bytes.len();
            self.parts.pop_front();
        }
    }

    /// Drops pipe and queue: the child no longer reads.
    fn break_off(&mut self) {
        self.pipe = None;
        self.parts = VecDeque::new();
        self.bytes = 0;
    }
}
