//! `ListPageKey`: one page of one list, its request, and its cache key.

use std::sync::Arc;

use crate::fault::{Fault, FaultKind};
use crate::outbound::{EditDepth, UpstreamTarget};
use crate::protocol::methods::ListKind;
use crate::protocol::{Message, json, rpc};
use crate::upstream::declaration_cache::DeclarationKey;

/// Cache key of a page that every session with the same `key` may use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SharedPageKey {
    key: DeclarationKey,
    kind: ListKind,
    cursor: Option<Box<str>>,
}

impl SharedPageKey {
    pub(super) fn new(key: DeclarationKey, place: ListPageKey<'_>) -> Self {
        Self {
            key,
            kind: place.kind,
            cursor: place.cursor.map(Into::into),
        }
    }
}

/// Identifies one page: upstream, kind of list and cursor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListPageKey<'a> {
    pub(crate) upstream: &'a Arc<str>,
    pub(crate) kind: ListKind,
    /// JSON text of the upstream's cursor.
    pub(crate) cursor: Option<&'a str>,
}

impl<'a> ListPageKey<'a> {
    pub(super) fn new(upstream: &'a Arc<str>, kind: ListKind, cursor: Option<&'a str>) -> Self {
        Self {
            upstream,
            kind,
            cursor,
        }
    }

    /// The requested page, if the request is a plain list request.
    pub(crate) fn of(target: &'a UpstreamTarget) -> Option<Self> {
        let (kind, cursor) = target.page.as_ref()?;
        Some(Self {
            upstream: &target.upstream,
            kind: *kind,
            cursor: cursor.as_deref(),
        })
    }
}

/// An upstream answered a request for a list with something else.
pub(crate) fn no_list(place: ListPageKey<'_>) -> Fault {
    let (upstream, what) = (place.upstream, place.kind.member());
    let text = format!("upstream \"{upstream}\" did not list its {what}");
    Fault::upstream(FaultKind::UpstreamInvalid, text)
}

/// The gateway's own request for a page.
///
/// # Errors
/// An internal [`Fault`] if `cursor` is no JSON text.
pub(crate) fn list_request(
    edits: EditDepth,
    kind: ListKind,
    cursor: Option<&str>,
) -> Result<Message, Fault> {
    let params = cursor.map(|cursor| json::object([("cursor", cursor)]));
    edits.parse(rpc::request(0, kind.method(), params.as_deref()).into())
}
