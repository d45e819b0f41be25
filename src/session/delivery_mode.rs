//! `DeliveryMode`: how the messages of a session reach its client.

use tokio_util::sync::CancellationToken;

use crate::protocol::Revision;

/// How the messages of a session reach its client.
#[derive(Debug, Clone)]
pub enum DeliveryMode {
    /// On one stream per call and one standalone stream, which are logged and can be resumed.
    Streams,
    /// All on one connection, with which the session ends.
    Connection {
        /// Bytes that may wait to be read.
        unread: usize,
        /// The revision negotiated when the client offers an unknown one.
        fallback: Revision,
        /// Cancelled when more than `unread` bytes wait.
        overflow: CancellationToken,
    },
}
