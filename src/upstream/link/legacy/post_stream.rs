//! Messages on the stream that answers one of our requests.
//! Spec: SPEC C-02, C-03, U-12.

use std::sync::Arc;
use std::time::Duration;

use super::connection::LegacyConnection;
use super::pending_reply::PendingReply;
use crate::budget::ReplyLease;
use crate::call::ProgressBatch;
use crate::protocol::{Message, ProgressNotice};
use crate::upstream::carrier::http::sink::MessageSink;
use crate::upstream::room::GrowingReply;

/// Takes the messages of a request's own stream.
pub(super) struct LegacyPostStream<'a> {
    connection: &'a Arc<LegacyConnection>,
    pending: &'a Arc<PendingReply>,
    /// The request's progress token upstream: JSON text.
    token: String,
    /// Progress of the request that is not delivered yet.
    burst: ProgressBatch,
}

impl<'a> LegacyPostStream<'a> {
    /// For the stream that answers `pending`.
    pub(super) fn new(
        connection: &'a Arc<LegacyConnection>,
        pending: &'a Arc<PendingReply>,
    ) -> Self {
        Self {
            connection,
            pending,
            token: pending.id.to_string(),
            burst: ProgressBatch::default(),
        }
    }

    /// Delivers the progress received so far.
    fn hand_on(&mut self) {
        if self.burst.is_empty() {
            return;
        }
        let burst = std::mem::take(&mut self.burst);
        if let (Some(link), Some(token)) = (&self.pending.link, &self.pending.progress) {
            link.progress(token, burst);
        }
    }
}

impl MessageSink for LegacyPostStream<'_> {
    fn message(&mut self, message: Message) -> Option<Message> {
        self.hand_on();
        self.connection.on_message(message, Some(self.pending))
    }

    fn awaits(&self, id: u64) -> bool {
        self.pending.id == id
    }

    fn growing(&self) -> Option<GrowingReply> {
        let Some(room) = self.pending.reply_room() else {
            // A list is refused where its copy finds no room: until then the list waits for no room of the caller's.
            let share = &self.connection.settings.replies;
            return Some(GrowingReply::outside_calls(share));
        };
        Some(GrowingReply::of(room, &self.pending.activity))
    }

    fn keep(&mut self, lease: ReplyLease) {
        self.pending.keep(lease);
    }

    /// Takes the request's own progress, if the client wants it.
    fn progress(&mut self, progress: &ProgressNotice<'_>) -> bool {
        let Some(token) = &self.pending.progress else {
            return false;
        };
        if self.pending.link.is_none() || !progress.is_of(&self.token) {
            return false;
        }
        self.burst.push(|out| progress.write_with_token(token, out));
        if self.burst.is_full() {
            self.hand_on();
        }
        true
    }

    fn closed(&mut self, retry: Option<Duration>) {
        if let Some(link) = &self.pending.link {
            link.hang_up(retry);
        }
    }

    fn taken(&mut self) {
        self.hand_on();
        // Comments count too: each shows that the upstream is alive.
        self.pending.activity.touch();
    }
}
