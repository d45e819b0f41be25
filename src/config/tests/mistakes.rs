//! What a file says wrong: refused, with its place, or warned of.

use rstest::rstest;

use super::{OAUTH, OPEN, errors, read};

#[rstest]
#[case::missing_file(
    "[keys]\nseal = [{ id = \"k1\", file = \"gone\" }]",
    "keys.seal[0].file"
)]
#[case::short_key(
    "[keys]\nseal = [{ id = \"k1\", key = \"short\" }]",
    "shorter than 32 bytes"
)]
#[case::hasty_health("[health]\ninterval = \"500ms\"", "0s, or from 1s to 1h")]
#[case::lazy_health("[health]\ninterval = \"2h\"", "0s, or from 1s to 1h")]
#[case::short_admin_token("[admin]\ntoken = \"letmein\"", "16 printable ASCII characters")]
#[case::blank_in_admin_token(
    "[admin]\ntoken = \"correct horse battery\"",
    "16 printable ASCII characters"
)]
#[case::no_key("[keys]\nseal = [{ id = \"k1\" }]", "needs `file` or `key`")]
#[case::reserved("[upstreams.ws]\ncommand = \"x\"", "reserved")]
// Spec: SPEC N-08: documents about servers may lie below the endpoint one day.
#[case::server_card("[upstreams.server-card]\ncommand = \"x\"", "reserved")]
#[case::server_card_endpoint("[endpoints.server-card]\nupstreams = [\"files\"]", "reserved")]
#[case::bad_name("[upstreams.Files]\ncommand = \"x\"", "not a name")]
#[case::shared_name("[endpoints.files]\nupstreams = [\"files\"]", "has this name already")]
#[case::of_another_table("[lists]\nrate = \"1/s\"", "(`rate` is a key of [limits])")]
#[case::of_a_table_below(
    "[server.websocket]\ndrain = \"1s\"",
    "known here: enabled, path (`drain` is a key of [server])"
)]
#[case::spelt_as_elsewhere("[sessions]\nidle_timeout = \"1m\"", "known here: idle,")]
#[case::of_no_upstream("[upstreams.b]\ncommand = \"x\"\nenabled = false", "known here: ")]
#[case::small_share(
    "[limits]\nbytes_per_principal = \"7MiB\"",
    "must be at least twice limits.body"
)]
#[case::small_budget(
    "[limits]\nbytes_total = \"130MiB\"",
    "must be at least limits.bytes_per_principal and twice"
)]
#[case::warm_nobody("[mcp]\nwarm = [\"fils\"]", "did you mean \"files\"?")]
#[case::log_level(
    "[telemetry]\nlog_level = \"loud\"",
    "each one of off, error, warn, info, debug, trace"
)]
#[case::part_of_a_log_level(
    "[telemetry]\nlog_level = \"info,drawbridge::upstraem=debug\"",
    "did you mean `drawbridge::upstream`?"
)]
#[case::other_word(
    "[upstreams.b]\ncommand = \"x\"\nisolation = \"user\"",
    "did you mean \"principal\"?"
)]
#[case::bare_duration("[sessions]\nidle = 10", "with its unit, as in \"10s\"")]
#[case::windows_path(
    "[upstreams.b]\ncommand = \"C:\\Users\\b.exe\"",
    "write '…' in single quotes"
)]
#[case::table_twice("[mcp]\n[mcp]\n", "stands once")]
#[case::small_share_of_replies(
    "[limits]\nreplies_per_principal = \"31MiB\"",
    "must be at least twice limits.upstream_message and limits.sse_event"
)]
#[case::small_budget_of_replies(
    "[limits]\nreplies_total = \"150MiB\"",
    "must be at least limits.replies_per_principal and twice limits.upstream_message"
)]
#[case::no_such_upstream("[mcp]\nupstreams = [\"file\"]", "did you mean \"files\"?")]
#[case::twice("[mcp]\nupstreams = [\"files\", \"files\"]", "listed twice")]
#[case::not_shown(
    "[endpoints.dev]\nupstreams = [\"files\"]\ntools = [\"x:*\"]",
    "not shown here"
)]
#[case::no_pattern(
    "[endpoints.dev]\nupstreams = [\"files\"]\ntools = [\"x\"]",
    "upstream:pattern"
)]
#[case::empty_endpoint("[endpoints.dev]\nupstreams = []", "at least one")]
#[case::stranger(
    "[endpoints.dev]\nupstreams = [\"files\"]\nissuers = [\"x\"]",
    "unknown issuer"
)]
#[case::neither("[upstreams.b]\nmerged = true", "needs `command` or `url`")]
#[case::both(
    "[upstreams.b]\ncommand = \"x\"\nurl = \"https://x\"",
    "beside `command`"
)]
#[case::url_key(
    "[upstreams.b]\ncommand = \"x\"\nproxy = \"http://p\"",
    "reached by `url`"
)]
#[case::child_key(
    "[upstreams.b]\nurl = \"https://x\"\nargs = [\"a\"]",
    "started by `command`"
)]
#[case::unfit_transport(
    "[upstreams.b]\nurl = \"wss://x\"\ntransport = \"sse\"",
    "does not fit"
)]
#[case::unknown_era("[upstreams.b]\ncommand = \"x\"\nera = \"2031-01-01\"", "not one of")]
#[case::mirrored_header(
    "[upstreams.b]\nurl = \"https://x\"\nheaders = { Mcp-Param-Tenant = \"y\" }",
    "itself"
)]
#[case::taken_path(
    "[server.sse]\nenabled = true\npath = \"/mcp/sse\"",
    "collides with /mcp"
)]
#[case::nested_paths(
    "[server.sse]\nenabled = true\nmessages = \"/sse/messages\"",
    "collides with /sse"
)]
#[case::no_path(
    "[server.websocket]\nenabled = true\npath = \"ws/\"",
    "a path that starts"
)]
#[case::credentials("[upstreams.b]\nurl = \"https://u:hunter2@x\"", "credentials")]
#[case::own_header(
    "[upstreams.b]\nurl = \"https://x\"\nheaders = { Host = \"y\" }",
    "itself"
)]
#[case::bad_limit(
    "[upstreams.b]\ncommand = \"x\"\nrlimits = { files = 1 }",
    "not one of"
)]
#[case::path_scheme("[server]\npublic_url = \"ftp://localhost\"", "https://")]
#[case::open_world(
    "[server]\npublic_url = \"https://mcp.example.com\"",
    "must be a loopback URL"
)]
#[case::open_listener("[server]\nlisten = \"192.0.2.1:80\"", "must be a loopback address")]
#[case::open_admin("[admin]\nlisten = \"192.0.2.1:80\"", "must be a loopback address")]
#[case::one_port("[admin]\nlisten = \"127.0.0.1:8080\"", "address of server.listen")]
#[case::same_port(
    "[server]\nlisten = \"127.0.0.1:9090\"\n[admin]\nlisten = \"0.0.0.0:9090\"",
    "address of server.listen"
)]
#[case::one_signal(
    "[telemetry]\notlp_endpoint = \"http://c:4318/v1/traces\"",
    "collector's base URL"
)]
#[case::no_variable(
    "[upstreams.b]\ncommand = \"x\"\nenv = { \"A=B\" = \"hunter2\" }\ninherit = [\"\"]",
    "upstreams.b.inherit[0]: not the name of a variable"
)]
#[case::any_origin("[server]\nallowed_origins = [\"*\"]", "any web page")]
#[case::wrong_table(
    "[server.sse]\n[stdio]\nidle = 5\n[events]\n[limits.rate]",
    "limits.rate"
)]
#[case::too_many(
    "[sessions]\nmax_detached = 9223372036854775807",
    "from 1 to 100000000"
)]
#[case::threads_without_end("[server]\nthreads = 5000", "from 1 to 1024")]
#[case::too_deep("[limits]\njson_depth = 2000", "from 1 to 1024")]
fn a_mistake_is_refused(#[case] lines: &str, #[case] said: &str) {
    let errors = errors(&format!("{OPEN}{lines}\n")).join("\n");
    assert!(errors.contains(said), "{errors}");
    assert!(!errors.contains("hunter2"), "{errors}");
}

