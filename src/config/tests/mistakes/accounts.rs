//! `[upstreams.<name>.auth]` and `[egress]`.

use rstest::rstest;

use super::{OPEN, assert_refused_at, read, warnings};
use crate::config::{EgressAllow, UpstreamAuth};

/// An upstream with an account that has these additional keys.
fn account(keys: &str) -> String {
    format!("{OPEN}[upstreams.t]\nurl = \"https://t.example/mcp\"\n[upstreams.t.auth]\n{keys}\n")
}

const KIND: &str = "kind = \"client_credentials\"\nissuer = \"https://as.example\"";
const WHOLE: &str = "kind = \"client_credentials\"\nissuer = \"https://as.example\"\nclient_id = \"g\"\nclient_secret = \"hunter2\"";

// Columns: the keys, the key, the cause, the remedy.
#[rstest]
#[case::no_kind(
    "client_id = \"g\"\nclient_secret = \"hunter2\"",
    "auth: ",
    "`kind` is required",
    "\"client_credentials\""
)]
#[case::unknown_kind(
    "kind = \"oauth\"\nclient_id = \"g\"\nclient_secret = \"hunter2\"",
    "auth.kind: ",
    "not one of client_credentials, token_exchange",
    ""
)]
#[case::no_proof(&format!("{KIND}\nclient_id = \"g\""), "auth: ", "needs `client_secret` or `private_key`", "client_secret = ")]
#[case::empty_proof(&format!("{KIND}\nclient_id = \"g\"\nclient_secret = \"\""), "auth: ", "needs `client_secret` or `private_key`", "client_secret = ")]
#[case::two_proofs(&format!("{WHOLE}\nprivate_key = \"hunter2\""), "auth.private_key: ", "stands beside `client_secret`", "keep one of them")]
#[case::no_client(&format!("{KIND}\nclient_secret = \"hunter2\""), "auth.client_id: ", "is required", "for example client_id")]
#[case::clear_issuer(&WHOLE.replace("https:", "http:"), "auth.issuer: ", "must be https", "loopback hosts only")]
#[case::issuer_with_a_blank(&WHOLE.replace(".example", ".example "), "auth.issuer: ", "may not have blanks or line breaks", "")]
#[case::no_issuer_url(&WHOLE.replace("https://as.example", "as.example"), "auth.issuer: ", "expected a URL", "https://")]
#[case::two_words(&format!("{WHOLE}\nscopes = [\"a b\"]"), "auth.scopes[0]: ", "not a scope", "without spaces")]
#[case::fragment(&format!("{WHOLE}\nresource = \"https://t.example/#x\""), "auth.resource: ", "may not have a fragment", "")]
#[case::no_resource_url(&format!("{WHOLE}\nresource = \"tracker\""), "auth.resource: ", "expected an absolute URI", "")]
#[case::own_header(&format!("{WHOLE}\nheader = \"Mcp-Session-Id\""), "auth.header: ", "is set by the gateway itself", "")]
#[case::no_header(&format!("{WHOLE}\nheader = \"a b\""), "auth.header: ", "not a header name", "letters, digits")]
#[case::line_break(&format!("{WHOLE}\nprefix = \"a\\n\""), "auth.prefix: ", "holds characters", "")]
#[case::unknown_key(&format!("{WHOLE}\nclient_secrets = \"x\""), "auth.client_secrets: ", "unknown key", "did you mean `client_secret`?")]
fn a_mistake_is_refused(
    #[case] keys: &str,
    #[case] key: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    let key = format!("upstreams.t.{key}");
    assert_refused_at(&account(keys), &key, &[cause, remedy]);
}

// What else is needed depends on the kind.
#[test]
fn kind_that_is_not_known_is_the_only_mistake() {
    for keys in ["", "kind = \"oauth\""] {
        let said = super::errors(&account(keys));
        assert_eq!(said.len(), 1, "{said:#?}");
    }
}

#[test]
fn a_header_is_set_in_one_place() {
    let text = account(WHOLE).replace(
        "[upstreams.t.auth]",
        "headers = { authorization = \"hunter2\" }\n[upstreams.t.auth]",
    );
    let said = super::errors(&text);
    let what = "stands beside [upstreams.t.auth], which sets the same header";
    assert!(said.concat().contains(what), "{said:#?}");
    let other = text.replace("authorization", "x-team");
    read(&other).unwrap();
}

