//! The way from a child: its standard output, cut into messages within a bound (SPEC D-01, D-02).

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::state::ChildState;
use super::stop_reason::StopReason;
use crate::protocol::json;
use crate::protocol::salvage::{self, Watch};
use crate::runtime::read_quantum::ReadQuantum;

/// Room made for one read, bytes.
const READ: usize = 8 * 1024;

/// How long the end of output waits for the end of the process, to know its last words.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(500);

/// Stray lines after which a noisy child has to wait for [`PAUSE`].
const MAX_NOISE: usize = 256;

/// Stray lines that one read of an overlong line counts for.
const READ_NOISE: usize = 16;

/// Pause that bounds the cost of a noisy child.
const PAUSE: Duration = Duration::from_millis(5);

/// Messages up to this length leave the buffer as copies: a kept part must not hold a buffer much larger than the
/// message.
const COPIED: usize = 4 * 1024;

/// Memory that is accounted for while a message is read: `()` accounts for none.
pub trait ReadRoom: Send {
    /// Takes the room missing for `len` bytes, waiting while there is none.
    ///
    /// # Cancel safety
    /// Nothing more is taken.
    fn grow_to(&mut self, len: usize) -> impl Future<Output = ()> + Send;
}

impl ReadRoom for () {
    async fn grow_to(&mut self, _: usize) {}
}

/// The messages of one child, in order. Unread output stays in the pipe, and a full pipe pauses the child. Dropping
/// `StdoutReader` stops the child.
pub struct StdoutReader {
    pipe: Option<Receiver>,
    cutter: LineCutter,
    /// Stray lines since the last pause; reads of a line that is too long count for several.
    noise: usize,
    quantum: ReadQuantum,
    state: Arc<ChildState>,
}

impl fmt::Debug for StdoutReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StdoutReader").field(&self.state).finish()
    }
}

impl StdoutReader {
    pub(super) fn new(pipe: Receiver, state: Arc<ChildState>, max_line: usize) -> Self {
        Self {
            pipe: Some(pipe),
            cutter: LineCutter::new(max_line),
            noise: 0,
            quantum: ReadQuantum::default(),
            state,
        }
    }

    /// The next message: one line that looks like JSON, or may end with it, without its line break. A reply over the
    /// bound is replaced by an error with its id. `None` when the child has ended or closed its
    /// output; [`StdioConnection::last_words`] is complete then.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// [`StdioConnection::last_words`]: super::StdioConnection::last_words
    pub async fn next(&mut self) -> Option<Bytes> {
        self.next_in(&mut ()).await
    }

    /// The same; the message takes its room as it comes. Where there is none, nothing is read until there is, or
    /// the process has ended.
    pub async fn next_in(&mut self, room: &mut impl ReadRoom) -> Option<Bytes> {
        loop {
            while let Some(line) = self.cutter.cut() {
                match line {
                    StdoutLine::Message(message) => {
                        self.state.spoke();
                        return Some(message);
                    }
                    StdoutLine::Stray(text) => {
                        self.noise += 1;
                        if salvage::may_hold_reply(&text) {
                            self.state.spoke();
                            return Some(text);
                        }
                        self.state.stray(&text);
                    }
                    StdoutLine::TooLong { bytes, stand_in } => {
                        self.state.too_long(bytes);
                        if stand_in.is_some() {
                            return stand_in;
                        }
                    }
                }
            }
            self.noise += usize::from(self.cutter.skipped.is_some()) * READ_NOISE;
            if self.noise >= MAX_NOISE {
                tokio::time::sleep(PAUSE).await;
                self.noise = 0;
            }
            let held = self.cutter.buffer.len();
            // In steps that double.
            let wanted = (held + READ).max((2 * held).min(self.cutter.max_line));
            tokio::select! {
                biased;
                () = room.grow_to(wanted) => {}
                () = self.state.gone().cancelled() => {}
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
        poll_fn(|cx| self.quantum.poll_ready(cx)).await;
        self.cutter.buffer.reserve(READ);
        let buffer = &mut self.cutter.buffer;
        let before = buffer.len();
        let has_more = tokio::select! {
            biased;
            read = pipe.read_buf(buffer) => matches!(read, Ok(1..)),
            // A stranger may hold the other end open for ever, so the end of the process ends the output too.
            () = self.state.gone().cancelled() => matches!(pipe.try_read_buf(buffer), Ok(1..)),
        };
        self.quantum.add(buffer.len() - before);
        has_more
    }

    /// Ends the child that closed its output and waits a moment for its last words.
    // Spec: SPEC D-05
    async fn finish(&mut self) {
        if self.pipe.take().is_some() {
            self.state.fell_silent();
            let gone = self.state.gone().cancelled();
            if tokio::time::timeout(LAST_WORDS_WAIT, gone).await.is_err() {
                self.state.lingers();
            }
        }
        self.state.stop(StopReason::ClosedOutput);
    }
}

impl Drop for StdoutReader {
    fn drop(&mut self) {
        self.state.stop(StopReason::Dropped);
    }
}

/// One line, judged by its first byte.
#[derive(Debug, PartialEq, Eq)]
enum StdoutLine {
    /// Begins as a JSON object or array.
    Message(Bytes),
    /// Anything else: a banner, a debugging aid.
    Stray(Bytes),
    /// Longer than the bound, thrown away.
    TooLong {
        /// Its length.
        bytes: u64,
        /// The error delivered instead.
        stand_in: Option<Bytes>,
    },
}

/// Cuts bytes into lines.
#[derive(Debug)]
struct LineCutter {
    buffer: BytesMut,
    /// Bytes of `buffer` known to hold no line break.
    searched: usize,
    /// The line that is too long and still going on.
    skipped: Option<SkippedOutput>,
    max_line: usize,
}

#[derive(Debug, Default)]
struct SkippedOutput {
    bytes: u64,
    watch: Watch,
}

impl SkippedOutput {
    fn see(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.watch.see(piece);
    }
}

impl LineCutter {
    fn new(max_line: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            skipped: None,
            max_line,
        }
    }

    /// The next complete line, if any. Blank lines are skipped.
    fn cut(&mut self) -> Option<StdoutLine> {
        loop {
            let fresh = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', fresh) else {
                self.keep_bounded();
                return None;
            };
            let capacity = self.buffer.capacity();
            let mut line = self.buffer.split_to(self.searched + at + 1);
            self.searched = 0;
            line.truncate(line.len() - 1);
            if self.skipped.is_some() || line.len() > self.max_line {
                let mut skipped = self.skipped.take().unwrap_or_default();
                skipped.see(&line);
                let stand_in = skipped.watch.stand_in(self.max_line);
                return Some(StdoutLine::TooLong {
                    bytes: skipped.bytes,
                    stand_in,
                });
            }
            let line = line.freeze();
            let text = unmarked(line.trim_ascii());
            match text.first() {
                None => {}
                Some(b'{' | b'[') if text.len() <= COPIED || text.len() * 2 < capacity => {
                    return Some(StdoutLine::Message(Bytes::copy_from_slice(text)));
                }
                Some(b'{' | b'[') => return Some(StdoutLine::Message(line.slice_ref(text))),
                Some(_) => return Some(StdoutLine::Stray(line.slice_ref(text))),
            }
        }
    }

