//! Warnings: settings that the gateway starts with.

use rstest::rstest;

use super::{OAUTH, OPEN, assert_said, read};

/// Long enough for keys and secrets.
const KEY: &str = "0123456789abcdefghijklmnopqrstuv";

// Columns: the file, the place, the doubt, the remedy.
#[rstest]
#[case::shared_principal(&format!("{OPEN}isolation = \"principal\"\n"), "5:13: upstreams.files.isolation: ", "without authentication everybody is one", "isolation")]
#[case::ignored_scopes(&OPEN.replace("\"none\"", "\"none\"\nrequired_scopes = [\"x\"]"), "3:19: auth.required_scopes: ", "no effect", "leave it out, or use mode = \"oauth\"")]
#[case::no_scopes(&OAUTH.replace("required_scopes = [\"mcp:tools\"]\n", ""), "1:2: auth.required_scopes: ", "requires a scope", "with none published, some clients ask for no")]
#[case::double_path(&OAUTH.replace("[upstreams", "[server]\npublic_url = \"https://a.example/mcp\"\n[upstreams"), "7:14: server.public_url: ", "repeats /mcp: the first endpoint is", "leave /mcp out")]
#[case::document(&OAUTH.replace(".com", ".com/.well-known/openid-configuration"), "5:10: auth.issuers[0].issuer: ", "is the address of a document, not an issuer", "most likely \"https://auth.example.com\"")]
#[case::grpc(&format!("{OPEN}[telemetry]\notlp_endpoint = \"http://c:4317\"\n"), "6:17: telemetry.otlp_endpoint: ", "4317 is the port of OTLP over gRPC, and OTLP", "on 4318")]
#[case::never_idle(&format!("{OPEN}idle_timeout = \"2h\"\ntotal_timeout = \"1h\"\n"), "5:16: upstreams.files.idle_timeout: ", "`total_timeout`, which ends it", "make it shorter, or `total_timeout` longer")]
#[case::never_absolute(&format!("{OPEN}[sessions]\nidle = \"9d\"\nabsolute = \"1h\"\n"), "6:8: sessions.idle: ", "`absolute`, which ends it", "make it shorter, or `absolute` longer")]
#[case::tilde(&OPEN.replace("\"files\"", "\"~/bin/files\""), "4:11: upstreams.files.command: ", "no shell reads", "write the whole path, or ${HOME} for the")]
#[case::home(&format!("{OPEN}args = [\"$$HOME/x\"]\n"), "5:9: upstreams.files.args[0]: ", "is taken as it is written: no shell reads", "${HOME}")]
#[case::tilde_of_a_directory(&format!("{OPEN}cwd = \"~/work\"\n"), "5:7: upstreams.files.cwd: ", "is taken as it is written: no shell reads", "write the whole path, or ${HOME} for the")]
#[case::clear_text(&format!("{OAUTH}[upstreams.b]\nurl = \"http://b.example\"\n"), "9:7: upstreams.b.url: ", "plain http", "write https://, or ws:// as wss://, if the")]
#[case::whole_line(&OPEN.replace("\"files\"", "\"npx -y files\""), "4:11: upstreams.files.command: ", "the name of the program has spaces", "one by one")]
#[case::unused(&format!("{OPEN}restartable = true\n"), "5:15: upstreams.files.restartable: ", "has no effect without [cluster]", "leave it out")]
#[case::one_for_all(&OAUTH.replace(".com\"\n", ".com\"\naudiences = [\"x\"]\n"), "6:13: auth.issuers[0].audiences: ", "every other", "`audiences` of an endpoint or an upstream")]
#[case::open_admin(&format!("{OAUTH}[admin]\nlisten = \"0.0.0.0:9090\"\n"), "9:10: admin.listen: ", "the admin port, which asks for no token", "name the address that probes use; where only")]
#[case::never_lingers(&format!("{OPEN}[server]\ndrain = \"1s\"\ndrain_linger = \"2s\"\n"), "7:16: server.drain_linger: ", "is longer than `drain`, which ends it first", "make it shorter, or `drain` longer")]
#[case::never_opens(&format!("{OPEN}connect_timeout = \"2h\"\n"), "5:19: upstreams.files.connect_timeout: ", "is longer than `total_timeout`, which ends", "make it shorter, or `total_timeout` longer")]
#[case::empty_header(&format!("{OPEN}[upstreams.b]\nurl = \"https://x\"\nheaders = {{ Authorization = \"Bearer ${{EMPTY}}\" }}\n"), "7:29: upstreams.b.headers.Authorization: ", "is empty, or ends with a blank", "set the variable, or leave the header out")]
#[case::no_braces(&format!("{OPEN}[upstreams.b]\nurl = \"https://x\"\nheaders = {{ Authorization = \"Bearer $TOKEN\" }}\n"), "7:29: upstreams.b.headers.Authorization: ", "without braces, which stays as it is written", "`${NAME}` is a variable of the environment")]
#[case::itself(&format!("{OPEN}[upstreams.b]\nurl = \"http://localhost:8080/mcp\"\n"), "6:7: upstreams.b.url: ", "leads to this gateway itself: each call", "write the address of the server behind it")]
#[case::own_public_url(&format!("{OAUTH}[server]\npublic_url = \"https://a.example/x\"\n[upstreams.b]\nurl = \"https://a.example/x/mcp/files\"\n"), "11:7: upstreams.b.url: ", "leads to this gateway itself: each call", "write the address of the server behind it")]
#[case::ignored_issuers(&OPEN.replace("[upstreams", "[[auth.issuers]]\nissuer = \"https://a.example\"\n[upstreams"), "3:1: auth.issuers: ", "has no effect with auth.mode = \"none\"", "leave it out, or use mode = \"oauth\"")]
#[case::ignored_rules(&OPEN.replace("[upstreams", "[[auth.tool_scopes]]\ntools = [\"x\"]\nscopes = [\"a\"]\n[upstreams"), "3:1: auth.tool_scopes: ", "has no effect with auth.mode = \"none\"", "leave it out, or use mode = \"oauth\"")]
#[case::ignored_hierarchy(&OPEN.replace("[upstreams", "[[auth.scope_implies]]\nscope = \"a\"\nimplies = [\"b\"]\n[upstreams"), "3:1: auth.scope_implies: ", "has no effect with auth.mode = \"none\"", "leave it out, or use mode = \"oauth\"")]
#[case::ignored_scopes_of_mcp(&format!("{OPEN}[mcp]\nrequired_scopes = [\"a\"]\n"), "6:19: mcp.required_scopes: ", "has no effect with auth.mode = \"none\"", "leave it out, or use mode = \"oauth\"")]
#[case::home_of_a_program(&OPEN.replace("\"files\"", "\"$HOME/bin/files\""), "4:11: upstreams.files.command: ", "is taken as it is written: no shell reads", "write the whole path, or ${HOME} for the")]
#[case::home_alone(&format!("{OPEN}args = [\"~\"]\n"), "5:9: upstreams.files.args[0]: ", "is taken as it is written: no shell reads", "write the whole path, or ${HOME} for the")]
#[case::lonely_replica(&format!("{OPEN}[keys]\nseal = [{{ id = \"k1\", key = \"{KEY}\" }}]\n[cluster]\nredis = \"redis://redis.internal\"\nsecret = \"{KEY}\"\n"), "7:2: cluster.listen: ", "other replicas reach this one from its own", "write \"0.0.0.0:8090\" for replicas on several")]
#[case::crowd(&format!("{OPEN}[upstreams.b]\ncommand = \"x\"\n[stdio]\nmax_children = 1\n"), "7:2: stdio.max_children_per_principal: ", "/mcp shows 2 stdio upstreams, and one caller", "a session needs one child of each; raise the")]
fn a_doubt_is_a_warning(
    #[case] text: &str,
    #[case] place: &str,
    #[case] doubt: &str,
    #[case] remedy: &str,
) {
    let warnings = read(text).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_said(&[warnings[0].to_string()], place, doubt, remedy);
}

// Entra ID: its tokens hold a scope without the URI that clients have to request.
#[rstest]
#[case::of_all("login_scopes = [\"api://x/mcp.tools\"]\n", "")]
#[case::of_the_merged_endpoint("", "[mcp]\nlogin_scopes = [\"api://x/mcp.tools\"]\n")]
#[case::of_an_upstream(
    "",
    "[upstreams.b]\ncommand = \"b\"\nlogin_scopes = [\"api://x/mcp.tools\"]\n"
)]
fn login_scopes_alone_are_no_doubt(#[case] auth: &str, #[case] tables: &str) {
    let text = OAUTH.replace("required_scopes = [\"mcp:tools\"]\n", auth) + tables;
    let warnings = read(&text).unwrap().warnings;
    assert!(warnings.is_empty(), "{warnings:?}");
}
