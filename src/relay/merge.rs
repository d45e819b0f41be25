//! stub
use crate::call::Declared;
use crate::protocol::{Revision, json};
use bytes::Bytes;
use std::sync::Arc;
pub(super) fn pure(revision: Revision, declared: &Declared) -> Bytes {
    let caps = String::from_utf8_lossy(&declared.capabilities);
    let info = String::from_utf8_lossy(&declared.server_info);
    let mut out = format!(
        r#"{{"protocolVersion":"{}","capabilities":{caps},"serverInfo":{info}"#,
        revision.as_str()
    );
    if let Some(text) = &declared.instructions {
        out.push_str(",\"instructions\":");
        out.push_str(&json::quote(text));
    }
    out.push('}');
    out.into()
}
pub(super) fn merged(_r: Revision, _d: &[(Arc<str>, Option<Arc<Declared>>)]) -> Bytes {
    Bytes::new()
}
