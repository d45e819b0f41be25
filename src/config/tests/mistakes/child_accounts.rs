//! `[upstreams.<name>.auth]` of an upstream that is started by `command`.

use rstest::rstest;

use super::{OPEN, assert_refused_at, read, warnings};
use crate::config::{TokenPlace, UpstreamAuth};

const SERVER: &str = "issuer = \"https://as.example\"\nresource = \"https://api.example\"";
const CLIENT: &str = "client_id = \"g\"\nclient_secret = \"hunter2\"";

/// A child with these keys, and an account with the variable `T` and these keys.
fn child(upstream: &str, account: &str) -> String {
    let named = "env = \"T\"\n";
    format!(
        "{OPEN}[upstreams.t]\ncommand = \"server\"\n{upstream}\n[upstreams.t.auth]\n{named}{account}\n"
    )
}

/// The same of the gateway's own account.
fn own(upstream: &str, account: &str) -> String {
    let keys = format!("kind = \"client_credentials\"\n{SERVER}\n{CLIENT}\n{account}");
    child(upstream, &keys)
}

// Columns: the file, the key, the cause, the remedy.
#[rstest]
#[case::own_variable(
    own("env = { T = \"hunter2\" }", ""),
    "env.T: ",
    "stands beside [upstreams.t.auth], which sets the same variable",
    "keep one of them"
)]
#[case::inherited(
    own("inherit = [\"HOME\", \"T\"]", ""),
    "inherit[1]: ",
    "stands beside [upstreams.t.auth], which sets the same variable",
    "keep one of them"
)]
#[case::shared(
    own("isolation = \"shared\"", ""),
    "isolation: ",
    "is one caller's",
    "\"principal\""
)]
#[case::shared_key(
    child("isolation = \"shared\"", "kind = \"user_key\""),
    "isolation: ",
    "each caller has an account of its own",
    "\"principal\""
)]
#[case::no_variable(own("", "").replace("env = \"T\"", ""), "auth: ", "needs `env`", "TRACKER_TOKEN")]
#[case::bad_variable(own("", "").replace("\"T\"", "\"A=B\""), "auth.env: ", "not the name of a variable", "")]
#[case::header(
    own("", "header = \"X-Token\""),
    "auth.header: ",
    "is for upstreams that are reached by `url`",
    "`env`"
)]
#[case::prefix(
    own("", "prefix = \"\""),
    "auth.prefix: ",
    "is for upstreams that are reached by `url`",
    "`env`"
)]
#[case::no_issuer(
    own("", "").replace("issuer = \"https://as.example\"", ""),
    "auth.issuer: ",
    "is required: a program does not name",
    "issuer = "
)]
#[case::no_resource(
    own("", "").replace("resource = \"https://api.example\"", ""),
    "auth.resource: ",
    "is required: a program does not say",
    "the service that the program calls"
)]
#[case::variable_of_a_service(
    own("", "").replace("command = \"server\"", "url = \"https://t.example/mcp\""),
    "auth.env: ",
    "is for upstreams that are started by `command`",
    "`header`"
)]
fn mistake_beside_the_account_of_a_child_is_refused(
    #[case] text: String,
    #[case] key: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    let key = format!("upstreams.t.{key}");
    assert_refused_at(&text, &key, &[cause, remedy]);
}

#[rstest]
#[case::gateway("client_credentials", CLIENT, true)]
#[case::user("user", "", true)]
#[case::key("user_key", "", false)]
fn token_that_ends_in_a_child_is_warned_of(
    #[case] kind: &str,
    #[case] keys: &str,
    #[case] ends: bool,
) {
    let server = if kind == "user_key" { "" } else { SERVER };
    let text = child("", &format!("kind = {kind:?}\n{server}\n{keys}"));
    let said = warnings(&text);
    assert_eq!(said.contains("a token that ends"), ends, "{said}");
    assert_eq!(said.contains("kind = \"user_key\""), ends, "{said}");
    assert!(read(&text).unwrap().has_child_accounts());
}

#[test]
fn token_of_a_child_goes_into_the_variable_named() {
    let config = read(&own("", "")).unwrap();
    let upstream = config.upstreams.iter().find(|one| one.name == "t").unwrap();
    let place = upstream.auth.as_ref().map(UpstreamAuth::place);
    assert_eq!(place, Some(&TokenPlace::Variable("T".to_owned())));
}

#[test]
fn child_with_the_key_of_a_caller_is_not_started_for_nobody() {
    let text = child("", "kind = \"user_key\"");
    let text = format!("{text}[mcp]\nwarm = [\"t\"]\n");
    assert_refused_at(&text, "mcp.warm[0]: ", &["there is none at the start"]);
}
