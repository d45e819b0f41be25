//! JSON-RPC: reading a message, writing the few shapes that we send.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// One incoming message, payloads unread.
#[derive(Debug, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) error: Option<&'a RawValue>,
}

/// Parameters of a call, payloads unread.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct CallParams<'a> {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(borrow, default)]
    pub(crate) arguments: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    pub(crate) task: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    pub(crate) meta: Option<&'a RawValue>,
}

/// Deserialises a present member, `null` included, to `Some`.
fn given<'a, D: Deserializer<'a>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// How a request ends.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The text of `result`.
    Result(String),
    /// An error.
    Error(i64, String),
    /// A whole error object, with `data`.
    Refusal(Value),
    /// No reply at all.
    Silence,
}

impl Outcome {
    /// A result holding one text item.
    pub(crate) fn text(text: &str) -> Self {
        Self::Result(text_result(&Value::from(text).to_string()))
    }

    /// The reply to the request `id` (its JSON text), if there is to be one.
    pub(crate) fn reply(&self, id: &str) -> Option<String> {
        match self {
            Self::Result(result) => Some(result_reply(id, result)),
            Self::Error(-32021, missing) => Some(crate::modern::missing(id, missing)),
            Self::Error(code, message) => Some(error_reply(id, *code, message)),
            Self::Refusal(error) => {
                Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#))
            }
            Self::Silence => None,
        }
    }
}

/// The text of a tool result whose one text item is `token`, a JSON string token.
pub(crate) fn text_result(token: &str) -> String {
    let mut out = String::with_capacity(token.len() + 40);
    out.push_str(r#"{"content":[{"type":"text","text":"#);
    out.push_str(token);
    out.push_str("}]}");
    out
}

/// A success reply; `id` and `result` are JSON texts.
pub(crate) fn result_reply(id: &str, result: &str) -> String {
    let mut out = String::with_capacity(id.len() + result.len() + 40);
    out.push_str(r#"{"jsonrpc":"2.0","id":"#);
    out.push_str(id);
    out.push_str(r#","result":"#);
    out.push_str(result);
    out.push('}');
    out
}

/// An error reply; `id` is a JSON text.
pub(crate) fn error_reply(id: &str, code: i64, message: &str) -> String {
    let message = Value::from(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#)
}

/// A notification.
pub(crate) fn notification(method: &str, params: &Value) -> String {
    let method = Value::from(method);
    format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{params}}}"#)
}

/// A request of ours; `id` is plain text.
pub(crate) fn request(id: &str, method: &str, params: &Value) -> String {
    let (id, method) = (Value::from(id), Value::from(method));
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#)
}

/// The error body of an HTTP refusal.
pub(crate) fn refusal(code: i64, message: &str) -> String {
    error_reply("null", code, message)
}
