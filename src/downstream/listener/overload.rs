//! The refusal of connections above `server.max_connections`.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::runtime::lifecycle::TaskSpawner;

/// Concurrent refusals; further connections are closed without a response.
const POLITE_REFUSALS: usize = 64;
/// Time for one refusal to reach its reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a request that are swallowed, so that closing does not reset the connection before
/// the answer is read.
const SWALLOWED: u64 = 64 * 1024;
/// SPEC T-17: 503 with `Retry-After`, never a bare 400.
const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
    content-length: 0\r\nconnection: close\r\n\r\n";

/// Refuses connections for which no permit is free.
#[derive(Debug)]
pub(super) struct OverloadRefusals {
    turns: Arc<Semaphore>,
}

impl Default for OverloadRefusals {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(POLITE_REFUSALS)),
        }
    }
}

impl OverloadRefusals {
    /// Answers 503 on a plaintext connection; a TLS handshake would cost more than it tells.
    pub(super) fn refuse(&self, stream: std::net::TcpStream, tls: bool, tasks: &TaskSpawner) {
        let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() else {
            return;
        };
        if tls {
            return;
        }
        let Ok(stream) = TcpStream::from_std(stream) else {
            return;
        };
        tasks.spawn_service(async move {
            drop(tokio::time::timeout(PATIENCE, tell(stream)).await);
            drop(turn);
        });
    }
}

async fn tell(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(ANSWER).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(SWALLOWED), &mut tokio::io::sink()).await?;
    Ok(())
}
