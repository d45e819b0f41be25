//! `server/discover`: the request that probes the era of an upstream, and the meaning of its answer. Spec: SPEC U-05,
//! U-06, U-09, D-07, M-50.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;

use crate::call::ServerDeclaration;
use crate::config;
use crate::protocol::error_codes::{
    HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_VERSION,
};
use crate::protocol::headers::{MCP_METHOD, MCP_PROTOCOL_VERSION};
use crate::protocol::{Era, Message, Revision, json, meta, rpc};
use crate::upstream::carrier::LinkSettings;
use crate::upstream::carrier::http::message_headers::MessageHeaders;
use crate::upstream::error::LinkError;

const METHOD: &str = "server/discover";

/// The era of an upstream, according to its answer.
#[derive(Debug)]
pub(in crate::upstream) enum DiscoverVerdict {
    /// The upstream supports the gateway's modern revision.
    Modern(Arc<ServerDeclaration>),
    /// The upstream is modern, and a second request may succeed (SPEC U-09).
    Again,
    /// The upstream supports no modern revision that the gateway knows, or does not know `server/discover`.
    Legacy,
    /// The upstream supports only modern revisions unknown to the gateway; their names.
    Foreign(String),
}

/// The request `server/discover` with this id.
pub(in crate::upstream) fn request(id: u64, settings: &LinkSettings) -> Bytes {
    own_request(id, METHOD, &[], settings)
}

/// The headers of [`request`].
pub(in crate::upstream) fn headers() -> MessageHeaders {
    own_headers(METHOD)
}

/// A request of the gateway's own; `params` are its members besides `_meta`, each with the JSON text of its value.
pub(super) fn own_request(
    id: u64,
    method: &str,
    params: &[(&str, &str)],
    settings: &LinkSettings,
) -> Bytes {
    let version = json::quote(Revision::V2026_07_28.as_str());
    let of_hop = json::object([
        (meta::PROTOCOL_VERSION, &*version),
        (meta::CLIENT_CAPABILITIES, settings.capabilities.text()),
        (meta::CLIENT_INFO, settings.client_info_text()),
    ]);
    let params = params.iter().copied().chain([("_meta", &*of_hop)]);
    rpc::request(id, method, Some(&json::object(params))).into()
}

/// The headers of a request of the gateway's own.
pub(super) fn own_headers(method: &'static str) -> MessageHeaders {
    let version = HeaderValue::from_static(Revision::V2026_07_28.as_str());
    MessageHeaders::default()
        .with(MCP_PROTOCOL_VERSION, Some(version))
        .with(MCP_METHOD, Some(HeaderValue::from_static(method)))
}

/// Judges an answer. Over a pipe one error code is evidence of the modern era (SPEC D-07), over HTTP three are (SPEC
/// U-05).
pub(in crate::upstream) fn judge(
    reply: &Message,
    piped: bool,
    settings: &config::UpstreamConfig,
) -> DiscoverVerdict {
    if reply.result().is_some() {
        let Some(mut declared) = declared(reply) else {
            return DiscoverVerdict::Legacy;
        };
        if !settings.run_tasks {
            declared = declared.without_hosted_tasks();
        }
        if !settings.list_changed {
            declared = declared.without_list_changed();
        }
        return DiscoverVerdict::Modern(Arc::new(declared));
    }
    match reply.error_code() {
        Some(UNSUPPORTED_VERSION) => unsupported(reply),
        Some(HEADER_MISMATCH | MISSING_CLIENT_CAPABILITY) if !piped => DiscoverVerdict::Again,
        _ => DiscoverVerdict::Legacy,
    }
}

/// The error about a server that supports only `revisions`.
pub(in crate::upstream) fn foreign(revisions: &str) -> LinkError {
    LinkError::Handshake(format!(
        "it speaks only revisions that we do not: {revisions}"
    ))
}

/// The error about a server that refuses a revision which it offers itself.
pub(in crate::upstream) fn refuses() -> LinkError {
    LinkError::Handshake("it refuses the revision that it offers".to_owned())
}

/// The verdict on an error that lists the supported revisions.
fn unsupported(reply: &Message) -> DiscoverVerdict {
    let Some(supported) = reply
        .error_member("data")
        .and_then(|data| list(data, "supported"))
    else {
        return DiscoverVerdict::Again;
    };
    let known = |era| {
        let mut known = supported.iter().filter_map(|text| Revision::parse(text));
        known.any(|revision| revision.era() == era)
    };
    if known(Era::Modern) {
        DiscoverVerdict::Again
    } else if known(Era::Legacy) || supported.is_empty() {
        DiscoverVerdict::Legacy
    } else {
        DiscoverVerdict::Foreign(shown(&supported))
    }
}

/// The server name if there is none: optional here, but required in an `initialize` result (SPEC L-02).
const UNNAMED: &str = r#"{"name":"unnamed","version":""}"#;

