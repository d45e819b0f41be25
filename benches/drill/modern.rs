//! Calls of 2026-07-28: each says for itself what it is, in its head lines and in its body.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

use serde::Deserialize;

/// The head lines of a call of `tool`.
pub(crate) fn head_lines(tool: &str) -> String {
    format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n")
}

/// The members of `_meta` that a client describes itself with; `info` and `capabilities` are JSON texts.
pub(crate) fn describe(info: &str, capabilities: &str) -> String {
    format!(
        r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{info},"io.modelcontextprotocol/clientCapabilities":{capabilities}"#
    )
}

/// Writes a call of `tool` into `out`; `arguments` are a JSON text, `meta` the members of `_meta`.
pub(crate) fn write_call(
    out: &mut String,
    id: u64,
    tool: &str,
    arguments: &str,
    meta: &str,
) -> io::Result<()> {
    out.clear();
    let written = write!(
        out,
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"_meta":{{{meta}}},"name":"{tool}","arguments":{arguments}}}}}"#
    );
    written.map_err(io::Error::other)
}

/// Members of a call's result that the drill checks.
#[derive(Debug, Deserialize)]
pub(crate) struct CallResult<'a> {
    #[serde(borrow, rename = "resultType")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Vec<Block<'a>>,
    /// `requestState` for the retry.
    #[serde(borrow, rename = "requestState")]
    pub(crate) state: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Block<'a> {
    #[serde(borrow, default)]
    text: Cow<'a, str>,
}

impl CallResult<'_> {
    /// The text of a complete result.
    pub(crate) fn text(&self) -> Option<&str> {
        let is_complete = self.kind.as_deref() == Some("complete");
        let first = self.content.first().filter(|_| is_complete);
        first.map(|block| &*block.text)
    }

    /// Whether answers are wanted first.
    pub(crate) fn asks(&self) -> bool {
        self.kind.as_deref() == Some("input_required")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_json_and_its_result_is_read() {
        let mut text = String::new();
        write_call(&mut text, 7, "echo", "{}", &describe("{}", "{}")).unwrap();
        let call: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(call["params"]["name"], "echo");
        let result = r#"{"resultType":"complete","content":[{"type":"text","text":"a\"b"}]}"#;
        let result: CallResult<'_> = serde_json::from_str(result).unwrap();
        assert_eq!(result.text(), Some("a\"b"));
        assert!(!result.asks());
    }
}