#[test]
fn credentials_without_an_issuer_are_warned_of() {
    let keys = WHOLE.replace("issuer = \"https://as.example\"\n", "");
    let said = warnings(&account(&keys));
    let what = "the upstream chooses who gets the credentials";
    assert!(said.contains(what), "{said}");
    assert_eq!(warnings(&account(WHOLE)), "");
}

const EXCHANGE: &str = "kind = \"token_exchange\"\nclient_id = \"g\"\nclient_secret = \"hunter2\"";

/// A configuration whose upstream exchanges callers' tokens, with these additional keys in both tables.
fn exchange(upstream: &str, keys: &str) -> String {
    format!(
        "[server]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"oauth\"\n[[auth.issuers]]\n\
         issuer = \"https://as.example\"\n[upstreams.t]\nurl = \"https://t.example/mcp\"\n{upstream}\n\
         [upstreams.t.auth]\n{EXCHANGE}\n{keys}\n"
    )
}

// Columns: the file, the key, the cause.
#[rstest]
#[case::shared(
    exchange("isolation = \"shared\"", ""),
    "upstreams.t.isolation: ",
    "each caller has an account of its own"
)]
#[case::open(
    account(EXCHANGE),
    "upstreams.t.auth.kind: ",
    "callers have no tokens to exchange"
)]
#[case::warm(
    exchange("[mcp]\nwarm = [\"t\"]", ""),
    "mcp.warm[0]: ",
    "there is none at the start"
)]
#[case::header(
    exchange("headers = { authorization = \"hunter2\" }", ""),
    "upstreams.t.headers.authorization: ",
    "which sets the same header"
)]
fn an_exchange_needs_callers_that_are_told_apart(
    #[case] text: String,
    #[case] key: &str,
    #[case] cause: &str,
) {
    assert_refused_at(&text, key, &[cause]);
}

#[test]
fn an_exchange_has_defaults_for_all_but_the_client() {
    let text = exchange("", "audience = \"tracker\"");
    let config = read(&text).unwrap();
    assert!(config.auth.keeps_tokens);
    let said = warnings(&text);
    assert!(!said.contains("upstreams.t"), "{said}");
    let Some(UpstreamAuth::Gateway(auth)) = &config.upstreams[0].auth else {
        panic!("an account of the gateway");
    };
    assert_eq!(auth.audience.as_deref(), Some("tracker"));
    assert_eq!(auth.issuer, None);
    assert!(!read(&account(WHOLE)).unwrap().auth.keeps_tokens);
}

#[test]
fn an_audience_is_for_exchanges() {
    let said = super::errors(&account(&format!("{WHOLE}\naudience = \"tracker\"")));
    let what = "upstreams.t.auth.audience: is for kind = \"token_exchange\"";
    assert!(said.concat().contains(what), "{said:#?}");
}

#[test]
fn client_of_several_issuers_is_warned_of() {
    let two = exchange("", "").replace(
        "[upstreams.t]",
        "[[auth.issuers]]\nissuer = \"https://other.example\"\n[upstreams.t]",
    );
    let said = warnings(&two);
    assert!(said.contains("go to that of each caller"), "{said}");
}

#[rstest]
#[case::url("https://a.example")]
#[case::port("a.example:443")]
#[case::path("a.example/x")]
#[case::long_block("10.0.0.0/40")]
#[case::wildcard("*.example")]
#[case::empty("")]
fn what_is_no_address_block_or_host_is_refused(#[case] item: &str) {
    let text = format!("{OPEN}[egress]\nallow = [\"{item}\"]\n");
    let said = super::errors(&text);
    assert!(said.concat().contains("egress.allow[0]"), "{said:#?}");
}

#[test]
fn addresses_blocks_and_hosts_are_read() {
    let text =
        format!("{OPEN}[egress]\nallow = [\"10.0.0.0/8\", \"::1\", \"Keycloak.internal\"]\n");
    let allow = read(&text).unwrap().egress.allow;
    let block = |address: &str, length| EgressAllow::Block(address.parse().unwrap(), length);
    let host = EgressAllow::Host("keycloak.internal".to_owned());
    assert_eq!(allow, [block("10.0.0.0", 8), block("::1", 128), host]);
}

