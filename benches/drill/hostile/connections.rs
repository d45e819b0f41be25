//! Attacks on connections and file descriptors: connections that are taken and held.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::attacks::Field;
use crate::client::{Caller, Client, Target};
use crate::wire::limited;

/// Streams that one session may have.
const PER_SESSION: usize = 8;
/// How long a connection is held before another takes its place.
const HELD: Duration = Duration::from_mins(10);
/// Size of the read buffer, bytes; what is read is thrown away.
const PIECE: usize = 4096;

/// Calls without a token, and keeps the connection.
pub(super) async fn refused(field: &Field<'_>) -> anyhow::Result<()> {
    let target = &field.victims.http.target;
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Length: 2\r\n\r\n{{}}",
        target.path, target.host
    );
    loop {
        field.began("stranger");
        let how = held(target, &[request.as_bytes()]).await;
        field.did("stranger", how).await?;
    }
}

/// Connects, and says nothing.
pub(super) async fn silent(field: &Field<'_>) -> anyhow::Result<()> {
    loop {
        field.began("silent");
        let how = held(&field.victims.http.target, &[]).await;
        field.did("silent", how).await?;
    }
}

/// Opens a session and as many streams as it may have.
pub(super) async fn streams(field: &Field<'_>) -> anyhow::Result<()> {
    loop {
        field.began("streams");
        let opened = async {
            let client = Client::in_session(field.victims.http.clone()).await?;
            let mut streams = Vec::with_capacity(PER_SESSION);
            for _ in 0..PER_SESSION {
                let mut stream = client.beside().await?;
                let head = stream.listen(None).await?;
                if head.status != 200 {
                    return io::Result::Ok(head.status.to_string());
                }
                streams.push(stream);
            }
            // The session's streams count as ended when the first of them ends.
            let reading = async {
                if let Some(stream) = streams.first_mut() {
                    while let Ok(Some(_)) = stream.wire.chunk().await {}
                }
            };
            let ended = tokio::time::timeout(HELD, reading).await;
            Ok(if ended.is_ok() { "ended" } else { "held" }.to_owned())
        };
        let how = opened
            .await
            .unwrap_or_else(|error| error.kind().to_string());
        field.did("streams", how.replace(' ', "_")).await?;
    }
}

/// Sends all parts on a new connection, then reads until the gateway closes it; returns the outcome.
pub(super) async fn held(target: &Target, parts: &[&[u8]]) -> &'static str {
    let Ok(mut socket) = limited(TcpStream::connect(target.addr)).await else {
        return "not_connected";
    };
    for part in parts {
        if limited(socket.write_all(part)).await.is_err() {
            return "not_sent";
        }
    }
    let reading = async {
        let mut piece = [0; PIECE];
        while socket.read(&mut piece).await.is_ok_and(|read| read > 0) {}
    };
    match tokio::time::timeout(HELD, reading).await {
        Ok(()) => "closed",
        Err(_) => "held",
    }
}

/// The head that makes a WebSocket of a connection.
pub(super) fn upgrade(caller: &Caller, path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: mcp\r\n\r\n",
        caller.target.host,
        caller.token.as_deref().unwrap_or_default(),
    )
}
