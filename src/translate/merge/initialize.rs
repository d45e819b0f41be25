//! The result of `initialize`. Spec: SPEC L-02; BRIDGING §5.1 to §5.3, §5.7.

use std::borrow::Cow;

use bytes::Bytes;

use super::instructions::{InstructionPart, joined};
use super::missing::{self, MergedMember};
use super::{GatewayInfo, capabilities};
use crate::call::ServerDeclaration;
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::{Revision, meta};

/// Result for a pure endpoint: the upstream's declaration, projected to `revision`.
pub(crate) fn pure(revision: Revision, declared: &ServerDeclaration) -> Bytes {
    let capabilities = capabilities::shown(declared, revision);
    let instructions = declared.instructions.as_deref();
    result(
        revision,
        &capabilities,
        &declared.server_info,
        instructions,
        None,
    )
}

/// Result for a merged endpoint: the declarations of all known upstreams, with the gateway as the server.
/// An unknown upstream contributes nothing.
pub(crate) fn merged(
    revision: Revision,
    upstreams: &[MergedMember],
    ourselves: &GatewayInfo,
) -> Bytes {
    result(
        revision,
        &capabilities_of(revision, upstreams, ourselves),
        &ourselves.info,
        instructions(upstreams, ourselves).as_deref(),
        missing::codes(upstreams.iter().filter_map(MergedMember::absence)).as_deref(),
    )
}

/// The capabilities of all known upstreams, as `revision` spells them.
pub(super) fn capabilities_of(
    revision: Revision,
    upstreams: &[MergedMember],
    ourselves: &GatewayInfo,
) -> String {
    let known = upstreams.iter().filter_map(|one| one.declared.as_deref());
    let all = known.map(|declared| capabilities::shown(declared, revision));
    let all: Vec<String> = all.collect();
    capabilities::merged(all.iter().map(String::as_str), ourselves.tells_changes)
}

/// The instructions of the operator and of all known upstreams, and the names of missing upstreams.
pub(super) fn instructions(upstreams: &[MergedMember], ourselves: &GatewayInfo) -> Option<String> {
    let parts = upstreams.iter().filter_map(|one| {
        let declared = one.declared.as_deref()?;
        Some(InstructionPart {
            upstream: &one.upstream,
            title: title(declared),
            text: declared.instructions.as_deref()?,
        })
    });
    let missing = missing::sentence(upstreams.iter().filter_map(MergedMember::absence));
    joined(ourselves.instructions.as_deref(), missing.as_deref(), parts)
}

/// The title in the upstream's `serverInfo`; empty if there is none.
fn title(declared: &ServerDeclaration) -> Cow<'_, str> {
    let member = |key| json::member(&declared.server_info, key);
    let named = member("title")
        .and_then(json::string)
        .filter(|title| !title.is_empty());
    named
        .or_else(|| json::string(member("name")?))
        .unwrap_or_default()
}

fn result(
    revision: Revision,
    capabilities: &str,
    server_info: &str,
    instructions: Option<&str>,
    missing: Option<&str>,
) -> Bytes {
    let mut out = ObjectWriter::default();
    out.member("protocolVersion", &json::quote(revision.as_str()));
    out.member("capabilities", capabilities);
    out.member("serverInfo", server_info);
    if let Some(instructions) = instructions {
        out.member("instructions", &json::quote(instructions));
    }
    if let Some(missing) = missing {
        out.member("_meta", &json::object([(meta::MISSING, missing)]));
    }
    out.finish().into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::translate::merge::MissingReason;

    fn declared(
        capabilities: &'static str,
        info: &'static str,
        says: Option<&str>,
    ) -> ServerDeclaration {
        ServerDeclaration::new(
            Revision::V2025_11_25,
            Bytes::from_static(capabilities.as_bytes()),
            Bytes::from_static(info.as_bytes()),
            says.map(ToOwned::to_owned),
        )
    }

    fn known(
        name: &str,
        declared: Option<ServerDeclaration>,
        missing: Option<MissingReason>,
    ) -> MergedMember {
        MergedMember {
            upstream: name.into(),
            declared: declared.map(Arc::new),
            missing,
        }
    }

    // SPEC L-02.
    #[test]
    fn a_pure_endpoint_answers_like_its_upstream() {
        let one = declared(
            r#"{"tools":{"x":1.0},"completions":{}}"#,
            r#"{"name":"n","version":"1"}"#,
            Some("a\nb"),
        );
        assert_eq!(
            pure(Revision::V2024_11_05, &one),
            r#"{"protocolVersion":"2024-11-05","capabilities":{"tools":{"x":1.0}},"serverInfo":{"name":"n","version":"1"},"instructions":"a\nb"}"#
        );
    }

    #[test]
    fn a_merged_endpoint_speaks_for_those_it_knows() {
        let a = declared(
            r#"{"logging":{}}"#,
            r#"{"name":"n","title":"Alpha"}"#,
            Some("Use x."),
        );
        let b = declared("{}", "{}", Some("Use y."));
        let upstreams = [
            known("a", Some(a), None),
            known("b", Some(b), None),
            known("c", None, Some(MissingReason::Starting)),
        ];
        let read: Value = serde_json::from_slice(&merged(
            Revision::V2025_06_18,
            &upstreams,
            &GatewayInfo::sample(None),
        ))
        .unwrap();
        assert_eq!(read["protocolVersion"], "2025-06-18");
        assert_eq!(read["serverInfo"]["name"], "drawbridge");
        assert_eq!(read["capabilities"]["logging"], json!({}));
        assert_eq!(read["capabilities"]["tools"], json!({"listChanged": true}));
        let says = read["instructions"].as_str().unwrap();
        assert!(says.contains("## Alpha (prefix `a__`)\nUse x."));
        assert!(says.contains("## b (prefix `b__`)\nUse y."));
        assert!(says.starts_with("Not ready yet: `c`. "), "{says}");
        assert_eq!(read["_meta"], json!({meta::MISSING: {"c": "starting"}}));
    }

    #[test]
    fn switched_off_changes_are_not_declared() {
        let ours = GatewayInfo {
            tells_changes: false,
            ..GatewayInfo::sample(None)
        };
        let told = merged(Revision::V2025_06_18, &[], &ours);
        let read: Value = serde_json::from_slice(&told).unwrap();
        assert_eq!(
            read["capabilities"],
            json!({"tools": {}, "prompts": {}, "resources": {}})
        );
        assert_eq!(read.get("_meta"), None);
    }

    #[test]
    fn without_any_upstream_the_answer_still_stands() {
        let read: Value = serde_json::from_slice(&merged(
            Revision::V2025_11_25,
            &[],
            &GatewayInfo::sample(None),
        ))
        .unwrap();
        assert_eq!(read.get("instructions"), None);
        assert_eq!(
            read["capabilities"]["resources"],
            json!({"listChanged": true})
        );
    }
}
