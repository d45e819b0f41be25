//! `connect.login`.

use rstest::rstest;

use super::{assert_refused_at, read, warnings};
use crate::config::LoginToken;

/// A configuration with two issuers and these lines.
fn with(lines: &str) -> String {
    format!(
        "[auth]\nmode = \"oauth\"\n[[auth.issuers]]\nissuer = \"https://one.example\"\n[[auth.issuers]]\n\
         issuer = \"https://two.example\"\nsubject_claim = \"oid\"\n[upstreams.a]\ncommand = \"x\"\n{lines}\n"
    )
}

const ONE: &str =
    "issuer = \"https://one.example\", client_id = \"g\", client_secret = \"hunter2\"";

#[test]
fn one_login_is_a_table() {
    let config = read(&with(&format!("[connect]\nlogin = {{ {ONE} }}"))).unwrap();
    let login = &config.connect.logins[0];
    assert_eq!(
        (
            &*login.issuer,
            &*login.client_id,
            login.token,
            &login.subject_claim
        ),
        ("https://one.example", "g", LoginToken::Id, &None)
    );
    let table = "[connect.login]\nissuer = \"https://one.example\"\nclient_id = \"g\"\nclient_secret = \"x\"";
    assert_eq!(read(&with(table)).unwrap().connect.logins.len(), 1);
}

#[test]
fn several_logins_are_a_list() {
    let two = ONE.replace("one.", "two.");
    let list = format!("[connect]\nlogin = [{{ {ONE} }}, {{ {two}, token = \"access\" }}]");
    let logins = read(&with(&list)).unwrap().connect.logins;
    assert_eq!(logins.len(), 2);
    assert_eq!(logins[1].token, LoginToken::Access);
}

// Columns: the login, the key, the cause.
#[rstest]
#[case::foreign_issuer(&format!("{{ {} }}", ONE.replace("one.", "three.")), "login.issuer", "unknown issuer")]
#[case::slash(&format!("{{ {} }}", ONE.replace("example", "example/")), "login.issuer", "unknown issuer")]
#[case::twice(&format!("[{{ {ONE} }}, {{ {ONE} }}]"), "login[1].issuer", "is listed twice")]
#[case::no_client(
    "{ issuer = \"https://one.example\", client_secret = \"hunter2\" }",
    "login.client_id",
    "is required"
)]
#[case::no_proof(
    "{ issuer = \"https://one.example\", client_id = \"g\" }",
    "login",
    "needs `client_secret` or `private_key`"
)]
#[case::claim_of_access(&format!("{{ {ONE}, token = \"access\", subject_claim = \"oid\" }}"), "login.subject_claim", "is about ID tokens")]
#[case::other_token(&format!("{{ {ONE}, token = \"refresh\" }}"), "login.token", "not one of id, access")]
#[case::unknown_key(&format!("{{ {ONE}, scope = \"openid\" }}"), "login.scope", "unknown key")]
#[case::text("\"https://one.example\"", "login", "expected a table, found text")]
fn a_mistake_is_refused(#[case] login: &str, #[case] key: &str, #[case] cause: &str) {
    let text = with(&format!("[connect]\nlogin = {login}"));
    assert_refused_at(&text, &format!("connect.{key}: "), &[cause]);
}

#[test]
fn login_without_callers_is_warned_of() {
    let open = format!("{}[connect]\nlogin = {{ {ONE} }}\n", super::OPEN);
    let said = warnings(&open);
    assert!(said.contains("connect.login: is not used"), "{said}");
}

const KEY: &str =
    "[upstreams.t]\nurl = \"https://t.example/mcp\"\n[upstreams.t.auth]\nkind = \"user_key\"\n";

