//! `ReplicaProof`: greeting of a replica whose certificate no lease record names, because Redis was away at its start.
//!
//! Both sides accept any certificate for this exchange, which is no HTTP: ALPN selects the exchange, and the connection
//! ends with the answer. Each side sends its record under a MAC that only holders of `cluster.secret` can make. The
//! record names the certificate of its sender. The MAC covers the keying material of the connection and the side that
//! speaks. So a text cannot be replayed on another connection, nor relayed by a third party between two replicas.
//! Reasons: `docs/adr/0027`.
//! Spec: RFC 9266 (`tls-exporter`), RFC 8446 §7.5.

use std::io;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls::{CommonState, ConnectionCommon};
use serde::{Deserialize, Serialize};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client, server};

use super::greeting::ReplicaGreeting;
use super::identity::{PROOF_PROTOCOL, ReplicaIdentity, fingerprint};
use super::record::{RecordSealer, ReplicaRecord};

/// Separates this keying material of a connection from any other.
const LABEL: &[u8] = b"EXPORTER-drawbridge-replica-proof";
/// Bytes of keying material.
const MATERIAL: usize = 32;
/// The longest line, in bytes.
const MAX_LINE: u64 = 8192;

/// The sides of an exchange, whose MACs differ: a question that is sent back is no answer.
const ASKS: &[u8] = b"asks";
const ANSWERS: &[u8] = b"answers";

/// The answer of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProvedGreeting {
    /// Its record, as it would stand in Redis.
    pub(super) record: ReplicaRecord,
    pub(super) greeting: ReplicaGreeting,
}

/// Makes proofs for `own`, and verifies those of other replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplicaProof<'a> {
    pub(super) own: &'a ReplicaRecord,
    pub(super) records: &'a RecordSealer,
}

/// Whether the other side of a connection begins this exchange.
pub(super) fn is_wanted(connection: &CommonState) -> bool {
    connection.alpn_protocol() == Some(PROOF_PROTOCOL)
}

impl ReplicaProof<'_> {
    /// Asks the replica at `address`, without a bound on the time. `None` without a valid proof: from a process that is
    /// no replica of this cluster, a replica of an earlier release, or a replica with another address.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(super) async fn ask(
        self,
        address: &str,
        identity: &ReplicaIdentity,
    ) -> Option<ProvedGreeting> {
        let (config, name) = identity.asker()?;
        let stream = TcpStream::connect(address).await.ok()?;
        let mut stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .ok()?;
        self.ask_over(&mut stream, address).await
    }

    async fn ask_over<S: AsyncRead + AsyncWrite + Unpin>(
        self,
        stream: &mut client::TlsStream<S>,
        address: &str,
    ) -> Option<ProvedGreeting> {
        let connection = stream.get_ref().1;
        if !is_wanted(connection) {
            return None;
        }
        let shown = shown(connection)?;
        let (asks, answers) = (binding(connection, ASKS)?, binding(connection, ANSWERS)?);
        let question = self.records.seal_bound(self.own, &asks)?;
        say(stream, question).await.ok()?;
        let answer = hear(stream).await.ok()?;
        let proved: ProvedGreeting = self.records.open_bound(&answer, &answers)?;
        // The network may lead to a replica that does not know the replica of this address.
        let is_there = proved.record.address == address;
        (is_there && self.is_holder(&proved.record, &shown)).then_some(proved)
    }

    /// Verifies the proof of the asker, answers it, and returns its record. Without a valid proof `None`, and not a byte
    /// of an answer.
    pub(super) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
        self,
        stream: &mut server::TlsStream<S>,
        greeting: ReplicaGreeting,
    ) -> Option<ReplicaRecord> {
        let connection = stream.get_ref().1;
        let shown = shown(connection)?;
        let (asks, answers) = (binding(connection, ASKS)?, binding(connection, ANSWERS)?);
        let question = hear(stream).await.ok()?;
        let asker: ReplicaRecord = self.records.open_bound(&question, &asks)?;
        if !self.is_holder(&asker, &shown) {
            return None;
        }
        let record = self.own.clone();
        let answer = ProvedGreeting { record, greeting };
        let answer = self.records.seal_bound(&answer, &answers)?;
        say(stream, answer).await.ok()?;
        stream.shutdown().await.ok()?;
        Some(asker)
    }

    /// Whether `record` is that of the process that has shown the certificate `shown`, and not of this one.
    fn is_holder(self, record: &ReplicaRecord, shown: &str) -> bool {
        record.fingerprint.as_deref() == Some(shown) && record.node != self.own.node
    }
}

/// The fingerprint of the other side's certificate, whose key it holds.
fn shown(connection: &CommonState) -> Option<String> {
    connection.peer_certificates()?.first().map(fingerprint)
}

/// Keying material of a connection for one side, which only the two ends of the connection know.
fn binding<D>(connection: &ConnectionCommon<D>, side: &[u8]) -> Option<String> {
    let material = connection.export_keying_material([0; MATERIAL], LABEL, Some(side));
    Some(BASE64_URL_SAFE_NO_PAD.encode(material.ok()?))
}

async fn say<S: AsyncWrite + Unpin>(stream: &mut S, mut line: String) -> io::Result<()> {
    line.push('\n');
    stream.write_all(line.as_bytes()).await?;
    stream.flush().await
}

async fn hear<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(MAX_LINE))
        .read_line(&mut line)
        .await?;
    match line.strip_suffix('\n') {
        Some(whole) => Ok(whole.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests;
