//! `[mcp]` and `[endpoints.<name>]`.

use rstest::rstest;

use super::{OPEN, assert_refused};

// Columns: lines added to a valid file, the place, the cause, the remedy.
#[rstest]
#[case::warm_nobody(
    "[mcp]\nwarm = [\"fils\"]",
    "6:9: mcp.warm[0]: ",
    "there is no upstream \"fils\"",
    "did you mean \"files\"?"
)]
#[case::no_such_upstream(
    "[mcp]\nupstreams = [\"file\"]",
    "6:14: mcp.upstreams[0]: ",
    "there is no upstream \"file\"",
    "did you mean \"files\"?"
)]
#[case::twice(
    "[mcp]\nupstreams = [\"files\", \"files\"]",
    "6:23: mcp.upstreams[1]: ",
    "listed twice",
    "write it once"
)]
#[case::server_card_endpoint(
    "[endpoints.server-card]\nupstreams = [\"files\"]",
    "5:12: endpoints.server-card: ",
    "reserved",
    "reserved"
)]
#[case::shared_name(
    "[endpoints.files]\nupstreams = [\"files\"]",
    "5:12: endpoints.files: ",
    "has this name already",
    "upstreams and endpoints share the paths"
)]
#[case::not_shown(
    "[endpoints.dev]\nupstreams = [\"files\"]\ntools = [\"x:*\"]",
    "7:10: endpoints.dev.tools[0]: ",
    "not shown here",
    "list it in endpoints.dev.upstreams, or leave"
)]
#[case::no_pattern(
    "[endpoints.dev]\nupstreams = [\"files\"]\ntools = [\"x\"]",
    "7:10: endpoints.dev.tools[0]: ",
    "expected upstream:pattern",
    "such as \"files:read_*\""
)]
#[case::empty_endpoint(
    "[endpoints.dev]\nupstreams = []",
    "6:13: endpoints.dev.upstreams: ",
    "at least one",
    "for example upstreams = [\"files\"]"
)]
#[case::stranger(
    "[endpoints.dev]\nupstreams = [\"files\"]\nissuers = [\"x\"]",
    "7:12: endpoints.dev.issuers[0]: ",
    "unknown issuer",
    "it has to stand in [[auth.issuers]], byte"
)]
fn a_mistake_is_refused(
    #[case] lines: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(&format!("{OPEN}{lines}\n"), place, cause, remedy);
}
