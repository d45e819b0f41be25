//! An MCP server over bare sockets that closes idle connections and counts how often each call ran.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The largest body that is read, bytes.
const MAX_BODY: usize = 1 << 20;

/// How a server treats idle connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Seconds until the server closes an idle connection.
    pub(super) idle: u64,
    /// Whether the server announces `idle` in `Keep-Alive: timeout=`.
    is_named: bool,
}

impl Manner {
    pub(super) const fn closing(idle: u64) -> Self {
        let is_named = false;
        Self { idle, is_named }
    }

    pub(super) const fn named(self) -> Self {
        let is_named = true;
        Self { is_named, ..self }
    }
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) manner: Manner,
    /// Idle connections closed by the server.
    pub(super) closed: Arc<AtomicU64>,
    runs: Runs,
}

/// How often each call ran.
type Runs = Arc<Mutex<HashMap<u64, u32>>>;

impl Server {
    pub(super) async fn start(manner: Manner) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let this = Self {
            port: listener.local_addr()?.port(),
            manner,
            closed: Arc::default(),
            runs: Runs::default(),
        };
        let (closed, runs) = (Arc::clone(&this.closed), Arc::clone(&this.runs));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (closed, runs) = (Arc::clone(&closed), Arc::clone(&runs));
                tokio::spawn(converse(stream, manner, closed, runs));
            }
        });
        Ok(this)
    }

    pub(super) fn runs(&self) -> Vec<(u64, u32)> {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.iter().map(|(call, runs)| (*call, *runs)).collect()
    }
}

async fn converse(
    stream: TcpStream,
    manner: Manner,
    closed: Arc<AtomicU64>,
    runs: Runs,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let idle = Duration::from_secs(manner.idle);
    loop {
        let Ok(request) = tokio::time::timeout(idle, read(&mut stream)).await else {
            closed.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let Some((method, message)) = request? else {
            return Ok(());
        };
        let (status, body) = answer(&method, &message, &runs);
        let named = if manner.is_named {
            format!("Keep-Alive: timeout={}\r\n", manner.idle)
        } else {
            String::new()
        };
        let text = format!(
            "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nMcp-Session-Id: s\r\n{named}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(text.as_bytes()).await?;
    }
}

/// Reads one request; nothing at the end of the connection.
async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<(String, Value)>> {
    let (mut method, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if method.is_empty() {
            line.split(' ')
                .next()
                .unwrap_or_default()
                .clone_into(&mut method);
        } else if line.is_empty() {
            break;
        } else if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    if length > MAX_BODY {
        return Err(io::Error::other("the body is too large"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some((
        method,
        serde_json::from_slice(&body).unwrap_or_default(),
    )))
}

fn answer(method: &str, message: &Value, runs: &Runs) -> (u16, String) {
    let result = match (method, message.get("method").and_then(Value::as_str)) {
        ("GET", _) => return (405, String::new()),
        ("DELETE", _) => return (200, String::new()),
        (_, Some("initialize")) => json!({
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "idle", "version": "1"},
        }),
        (_, Some("tools/call")) => {
            let call = message
                .pointer("/params/arguments/call")
                .and_then(Value::as_u64);
            let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
            *runs.entry(call.unwrap_or(u64::MAX)).or_default() += 1;
            json!({"content": [{"type": "text", "text": "done"}]})
        }
        (_, Some("tools/list")) => json!({"tools": []}),
        _ if message.get("id").is_none() => return (202, String::new()),
        _ => json!({}),
    };
    let id = message.get("id");
    (
        200,
        json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string(),
    )
}
