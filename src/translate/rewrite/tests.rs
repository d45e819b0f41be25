use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::Value;

use super::*;

fn up() -> NamePrefix {
    NamePrefix::new(Arc::from("up"))
}

fn mapped(method: &str, text: &str) -> String {
    result(method, text, &up()).unwrap().into_owned()
}

#[rstest]
#[case(
    "tools/list",
    r#"{ "tools":[{"name":"a", "inputSchema":{"name":"a"},"_meta":{"ui":{"resourceUri":"ui://v/1","x":1}, "ui/resourceUri":"ui://v/1","k":"ui://v"}},{"name":"b"} ],"nextCursor":"x"}"#,
    r#"{ "tools":[{"name":"up__a", "inputSchema":{"name":"a"},"_meta":{"ui":{"resourceUri":"ui://up/v/1","x":1}, "ui/resourceUri":"ui://up/v/1","k":"ui://v"}},{"name":"up__b"} ],"nextCursor":"x"}"#
)]
#[case(
    "tools/list",
    r#"{"tools":[{"name":"a","_meta":{"openai/outputTemplate":"ui://widget/v.html","openai/widgetAccessible":true}}]}"#,
    r#"{"tools":[{"name":"up__a","_meta":{"openai/outputTemplate":"ui://up/widget/v.html","openai/widgetAccessible":true}}]}"#
)]
#[case(
    "prompts/list",
    r#"{"prompts":[{"arguments":[{"name":"q"}],"name":"p"}]}"#,
    r#"{"prompts":[{"arguments":[{"name":"q"}],"name":"up__p"}]}"#
)]
#[case(
    "resources/list",
    r#"{"resources":[{"name":"n","uri":"file:\/\/\/x"},{"uri":"https://h/x","name":"m"}]}"#,
    r#"{"resources":[{"name":"n","uri":"up+file:///x"},{"uri":"https://h/x","name":"m"}]}"#
)]
#[case(
    "resources/templates/list",
    r#"{"resourceTemplates":[{"name":"n","uriTemplate":"{s}://x"}]}"#,
    r#"{"resourceTemplates":[{"name":"n","uriTemplate":"up+{s}://x"}]}"#
)]
#[case(
    "tools/call",
    r#"{"content":[{"type":"text","text":"file:///x","uri":"file:///t"},{"uri":"a:b","type":"resource_link","name":"n"},{"resource":{"text":"t","uri":"a:c"},"type":"resource"}],"structuredContent":{"type":"resource_link","uri":"a:b"},"isError":false}"#,
    r#"{"content":[{"type":"text","text":"file:///x","uri":"file:///t"},{"uri":"up+a:b","type":"resource_link","name":"n"},{"resource":{"text":"t","uri":"up+a:c"},"type":"resource"}],"structuredContent":{"type":"resource_link","uri":"a:b"},"isError":false}"#
)]
#[case(
    "prompts/get",
    r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"skill://s/f"}}}]}"#,
    r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"skill://up/s/f"}}}]}"#
)]
#[case(
    "resources/read",
    r#"{"contents":[{"uri":"a:1","text":"a:1"},{"blob":"","uri":"http://h"}]}"#,
    r#"{"contents":[{"uri":"up+a:1","text":"a:1"},{"blob":"","uri":"http://h"}]}"#
)]
#[case(
    "skills/list",
    r#"{"skills":[{"frontmatter":{"name":"s","uri":"skill://s/f"},"resources":[{"digest":"sha256:0","uri":"skill://a/s/SKILL.md","size":1},{"uri":"github://o/s/x"}],"uri":"skill://a/s/SKILL.md"},{"uri":"github://o/s/SKILL.md","resources":"dynamic"}]}"#,
    r#"{"skills":[{"frontmatter":{"name":"s","uri":"skill://s/f"},"resources":[{"digest":"sha256:0","uri":"skill://up/a/s/SKILL.md","size":1},{"uri":"up+github://o/s/x"}],"uri":"skill://up/a/s/SKILL.md"},{"uri":"up+github://o/s/SKILL.md","resources":"dynamic"}]}"#
)]
#[case(
    "skills/get",
    r#"{"skill":{"uri":"skill://s/SKILL.md","resources":[{"uri":"skill://s/SKILL.md"}]},"ttlMs":1}"#,
    r#"{"skill":{"uri":"skill://up/s/SKILL.md","resources":[{"uri":"skill://up/s/SKILL.md"}]},"ttlMs":1}"#
)]
#[case(
    "resources/directory/read",
    r#"{"resources":[{"uri":"skill://s/d","name":"d","mimeType":"inode/directory"}]}"#,
    r#"{"resources":[{"uri":"skill://up/s/d","name":"d","mimeType":"inode/directory"}]}"#
)]
fn occurrences_are_mapped_and_nothing_else(
    #[case] method: &str,
    #[case] before: &str,
    #[case] after: &str,
) {
    assert_eq!(mapped(method, before), after);
}

