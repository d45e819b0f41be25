//! One HTTP/1.1 connection, cheap enough not to distort the measurement.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Response heads at most, bytes.
const MAX_HEAD: usize = 64 << 10;
/// Timeout of each wait for the peer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One keep-alive connection.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: TcpStream,
    input: BytesMut,
    body: Body,
}

/// What is left of the current response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    None,
    Sized(usize),
    /// Between chunks.
    Chunked,
    /// So many bytes of this chunk are left, its line end not counted.
    InChunk(usize),
}

/// What we read of a response head.
#[derive(Debug, Default, Clone)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) session: Option<String>,
    pub(crate) is_events: bool,
}

impl Wire {
    pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Self> {
        let socket = limited(TcpStream::connect(addr)).await?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            input: BytesMut::with_capacity(16 << 10),
            body: Body::None,
        })
    }

    /// Sends a request and reads the response's head; an unread body before it is skipped.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Head> {
        limited(self.exchange_patiently(request)).await
    }

    async fn exchange_patiently(&mut self, request: &[u8]) -> io::Result<Head> {
        while self.chunk().await?.is_some() {}
        self.socket.write_all(request).await?;
        loop {
            let end = self
                .input
                .windows(4)
                .position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                let head = self.input.split_to(end + 4);
                let (head, body) = parse_head(&head)?;
                self.body = body;
                return Ok(head);
            }
            if self.input.len() > MAX_HEAD {
                return Err(invalid("response head is too large"));
            }
            self.fill().await?;
        }
    }

    /// The rest of the body.
    pub(crate) async fn rest(&mut self) -> io::Result<Bytes> {
        limited(async {
            let Some(first) = self.chunk().await? else {
                return Ok(Bytes::new());
            };
            let Some(second) = self.chunk().await? else {
                return Ok(first);
            };
            let mut whole = BytesMut::from(first);
            whole.extend_from_slice(&second);
            while let Some(chunk) = self.chunk().await? {
                whole.extend_from_slice(&chunk);
            }
            Ok(whole.freeze())
        })
        .await
    }

    /// The next bytes of the body, however long they take; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match self.body {
                Body::None | Body::Sized(0) => {
                    self.body = Body::None;
                    return Ok(None);
                }
                Body::Sized(left) | Body::InChunk(left) if left > 0 && !self.input.is_empty() => {
                    let taken = left.min(self.input.len());
                    let left = left - taken;
                    self.body = match self.body {
                        Body::Sized(_) => Body::Sized(left),
                        _ => Body::InChunk(left),
                    };
                    return Ok(Some(self.input.split_to(taken).freeze()));
                }
                Body::InChunk(0) if self.input.len() >= 2 => {
                    self.input.advance(2);
                    self.body = Body::Chunked;
                    continue;
                }
                Body::Chunked => {
                    if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                        let size = chunk_size(self.input.get(..end).unwrap_or_default())?;
                        if size > 0 {
                            self.input.advance(end + 1);
                            self.body = Body::InChunk(size);
                            continue;
                        }
                        // The last chunk; its empty trailer follows.
                        if self.input.len() >= end + 3 {
                            self.input.advance(end + 3);
                            self.body = Body::None;
                            return Ok(None);
                        }
                    }
                }
                _ => {}
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.input.reserve(8 << 10);
        if self.socket.read_buf(&mut self.input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Closes the connection with a TCP reset.
    pub(crate) fn reset(self) -> io::Result<()> {
        self.socket.set_zero_linger()
    }
}

fn parse_head(text: &[u8]) -> io::Result<(Head, Body)> {
    let text = std::str::from_utf8(text).map_err(|_| invalid("response head is not UTF-8"))?;
    let mut lines = text.split("\r\n");
    let status = lines.next().unwrap_or_default().split(' ').nth(1);
    let status = status.and_then(|status| status.parse().ok());
    let mut head = Head {
        status: status.ok_or_else(|| invalid("no status in the response"))?,
        ..Head::default()
    };
    let mut body = Body::Sized(0);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let size = value.parse().map_err(|_| invalid("bad content-length"))?;
            body = Body::Sized(size);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            body = Body::Chunked;
        } else if name.eq_ignore_ascii_case("content-type") {
            head.is_events = value.starts_with("text/event-stream");
        } else if name.eq_ignore_ascii_case("mcp-session-id") {
            head.session = Some(value.to_owned());
        }
    }
    Ok((head, body))
}

fn chunk_size(line: &[u8]) -> io::Result<usize> {
    let line = std::str::from_utf8(line).unwrap_or_default();
    let digits = line.split(';').next().unwrap_or_default().trim();
    usize::from_str_radix(digits, 16).map_err(|_| invalid("bad chunk size"))
}

/// An answer that breaks HTTP or MCP.
pub(crate) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// `work`, or an error when it takes longer than [`PATIENCE`].
pub(crate) async fn limited<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