#[rstest]
#[case::no_issuer(
    "[auth]\nmode = \"oauth\"\n[upstreams.a]\ncommand = \"x\"",
    "needs an issuer"
)]
#[case::http_issuer(&OAUTH.replace("https:", "http:"), "must be https")]
#[case::query_issuer(&OAUTH.replace(".com", ".com?x=1"), "query")]
#[case::two_issuers(
    &format!("{OAUTH}[[auth.issuers]]\nissuer = \"https://auth.example.com\"\n"), "listed twice")]
#[case::http_public(&format!("{OAUTH}[server]\npublic_url = \"http://a.example\"\n"), "https")]
#[case::unspecified(&format!("{OAUTH}[server]\nlisten = \"0.0.0.0:1\"\n"), "public_url: is required")]
#[case::bad_scope(&OAUTH.replace("mcp:tools", "two words"), "not a scope")]
#[case::empty_rule(&format!("{OAUTH}[[auth.tool_scopes]]\n"), "auth.tool_scopes[0].scopes")]
#[case::no_upstream("[auth]\nmode = \"none\"\n", "no upstream is configured")]
fn a_mistake_with_oauth_is_refused(#[case] text: &str, #[case] said: &str) {
    let errors = errors(text).join("\n");
    assert!(errors.contains(said), "{errors}");
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

#[test]
fn an_issuer_on_a_loopback_host_may_speak_plain_http() {
    let text = OAUTH.replace("https://auth.example.com", "http://localhost:9000/realms/x");
    assert_eq!(
        read(&text).unwrap().auth.issuers[0].issuer,
        "http://localhost:9000/realms/x"
    );
}

#[rstest]
#[case::shared_principal(&format!("{OPEN}isolation = \"principal\"\n"), "isolation")]
#[case::ignored_scopes(&OPEN.replace("\"none\"", "\"none\"\nrequired_scopes = [\"x\"]"), "no effect")]
#[case::no_scopes(&OAUTH.replace("required_scopes = [\"mcp:tools\"]\n", ""), "requires a scope")]
#[case::double_path(&OAUTH.replace("[upstreams", "[server]\npublic_url = \"https://a.example/mcp\"\n[upstreams"), "leave /mcp out")]
#[case::document(&OAUTH.replace(".com", ".com/.well-known/openid-configuration"), "most likely \"https://auth.example.com\"")]
#[case::grpc(&format!("{OPEN}[telemetry]\notlp_endpoint = \"http://c:4317\"\n"), "on 4318")]
#[case::never_idle(&format!("{OPEN}idle_timeout = \"2h\"\ntotal_timeout = \"1h\"\n"), "`total_timeout`, which ends it")]
#[case::never_absolute(&format!("{OPEN}[sessions]\nidle = \"9d\"\nabsolute = \"1h\"\n"), "`absolute`, which ends it")]
#[case::tilde(&OPEN.replace("\"files\"", "\"~/bin/files\""), "no shell reads")]
#[case::home(&format!("{OPEN}args = [\"$$HOME/x\"]\n"), "${HOME}")]
#[case::tilde_of_a_directory(&format!("{OPEN}cwd = \"~/work\"\n"), "upstreams.files.cwd")]
#[case::clear_text(&format!("{OAUTH}[upstreams.b]\nurl = \"http://b.example\"\n"), "plain http")]
#[case::whole_line(&OPEN.replace("\"files\"", "\"npx -y files\""), "one by one")]
#[case::unused(&format!("{OPEN}restartable = true\n"), "no effect in this version")]
#[case::one_for_all(&OAUTH.replace(".com\"\n", ".com\"\naudiences = [\"x\"]\n"), "every other")]
fn a_doubt_is_a_warning(#[case] text: &str, #[case] said: &str) {
    let warnings = read(text).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].to_string().contains(said), "{warnings:?}");
}

// Entra ID: tokens hold a scope without the URI that clients have to ask for.
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

#[test]
fn a_file_of_yaml_is_told_so_once() {
    let refusal = read("# servers\nupstreams:\n  files:\n    command: npx\n").unwrap_err();
    assert_eq!(refusal.errors.len(), 1, "{refusal}");
    assert!(
        refusal.to_string().contains("this looks like YAML"),
        "{refusal}"
    );
}
