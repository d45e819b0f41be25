//! The backlog of a listener: connections that clients have opened and the gateway has not accepted.
//!
//! Closing a listening socket resets them, with the requests that their clients have sent.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;

use socket2::{SockFilter, SockRef};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{BACKLOG, ConnectionSettings};
use crate::cause::chain;

/// Accepts connections from the backlog for `server.drain_linger`, then closes the socket. Handshakes after that are
/// not answered: the client finds the port closed on its retry, a second later.
pub(super) async fn empty(
    socket: TcpListener,
    settings: &ConnectionSettings,
    stopping: &CancellationToken,
    mut take: impl FnMut(TcpStream, SocketAddr),
) {
    if let Err(error) = drop_new_handshakes(&socket) {
        tracing::debug!(
            error = chain(&error),
            "cannot keep new connections out of the backlog"
        );
    }
    // An answer to our half of a handshake may be under way: as long as a round trip takes.
    let mut over = pin!(tokio::time::sleep(settings.drain_linger));
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = over.as_mut() => break,
            accepted = socket.accept() => accepted,
        };
        match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok((stream, peer)) => take(stream, peer),
            Err(error) => settings.pause_after(&error).await,
        }
    }
    // Accept with the std socket: the runtime learns of new connections only at its next poll of the reactor.
    let Ok(socket) = socket.into_std() else {
        return;
    };
    for _ in 0..=BACKLOG {
        let Ok((stream, peer)) = socket.accept() else {
            break;
        };
        if stream.set_nonblocking(true).is_ok() {
            take(stream, peer);
        }
    }
}

/// Makes the system ignore each SYN, while the last step of handshakes still passes.
///
/// Without it a client whose handshake ends between the last accept and the close is reset.
fn drop_new_handshakes(socket: &TcpListener) -> io::Result<()> {
    // Classic BPF over the TCP header: A = flags; A &= SYN | ACK; A == SYN ? drop : keep.
    // Spec: RFC 9293 §3.1 (the flags are its fourteenth byte).
    let filter = [
        SockFilter::new(0x30, 0, 0, 13),
        SockFilter::new(0x54, 0, 0, 0x12),
        SockFilter::new(0x15, 0, 1, 0x02),
        SockFilter::new(0x06, 0, 0, 0),
        SockFilter::new(0x06, 0, 0, u32::MAX),
    ];
    SockRef::from(socket).attach_filter(&filter)
}
