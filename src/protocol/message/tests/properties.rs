//! What holds for any text, and for any edit.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::*;
use super::{parse, read};

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        any::<i32>().prop_map(|n| json!(n)),
        ".{0,12}".prop_map(|s| json!(s)),
        prop::collection::vec(".{0,4}", 0..3).prop_map(|v| json!({ "list": v })),
    ]
}

fn object(keys: &'static str) -> impl Strategy<Value = serde_json::Map<String, Value>> {
    prop::collection::btree_map(keys, value(), 0..5).prop_map(|m| m.into_iter().collect())
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Message::parse(bytes.into(), 16));
    }

    #[test]
    fn no_json_like_text_makes_parser_or_editor_panic(
        text in "(\\{|\\}|\\[|\\]|:|,|\"jsonrpc\":\"2.0\"|\"method\":\"m\"|\"params\"|\"_meta\"|\"id\":1| |\"a\"){0,14}"
    ) {
        if let Ok(message) = parse(&text) {
            let edited = message.edit().id("5").param("p", "1").meta("m", "2").remove_param("a").finish();
            prop_assert!(Message::parse(edited, 128).is_ok());
        }
    }

    /// The reference does the same edits on a tree.
    #[test]
    fn splicing_changes_only_what_it_should(
        params in object("[a-e]"),
        meta in prop::option::of(object("[k-o]")),
        pretty: bool,
        set in object("[a-g]"),
        set_meta in object("[k-q]"),
        remove in prop::collection::vec("[a-g]", 0..3),
        remove_meta in prop::collection::vec("[k-q]", 0..3),
    ) {
        let mut tree = json!({"jsonrpc": "2.0", "id": 1, "method": "m", "params": params});
        if let Some(meta) = meta {
            tree["params"]["_meta"] = Value::Object(meta);
        }
        let text = if pretty { format!("{tree:#}") } else { tree.to_string() };
        let message = read(&text);
        let mut editor = message.edit();
        for name in &remove {
            editor = editor.remove_param(name);
            tree["params"].as_object_mut().unwrap().remove(name);
        }
        for name in &remove_meta {
            editor = editor.remove_meta(name);
            if let Some(meta) = tree["params"].get_mut("_meta") {
                meta.as_object_mut().unwrap().remove(name);
            }
        }
        for (name, value) in set {
            editor = editor.param(name.clone(), value.to_string());
            tree["params"][name] = value;
        }
        for (name, value) in set_meta {
            editor = editor.meta(name.clone(), value.to_string());
            tree["params"]["_meta"][name] = value;
        }
        let edited: Value = serde_json::from_slice(&editor.finish()).unwrap();
        prop_assert_eq!(edited, tree);
    }
}
