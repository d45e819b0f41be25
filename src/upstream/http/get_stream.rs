//! The GET stream of an upstream session: kept open, resumed, and whether it is open now.
//! Spec: SPEC U-10, T-27.

use std::sync::Arc;

use super::client::MessageHeaders;
use super::reading::{LONGEST_RETRY, Place, RESUME_DELAY};
use super::wire::{HttpWire, is_event_stream};
use crate::protocol::Message;
use crate::upstream::hearing::Hearing;

/// What an upstream refuses that answers a GET without a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It has no such streams, or none for us.
    Stream,
    /// It had one, and does not know the session any more.
    Session,
}

/// Open ears; closed when dropped.
struct Ears<'a>(&'a Hearing);

impl<'a> Ears<'a> {
    fn open(hearing: &'a Hearing) -> Self {
        hearing.begin();
        Self(hearing)
    }
}

impl Drop for Ears<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl HttpWire {
    /// Whether changes are heard of: a GET stream is open.
    pub(crate) fn hearing(&self) -> &Hearing {
        &self.hearing
    }

    /// Ready once the GET stream is open, or was refused, for the first time.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn answered(&self) {
        self.answered.cancelled().await;
    }

    /// Keeps the GET stream open until the upstream turns out to have none, or to have forgotten the
    /// session; `on_open` is told of each that does not go on where the one before it broke off.
    /// Whoever asks what is heard waits from now on, whatever became of an earlier stream.
    ///
    /// # Cancel safety
    /// Dropping the future closes the stream.
    pub(crate) fn listen(
        self: Arc<Self>,
        on_open: impl FnMut() + Send,
        on_message: impl FnMut(Message) + Send,
    ) -> impl Future<Output = Refused> + Send {
        self.hearing.end();
        self.keep_listening(on_open, on_message)
    }

    async fn keep_listening(
        self: Arc<Self>,
        mut on_open: impl FnMut() + Send,
        mut on_message: impl FnMut(Message) + Send,
    ) -> Refused {
        let mut place = Place::default();
        let mut pause = RESUME_DELAY;
        let mut was_open = false;
        loop {
            let headers = MessageHeaders {
                last_event: place.last_event.clone(),
                ..self.headers(None)
            };
            let answer = self.client.listen(headers).await;
            self.answered.cancel();
            match answer {
                Ok(response) if response.status().is_success() && is_event_stream(&response) => {
                    pause = RESUME_DELAY;
                    was_open = true;
                    let mut body = response.into_body();
                    let _ears = Ears::open(&self.hearing);
                    if place.last_event.is_none() {
                        on_open();
                    }
                    let mut take = |message: Message| {
                        on_message(message);
                        None
                    };
                    if let Err(error) = self.read_once(&mut body, &mut place, &mut take).await {
                        tracing::warn!(error = %error, "upstream event stream is invalid");
                    }
                }
                // The position is no longer kept there: go on from now.
                Ok(response) if place.last_event.is_some() && response.status() == 404 => {
                    place.last_event = None;
                }
                Ok(response) if response.status().is_client_error() => {
                    self.hearing.give_up();
                    // An upstream without such streams may say 404 as well, or 400.
                    let unknown = matches!(response.status().as_u16(), 400 | 404);
                    return if was_open && unknown && self.has_session() {
                        Refused::Session
                    } else {
                        Refused::Stream
                    };
                }
                Ok(_) | Err(_) => pause = (pause * 2).min(LONGEST_RETRY),
            }
            tokio::time::sleep(place.retry.unwrap_or(pause)).await;
        }
    }
}
