//! The parts of a session's way to its upstreams that every request shares: the target and how an endpoint shows it, the
//! link and the declaration of the upstream, the decision with its audit record, and the reasons for a missing reply.
//! `catalog`, `tasks` and `relay` use these parts.

mod accounts;
mod audited_policy;
mod availability;
mod client_error;
mod edit_depth;
mod extension_methods;
mod failure;
mod internal_call;
mod links;
mod missing;
mod reply_source;
mod request_handler;
mod target;
mod unknown_methods;
mod view;

pub(crate) use accounts::want_of_account;
pub(crate) use audited_policy::{AuditedPolicy, outcome};
pub(crate) use client_error::{given_cursor, invalid, refused, required_text, unknown_method};
pub(crate) use edit_depth::EditDepth;
pub(crate) use extension_methods::{
    check_anybody_logs, check_anybody_provides, check_declared, check_extension, check_provided,
    open, provides,
};
pub use failure::RelayFailure;
pub(crate) use internal_call::{InternalCall, own_call};
pub(crate) use links::{IntakeFactory, SessionLinks};
pub(crate) use missing::{is_open, left_out, not_ready};
pub(crate) use reply_source::{ReplySource, ReplySources, tool_failure};
pub(crate) use request_handler::RequestHandler;
pub(crate) use target::UpstreamTarget;
pub(crate) use unknown_methods::is_shared;
pub(crate) use view::{EndpointView, is_loud_enough};

use bytes::Bytes;

/// A result without content.
pub(crate) const EMPTY: Bytes = Bytes::from_static(b"{}");
