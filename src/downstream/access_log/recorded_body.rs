//! `RecordedBody`: counts what of a response was written, and writes its access line at the end.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};

use super::AccessRecord;

/// A body that is counted until its end.
pub(super) struct RecordedBody {
    pub(super) body: Body,
    pub(super) record: AccessRecord,
    pub(super) ended: bool,
}

impl http_body::Body for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                let sent = frame.data_ref().map_or(0, Bytes::len) as u64;
                this.record.note(|fields| fields.bytes_out += sent);
            }
            Some(Err(_)) => this.record.outcome("broken"),
            None => this.ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        if !self.ended && !self.body.is_end_stream() {
            self.record.gone();
        }
        self.record.write();
    }
}
