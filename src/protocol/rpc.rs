//! Writers of JSON-RPC messages. Ids, parameters and results are JSON texts.

use std::fmt::Display;

use super::json::{ObjectWriter, quote};

/// A request; `params` is left out where it is `None`.
#[must_use]
pub fn request(id: impl Display, method: &str, params: Option<&str>) -> String {
    let mut out = begun();
    out.member("id", &id.to_string());
    with_method(out, method, params)
}

/// A notification with parameters.
#[must_use]
pub fn notification(method: &str, params: &str) -> String {
    with_method(begun(), method, Some(params))
}

/// A response of our own making, whose `outcome` is `result` or `error`.
#[must_use]
pub fn response(id: impl Display, outcome: &str, value: &str) -> String {
    let mut out = begun();
    out.member("id", &id.to_string());
    out.member(outcome, value);
    out.finish()
}

/// An error object; `data` is left out where it is `None`.
#[must_use]
pub fn error(code: i64, message: &str, data: Option<&str>) -> String {
    let mut out = ObjectWriter::default();
    out.member("code", &code.to_string());
    out.member("message", &quote(message));
    if let Some(data) = data {
        out.member("data", data);
    }
    out.finish()
}

fn begun() -> ObjectWriter {
    let mut out = ObjectWriter::default();
    out.member("jsonrpc", "\"2.0\"");
    out
}

fn with_method(mut out: ObjectWriter, method: &str, params: Option<&str>) -> String {
    out.member("method", &quote(method));
    if let Some(params) = params {
        out.member("params", params);
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_members_in_the_usual_order() {
        let with = request(7, "tools/list", Some(r#"{"cursor":"a"}"#));
        let expected = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":"a"}}"#;
        assert_eq!(with, expected);
        let without = request("\"x\"", "ping", None);
        assert_eq!(without, r#"{"jsonrpc":"2.0","id":"x","method":"ping"}"#);
        let told = notification("notifications/a\"b", "{}");
        let expected = r#"{"jsonrpc":"2.0","method":"notifications/a\"b","params":{}}"#;
        assert_eq!(told, expected);
        let came = response(0, "result", "{}");
        assert_eq!(came, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        let failed = error(-32602, "no \"a\"", Some("{}"));
        let expected = r#"{"code":-32602,"message":"no \"a\"","data":{}}"#;
        assert_eq!(failed, expected);
        let bare = error(-1, "no", None);
        assert_eq!(bare, r#"{"code":-1,"message":"no"}"#);
    }
}
