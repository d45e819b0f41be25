//! Errors of an upstream toward the client. Spec: BRIDGING §3.10; SPEC C-51, E-01, E-03, E-04.

use bytes::Bytes;

use super::RevisionProjection;
use super::object::MemberFate;
use super::object::{object, string_member};
use crate::call::Reply;
use crate::protocol::error_codes::{
    INTERNAL_ERROR, INVALID_PARAMS, MISSING_CLIENT_CAPABILITY, RESOURCE_NOT_FOUND,
    URL_ELICITATION_REQUIRED, is_of_one_hop, is_relayable,
};
use crate::protocol::json::member;
use crate::protocol::{Era, Message, content, json, methods, rpc};

/// What an error is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorSubject<'a> {
    pub(crate) method: &'a str,
    /// The URI as the upstream was sent it.
    pub(crate) name: Option<&'a str>,
    pub(crate) upstream: &'a str,
    /// JSON text of the capabilities that the client declared in this request.
    pub(crate) declared: &'a [u8],
}

/// What the client gets for an error.
#[derive(Debug)]
pub(crate) enum ProjectedError {
    /// The upstream's own, perhaps under another code.
    Relayed(Message),
    /// An error that we wrote.
    Written(Bytes),
    /// A tool's failure, in words.
    ToolError(String),
}

/// An error in the form that every client can read: the code is an integer, the message is text. Of an upstream's error
/// that is written otherwise the rest stays. A code that is no integer becomes -32603: clients differ on what it means.
pub(crate) fn readable(message: Message) -> Message {
    let code = message.error_code();
    let spelled = code.unwrap_or(INTERNAL_ERROR).to_string();
    let text = message.error_member("message");
    let is_text = text.is_some_and(|text| text.starts_with('"'));
    if is_text && code.is_some() && message.error_member("code") == Some(&*spelled) {
        return message;
    }
    let members = json::members(message.error().unwrap_or("{}")).unwrap_or_default();
    let text = text.filter(|_| is_text);
    let text = text.unwrap_or("\"the upstream gave no reason that can be shown\"");
    let sound = [("code", &*spelled), ("message", text)];
    let others = members.iter().map(|(name, value)| (&**name, *value));
    let others = others.filter(|(name, _)| !matches!(*name, "code" | "message"));
    let error = json::object(sound.into_iter().chain(others));
    let bytes = message.edit().error(error).finish();
    Message::parse(bytes, usize::MAX).unwrap_or(message)
}

/// Converts an upstream's error `code` to the client's revision. Errors about a single hop are never
/// relayed unchanged: the client would negotiate with the gateway about the hop between gateway and upstream.
pub(crate) fn from_upstream(
    projection: RevisionProjection,
    message: Message,
    code: i64,
    asked: &ErrorSubject<'_>,
) -> ProjectedError {
    let modern = projection.to.era() == Era::Modern;
    let error = message.error().unwrap_or("{}");
    match code {
        // The range that 2026-07-28 reserves is a server's own before.
        code if projection.is_legacy()
            && (code == MISSING_CLIENT_CAPABILITY || !is_relayable(code))
            && !is_of_one_hop(code) =>
        {
            ProjectedError::Relayed(message)
        }
        MISSING_CLIENT_CAPABILITY => {
            let missing = missing(error);
            if modern && !is_declared(&missing, asked.declared) {
                return ProjectedError::Relayed(message);
            }
            capability_missing(asked.method, asked.upstream, &missing)
        }
        URL_ELICITATION_REQUIRED if modern => unasked_url(asked),
        URL_ELICITATION_REQUIRED if projection.is_beyond() => ProjectedError::Relayed(message),
        URL_ELICITATION_REQUIRED if !projection.to.has_url_elicitation() => {
            url_as_text(error, asked)
        }
        RESOURCE_NOT_FOUND if modern => recoded(message, INVALID_PARAMS),
        INVALID_PARAMS if projection.is_down() && is_not_found(error, asked) => {
            recoded(message, RESOURCE_NOT_FOUND)
        }
        code if is_relayable(code) => ProjectedError::Relayed(message),
        _ => written(
            INTERNAL_ERROR,
            "the upstream answered with an error of its own hop",
            &json::object([
                ("upstream", &*json::quote(asked.upstream)),
                ("error", error),
            ]),
        ),
    }
}

