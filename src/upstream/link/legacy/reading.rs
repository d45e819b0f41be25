//! Reads a pipe until its end, then fails all pending calls.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::connection::LegacyConnection;
use super::wire::LegacyWire;
use crate::budget::{EXEMPT_BYTES, ReplyLease};
use crate::protocol::salvage;
use crate::protocol::{DecodeError, Message};
use crate::upstream::carrier::duplex::DuplexReceiver;
use crate::upstream::carrier::http::http_session::LONGEST_ARRAY;
use crate::upstream::error::LinkError;
use crate::upstream::room::ArrivingMessage;
use crate::upstream::salvage::salvage;

fn suspect(connection: &LegacyConnection, error: &DecodeError) {
    connection.suspect(&format!("a line is no JSON-RPC message: {error}"));
}

/// Notes a line that is no message. If it was meant as a reply, its call fails at once, as no other reply will come.
fn not_read(connection: &Arc<LegacyConnection>, line: &Bytes, error: &DecodeError, depth: usize) {
    let is_awaited = |id| connection.pending.is_awaited(id);
    let name = &connection.settings.name;
    if let Some(reply) = salvage(name, line, depth, is_awaited) {
        drop(connection.on_message(reply, None));
        return;
    }
    if let LegacyWire::Duplex(duplex) = &connection.wire {
        duplex.keep_stray(line);
    }
    suspect(connection, error);
    if let Some(id) = salvage::answered(line) {
        connection
            .pending
            .fail(id, LinkError::Invalid(error.to_string()));
    }
}

/// Takes a message of a pipe. A large reply keeps `lease`, or takes one of its own, until its call is answered.
async fn take(connection: &Arc<LegacyConnection>, message: Message, lease: Option<ReplyLease>) {
    if message.bytes().len() > EXEMPT_BYTES {
        let (exclusive, wire) = (connection.settings.exclusive, &connection.wire);
        let has_room = connection
            .pending
            .has_room(&message, lease, exclusive, wire);
        if !Box::pin(has_room).await {
            return;
        }
    }
    drop(connection.on_message(message, None));
}

/// Reads a child until its output ends. Does not keep the connection alive, so that dropping the connection stops the
/// child.
pub(super) async fn read_lines(
    connection: Weak<LegacyConnection>,
    depth: usize,
    mut lines: DuplexReceiver,
) {
    let mut room = ArrivingMessage::new(Weak::clone(&connection));
    while let Some(line) = lines.next_in(&mut room).await {
        let Some(connection) = connection.upgrade() else {
            return;
        };
        let lease = room.take(line.len());
        let has_arrays = connection.declared().revision.supports_batches();
        if !has_arrays || !Message::is_batch(&line) {
            match Message::parse(line.clone(), depth) {
                Ok(message) => take(&connection, message, lease).await,
                Err(error) => not_read(&connection, &line, &error, depth),
            }
            continue;
        }
        match Message::parse_batch(line.clone(), depth, LONGEST_ARRAY) {
            Ok(elements) => {
                for element in elements {
                    match element {
                        Ok(message) => take(&connection, message, None).await,
                        Err(error) => suspect(&connection, &error),
                    }
                }
            }
            Err(error) => not_read(&connection, &line, &error, depth),
        }
    }
    if let Some(connection) = connection.upgrade() {
        connection.note_end();
        connection.fail_all();
    }
}
