//! `[keys]`.

use rstest::rstest;

use super::{OAUTH, OPEN, assert_refused};
use crate::config::parse;

// Columns: lines added to a valid file, the place, the cause, the remedy.
#[rstest]
#[case::missing_file(
    "[keys]\nseal = [{ id = \"k1\", file = \"gone\" }]",
    "6:29: keys.seal[0].file: ",
    "etc/gone: No such file",
    "begins at the directory of this file"
)]
#[case::key_as_text(
    "[keys]\nseal = \"hunter2\"",
    "6:8: keys.seal: ",
    "expected a list of tables, found text",
    "write seal = [{ … }]"
)]
#[case::short_key(
    "[keys]\nseal = [{ id = \"k1\", key = \"short\" }]",
    "6:9: keys.seal[0]: ",
    "shorter than 32 bytes",
    "make one with: openssl rand -base64 32"
)]
#[case::no_key(
    "[keys]\nseal = [{ id = \"k1\" }]",
    "6:9: keys.seal[0]: ",
    "needs `file` or `key`",
    "file = \"seal.key\", or key = \"${NAME}\" for a"
)]
#[case::keys_of_one_id(
    "[keys]\nseal = [{ id = \"k1\", key = \"0123456789abcdef0123456789abcdef\" }, { id = \"k1\", key = \"fedcba9876543210fedcba9876543210\" }]",
    "6:73: keys.seal[1].id: ",
    "two keys have this id",
    "give each key an id of its own"
)]
#[case::keys_of_one_id_behind_another_mistake(
    "[keys]\nseal = [{ id = \"k0\" }, { id = \"k1\", key = \"0123456789abcdef0123456789abcdef\" }, { id = \"k1\", key = \"fedcba9876543210fedcba9876543210\" }]",
    "6:88: keys.seal[2].id: ",
    "two keys have this id",
    "give each key an id of its own"
)]
fn a_mistake_is_refused(
    #[case] lines: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(&format!("{OPEN}{lines}\n"), place, cause, remedy);
}

const LOGIN: &str = "[connect]\nlogin = { issuer = \"https://auth.example.com\", client_id = \"g\", client_secret = \"${S}\" }\n";
const USER_KEY: &str =
    "[upstreams.t]\nurl = \"https://t.example/mcp\"\n[upstreams.t.auth]\nkind = \"user_key\"\n";

/// The warnings about a file with the program `files`, accounts of users, and `keys`.
fn doubts(keys: &str) -> Vec<String> {
    warned(&format!("{OAUTH}{LOGIN}{USER_KEY}{keys}"))
}

fn warned(text: &str) -> Vec<String> {
    let config = parse(text, "etc/g.toml", &|_| Some("v".repeat(32))).unwrap();
    config.warnings.iter().map(ToString::to_string).collect()
}

// Landlock hides no files from children.
#[test]
fn key_of_accounts_that_children_can_read_is_warned_of() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "k".repeat(32)).unwrap();
    let path = file.path().display();
    let safe = "{ id = \"a\", key = \"${K}\" }";
    for (keys, place) in [
        (String::new(), "keys.vault: "),
        (
            format!("{{ id = \"b\", file = \"{path}\" }}"),
            "keys.vault[0]: ",
        ),
        (
            format!("{safe}, {{ id = \"b\", key = {{ file = \"{path}\" }} }}"),
            "keys.vault[1]: ",
        ),
        (
            format!("{{ id = \"b\", key = \"{}\" }}", "k".repeat(32)),
            "keys.vault[0]: ",
        ),
    ] {
        let said = doubts(&format!("[keys]\nvault = [{keys}]\n"));
        let [said] = said.as_slice() else {
            panic!("{keys}: {said:?}");
        };
        for part in [place, "(files)", "can read it", "key = \"${VAULT_KEY}\""] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    assert!(doubts("")[0].contains("the file vault.key in the state directory"));
}

#[test]
fn key_of_accounts_that_no_child_can_read_is_no_doubt() {
    let variable = "[keys]\nvault = [{ id = \"a\", key = \"${K}\" }]\n";
    assert_eq!(doubts(variable), Vec::<String>::new());
    let no_accounts = OAUTH.to_owned();
    let no_programs = format!("{OAUTH}{LOGIN}{USER_KEY}");
    let no_programs = no_programs.replace("command = \"files\"", "url = \"https://f.example/mcp\"");
    for text in [no_accounts, no_programs] {
        assert_eq!(warned(&text), Vec::<String>::new(), "{text}");
    }
}