#[test]
fn keys_of_users_need_a_login_for_each_issuer_of_their_endpoints() {
    let two = format!(
        "[connect]\nlogin = [{{ {ONE} }}, {{ {} }}]\n",
        ONE.replace("one.", "two.")
    );
    read(&with(&format!("{KEY}{two}"))).unwrap();
    let one = format!("[connect]\nlogin = {{ {ONE} }}\n");
    for (logins, missing) in [
        (
            "",
            "no `connect.login` for https://one.example, https://two.example",
        ),
        (&*one, "no `connect.login` for https://two.example"),
    ] {
        let said = super::errors(&with(&format!("{KEY}{logins}"))).concat();
        assert!(
            said.contains("upstreams.t.auth.kind: is \"user_key\"") && said.contains(missing),
            "{said}"
        );
    }
    // An endpoint that accepts a single issuer needs a login at this issuer only.
    let named = "[mcp]\nenabled = false\n[endpoints.e]\nupstreams = [\"t\"]\nissuers = [\"https://one.example\"]\n";
    let hidden = KEY.replace("/mcp\"\n", "/mcp\"\ndirect = false\n");
    read(&with(&format!("{hidden}{named}{one}"))).unwrap();
}

#[test]
fn path_of_the_callback_is_no_upstreams() {
    let one = format!("[connect]\nlogin = {{ {ONE} }}\n");
    let said = super::errors(&with(&format!(
        "{}{one}",
        KEY.replace("upstreams.t", "upstreams.callback")
    )));
    assert!(
        said.concat()
            .contains("upstreams.callback: has its page at a path that is taken"),
        "{said:#?}"
    );
}

/// An upstream whose callers are asserted; `keys` stand in its table.
fn asserted(keys: &str) -> String {
    format!(
        "[upstreams.t]\nurl = \"https://t.example/mcp\"\n{keys}\n[upstreams.t.auth]\nkind = \"id_jag\"\n\
         issuer = \"https://t.example\"\nclient_id = \"g\"\nclient_secret = \"hunter2\"\n"
    )
}

#[test]
fn asserted_callers_need_a_login_for_each_issuer() {
    let two = format!(
        "[connect]\nlogin = [{{ {ONE} }}, {{ {} }}]\n",
        ONE.replace("one.", "two.")
    );
    let config = read(&with(&format!("{}{two}", asserted("")))).unwrap();
    let auth = config.upstreams[1].auth.as_ref().unwrap();
    assert_eq!(auth.kind().as_str(), "id_jag");
    assert!(config.has_user_accounts());
    assert!(!config.auth.keeps_tokens, "callers' tokens are not sent on");
    let one = format!("[connect]\nlogin = {{ {ONE} }}\n");
    let said = super::errors(&with(&format!("{}{one}", asserted("")))).concat();
    assert!(
        said.contains("is \"id_jag\", and the page") && said.contains("for https://two.example"),
        "{said}"
    );
}

// Columns: the file, the key, the cause.
#[rstest]
#[case::open(format!("{}{}", crate::config::tests::OPEN, asserted("")), "upstreams.t.auth.kind", "nobody logs in")]
#[case::shared(with(&asserted("isolation = \"shared\"")), "upstreams.t.isolation", "an account of its own")]
#[case::warm(with(&asserted("[mcp]\nwarm = [\"t\"]")), "mcp.warm[0]", "there is none at the start")]
#[case::header(
    with(&asserted("headers = { authorization = \"hunter2\" }")),
    "upstreams.t.headers.authorization",
    "which sets the same header"
)]
#[case::audience(
    with(&format!("{}audience = \"a\"\n", asserted(""))),
    "upstreams.t.auth.audience",
    "is for kind = \"token_exchange\""
)]
#[case::no_client(
    with(&asserted("").replace("client_id = \"g\"\n", "")),
    "upstreams.t.auth.client_id",
    "is required"
)]
#[case::no_proof(
    with(&asserted("").replace("client_secret = \"hunter2\"\n", "")),
    "upstreams.t.auth",
    "needs `client_secret` or `private_key`"
)]
fn asserted_callers_are_known_and_told_apart(
    #[case] text: String,
    #[case] key: &str,
    #[case] cause: &str,
) {
    assert_refused_at(&text, &format!("{key}: "), &[cause]);
}