/// The declaration in a `DiscoverResult`; `None` where it offers no revision that the gateway knows.
fn declared(reply: &Message) -> Option<ServerDeclaration> {
    let supported = list(reply.result()?, "supportedVersions")?;
    let ours = Revision::V2026_07_28;
    if !supported.iter().any(|text| text == ours.as_str()) {
        return None;
    }
    let object = |text: Option<&str>| {
        let text = text.filter(|text| text.starts_with('{')).unwrap_or("{}");
        Bytes::copy_from_slice(text.as_bytes())
    };
    let meta = reply.result_member("_meta");
    let info = meta.and_then(|text| json::member(text, meta::SERVER_INFO));
    // Older servers have `serverInfo` in the result itself. Spec: SPEC M-41, M-50
    let info = info.or_else(|| reply.result_member("serverInfo"));
    let info = info.filter(|text| json::member(text, "name").is_some());
    let kept = reply.result_member("ttlMs").and_then(json::whole_number);
    let declared = ServerDeclaration::new(
        ours,
        object(reply.result_member("capabilities")),
        object(Some(info.unwrap_or(UNNAMED))),
        reply
            .result_member("instructions")
            .and_then(json::string)
            .map(std::borrow::Cow::into_owned),
    );
    // A missing or absurd time counts as zero (SPEC M-85).
    Some(declared.kept_for(kept.unwrap_or(0)))
}

/// The strings of an array member of an object.
fn list(object: &str, name: &str) -> Option<Vec<String>> {
    let elements = json::elements(json::member(object, name)?).ok()?;
    let strings = elements.into_iter().filter_map(json::string);
    Some(strings.map(std::borrow::Cow::into_owned).collect())
}

fn shown(revisions: &[String]) -> String {
    revisions.join(", ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn verdict(body: &str, piped: bool) -> String {
        let text = format!(r#"{{"jsonrpc":"2.0","id":0,{body}}}"#);
        let settings = config::UpstreamConfig::sample("");
        let verdict = judge(&Message::parse(text.into(), 128).unwrap(), piped, &settings);
        let text = format!("{verdict:?}");
        text.split(['(', ' ']).next().unwrap().to_owned()
    }

    #[test]
    fn list_changes_are_hidden_where_switched_off() {
        let text = r#"{"jsonrpc":"2.0","id":0,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}}}}"#;
        let reply = Message::parse(text.into(), 128).unwrap();
        for (keys, announced) in [("", true), ("list_changed = false\n", false)] {
            let settings = config::UpstreamConfig::sample(keys);
            let DiscoverVerdict::Modern(declared) = judge(&reply, true, &settings) else {
                panic!("a modern upstream")
            };
            assert_eq!(declared.tells("tools"), announced);
        }
    }

    // SPEC U-05, U-06, U-09, D-07.
    #[rstest]
    #[case::ours(
        r#""result":{"supportedVersions":["2026-07-28"],"capabilities":{}}"#,
        "Modern",
        "Modern"
    )]
    #[case::dual(
        r#""result":{"supportedVersions":["2027-01-01","2026-07-28","2025-11-25"]}"#,
        "Modern",
        "Modern"
    )]
    #[case::only_legacy(r#""result":{"supportedVersions":["2025-11-25"]}"#, "Legacy", "Legacy")]
    #[case::other_result(r#""result":{}"#, "Legacy", "Legacy")]
    #[case::mutual(
        r#""error":{"code":-32022,"message":"","data":{"supported":["2026-07-28"]}}"#,
        "Again",
        "Again"
    )]
    #[case::legacy_list(
        r#""error":{"code":-32022,"message":"","data":{"supported":["2025-11-25"]}}"#,
        "Legacy",
        "Legacy"
    )]
    #[case::future(
        r#""error":{"code":-32022,"message":"","data":{"supported":["2031-01-01"]}}"#,
        "Foreign",
        "Foreign"
    )]
    #[case::no_list(r#""error":{"code":-32022,"message":""}"#, "Again", "Again")]
    #[case::mismatch(r#""error":{"code":-32020,"message":""}"#, "Again", "Legacy")]
    #[case::capability(r#""error":{"code":-32021,"message":""}"#, "Again", "Legacy")]
    #[case::unknown_method(r#""error":{"code":-32601,"message":""}"#, "Legacy", "Legacy")]
    #[case::no_session(r#""error":{"code":-32000,"message":""}"#, "Legacy", "Legacy")]
    fn answers_are_judged(#[case] body: &str, #[case] http: &str, #[case] stdio: &str) {
        assert_eq!(verdict(body, false), http);
        assert_eq!(verdict(body, true), stdio);
    }

    // SPEC M-50.
    #[test]
    fn a_server_names_itself_in_meta() {
        let text = r#"{"jsonrpc":"2.0","id":0,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"instructions":"be\nkind","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}}"#;
        let reply = Message::parse(text.into(), 128).unwrap();
        let declared = declared(&reply).unwrap();
        assert_eq!(declared.server_info, r#"{"name":"s"}"#);
        assert_eq!(declared.capabilities, r#"{"tools":{}}"#);
        assert_eq!(declared.instructions.as_deref(), Some("be\nkind"));
    }

    // SPEC M-41, L-02.
    #[rstest]
    #[case::none("")]
    #[case::empty(r#","_meta":{"io.modelcontextprotocol/serverInfo":{}}"#)]
    #[case::no_object(r#","serverInfo":7"#)]
    fn who_does_not_say_who_it_is_has_a_name_nevertheless(#[case] info: &str) {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":0,"result":{{"supportedVersions":["2026-07-28"]{info}}}}}"#
        );
        let reply = Message::parse(text.into(), 128).unwrap();
        let declared = declared(&reply).unwrap();
        assert_eq!(declared.server_info, UNNAMED);
    }
}
