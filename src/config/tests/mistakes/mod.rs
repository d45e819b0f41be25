//! Errors and warnings of a file: each with its place, the cause, and what to write instead.
//!
//! One file for each section of the configuration; errors of the file as a whole are here.

mod accounts;
mod auth;
mod child_accounts;
mod doubts;
mod endpoints;
mod keys;
mod limits;
mod logins;
mod server;
mod syntax;
mod telemetry;
mod upstreams;

use rstest::rstest;

use super::{OAUTH, OPEN, errors, read};

/// Asserts that one message has the place, the cause and the remedy, and that none shows a secret.
fn assert_said(messages: &[String], place: &str, cause: &str, remedy: &str) {
    let place = format!("etc/g.toml:{place}");
    let has_all = |message: &String| {
        message.starts_with(&place) && message.contains(cause) && message.contains(remedy)
    };
    assert!(messages.iter().any(has_all), "{messages:#?}");
    assert!(!messages.concat().contains("hunter2"), "{messages:#?}");
}

/// Asserts that `text` is refused with the message that `assert_said` checks.
fn assert_refused(text: &str, place: &str, cause: &str, remedy: &str) {
    assert_said(&errors(text), place, cause, remedy);
}

/// Asserts that `text` is refused with a message about `key` that has all of `parts`, and that no message shows a secret.
fn assert_refused_at(text: &str, key: &str, parts: &[&str]) {
    let said = errors(text);
    let place = format!(": {key}");
    let has_all = |message: &String| {
        message.contains(&place) && parts.iter().all(|part| message.contains(*part))
    };
    assert!(said.iter().any(has_all), "{said:#?}");
    assert!(!said.concat().contains("hunter2"), "{said:#?}");
}

/// The warnings about `text`, one after the other.
fn warnings(text: &str) -> String {
    let warnings = read(text).unwrap().warnings;
    warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn an_upstream_with_mistakes_is_not_called_missing_as_well() {
    let said = errors(&format!(
        "{OPEN}[upstreams.b]\n[mcp]\nupstreams = [\"b\"]\n"
    ));
    assert_eq!(said.len(), 1, "{said:?}");
}

#[rstest]
#[case::hidden("merged = false\ndirect = false\n")]
#[case::switched_off("direct = false\n[mcp]\nenabled = false\n")]
#[case::none_listed("direct = false\n[mcp]\nupstreams = []\n")]
fn a_file_that_serves_nothing_is_refused(#[case] lines: &str) {
    let said = errors(&format!("{OPEN}{lines}"));
    assert!(
        said[0].contains("no endpoint shows any of them"),
        "{said:?}"
    );
    read(&format!(
        "{OPEN}{lines}[endpoints.e]\nupstreams = [\"files\"]\n"
    ))
    .unwrap();
}

#[rstest]
#[case::no_address(&format!("{OAUTH}[server]\nlisten = \"0.0.0.0:1\"\n"))]
#[case::no_issuer(&format!("{OAUTH}[[auth.issuers]]\n"))]
#[case::one_table(&OAUTH.replace("[[auth.issuers]]", "[auth.issuers]"))]
#[case::bad_scope(&OAUTH.replace("mcp:tools", "two words"))]
fn one_mistake_makes_one_line(#[case] text: &str) {
    let refusal = read(text).unwrap_err();
    assert_eq!(refusal.errors.len(), 1, "{refusal}");
    assert!(refusal.warnings.is_empty(), "{:?}", refusal.warnings);
}
