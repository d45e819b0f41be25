//! What `sampling/createMessage` holds: tools that were used, and the client's context.
//! Spec: SPEC C-70; MCP 2025-11-25, "Sampling".

use std::borrow::Cow;
use std::collections::HashSet;

use super::json::{self, JsonError, member};

/// The only value of `includeContext` for clients that did not declare `sampling.context`.
const NO_CONTEXT: &str = "\"none\"";

/// Whether the parameters (JSON text) offer the model tools. Some serialisers write null for none.
pub(crate) fn offers_tools(params: &str) -> bool {
    ["tools", "toolChoice"]
        .iter()
        .any(|name| member(params, name).is_some_and(|value| value != "null"))
}

/// Whether some message of the parameters (JSON text) holds the use of a tool, or its result.
pub(crate) fn has_tool_content(params: &str) -> bool {
    let Some(messages) = member(params, "messages") else {
        return false;
    };
    let messages = json::elements(messages).unwrap_or_default();
    let read = messages
        .iter()
        .map(|message| SamplingMessage::read(message));
    read.into_iter()
        .any(|turn| turn.is_ok_and(|turn| turn.is_of_tools()))
}

/// Whether every tool use is answered by the message behind it, which is a user's and holds nothing but
/// the results, and every result answers one. What two parsers could read differently is not.
pub(crate) fn is_balanced(params: &str) -> bool {
    let Some(messages) = member(params, "messages").and_then(|text| json::elements(text).ok())
    else {
        return true;
    };
    let mut used: HashSet<String> = HashSet::new();
    for message in messages {
        let Ok(turn) = SamplingMessage::read(message) else {
            return false;
        };
        if !turn.answers(&used) || !turn.uses.is_empty() && turn.role != "assistant" {
            return false;
        }
        let count = turn.uses.len();
        used = turn.uses.into_iter().collect();
        if used.len() != count {
            return false;
        }
    }
    used.is_empty()
}

/// The parameters (JSON text) without the client's context; `None` where they want none.
pub(crate) fn without_context(params: &str) -> Option<String> {
    member(params, "includeContext").filter(|wanted| *wanted != NO_CONTEXT)?;
    let members = json::members(params).ok()?;
    let without = json::object_replacing(members, "includeContext", NO_CONTEXT);
    Some(without)
}

/// One message.
#[derive(Default)]
struct SamplingMessage<'t> {
    role: Cow<'t, str>,
    /// The ids of the uses, and of those that are answered.
    uses: Vec<String>,
    results: Vec<String>,
    /// Blocks of any other kind.
    others: usize,
}

impl<'t> SamplingMessage<'t> {
    fn read(message: &'t str) -> Result<Self, JsonError> {
        let mut turn = Self::default();
        for (name, value) in json::members(message)? {
            match &*name {
                "role" => turn.role = json::string(value).unwrap_or_default(),
                "content" if value.starts_with('[') => {
                    for block in json::elements(value)? {
                        turn.block(block)?;
                    }
                }
                "content" => turn.block(value)?,
                _ => {}
            }
        }
        Ok(turn)
    }

    fn block(&mut self, block: &str) -> Result<(), JsonError> {
        let members = json::members(block)?;
        let text = |wanted: &str| {
            let found = members.iter().find(|(name, _)| name == wanted);
            found
                .and_then(|(_, value)| json::string(value))
                .unwrap_or_default()
        };
        match &*text("type") {
            "tool_use" => self.uses.push(text("id").into_owned()),
            "tool_result" => self.results.push(text("toolUseId").into_owned()),
            _ => self.others += 1,
        }
        Ok(())
    }

    fn is_of_tools(&self) -> bool {
        !(self.uses.is_empty() && self.results.is_empty())
    }

    /// Whether it answers exactly these uses of the message before it.
    fn answers(&self, used: &HashSet<String>) -> bool {
        if used.is_empty() {
            return self.results.is_empty();
        }
        let answered: HashSet<&String> = self.results.iter().collect();
        self.role == "user"
            && self.others == 0
            && self.uses.is_empty()
            && answered.len() == self.results.len()
            && answered.len() == used.len()
            && used.iter().all(|id| answered.contains(id))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const ASKED: &str = r#"{"role":"user","content":{"type":"text","text":"?"}}"#;
    const USED: &str = r#"{"role":"assistant","content":[{"type":"text","text":"."},{"type":"tool_use","id":"1","name":"t","input":{}},{"type":"tool_use","id":"2","name":"t","input":{}}]}"#;
    const ONE: &str = r#"{"type":"tool_result","toolUseId":"1","content":[]}"#;
    const TWO: &str = r#"{"type":"tool_result","toolUseId":"2","content":[]}"#;

    fn user(blocks: &[&str]) -> String {
        format!(r#"{{"role":"user","content":[{}]}}"#, blocks.join(","))
    }

    fn params(messages: &[&str]) -> String {
        format!(r#"{{"maxTokens":1,"messages":[{}]}}"#, messages.join(","))
    }

    // SPEC C-70.
    #[test]
    fn every_tool_use_is_answered_by_nothing_but_results() {
        let text = r#"{"type":"text","text":"!"}"#;
        let answered = user(&[TWO, ONE]);
        assert!(is_balanced(&params(&[ASKED])));
        assert!(is_balanced(&params(&[ASKED, USED, &answered])));
        assert!(is_balanced(&params(&[ASKED, USED, &answered, ASKED])));
        assert!(is_balanced("{}"));
        let lacking = user(&[ONE]);
        let mixed = user(&[ONE, TWO, text]);
        let twice = user(&[ONE, ONE]);
        let more = user(&[ONE, TWO, ONE]);
        for flawed in [&lacking, &mixed, &twice, &more, ASKED] {
            assert!(!is_balanced(&params(&[ASKED, USED, flawed])), "{flawed}");
        }
        assert!(!is_balanced(&params(&[ASKED, USED])), "unanswered");
        assert!(!is_balanced(&params(&[&lacking])), "nothing was used");
        let by_user = USED.replace("assistant", "user");
        assert!(!is_balanced(&params(&[&by_user, &answered])));
        let ambiguous = r#"{"role":"user","role":"user","content":[]}"#;
        assert!(!is_balanced(&params(&[ambiguous])));
    }

    // SPEC C-70.
    #[rstest]
    #[case(ASKED, false)]
    #[case(USED, true)]
    #[case(
        r#"{"role":"user","content":{"type":"tool_result","toolUseId":"1"}}"#,
        true
    )]
    fn content_of_tools_is_found(#[case] message: &str, #[case] expected: bool) {
        assert_eq!(has_tool_content(&params(&[message])), expected);
    }

    // SPEC C-70.
    #[rstest]
    #[case(
        r#"{"a":1,"includeContext":"allServers"}"#,
        Some(r#"{"a":1,"includeContext":"none"}"#)
    )]
    #[case(r#"{"includeContext":"none"}"#, None)]
    #[case(r#"{"a":1}"#, None)]
    fn context_is_left_out(#[case] params: &str, #[case] expected: Option<&str>) {
        assert_eq!(without_context(params).as_deref(), expected);
    }
}
