//! `RequestHandler`: answers a request; for parts below `relay` that make requests themselves.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::failure::RelayFailure;
use crate::call::{Call, Reply};
use crate::session::Session;

/// Answers requests of sessions: routed, decided about and audited as if their client had sent them.
pub(crate) trait RequestHandler: std::fmt::Debug + Send + Sync {
    /// Answers one request. Dropping the future cancels it upstream.
    fn handle<'a>(
        &'a self,
        call: &'a Call,
        session: &'a Arc<Session>,
    ) -> BoxFuture<'a, Result<Reply, RelayFailure>>;
}
