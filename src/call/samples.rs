//! Callers and upstreams in tests.

use std::sync::Arc;

use bytes::Bytes;

use super::{OwnerKey, ServerDeclaration};
use crate::protocol::Revision;

/// The owner `subject`, of an issuer that all tests share.
pub(crate) fn owner(subject: &str) -> OwnerKey {
    OwnerKey::of("https://issuer", subject)
}

/// The declaration of an upstream with these capabilities, JSON text, and nothing else.
pub(crate) fn declared(revision: Revision, capabilities: &'static str) -> Arc<ServerDeclaration> {
    let (capabilities, info) = (capabilities.into(), Bytes::from_static(b"{}"));
    Arc::new(ServerDeclaration::new(revision, capabilities, info, None))
}