#[test]
fn what_holds_no_names_is_not_copied() {
    for (method, text) in [
        ("tools/call", r#"{"content":[{"type":"text","text":"x"}]}"#),
        ("completion/complete", r#"{"completion":{"values":["a"]}}"#),
        ("vendor/thing", r#"{"uri":"a:b"}"#),
        ("tools/call", "null"),
        ("tools/list", r#"{"tools":null}"#),
    ] {
        assert!(matches!(result(method, text, &up()), Ok(Cow::Borrowed(same)) if same == text));
    }
}

#[test]
fn an_object_that_we_rewrite_must_not_repeat_a_member() {
    let twice = [
        ("tools/list", r#"{"tools":[{"name":"a","name":"b"}]}"#),
        ("tools/list", r#"{"tools":[{"name":"a","\u006eame":"b"}]}"#),
        (
            "tools/list",
            r#"{"tools":[{"name":"a","_meta":{"ui":{"a":1,"a":1}}}]}"#,
        ),
        (
            "tools/call",
            r#"{"content":[{"type":"text","type":"resource"}]}"#,
        ),
        ("tools/call", r#"{"content":[],"content":[]}"#),
        (
            "resources/read",
            r#"{"contents":[{"uri":"a:b","uri":"c:d"}]}"#,
        ),
        ("resources/read", r#"{"contents":[{"uri":"\ud800"}]}"#),
    ];
    for (method, text) in twice {
        assert!(
            matches!(
                result(method, text, &up()),
                Err(JsonError::Ambiguous { .. })
            ),
            "{text}"
        );
    }
    mapped(
        "tools/list",
        r#"{"tools":[{"name":"a","inputSchema":{"a":1,"a":2}}]}"#,
    );
    assert!(result("tools/call", "{", &up()).is_err());
    assert!(result("tools/call", "{} x", &up()).is_err());
}

// SPEC G-05.
#[test]
fn titles_lose_hidden_characters() {
    let text =
        r#"{"tools":[{"name":"a","title":"safe\u001b[2J\u202e"},{"name":"b","title":"å \"q\""}]}"#;
    let expected =
        r#"{"tools":[{"name":"up__a","title":"safe[2J"},{"name":"up__b","title":"å \"q\""}]}"#;
    assert_eq!(mapped("tools/list", text), expected);
}

// BRIDGING §4.3, SPEC C-86.
#[test]
fn questions_name_the_asker_and_leave_other_context_alone() {
    let ask =
        |method, params| question(method, params, &up(), "My \"Server\"\n").map(Cow::into_owned);
    assert_eq!(
        ask("elicitation/create", r#"{"mode":"form","message":"Sure?","requestedSchema":{"message":"m"}}"#),
        Ok(r#"{"mode":"form","message":"[My \"Server\"] Sure?","requestedSchema":{"message":"m"}}"#.to_owned())
    );
    assert_eq!(
        ask(
            "sampling/createMessage",
            r#"{"messages":[{"role":"user","content":[{"type":"tool_result","toolUseId":"1","content":[{"type":"resource_link","uri":"a:b"}]}]}],"includeContext":"allServers","tools":[{"name":"t"}]}"#
        ),
        Ok(r#"{"messages":[{"role":"user","content":[{"type":"tool_result","toolUseId":"1","content":[{"type":"resource_link","uri":"up+a:b"}]}]}],"includeContext":"none","tools":[{"name":"t"}]}"#.to_owned())
    );
    assert_eq!(ask("roots/list", "{}"), Ok("{}".to_owned()));
}

#[test]
fn notices_are_mapped() {
    let told = |method, params| notice(method, params, &up()).unwrap().into_owned();
    assert_eq!(
        told("notifications/resources/updated", r#"{"uri":"a:b"}"#),
        r#"{"uri":"up+a:b"}"#
    );
    assert_eq!(
        told(
            "notifications/message",
            r#"{"level":"info","logger":"db","data":{"logger":"x"}}"#
        ),
        r#"{"level":"info","logger":"up/db","data":{"logger":"x"}}"#
    );
    assert_eq!(
        told("notifications/progress", r#"{"uri":"a:b"}"#),
        r#"{"uri":"a:b"}"#
    );
}

#[test]
fn an_error_names_what_the_client_asked_for() {
    let text = r#"{"code":-32002,"message":"no a:b","data":{"uri":"a:b"}}"#;
    let up = up();
    let error = |text, sent, shown| error(text, &up, Some((sent, shown))).unwrap();
    let shown = error(text, "a:b", "up+a:b");
    assert_eq!(
        shown,
        r#"{"code":-32002,"message":"no a:b","data":{"uri":"up+a:b"}}"#
    );
    assert_eq!(error(text, "a:c", "up+a:c"), text);
    let odd = r#"{"code":1,"data":["a:b"]}"#;
    assert_eq!(error(odd, "a:b", "up+a:b"), odd);
}

// Most parsers read `-32002.0` as the same code.
#[rstest]
#[case("-32002")]
#[case("-32002.0")]
fn error_that_cannot_be_rewritten_keeps_its_code(#[case] code: &str) {
    let text = format!(r#"{{"code":{code},"message":"no a:b","data":[]}}"#);
    let bare: Value = serde_json::from_str(&bare_error(&text, &up())).unwrap();
    assert_eq!(bare["code"], -32002);
    assert_eq!(bare["message"], "[up] no a:b");
}

#[test]
fn completion_references_are_read_and_renamed() {
    let text = r#"{"type":"ref/prompt", "name":"up__p","title":"t"}"#;
    let reference = CompletionRef::read(text).unwrap();
    assert_eq!(reference, CompletionRef::Prompt("up__p".into()));
    let renamed = reference.renamed(text, "p\"").unwrap();
    assert_eq!(
        renamed,
        r#"{"type":"ref/prompt", "name":"p\"","title":"t"}"#
    );
    let text = r#"{"type":"ref/resource","uri":"up+file:///{x}"}"#;
    let reference = CompletionRef::read(text).unwrap();
    assert_eq!(
        reference.renamed(text, "file:///{x}").unwrap(),
        r#"{"type":"ref/resource","uri":"file:///{x}"}"#
    );
    for odd in [
        "{}",
        "1",
        r#"{"type":"ref/x","name":"a"}"#,
        r#"{"type":"ref/prompt","uri":"a"}"#,
    ] {
        assert_eq!(CompletionRef::read(odd), None, "{odd}");
    }
}

proptest! {
    /// The reference maps the same places on a tree.
    #[test]
    fn a_list_is_rewritten_like_a_tree_would_be(
        names in prop::collection::vec(("\\PC{0,30}", "\\PC{0,10}"), 0..6),
        pretty: bool,
    ) {
        let tools: Vec<Value> = names
            .iter()
            .map(|(name, other)| serde_json::json!({"name": name, "description": other, "x": {"name": other}}))
            .collect();
        let mut tree = serde_json::json!({ "tools": tools });
        let text = if pretty { format!("{tree:#}") } else { tree.to_string() };
        for tool in tree["tools"].as_array_mut().unwrap() {
            tool["name"] = up().name(tool["name"].as_str().unwrap()).into();
        }
        let read: Value = serde_json::from_str(&mapped("tools/list", &text)).unwrap();
        prop_assert_eq!(read, tree);
    }

    #[test]
    fn no_text_makes_a_walk_panic(
        text in "(\\{|\\}|\\[|\\]|:|,|\"content\"|\"type\"|\"resource\"|\"uri\"|\"a:b\"|\"_meta\"|1| ){0,16}",
        method in "(tools/call|tools/list|prompts/get|resources/read)",
    ) {
        drop(result(&method, &text, &up()));
    }
}

// BRIDGING §4.1: an upstream can neither ask nor end under another's id.
#[test]
fn an_elicitation_is_known_by_its_upstream_too() {
    let asked = r#"{"mode":"url","elicitationId":"e\u00e9","message":"m"}"#;
    assert_eq!(
        question("elicitation/create", asked, &up(), "Up").unwrap(),
        r#"{"mode":"url","elicitationId":"up/eé","message":"[Up] m"}"#
    );
    let over = r#"{"elicitationId":"e"}"#;
    assert_eq!(
        notice("notifications/elicitation/complete", over, &up()).unwrap(),
        r#"{"elicitationId":"up/e"}"#
    );
    let first = r#"{"code":-32042,"data":{"elicitations":[{"elicitationId":"e","message":"m"}]}}"#;
    assert_eq!(
        error(first, &up(), None).unwrap(),
        r#"{"code":-32042,"data":{"elicitations":[{"elicitationId":"up/e","message":"[up] m"}]}}"#
    );
}
