//! Messages of an upstream as a merged endpoint shows them. A message that cannot be mapped is not
//! shown: its names could belong to another upstream.
//! Spec: BRIDGING §4.1, §4.2.

use std::borrow::Cow;

use bytes::Bytes;

use super::naming::NamePrefix;
use super::rewrite;
use crate::call::{InputRequest, Notice, NoticeKind};
use crate::fault::{Fault, FaultKind};
use crate::protocol::{Message, json};
use crate::telemetry::metrics::LABELED;

/// Depth limit for messages that were already checked on arrival.
const ANY_DEPTH: usize = usize::MAX;

/// A notification towards the client.
pub(crate) fn notice(prefix: &NamePrefix, notice: Notice) -> Option<Notice> {
    let mapped = matches!(
        notice.kind,
        NoticeKind::ResourceUpdated { .. } | NoticeKind::Log | NoticeKind::ElicitationComplete
    );
    if !mapped {
        return Some(notice);
    }
    let message = Message::parse(notice.bytes, ANY_DEPTH).ok()?;
    let params = rewrite::notice(message.method()?, message.params()?, prefix).ok()?;
    let kind = match notice.kind {
        NoticeKind::ResourceUpdated { uri } => NoticeKind::ResourceUpdated {
            uri: prefix.uri(&uri).into_owned(),
        },
        other => other,
    };
    let bytes = match &params {
        Cow::Borrowed(_) => message.bytes().clone(),
        Cow::Owned(params) => message.edit().params(params.as_str()).finish(),
    };
    Some(Notice { kind, bytes })
}

/// A question towards the client; says which upstream asks.
pub(crate) fn question(prefix: &NamePrefix, question: InputRequest) -> InputRequest {
    let Some(params) = &question.params else {
        return question;
    };
    let text = String::from_utf8_lossy(params);
    match rewrite::question(&question.method, &text, prefix, prefix.upstream()) {
        Ok(params) => {
            let params = Some(Bytes::from(params.into_owned()));
            InputRequest { params, ..question }
        }
        // The client refuses a question without parameters; nothing of it was shown.
        Err(_) => InputRequest {
            params: None,
            ..question
        },
    }
}

/// The result of a request of `method`.
pub(crate) fn result(
    prefix: &NamePrefix,
    method: &str,
    message: Message,
) -> Result<Message, Fault> {
    let Some(text) = message.result() else {
        return Ok(message);
    };
    let mapped = rewrite::result(method, text, prefix).map_err(|error| {
        LABELED.upstream_garbage.add(prefix.upstream(), 1);
        Fault::upstream(
            FaultKind::UpstreamInvalid,
            format!(
                "upstream \"{}\" sent an ambiguous result",
                prefix.upstream()
            ),
        )
        .caused_by(error)
    })?;
    let Cow::Owned(mapped) = mapped else {
        return Ok(message);
    };
    let bytes = message.edit().result(mapped).finish();
    Message::parse(bytes, ANY_DEPTH).map_err(Fault::internal)
}

/// An error. `asked` is the requested name or URI, as the upstream and as the client spells it. An error that
/// cannot be mapped loses its data, and its message names the upstream.
pub(crate) fn error(prefix: &NamePrefix, message: Message, asked: Option<(&str, &str)>) -> Message {
    let Some(mapped) = message
        .error()
        .and_then(|text| mapped_error(prefix, text, asked))
    else {
        return message;
    };
    let bytes = message.edit().error(mapped).finish();
    Message::parse(bytes, ANY_DEPTH).unwrap_or(message)
}

/// The JSON text of an error that its link wrote for the upstream; see [`error`].
pub(crate) fn written_error(
    prefix: &NamePrefix,
    text: Bytes,
    asked: Option<(&str, &str)>,
) -> Bytes {
    let read = String::from_utf8_lossy(&text);
    match mapped_error(prefix, &read, asked) {
        Some(mapped) => mapped.into(),
        None => text,
    }
}

