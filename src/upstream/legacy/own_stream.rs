//! What comes on the stream that answers one of our requests.
//! Spec: SPEC C-02, C-03, U-12.

use std::sync::Arc;

use super::calls::Pending;
use super::connection::Connection;
use crate::call::{Notice, NoticeKind};
use crate::protocol::{Message, Progress};
use crate::upstream::http::sink::Sink;

/// Takes the messages of a request's own stream.
pub(super) struct OwnStream<'a> {
    connection: &'a Arc<Connection>,
    pending: &'a Arc<Pending>,
    /// Whether progress has come since the idle clock was last set back.
    moved: bool,
}

impl<'a> OwnStream<'a> {
    /// For the stream that answers `pending`.
    pub(super) fn new(connection: &'a Arc<Connection>, pending: &'a Arc<Pending>) -> Self {
        Self {
            connection,
            pending,
            moved: false,
        }
    }
}

impl Sink for OwnStream<'_> {
    fn message(&mut self, message: Message) -> Option<Message> {
        self.connection.on_message(message, Some(self.pending))
    }

    /// Takes the request's own progress, when the client wants to know of it.
    fn progress(&mut self, progress: &Progress) -> bool {
        let (Some(link), Some(token)) = (&self.pending.link, &self.pending.progress) else {
            return false;
        };
        if progress.token() != Some(self.pending.id) {
            return false;
        }
        self.moved = true;
        link.notify(Notice {
            bytes: progress.with_token(token),
            kind: NoticeKind::Progress {
                token: Arc::clone(token),
            },
        });
        true
    }

    fn taken(&mut self) {
        if std::mem::take(&mut self.moved) {
            self.pending.activity.touch();
        }
    }
}