const USER_KEY: &str = "kind = \"user_key\"";

// Columns: lines before the table, its additional keys, the key, the cause.
#[rstest]
#[case::shared(
    "isolation = \"shared\"",
    "",
    "isolation: ",
    "each caller has an account of its own"
)]
#[case::foreign_key("", "client_id = \"g\"", "auth.client_id: ", "unknown key")]
#[case::no_url("", "help = \"here\"", "auth.help: ", "expected a URL")]
#[case::fixed_header(
    "headers = { Authorization = \"x\" }",
    "",
    "headers.Authorization: ",
    "stands beside"
)]
fn mistake_beside_a_user_key_is_refused(
    #[case] before: &str,
    #[case] keys: &str,
    #[case] key: &str,
    #[case] cause: &str,
) {
    let table = account(&format!("{USER_KEY}\n{keys}"));
    let text = table.replace(
        "[upstreams.t.auth]",
        &format!("{before}\n[upstreams.t.auth]"),
    );
    assert_refused_at(&text, &format!("upstreams.t.{key}"), &[cause]);
}

// The page where keys are pasted has no login.
#[test]
fn user_key_of_a_machine_is_warned_of() {
    let said = warnings(&account(USER_KEY));
    assert!(said.contains("uses the same account"), "{said}");
}

const USER: &str = "kind = \"user\"";

// Columns: lines before the table, its additional keys, the key, the cause.
#[rstest]
#[case::shared(
    "isolation = \"shared\"",
    "",
    "isolation: ",
    "each caller has an account of its own"
)]
#[case::secret_alone(
    "",
    "client_secret = \"hunter2\"",
    "auth.client_id: ",
    "is missing beside a secret"
)]
#[case::unknown_way(
    "",
    "registration = \"magic\"",
    "auth.registration: ",
    "not one of auto"
)]
#[case::unreachable_document(
    "",
    "registration = \"cimd\"",
    "auth.registration: ",
    "no server can fetch a document"
)]
#[case::label("", "label = \"x\"", "auth.label: ", "unknown key")]
#[case::clear_issuer("", "issuer = \"http://as.example\"", "auth.issuer: ", "must be https")]
#[case::fixed_header(
    "headers = { Authorization = \"x\" }",
    "",
    "headers.Authorization: ",
    "stands beside"
)]
fn mistake_beside_an_account_of_users_is_refused(
    #[case] before: &str,
    #[case] keys: &str,
    #[case] key: &str,
    #[case] cause: &str,
) {
    let table = account(&format!("{USER}\n{keys}"));
    let text = table.replace(
        "[upstreams.t.auth]",
        &format!("{before}\n[upstreams.t.auth]"),
    );
    assert_refused_at(&text, &format!("upstreams.t.{key}"), &[cause]);
}

#[test]
fn account_of_users_needs_its_kind_alone() {
    let config = read(&account(USER)).unwrap();
    let upstream = config.upstreams.iter().find(|one| one.name == "t");
    let Some(UpstreamAuth::User(account)) = &upstream.unwrap().auth else {
        panic!("an account of users");
    };
    assert!(account.client.is_none() && account.issuer.is_none() && account.scopes.is_empty());
    assert!(config.has_user_accounts());
}

#[test]
fn name_of_a_page_is_no_name_of_an_upstream() {
    let text = account(USER).replace("upstreams.t", "upstreams.callback");
    let said = super::errors(&text);
    assert!(said.concat().contains("is the gateway's own"), "{said:#?}");
}

#[rstest]
#[case::secret("client_id = \"g\"\nclient_secret = \"hunter2\"", true)]
#[case::public("client_id = \"g\"", true)]
#[case::own("", false)]
#[case::issuer(
    "client_id = \"g\"\nclient_secret = \"hunter2\"\nissuer = \"https://as.example\"",
    false
)]
#[case::public_at_an_issuer("client_id = \"g\"\nissuer = \"https://as.example\"", false)]
fn client_without_an_issuer_is_warned_of(#[case] keys: &str, #[case] is_warned_of: bool) {
    let said = warnings(&account(&format!("{USER}\n{keys}")));
    assert_eq!(
        said.contains("upstreams.t.auth.issuer: is not said"),
        is_warned_of,
        "{said}"
    );
}