    /// No line break yet: notes the searched length, and drops an overlong line.
    fn keep_bounded(&mut self) {
        self.searched = self.buffer.len();
        if self.skipped.is_some() || self.buffer.len() > self.max_line {
            self.skipped.get_or_insert_default().see(&self.buffer);
            self.buffer.clear();
            self.searched = 0;
        }
        // An idle child keeps no buffer larger than one read.
        if self.buffer.is_empty() && self.buffer.capacity() > READ {
            self.buffer = BytesMut::new();
        }
    }
}

/// A line without the byte order mark that some runtimes write before their first one.
fn unmarked(line: &[u8]) -> &[u8] {
    let marked = line.strip_prefix(json::BYTE_ORDER_MARK);
    marked.map_or(line, <[u8]>::trim_ascii_start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The lines in `pieces`, with a bound of 16 bytes.
    fn cut(pieces: &[&[u8]]) -> Vec<StdoutLine> {
        let mut cutter = LineCutter::new(16);
        let mut lines = Vec::new();
        for piece in pieces {
            cutter.buffer.extend_from_slice(piece);
            lines.extend(std::iter::from_fn(|| cutter.cut()));
        }
        lines
    }

    fn message(text: &'static str) -> StdoutLine {
        StdoutLine::Message(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn lines_are_judged_by_their_first_byte() {
        let stray = StdoutLine::Stray(Bytes::from_static(b"hi"));
        let lines = cut(&[b"{1}\r\n\n hi \n", b"[", b"2]\n", b"{unfinished"]);
        assert_eq!(lines, [message("{1}"), stray, message("[2]")]);
    }

    // Spec: RFC 8259 §8.1.
    #[test]
    fn a_byte_order_mark_hides_no_message() {
        let lines = cut(&[b"\xef\xbb\xbf{1}\n\xef\xbb\xbf\n\xef\xbb\xbf [2]\r\n\xefhi\n"]);
        let stray = StdoutLine::Stray(Bytes::from_static(b"\xefhi"));
        assert_eq!(lines, [message("{1}"), message("[2]"), stray]);
    }

    #[test]
    fn the_bound_counts_without_the_line_break() {
        let lines = cut(&[b"{345678901234567\n{3456789012345678\n{}\n"]);
        let too_long = StdoutLine::TooLong {
            bytes: 17,
            stand_in: None,
        };
        assert_eq!(
            lines,
            [message("{345678901234567"), too_long, message("{}")]
        );
    }

    #[test]
    fn a_reply_that_is_too_long_is_answered_in_its_place() {
        let lines = cut(&[b"{\"id\":3,\"result\":{\"text", b"\":\"very long\"}}\n{}\n"]);
        let [
            StdoutLine::TooLong {
                bytes: 38,
                stand_in: Some(reply),
            },
            next,
        ] = lines.as_slice()
        else {
            panic!("{lines:?}");
        };
        assert!(reply.starts_with(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"error\""));
        assert_eq!(*next, message("{}"));
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let mut cutter = LineCutter::new(16);
        for _ in 0..1000 {
            cutter.buffer.extend_from_slice(&[b'x'; 100]);
            assert_eq!(cutter.cut(), None);
        }
        assert!(cutter.buffer.capacity() <= READ);
    }

    proptest! {
        #[test]
        fn where_the_pieces_are_cut_changes_nothing(
            lines in proptest::collection::vec("[{a-z \":,}]{0,20}", 0..8),
            size in 1_usize..30,
        ) {
            let text: Vec<u8> = lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect();
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            prop_assert_eq!(cut(&pieces), cut(&[&text]));
        }
    }
}
