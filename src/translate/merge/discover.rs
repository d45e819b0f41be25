//! The result of `server/discover`. Spec: SPEC M-41, M-50…M-53, M-80; BRIDGING §5.1 to §5.3, §5.7.

use bytes::Bytes;
use std::borrow::Cow;

use super::initialize::{capabilities_of, instructions};
use super::missing::{self, MergedMember};
use super::{GatewayInfo, capabilities};
use crate::call::ServerDeclaration;
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::{Revision, meta};

/// TTL of a result with every upstream known, milliseconds.
pub(crate) const WHOLE_MS: u64 = 60_000;
/// TTL of a result with a missing upstream, milliseconds.
const PARTIAL_MS: u64 = 1_000;

/// Result for a pure endpoint. Its TTL does not exceed the upstream's own (SPEC M-83).
pub(crate) fn pure(revision: Revision, declared: &ServerDeclaration) -> Bytes {
    of_one(revision, declared, WHOLE_MS.min(declared.kept_ms()))
}

/// Result for a pure endpoint whose upstream is unreachable: the last declaration, else every capability.
/// A client never asks again for an undeclared capability, while a request for a missing one gets an error.
pub(crate) fn absent(
    revision: Revision,
    last: Option<&ServerDeclaration>,
    ourselves: &GatewayInfo,
    tells_changes: bool,
) -> Bytes {
    if let Some(last) = last {
        return of_one(revision, last, PARTIAL_MS);
    }
    let any = if tells_changes {
        Cow::Owned(capabilities::merged([], true))
    } else {
        Cow::Borrowed(r#"{"tools":{},"prompts":{},"resources":{}}"#)
    };
    result(&any, None, (&ourselves.info, None), PARTIAL_MS)
}

fn of_one(revision: Revision, declared: &ServerDeclaration, ttl_ms: u64) -> Bytes {
    let capabilities = capabilities::shown(declared, revision);
    let instructions = declared.instructions.as_deref();
    let server = (&*declared.server_info, None);
    result(&capabilities, instructions, server, ttl_ms)
}

/// Result for a merged endpoint: the declarations of all known upstreams, with the gateway as the server.
pub(crate) fn merged(
    revision: Revision,
    upstreams: &[MergedMember],
    ourselves: &GatewayInfo,
) -> Bytes {
    let kept = |one: &MergedMember| match (&one.declared, one.missing) {
        (Some(declared), None) => declared.kept_ms(),
        _ => PARTIAL_MS,
    };
    let kept = upstreams.iter().map(kept).min();
    let missing = missing::codes(upstreams.iter().filter_map(MergedMember::absence));
    result(
        &capabilities_of(revision, upstreams, ourselves),
        instructions(upstreams, ourselves).as_deref(),
        (&ourselves.info, missing.as_deref()),
        WHOLE_MS.min(kept.unwrap_or(WHOLE_MS)),
    )
}

/// `missing` is JSON text of the object that names the missing upstreams.
fn result(
    capabilities: &str,
    instructions: Option<&str>,
    (server_info, missing): (&str, Option<&str>),
    ttl_ms: u64,
) -> Bytes {
    let mut about = ObjectWriter::default();
    about.member(meta::SERVER_INFO, server_info);
    if let Some(missing) = missing {
        about.member(meta::MISSING, missing);
    }
    let mut out = ObjectWriter::default();
    out.member("resultType", "\"complete\"");
    let versions = json::strings(Revision::SERVED.map(Revision::as_str));
    out.member("supportedVersions", &versions);
    out.member("capabilities", capabilities);
    if let Some(instructions) = instructions {
        out.member("instructions", &json::quote(instructions));
    }
    out.member("ttlMs", &ttl_ms.to_string());
    // Private, since the result may depend on the caller, as lists do.
    out.member("cacheScope", "\"private\"");
    out.member("_meta", &about.finish());
    out.finish().into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use std::sync::Arc;

    use super::*;
    use crate::translate::merge::MissingReason;

    const MODERN: Revision = Revision::V2026_07_28;

    fn declared(capabilities: &'static str) -> Arc<ServerDeclaration> {
        Arc::new(ServerDeclaration::new(
            Revision::V2025_11_25,
            Bytes::from_static(capabilities.as_bytes()),
            Bytes::from_static(br#"{"name":"n","version":"1"}"#),
            Some("Use x.".to_owned()),
        ))
    }

    fn known(
        name: &str,
        declared: Option<Arc<ServerDeclaration>>,
        missing: Option<MissingReason>,
    ) -> MergedMember {
        MergedMember {
            upstream: name.into(),
            declared,
            missing,
        }
    }

    fn read(bytes: &Bytes) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    // SPEC M-50, M-53.
    #[test]
    fn a_pure_endpoint_speaks_for_its_upstream() {
        let known = declared(r#"{"tools":{},"tasks":{}}"#);
        let said = read(&pure(MODERN, &known));
        assert_eq!(said["resultType"], "complete");
        assert_eq!(said["capabilities"], json!({"tools": {}}));
        assert_eq!(said["instructions"], "Use x.");
        assert_eq!(said["_meta"][meta::SERVER_INFO]["name"], "n");
        assert_eq!(said["cacheScope"], "private");
        assert_eq!(said.get("serverInfo"), None);
        let versions = said["supportedVersions"].as_array().unwrap();
        assert_eq!(versions.first().unwrap(), "2026-07-28");
        assert_eq!(versions.last().unwrap(), "2024-11-05");
    }

    // SPEC M-83.
    #[test]
    fn nothing_is_believed_longer_than_its_upstream_says() {
        let short = declared("{}");
        let short = Arc::new(ServerDeclaration::clone(&short).kept_for(7));
        assert_eq!(read(&pure(MODERN, &declared("{}")))["ttlMs"], WHOLE_MS);
        assert_eq!(read(&pure(MODERN, &short))["ttlMs"], 7);
        let [a, b] = ["a", "b"].map(|name| known(name, Some(declared("{}")), None));
        let ours = GatewayInfo::sample(None);
        let both = |other| read(&merged(MODERN, &[a.clone(), other], &ours));
        assert_eq!(both(b.clone())["ttlMs"], WHOLE_MS);
        assert_eq!(both(known("b", Some(short), None))["ttlMs"], 7);
        let late = known("b", b.declared, Some(MissingReason::Unreachable));
        assert_eq!(both(late)["ttlMs"], PARTIAL_MS);
    }

    // SPEC M-51.
    #[test]
    fn what_cannot_be_reached_may_have_anything_for_a_moment() {
        let said = read(&absent(MODERN, None, &GatewayInfo::sample(None), true));
        let all = ["tools", "prompts", "resources"];
        assert!(
            all.iter()
                .all(|what| said["capabilities"][what].is_object())
        );
        assert_eq!(said["ttlMs"], PARTIAL_MS);
        assert_eq!(said["_meta"][meta::SERVER_INFO]["name"], "drawbridge");
    }

    #[test]
    fn what_cannot_be_reached_has_what_it_had_last() {
        let last = declared(r#"{"tools":{}}"#);
        let said = read(&absent(
            MODERN,
            Some(&last),
            &GatewayInfo::sample(None),
            true,
        ));
        assert_eq!(said["capabilities"], json!({"tools": {}}));
        assert_eq!(said["ttlMs"], PARTIAL_MS);
        assert_eq!(said["_meta"][meta::SERVER_INFO]["name"], "n");
    }

    #[test]
    fn a_merged_endpoint_without_one_of_its_upstreams_is_asked_again_soon() {
        let upstreams = [
            known("a", Some(declared(r#"{"logging":{}}"#)), None),
            known("b", None, Some(MissingReason::Unreachable)),
        ];
        let said = read(&merged(
            MODERN,
            &upstreams,
            &GatewayInfo::sample(Some("Ours.")),
        ));
        assert_eq!(said["ttlMs"], PARTIAL_MS);
        assert_eq!(said["capabilities"]["logging"], json!({}));
        assert_eq!(said["capabilities"]["tools"], json!({"listChanged": true}));
        let instructions = said["instructions"].as_str().unwrap();
        assert!(instructions.starts_with("Ours.\n\nNot available now: `b`. "));
        assert!(instructions.contains("a__"));
        assert_eq!(said["_meta"][meta::MISSING], json!({"b": "unreachable"}));
        assert_eq!(said["_meta"][meta::SERVER_INFO]["name"], "drawbridge");
    }
}
