//! stub
use super::{Failure, Relay, route::Target};
use crate::call::{Call, Reply};
use crate::fault::Fault;
use crate::session::Session;
use std::sync::Arc;
impl Relay {
    pub(super) async fn list(
        &self,
        _c: &Call,
        _s: &Arc<Session>,
        _w: &'static str,
    ) -> Result<Reply, Failure> {
        Ok(Reply::Result(super::EMPTY))
    }
    pub(super) async fn merged_target(
        &self,
        _c: &Call,
        _s: &Arc<Session>,
    ) -> Result<Target, Fault> {
        Err(super::route::unknown_method("x"))
    }
}
