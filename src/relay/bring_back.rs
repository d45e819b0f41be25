//! What is done to a reply on its way back: cursors are sealed, items that policy hides are left
//! out, names and URIs are mapped, errors that speak of one hop only are turned.
//! Spec: SPEC C-40, E-01, E-04; BRIDGING §3.10, §4.

use serde_json::Value;

use super::route::Target;
use super::view::View;
use super::{Failure, Relay, cursor_context, mapping};
use crate::call::{Call, Reply};
use crate::fault::Fault;
use crate::protocol::error_codes::{URL_ELICITATION_REQUIRED, is_relayable};
use crate::protocol::{Message, Revision, json};
use crate::seal::Purpose;

impl Relay {
    pub(super) fn bring_back(
        &self,
        call: &Call,
        target: &Target,
        reply: Reply,
    ) -> Result<Reply, Failure> {
        let Reply::Relayed(message) = reply else {
            return Ok(reply);
        };
        if let Some(code) = message.error_code() {
            return Ok(error(call, message, code, target));
        }
        let method = call.message.method().unwrap_or_default();
        let message = match &target.view {
            View::Pure if method.ends_with("/list") => self.pure_list(call, target, message)?,
            View::Pure => message,
            View::Merged(prefix) => mapping::result(prefix, method, message)?,
        };
        Ok(Reply::Relayed(message))
    }

    /// A list of a pure endpoint: as it came, but for its cursor and what the endpoint hides.
    fn pure_list(&self, call: &Call, target: &Target, message: Message) -> Result<Message, Fault> {
        let cursor = message
            .result_member("nextCursor")
            .filter(|text| *text != "null");
        let kept = match message.result_member("tools") {
            Some(tools) if !call.endpoint.tools.is_empty() => {
                Some(mapping::kept_tools(tools, |name| {
                    self.parts.policy.shows_tool(
                        &call.endpoint,
                        &call.principal,
                        &target.upstream,
                        name,
                    )
                }))
            }
            _ => None,
        };
        if cursor.is_none() && kept.is_none() {
            return Ok(message);
        }
        let mut edit = message.edit();
        let sealed = cursor.map(|cursor| {
            let context = cursor_context(call);
            json::quote(
                &self
                    .parts
                    .sealer
                    .seal(Purpose::Cursor, &context, cursor.as_bytes()),
            )
        });
        if let Some(sealed) = &sealed {
            edit = edit.result_member("nextCursor", sealed.as_str());
        }
        if let Some(kept) = &kept {
            edit = edit.result_member("tools", kept.as_str());
        }
        self.reparse(edit.finish())
    }
}

/// Errors that speak of one hop are never relayed as such: the client would negotiate with us
/// about something that is between us and the upstream (SPEC E-01, E-04). Nor is the call for a
/// visit to a URL relayed to a client whose revision does not have it (SPEC C-83).
fn error(call: &Call, message: Message, code: i64, target: &Target) -> Reply {
    let is_visit = code == URL_ELICITATION_REQUIRED && call.revision < Revision::V2025_11_25;
    if is_visit && call.message.method() == Some("tools/call") {
        return visit_as_text(message.error().unwrap_or("null"));
    }
    if is_relayable(code) && !is_visit {
        return match &target.view {
            View::Pure => Reply::Relayed(message),
            View::Merged(_) => match (&target.name, &target.shown) {
                (Some(sent), Some(shown)) => Reply::Relayed(mapping::error(message, sent, shown)),
                _ => Reply::Relayed(message),
            },
        };
    }
    let original = message.error().unwrap_or("null");
    let upstream = json::quote(&target.upstream);
    Reply::Error(
        format!(
            r#"{{"code":-32603,"message":"the upstream answered with an error of its own hop","data":{{"upstream":{upstream},"error":{original}}}}}"#
        )
        .into(),
    )
}

/// The call for a visit, for a client that knows no such error: text for the model to act on, with
/// the URLs (BRIDGING §2.3, -32042).
fn visit_as_text(error: &str) -> Reply {
    let error: Value = serde_json::from_str(error).unwrap_or_default();
    let part = |value: &Value, pointer| {
        let text = value.pointer(pointer).and_then(Value::as_str);
        text.map(str::to_owned)
    };
    let elicitations = error
        .pointer("/data/elicitations")
        .and_then(Value::as_array);
    let urls = elicitations
        .into_iter()
        .flatten()
        .filter_map(|one| part(one, "/url"));
    let lines: Vec<String> = part(&error, "/message").into_iter().chain(urls).collect();
    let content = serde_json::json!({"content": [{"type": "text", "text": lines.join("\n")}], "isError": true});
    Reply::Result(content.to_string().into())
}