/// An error as the client may see it; `None` if nothing changes.
fn mapped_error(prefix: &NamePrefix, text: &str, asked: Option<(&str, &str)>) -> Option<String> {
    match rewrite::error(text, prefix, asked) {
        Ok(Cow::Borrowed(_)) => None,
        Ok(Cow::Owned(mapped)) => Some(mapped),
        Err(_) => {
            LABELED.upstream_garbage.add(prefix.upstream(), 1);
            Some(rewrite::bare_error(text, prefix))
        }
    }
}

/// The items of a list of tools that are shown.
pub(crate) fn kept_tools(tools: &str, shows: impl Fn(&str) -> bool) -> String {
    let elements = json::elements(tools).unwrap_or_default();
    json::array(elements.into_iter().filter(|tool| {
        let name = json::member(tool, "name").and_then(json::string);
        name.is_some_and(|name| shows(&name))
    }))
}

/// A page of a list without a cursor that is null, as some servers end their lists: clients that follow the schema refuse
/// such a page. `None` if nothing changes.
pub(crate) fn without_null_cursor(page: &Message) -> Option<Bytes> {
    let has_null = page.result_member("nextCursor") == Some("null");
    has_null.then(|| page.edit().remove_result_member("nextCursor").finish())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn hidden_and_nameless_tools_are_left_out() {
        let tools = r#"[{"name":"read_a","x":1},{"name":"write"},{"title":"none"}]"#;
        let kept = kept_tools(tools, |name| name.starts_with("read_"));
        assert_eq!(kept, r#"[{"name":"read_a","x":1}]"#);
    }

    // SPEC C-40.
    #[rstest]
    #[case(r#"{"tools":[],"nextCursor":null}"#, Some(r#"{"tools":[]}"#))]
    #[case(r#"{"nextCursor":null,"tools":[1]}"#, Some(r#"{"tools":[1]}"#))]
    #[case(r#"{"tools":[],"nextCursor":""}"#, None)]
    #[case(r#"{"tools":[]}"#, None)]
    fn a_cursor_that_is_null_is_left_out(#[case] result: &str, #[case] left: Option<&str>) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        let page = without_null_cursor(&Message::parse(text.into(), 128).unwrap());
        let page = page.map(|page| Message::parse(page, 128).unwrap());
        assert_eq!(page.as_ref().and_then(Message::result), left);
    }

    // SPEC C-86; BRIDGING §4.2.
    #[rstest]
    #[case(r#"{"elicitations":[],"elicitations":[{"elicitationId":"good/77","message":"m"}]}"#)]
    #[case(r#"{"elicitations":[{"elicitationId":"a","elicitationId":"good/77"}]}"#)]
    #[case(r#"{"uri":"good+x:1","uri":"y"}"#)]
    fn unmapped_error_keeps_its_label_and_loses_its_data(#[case] data: &str) {
        let prefix = NamePrefix::new("evil".into());
        let error = format!(r#"{{"code":-32042,"message":"visit \"me\"","data":{data}}}"#);
        let expected = r#"{"code":-32042,"message":"[evil] visit \"me\""}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{error}}}"#);
        let message = Message::parse(text.into(), 128).unwrap();
        let shown = super::error(&prefix, message, None);
        assert_eq!(shown.error(), Some(expected));
        assert_eq!(shown.id(), Some("7"));
        assert_eq!(written_error(&prefix, error.into(), None), expected);
    }

    #[test]
    fn an_updated_resource_is_told_under_its_mapped_uri() {
        let prefix = NamePrefix::new("files".into());
        let bytes = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}"#;
        let kind = NoticeKind::ResourceUpdated {
            uri: "file:///a".to_owned(),
        };
        let shown = notice(
            &prefix,
            Notice {
                kind,
                bytes: bytes.into(),
            },
        )
        .unwrap();
        assert_eq!(
            shown.kind,
            NoticeKind::ResourceUpdated {
                uri: "files+file:///a".to_owned()
            }
        );
        assert!(String::from_utf8_lossy(&shown.bytes).contains("files+file:///a"));
    }
}
