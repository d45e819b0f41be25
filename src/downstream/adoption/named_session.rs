//! `NamedSession`: the session of a request, as the request names it.

use std::sync::Arc;

use crate::budget::BudgetHolder;
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::session::{ImplicitSessionKey, SessionId};

/// A session that a request names.
#[derive(Debug, Clone)]
pub(in crate::downstream) struct NamedSession {
    /// The id as it was sent.
    pub(in crate::downstream) id: String,
    /// The contents of the id.
    pub(in crate::downstream) handle: SessionId,
    /// Its client.
    pub(in crate::downstream) principal: Arc<Principal>,
    /// Its endpoint.
    pub(in crate::downstream) endpoint: Arc<Endpoint>,
    /// Whose share of the reply budget its calls use.
    pub(in crate::downstream) holder: BudgetHolder,
    /// The key of an implicit session, which has no id; `handle` has the key of its record.
    pub(in crate::downstream) implicit: Option<ImplicitSessionKey>,
}