/// A required URL elicitation (-32042) for a client that does not know this error: text with the URLs for the
/// model to act on. Spec: BRIDGING §2.3; SPEC C-83.
fn url_as_text(error: &str, asked: &ErrorSubject<'_>) -> ProjectedError {
    let text = string_member(error, "message").unwrap_or_default();
    if asked.method != "tools/call" {
        let data = json::object([("upstream", json::quote(asked.upstream))]);
        return written(INTERNAL_ERROR, &text, &data);
    }
    let visits = member(error, "data").and_then(|data| member(data, "elicitations"));
    let visits = visits.map_or_else(Vec::new, |all| json::elements(all).unwrap_or_default());
    let urls = visits
        .into_iter()
        .filter_map(|one| string_member(one, "url"));
    let lines: Vec<_> = std::iter::once(text).chain(urls).collect();
    ProjectedError::ToolError(lines.join("\n"))
}

/// A required URL elicitation that a modern client was not or could not be asked. The client learns which
/// capability to declare. The URLs are left out. Spec: BRIDGING §3.6; SPEC M-16, M-60.
fn unasked_url(asked: &ErrorSubject<'_>) -> ProjectedError {
    let upstream = json::quote(asked.upstream);
    let url = r#"{"elicitation":{"url":{}}}"#;
    if methods::may_ask(asked.method) && !is_declared(url, asked.declared) {
        return written(
            MISSING_CLIENT_CAPABILITY,
            "the upstream wants the user to visit a page, which needs elicitation.url",
            &json::object([("upstream", &*upstream), ("requiredCapabilities", url)]),
        );
    }
    written(
        INTERNAL_ERROR,
        "the upstream wants the user to visit a page, for which this request could not ask",
        &json::object([("upstream", upstream)]),
    )
}

/// The error for a client whose upstream requires a capability that the gateway did not offer.
pub(crate) fn capability_missing(method: &str, upstream: &str, missing: &str) -> ProjectedError {
    let text = format!("upstream \"{upstream}\" needs what this client does not offer: {missing}");
    if method == "tools/call" {
        return ProjectedError::ToolError(text);
    }
    let data = json::object([("upstream", json::quote(upstream))]);
    written(INTERNAL_ERROR, &text, &data)
}

/// JSON text of the capabilities that are missing.
fn missing(error: &str) -> String {
    let required = member(error, "data").and_then(|data| member(data, "requiredCapabilities"));
    required
        .filter(|text| text.starts_with('{'))
        .unwrap_or("{}")
        .chars()
        .take(400)
        .collect()
}

/// Whether the client declared every missing capability, so that the gateway withheld one.
fn is_declared(missing: &str, declared: &[u8]) -> bool {
    let declared = std::str::from_utf8(declared).unwrap_or("{}");
    covers(declared, missing)
}

/// Whether `declared` contains every capability in `missing` (both JSON texts).
pub(crate) fn covers(declared: &str, missing: &str) -> bool {
    let Ok(missing) = json::members(missing) else {
        return false;
    };
    !missing.is_empty()
        && missing.iter().all(|(name, inner)| {
            member(declared, name).is_some_and(|own| {
                json::members(inner).map_or(true, |inner| inner.is_empty()) || covers(own, inner)
            })
        })
}

/// Whether a parameter error means that the requested resource does not exist (`data.uri` is the URI).
fn is_not_found(error: &str, asked: &ErrorSubject<'_>) -> bool {
    asked.method == "resources/read"
        && member(error, "data")
            .and_then(|data| string_member(data, "uri"))
            .as_deref()
            == asked.name
        && asked.name.is_some()
}

fn recoded(message: Message, code: i64) -> ProjectedError {
    let error = message.error().unwrap_or("{}");
    let recoded = object(error, |name, _| {
        Ok(match name {
            "code" => MemberFate::Put(code.to_string().into()),
            _ => MemberFate::Keep,
        })
    });
    let Ok(std::borrow::Cow::Owned(recoded)) = recoded else {
        return ProjectedError::Relayed(message);
    };
    let bytes = message.edit().error(recoded).finish();
    ProjectedError::Relayed(Message::parse(bytes, usize::MAX).unwrap_or(message))
}

fn written(code: i64, text: &str, data: &str) -> ProjectedError {
    ProjectedError::Written(rpc::error(code, text, Some(data)).into())
}

impl ProjectedError {
    /// As a reply; `dress` makes a result of the client's revision out of one that we wrote.
    pub(crate) fn into_reply(self, dress: impl FnOnce(String) -> String) -> Reply {
        match self {
            Self::Relayed(message) => Reply::Relayed(message),
            Self::Written(error) => Reply::Error(error),
            Self::ToolError(text) => Reply::Result(dress(content::tool_error(&text)).into()),
        }
    }
}
