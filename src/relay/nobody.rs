//! The way back of requests that we make ourselves: nobody stands behind them.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::call::{Asked, ClientCapabilities, DownstreamLink, Notice, Round};

/// Hears no notice and answers no question.
#[derive(Debug)]
pub(super) struct Nobody(ClientCapabilities);

impl Nobody {
    /// Declares these capabilities, which say what its requests may come to.
    pub(super) fn declaring(capabilities: ClientCapabilities) -> Arc<dyn DownstreamLink> {
        Arc::new(Self(capabilities))
    }
}

impl DownstreamLink for Nobody {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.0
    }

    fn notify(&self, _notice: Notice) {}

    fn ask(&self, _round: Round) -> BoxFuture<'_, Asked> {
        Box::pin(std::future::ready(Asked::CannotAsk(
            "nobody stands behind this request".to_owned(),
        )))
    }
}
