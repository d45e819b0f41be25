//! The way from a child: its standard output, cut into messages within a bound (SPEC D-01, D-02).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::child::{ChildState, StopReason};

/// Room made for one read, bytes.
const READ: usize = 8 * 1024;

/// How long the end of output waits for the end of the process, to know its last words.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(500);

/// The messages of one child, in order. Reading is what keeps the child going: what is not read
/// stays in the pipe, and a full pipe pauses the child. Dropping it stops the child.
#[derive(Debug)]
pub struct Lines {
    pipe: Option<Receiver>,
    cutter: Cutter,
    state: Arc<ChildState>,
}

impl Lines {
    pub(super) fn new(pipe: Receiver, state: Arc<ChildState>, max_line: usize) -> Self {
        Self {
            pipe: Some(pipe),
            cutter: Cutter::new(max_line),
            state,
        }
    }

    /// The next message: one line that looks like JSON, without its line break. `None` when the
    /// child has ended or closed its output; [`StdioConnection::last_words`] is complete then.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// [`StdioConnection::last_words`]: super::StdioConnection::last_words
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            while let Some(line) = self.cutter.cut() {
                match line {
                    Line::Message(message) => {
                        self.state.spoke();
                        return Some(message);
                    }
                    Line::Stray(text) => self.state.stray(&text),
                    Line::TooLong(bytes) => self.state.too_long(bytes),
                }
            }
            if !self.fill().await {
                self.finish().await;
                return None;
            }
        }
    }

    /// Reads more; `false` at the end.
    async fn fill(&mut self) -> bool {
        let Some(pipe) = &mut self.pipe else {
            return false;
        };
        self.cutter.buffer.reserve(READ);
        let buffer = &mut self.cutter.buffer;
        tokio::select! {
            biased;
            read = pipe.read_buf(buffer) => matches!(read, Ok(1..)),
            // A stranger may hold the other end open for ever: the process itself is what counts.
            () = self.state.gone().cancelled() => matches!(pipe.try_read_buf(buffer), Ok(1..)),
        }
    }

    /// Ends the child that closed its output and waits a moment for its last words.
    // Spec: SPEC D-05
    async fn finish(&mut self) {
        if self.pipe.take().is_some() {
            drop(tokio::time::timeout(LAST_WORDS_WAIT, self.state.gone().cancelled()).await);
        }
        self.state.stop(StopReason::Closed);
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.state.stop(StopReason::Dropped);
    }
}

/// One line, judged by its first byte.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// Begins as a JSON object or array.
    Message(Bytes),
    /// Anything else: a banner, a debugging aid.
    Stray(Bytes),
    /// Longer than the bound; how many bytes were thrown away.
    TooLong(u64),
}

/// Cuts bytes into lines.
#[derive(Debug)]
struct Cutter {
    buffer: BytesMut,
    /// Bytes of `buffer` known to hold no line break.
    searched: usize,
    /// Bytes thrown away of a line that is too long.
    skipped: Option<u64>,
    max_line: usize,
}

impl Cutter {
    fn new(max_line: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            skipped: None,
            max_line,
        }
    }

    /// The next complete line, if there is one. Blank lines are passed over.
    fn cut(&mut self) -> Option<Line> {
        loop {
            let fresh = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', fresh) else {
                self.keep_bounded();
                return None;
            };
            let mut line = self.buffer.split_to(self.searched + at + 1);
            self.searched = 0;
            line.truncate(line.len() - 1);
            let skipped = self.skipped.take();
            if skipped.is_some() || line.len() > self.max_line {
                return Some(Line::TooLong(skipped.unwrap_or(0) + line.len() as u64));
            }
            let line = line.freeze();
            let text = line.trim_ascii();
            match text.first() {
                None => {}
                Some(b'{' | b'[') => return Some(Line::Message(line.slice_ref(text))),
                Some(_) => return Some(Line::Stray(line.slice_ref(text))),
            }
        }
    }

    /// No line break yet: remembers what was searched and throws away what is too much.
    fn keep_bounded(&mut self) {
        self.searched = self.buffer.len();
        if self.skipped.is_some() || self.buffer.len() > self.max_line {
            *self.skipped.get_or_insert(0) += self.buffer.len() as u64;
            self.buffer = BytesMut::new();
            self.searched = 0;
        } else if self.buffer.is_empty() {
            // An idle child keeps no buffer larger than one read.
            if self.buffer.capacity() > READ {
                self.buffer = BytesMut::new();
            }
        }
    }
}
