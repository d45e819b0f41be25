//! The result of `initialize`. Spec: SPEC L-02; BRIDGING §5.1 to §5.3, §5.7.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::{Instructions, Ourselves, Part, capabilities};
use crate::call::Declared;
use crate::protocol::{Revision, json};
use crate::relay::naming::Prefix;

/// On an endpoint that shows one upstream unchanged: what it declared, as far as the revision goes.
pub(in crate::relay) fn pure(revision: Revision, declared: &Declared) -> Bytes {
    let capabilities = capabilities::shown(declared, revision);
    let instructions = declared.instructions.as_deref();
    result(revision, &capabilities, &declared.server_info, instructions)
}

/// On a merged endpoint: what the upstreams that are known declared, and ourselves as the server.
/// An upstream that is not known contributes nothing.
pub(in crate::relay) fn merged(
    revision: Revision,
    upstreams: &[(Arc<str>, Option<Arc<Declared>>)],
    ourselves: &Ourselves,
) -> Bytes {
    let known = upstreams.iter().filter_map(|(_, d)| d.as_deref());
    let all = known.map(|declared| capabilities::shown(declared, revision));
    let all: Vec<String> = all.collect();
    let capabilities = capabilities::merged(all.iter().map(String::as_str));
    result(
        revision,
        &capabilities,
        &ourselves.info,
        instructions(upstreams, ourselves).as_deref(),
    )
}

/// What the operator and the upstreams that are known say about their use.
pub(super) fn instructions(
    upstreams: &[(Arc<str>, Option<Arc<Declared>>)],
    ourselves: &Ourselves,
) -> Option<String> {
    let known = upstreams
        .iter()
        .filter_map(|(name, d)| Some((name, d.as_deref()?)));
    let speakers: Vec<_> = known
        .filter_map(|(name, declared)| {
            let text = declared.instructions.as_deref()?;
            Some((Prefix::new(Arc::clone(name)), title(declared), text))
        })
        .collect();
    let mut instructions = Instructions::new(ourselves.instructions.as_deref());
    for (prefix, title, text) in &speakers {
        instructions.push(Part {
            prefix,
            title,
            text,
        });
    }
    instructions.finish()
}

/// What the upstream calls itself; empty when it does not say.
fn title(declared: &Declared) -> Cow<'_, str> {
    let info = json::members(&declared.server_info).unwrap_or_default();
    let member = |key: &str| {
        info.iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| *value)
    };
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
) -> Bytes {
    let mut out = format!(
        r#"{{"protocolVersion":"{revision}","capabilities":{capabilities},"serverInfo":{server_info}"#
    );
    if let Some(instructions) = instructions {
        out.push_str(",\"instructions\":");
        json::quote_into(&mut out, instructions);
    }
    out.push('}');
    out.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn declared(capabilities: &'static str, info: &'static str, says: Option<&str>) -> Declared {
        Declared::new(
            Revision::V2025_11_25,
            Bytes::from_static(capabilities.as_bytes()),
            Bytes::from_static(info.as_bytes()),
            says.map(ToOwned::to_owned),
        )
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
            (Arc::from("a"), Some(Arc::new(a))),
            (Arc::from("b"), Some(Arc::new(b))),
            (Arc::from("c"), None),
        ];
        let read: Value = serde_json::from_slice(&merged(
            Revision::V2025_06_18,
            &upstreams,
            &Ourselves::sample(None),
        ))
        .unwrap();
        assert_eq!(read["protocolVersion"], "2025-06-18");
        assert_eq!(read["serverInfo"]["name"], "drawbridge");
        assert_eq!(read["capabilities"]["logging"], json!({}));
        assert_eq!(read["capabilities"]["tools"], json!({"listChanged": true}));
        let says = read["instructions"].as_str().unwrap();
        assert!(says.contains("## Alpha (prefix `a__`)\nUse x."));
        assert!(says.contains("## b (prefix `b__`)\nUse y."));
    }

    #[test]
    fn without_any_upstream_the_answer_still_stands() {
        let read: Value = serde_json::from_slice(&merged(
            Revision::V2025_11_25,
            &[],
            &Ourselves::sample(None),
        ))
        .unwrap();
        assert_eq!(read.get("instructions"), None);
        assert_eq!(
            read["capabilities"]["resources"],
            json!({"listChanged": true})
        );
    }
}
