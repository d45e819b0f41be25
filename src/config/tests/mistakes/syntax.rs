//! Files that are not valid TOML.

use rstest::rstest;

use super::{OPEN, assert_refused, read};

// Columns: the file, the place, the cause, the remedy.
#[rstest]
#[case::word_without_quotes(
    "[auth]\nmode = none\n",
    "2:8: ",
    "expected `nan`",
    "straight double quotes"
)]
#[case::no_equals_sign(
    "[auth]\nmode \"none\"\n",
    "2:6: ",
    "key with no value",
    "have `=` between them"
)]
#[case::colon(
    "[auth]\nmode: \"none\"\n",
    "2:5: ",
    "invalid unquoted key",
    "have `=` between them"
)]
#[case::curly_quotes(
    "[auth]\nmode = “none”\n",
    "2:8: ",
    "must be quoted",
    "straight double quotes"
)]
#[case::open_bracket("[auth\nmode = \"none\"\n", "1:6: ", "unclosed table", "expected `]`")]
#[case::open_quote(
    "[auth]\nmode = \"none\n",
    "2:13: ",
    "invalid basic string",
    "close the quote on the same line"
)]
#[case::comma_of_json(
    "[auth]\nmode = \"none\",\n",
    "2:14: ",
    "unexpected key or value",
    "nothing behind its value"
)]
#[case::yaml(
    "# servers\nupstreams:\n  files:\n    command: npx\n",
    "2:11: ",
    "key with no value",
    "this looks like YAML"
)]
#[case::json(
    "{\n  \"mcpServers\": {\"files\": {\"command\": \"npx\"}}\n}\n",
    "1:1: ",
    "invalid key-value pair",
    "this looks like JSON"
)]
fn text_that_is_no_toml_is_refused(
    #[case] text: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(text, place, cause, remedy);
}

// Columns: lines added to a valid file, the place, the cause, the remedy.
#[rstest]
#[case::windows_path(
    "[upstreams.b]\ncommand = \"C:\\Users\\b.exe\"",
    "6:16: ",
    "too few unicode value digits, expected",
    "write '…' in single quotes"
)]
#[case::table_twice("[mcp]\n[mcp]\n", "6:2: ", "duplicate key", "stands once")]
fn lines_that_are_no_toml_are_refused(
    #[case] lines: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(&format!("{OPEN}{lines}\n"), place, cause, remedy);
}

#[test]
fn a_file_of_yaml_is_told_so_once() {
    let refusal = read("# servers\nupstreams:\n  files:\n    command: npx\n").unwrap_err();
    assert_eq!(refusal.errors.len(), 1, "{refusal}");
    assert!(
        refusal.to_string().contains("this looks like YAML"),
        "{refusal}"
    );
}
