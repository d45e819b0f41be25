//! `[auth]` and its tables.

use rstest::rstest;

use super::{OAUTH, assert_refused, read};

// Columns: the file, the place, the cause, the remedy.
#[rstest]
#[case::no_issuer(
    "[auth]\nmode = \"oauth\"\n[upstreams.a]\ncommand = \"x\"",
    "1:2: auth: ",
    "needs an issuer",
    "[[auth.issuers]]"
)]
#[case::no_mode(&OAUTH.replace("mode = \"oauth\"\n", ""), "1:2: auth: ", "who may call is not said: `mode` is required", "either ask every caller for a token")]
#[case::unknown_mode(&OAUTH.replace("\"oauth\"", "\"oidc\""), "2:8: auth.mode: ", "\"oidc\": not one of oauth, none", "did you mean \"oauth\"?")]
#[case::bad_scope(&OAUTH.replace("mcp:tools", "two words"), "3:20: auth.required_scopes[0]: ", "\"two words\": not a scope", "without spaces")]
#[case::http_issuer(&OAUTH.replace("https:", "http:"), "5:10: auth.issuers[0].issuer: ", "must be https", "write the `issuer` of its own metadata, such")]
#[case::query_issuer(&OAUTH.replace(".com", ".com?x=1"), "5:10: auth.issuers[0].issuer: ", "query", "write the `issuer` of its own metadata, such")]
#[case::two_issuers(&format!("{OAUTH}[[auth.issuers]]\nissuer = \"https://auth.example.com\"\n"), "9:10: auth.issuers[1].issuer: ", "listed twice", "one [[auth.issuers]] has all keys of an")]
#[case::issuer_that_is_no_url(&OAUTH.replace("https://auth.example.com", "auth.example.com"), "5:10: auth.issuers[0].issuer: ", "is not a URL", "write the `issuer` of its own metadata, such")]
#[case::issuer_with_a_blank(&OAUTH.replace(".com", ".com "), "5:10: auth.issuers[0].issuer: ", "may not have blanks or line breaks", "write the `issuer` of its own metadata, such")]
#[case::issuer_with_credentials(&OAUTH.replace("https://auth", "https://me:hunter2@auth"), "5:10: auth.issuers[0].issuer: ", "may not hold credentials", "write the `issuer` of its own metadata, such")]
#[case::issuer_with_fragment(&OAUTH.replace(".com", ".com#x"), "5:10: auth.issuers[0].issuer: ", "may not have a query or a fragment", "write the `issuer` of its own metadata, such")]
#[case::issuers_as_text(
    "[auth]\nmode = \"oauth\"\nissuers = [\"https://a.example\"]\n[upstreams.a]\ncommand = \"x\"",
    "3:12: auth.issuers[0]: ",
    "expected a table, found text",
    "write [[auth.issuers]], and its keys below"
)]
#[case::no_issuer_name(&format!("{OAUTH}[[auth.issuers]]\naudiences = [\"x\"]\n"), "8:1: auth.issuers[1].issuer: ", "is required", "for example issuer =")]
#[case::no_key_set(&OAUTH.replace(".com\"\n", ".com\"\njwks_file = \"gone.json\"\n"), "6:13: auth.issuers[0].jwks_file: ", "cannot be read: No such file", "begins at the directory of this file")]
#[case::clear_question(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { endpoint = \"http://a.example/ask\", client_id = \"g\", client_secret = \"hunter2\" }\n"), "6:30: auth.issuers[0].introspection.endpoint: ", "must be https", "plain http is for loopback hosts only")]
#[case::long_answers(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { client_id = \"g\", client_secret = \"hunter2\", max_age = \"6m\" }\n"), "6:73: auth.issuers[0].introspection.max_age: ", "may be", "5m at most")]
#[case::no_secret_to_ask_with(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { client_id = \"g\" }\n"), "6:1: auth.issuers[0].introspection.client_secret: ", "is required", "client_secret = \"${SECRET}\" or { file = \"…\"")]
#[case::empty_secret_to_ask_with(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { client_id = \"g\", client_secret = \"${EMPTY}\" }\n"), "6:52: auth.issuers[0].introspection.client_secret: ", "is empty", "client_secret = \"${SECRET}\" or { file = \"…\"")]
#[case::empty_client_to_ask_as(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { client_id = \"${EMPTY}\", client_secret = \"hunter2\" }\n"), "6:31: auth.issuers[0].introspection.client_id: ", "\"${EMPTY}\": is empty", "")]
#[case::unknown_way_to_authenticate(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { client_id = \"g\", client_secret = \"hunter2\", auth_method = \"client_secret_pos\" }\n"), "6:77: auth.issuers[0].introspection.auth_method: ", "not one of auto, client_secret_basic, client_secret_post", "did you mean \"client_secret_post\"?")]
#[case::one_issuer_table(&OAUTH.replace("[[auth.issuers]]", "[auth.issuers]"), "4:7: auth.issuers: ", "expected tables, found a table", "write [[auth.issuers]]")]
#[case::empty_rule(&format!("{OAUTH}[[auth.tool_scopes]]\n"), "8:1: auth.tool_scopes[0].scopes: ", "needs at least one item", "for example scopes = [\"mcp:admin\"]")]
#[case::rule_of_no_upstream(&format!("{OAUTH}[[auth.tool_scopes]]\ntools = [\"x\"]\nupstreams = [\"file\"]\nscopes = [\"a\"]\n"), "10:14: auth.tool_scopes[0].upstreams[0]: ", "there is no upstream \"file\"", "did you mean \"files\"?")]
#[case::no_scopes_that_are_implied(&format!("{OAUTH}[[auth.scope_implies]]\nscope = \"a\"\n"), "8:1: auth.scope_implies[0].implies: ", "needs at least one item", "for example implies = [\"mcp:tools\"]")]
fn a_mistake_is_refused(
    #[case] text: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(text, place, cause, remedy);
}

#[test]
fn an_issuer_on_a_loopback_host_may_speak_plain_http() {
    let text = OAUTH.replace("https://auth.example.com", "http://localhost:9000/realms/x");
    assert_eq!(
        read(&text).unwrap().auth.issuers[0].issuer,
        "http://localhost:9000/realms/x"
    );
}
