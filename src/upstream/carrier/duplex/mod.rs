//! Connections that carry whole messages both ways, as a pipe does: children, HTTP+SSE, WebSocket. The loss of the
//! connection is the loss of the session.

mod children;
mod departure;
mod events;
mod refused;
mod sender;
mod socket;
mod socket_writer;

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

pub(crate) use self::children::ChildSource;
pub(crate) use self::departure::DepartureFlag;
pub(crate) use self::sender::DuplexSender;
use super::LinkSettings;
use super::http::client::HttpClient;
use super::http::http_session::ResponseBounds;
use crate::process::{StdoutReader, WaitPolicy};
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::error::LinkError;
use crate::upstream::room::ArrivingMessage;

/// The way to open such a connection.
#[derive(Debug, Clone)]
pub(crate) enum DuplexSource {
    /// By starting a child.
    Children(ChildSource),
    /// By opening an event stream.
    Events(Box<HttpClient>, ResponseBounds),
    /// By upgrading a request.
    Sockets(Box<HttpClient>, ResponseBounds),
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) enum DuplexReceiver {
    /// A child's output.
    Lines(StdoutReader),
    /// An event stream.
    Events(Box<events::EventReader>),
    /// A socket's reader.
    Socket(Box<socket::SocketReceiver>),
}

impl DuplexSource {
    /// Whether its connections are children, which wait for a permit to start.
    pub(crate) fn is_of_children(&self) -> bool {
        matches!(self, Self::Children(_))
    }

    /// Opens a connection without sending a message. A child waits for its permit to start as `patience` says.
    ///
    /// # Errors
    /// [`LinkError`] when no connection can be opened.
    pub(in crate::upstream) async fn open(
        &self,
        settings: &LinkSettings,
        patience: WaitPolicy,
    ) -> Result<(DuplexSender, DuplexReceiver), LinkError> {
        match self {
            Self::Children(children) => {
                let (upstream, holders) = (&settings.upstream, &settings.holders);
                let opened = children.open(settings.owner, upstream, holders, patience);
                let (child, token, lines) = opened.await?;
                let sender = DuplexSender::Child(child, token);
                Ok((sender, DuplexReceiver::Lines(lines)))
            }
            Self::Events(client, bounds) => {
                Self::open_events(client, *bounds, &settings.tasks).await
            }
            Self::Sockets(client, bounds) => {
                let (writer, reader) = socket::open(client, *bounds, &settings.tasks).await?;
                end_with_caller(client, writer.closed(), &settings.tasks);
                Ok((
                    DuplexSender::Socket(Arc::new(writer)),
                    DuplexReceiver::Socket(Box::new(reader)),
                ))
            }
        }
    }

    /// Opens an event stream of 2024-11-05.
    pub(crate) async fn open_events(
        client: &HttpClient,
        bounds: ResponseBounds,
        tasks: &TaskSpawner,
    ) -> Result<(DuplexSender, DuplexReceiver), LinkError> {
        let (posts, reader) = events::open(client, bounds, tasks).await?;
        end_with_caller(client, posts.closed(), tasks);
        Ok((
            DuplexSender::Events(Arc::new(posts)),
            DuplexReceiver::Events(Box::new(reader)),
        ))
    }
}

/// Closes a connection when the token of the caller that it was opened for has ended, unless calls bring another one.
fn end_with_caller(client: &HttpClient, closed: &CancellationToken, tasks: &TaskSpawner) {
    let Some(caller) = client.credentials().caller() else {
        return;
    };
    let (caller, closed) = (Arc::clone(caller), closed.clone());
    tasks.spawn_service(async move {
        tokio::select! {
            () = caller.ended() => closed.cancel(),
            () = closed.cancelled() => {}
        }
    });
}

impl DuplexReceiver {
    /// The next message, which takes room in the byte budget as it arrives; reading pauses while there is no room.
    /// `None` when the connection is over.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn next_in(&mut self, room: &mut ArrivingMessage) -> Option<Bytes> {
        match self {
            Self::Lines(lines) => lines.next_in(room).await,
            Self::Events(reader) => reader.next(room).await,
            Self::Socket(reader) => reader.next(room).await,
        }
    }
}
