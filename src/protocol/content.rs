//! Writers of content blocks and tool results. Spec: SPEC E-05.

use super::json::{array, object, quote};

/// JSON text of a text block.
pub(crate) fn text_block(text: &str) -> String {
    object([("type", "\"text\""), ("text", &*quote(text))])
}

/// JSON text of content that is one text block.
pub(crate) fn text_content(text: &str) -> String {
    array([text_block(text)])
}

/// JSON text of a tool's failure, for a model to act on.
pub(crate) fn tool_error(text: &str) -> String {
    object([("content", &*text_content(text)), ("isError", "true")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_tool_error_is_quoted() {
        assert_eq!(
            tool_error("no \"a\""),
            r#"{"content":[{"type":"text","text":"no \"a\""}],"isError":true}"#
        );
    }
}
