//! `initialize` toward an upstream. Spec: SPEC L-05, L-08, U-04.

use std::sync::Arc;

use bytes::Bytes;

use crate::call::ServerDeclaration;
use crate::config;
use crate::protocol::{Era, Message, Revision, json, rpc};
use crate::telemetry::redact::shown;
use crate::upstream::carrier::LinkSettings;
use crate::upstream::error::LinkError;

/// The first message of a session, under id 1.
pub(in crate::upstream) fn request(settings: &LinkSettings) -> Bytes {
    let revision = json::quote(settings.offer.as_str());
    let params = json::object([
        ("protocolVersion", &*revision),
        (
            "capabilities",
            settings.capabilities.towards(settings.offer).text(),
        ),
        ("clientInfo", settings.client_info_text()),
    ]);
    rpc::request(1, "initialize", Some(&params)).into()
}

/// Whether an HTTP status says that no endpoint there accepts `initialize`.
pub(super) fn is_refusal(status: u16) -> bool {
    matches!(status, 400 | 404..=428)
}

/// Whether an error is an HTTP status that tells nothing of the endpoint, as those of firewalls and of busy or broken
/// servers do. Spec: SPEC U-06.
pub(super) fn is_no_answer(error: &LinkError) -> bool {
    match error {
        LinkError::Busy { .. } => true,
        LinkError::Status(status) => !is_refusal(*status),
        _ => false,
    }
}

/// Turns an HTTP status in place of a reply into a failed handshake. `said` is text from the response.
pub(super) fn refused(error: LinkError, said: Option<&str>) -> LinkError {
    match error {
        LinkError::Status(status) if is_refusal(status) => {
            let mut text = format!("{REFUSED_STATUS}{status}");
            if let Some(said) = said {
                text.push_str(": ");
                text.push_str(said);
            }
            LinkError::Handshake(text)
        }
        other => other,
    }
}

/// Whether a handshake was refused because its path does not exist.
pub(in crate::upstream) fn is_missing_path(why: &str) -> bool {
    let status = why.strip_prefix(REFUSED_STATUS);
    status.is_some_and(|status| status.starts_with("404") || status.starts_with("405"))
}

/// Start of the text of a handshake refused by an HTTP status, which follows.
const REFUSED_STATUS: &str = "initialize was refused with HTTP status ";

/// Bytes of an upstream's text shown to callers and in the log.
const MAX_WORDS: usize = 200;

/// The message of an error reply, masked and cut to [`MAX_WORDS`]: it goes to every caller, and may repeat the credential
/// that the upstream refused.
pub(super) fn words(reply: &Message) -> Option<String> {
    let text = reply.error_member("message").and_then(json::string)?;
    Some(shown(&text, MAX_WORDS).into_owned())
}

/// The declaration of the upstream in its reply.
pub(super) fn read(
    reply: &Message,
    settings: &config::UpstreamConfig,
) -> Result<Arc<ServerDeclaration>, LinkError> {
    if reply.error().is_some() {
        let text = words(reply).unwrap_or_default();
        return Err(LinkError::Handshake(format!(
            "initialize was refused: {text}"
        )));
    }
    let member = |name: &str| reply.result_member(name);
    let version = member("protocolVersion")
        .and_then(json::string)
        .unwrap_or_default();
    let revision = Revision::parse(&version)
        .filter(|revision| revision.era() == Era::Legacy)
        .ok_or_else(|| {
            let version = shown(&version, MAX_WORDS);
            LinkError::Handshake(format!("it speaks revision {version:?}, which we do not"))
        })?;
    let object = |name: &str| {
        let text = member(name)
            .filter(|text| text.starts_with('{'))
            .unwrap_or("{}");
        Bytes::copy_from_slice(text.as_bytes())
    };
    let declared = ServerDeclaration::new(
        revision,
        object("capabilities"),
        object("serverInfo"),
        member("instructions")
            .and_then(json::string)
            .map(std::borrow::Cow::into_owned),
    );
    Ok(Arc::new(if settings.list_changed {
        declared
    } else {
        declared.without_list_changed()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(reply: &Message) -> Result<Arc<ServerDeclaration>, LinkError> {
        read(reply, &config::UpstreamConfig::sample(""))
    }

    fn reply(body: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#);
        Message::parse(text.into(), 128).unwrap()
    }

    #[test]
    fn a_declared_revision_and_its_capabilities_are_read() {
        let declared = told(&reply(
            r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x"},"instructions":"a\nb"}"#,
        ))
        .unwrap();
        assert_eq!(declared.revision, Revision::V2025_06_18);
        assert_eq!(declared.capabilities, r#"{"tools":{}}"#);
        assert_eq!(declared.instructions.as_deref(), Some("a\nb"));
    }

    #[test]
    fn credential_that_a_refusal_repeats_is_not_shown() {
        for body in [
            r#""error":{"code":-32600,"message":"bad header Authorization: Bearer abcdefgh12345"}"#,
            r#""error":{"code":-32600,"message":"no account for /mcp?api_key=abcdefgh12345"}"#,
            r#""result":{"protocolVersion":"token=abcdefgh12345"}"#,
        ] {
            let error = told(&reply(body)).unwrap_err().to_string();
            assert!(error.contains("[redacted]"), "{error}");
            assert!(!error.contains("abcdefgh"), "{error}");
        }
    }

    #[test]
    fn little_is_shown_of_what_a_long_refusal_says() {
        let long = "x".repeat(100_000);
        for body in [
            format!(r#""error":{{"code":-32600,"message":"{long}"}}"#),
            format!(r#""result":{{"protocolVersion":"{long}"}}"#),
        ] {
            let error = told(&reply(&body)).unwrap_err().to_string();
            assert!(
                error.contains("xxx") && error.len() < 300,
                "{}",
                error.len()
            );
        }
    }

    // SPEC L-08.
    #[test]
    fn an_unknown_revision_ends_the_handshake() {
        for version in ["3000-01-01", "2026-07-28", ""] {
            let body = format!(r#""result":{{"protocolVersion":"{version}"}}"#);
            assert!(
                matches!(told(&reply(&body)), Err(LinkError::Handshake(_))),
                "{version}"
            );
        }
    }

    #[test]
    fn a_refusal_names_the_upstreams_reason() {
        let error = told(&reply(
            r#""error":{"code":-32602,"message":"no such client"}"#,
        ));
        assert!(error.unwrap_err().to_string().contains("no such client"));
    }
}
