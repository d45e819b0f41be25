//! What a file says wrong: refused or warned of, each mistake with its place, what is wrong, and what to write instead.

use rstest::rstest;

use super::{OAUTH, OPEN, errors, read};

/// Asserts that one message stands at `place`, and has both the cause and the remedy; none shows a secret.
fn assert_said(messages: &[String], place: &str, cause: &str, remedy: &str) {
    let place = format!("etc/g.toml:{place}");
    let has_all = |message: &String| {
        message.starts_with(&place) && message.contains(cause) && message.contains(remedy)
    };
    assert!(messages.iter().any(has_all), "{messages:#?}");
    assert!(!messages.concat().contains("hunter2"), "{messages:#?}");
}

// Columns: lines of the file below a right one, the place, the cause, the remedy.
#[rstest]
#[case::missing_file(
    "[keys]\nseal = [{ id = \"k1\", file = \"gone\" }]",
    "6:29: keys.seal[0].file: ",
    "etc/gone: No such file",
    "begins at the directory of this file"
)]
#[case::short_key(
    "[keys]\nseal = [{ id = \"k1\", key = \"short\" }]",
    "6:9: keys.seal[0]: ",
    "shorter than 32 bytes",
    "make one with: openssl rand -base64 32"
)]
#[case::hasty_health(
    "[health]\ninterval = \"500ms\"",
    "6:12: health.interval: ",
    "must be 0s",
    "from 1s to 1h"
)]
#[case::lazy_health(
    "[health]\ninterval = \"2h\"",
    "6:12: health.interval: ",
    "must be 0s",
    "from 1s to 1h"
)]
#[case::short_admin_token(
    "[admin]\ntoken = \"letmein\"",
    "6:9: admin.token: ",
    "16 printable ASCII characters",
    "make one with: openssl rand -hex 32"
)]
#[case::blank_in_admin_token(
    "[admin]\ntoken = \"correct horse battery\"",
    "6:9: admin.token: ",
    "16 printable ASCII characters",
    "make one with: openssl rand -hex 32"
)]
#[case::no_key(
    "[keys]\nseal = [{ id = \"k1\" }]",
    "6:9: keys.seal[0]: ",
    "needs `file` or `key`",
    "file = \"seal.key\", or key = \"${NAME}\" for a"
)]
#[case::reserved(
    "[upstreams.ws]\ncommand = \"x\"",
    "5:12: upstreams.ws: ",
    "reserved",
    "reserved"
)]
// Spec: SPEC N-08: documents about servers may lie below the endpoint one day.
#[case::server_card(
    "[upstreams.server-card]\ncommand = \"x\"",
    "5:12: upstreams.server-card: ",
    "reserved",
    "reserved"
)]
#[case::server_card_endpoint(
    "[endpoints.server-card]\nupstreams = [\"files\"]",
    "5:12: endpoints.server-card: ",
    "reserved",
    "reserved"
)]
#[case::bad_name(
    "[upstreams.Files]\ncommand = \"x\"",
    "5:12: upstreams.Files: ",
    "not a name",
    "a lower-case letter, then up to 19"
)]
#[case::shared_name(
    "[endpoints.files]\nupstreams = [\"files\"]",
    "5:12: endpoints.files: ",
    "has this name already",
    "upstreams and endpoints share the paths"
)]
#[case::of_another_table(
    "[lists]\nrate = \"1/s\"",
    "6:1: lists.rate: ",
    "unknown key",
    "(`rate` is a key of [limits])"
)]
#[case::of_a_table_below(
    "[server.websocket]\ndrain = \"1s\"",
    "6:1: server.websocket.drain: ",
    "unknown key",
    "known here: enabled, path (`drain` is a key of [server])"
)]
#[case::spelt_as_elsewhere(
    "[sessions]\nidle_timeout = \"1m\"",
    "6:1: sessions.idle_timeout: ",
    "unknown key",
    "known here: idle,"
)]
#[case::of_no_upstream(
    "[upstreams.b]\ncommand = \"x\"\nenabled = false",
    "7:1: upstreams.b.enabled: ",
    "unknown key",
    "known here: "
)]
#[case::small_share(
    "[limits]\nbytes_per_principal = \"7MiB\"",
    "6:23: limits.bytes_per_principal: ",
    "must be at least twice limits.body",
    "a message counts twice: its copy is sent on"
)]
#[case::small_budget(
    "[limits]\nbytes_total = \"130MiB\"",
    "6:15: limits.bytes_total: ",
    "must be at least limits.bytes_per_principal and twice",
    "a message counts twice: its copy is sent on"
)]
#[case::warm_nobody(
    "[mcp]\nwarm = [\"fils\"]",
    "6:9: mcp.warm[0]: ",
    "there is no upstream \"fils\"",
    "did you mean \"files\"?"
)]
#[case::log_level(
    "[telemetry]\nlog_level = \"loud\"",
    "6:13: telemetry.log_level: ",
    "\"loud\": expected levels",
    "each one of off, error, warn, info, debug, trace"
)]
#[case::part_of_a_log_level(
    "[telemetry]\nlog_level = \"info,drawbridge::upstraem=debug\"",
    "6:13: telemetry.log_level: ",
    "has no part `upstraem`",
    "did you mean `drawbridge::upstream`?"
)]
#[case::other_word(
    "[upstreams.b]\ncommand = \"x\"\nisolation = \"user\"",
    "7:13: upstreams.b.isolation: ",
    "\"user\": not one of session",
    "did you mean \"principal\"?"
)]
#[case::bare_duration(
    "[sessions]\nidle = 10",
    "6:8: sessions.idle: ",
    "expected duration in quotes, found a whole",
    "with its unit, as in \"10s\""
)]
#[case::windows_path(
    "[upstreams.b]\ncommand = \"C:\\Users\\b.exe\"",
    "6:16: ",
    "too few unicode value digits, expected",
    "write '…' in single quotes"
)]
#[case::table_twice("[mcp]\n[mcp]\n", "6:2: ", "duplicate key", "stands once")]
#[case::small_share_of_replies(
    "[limits]\nreplies_per_principal = \"31MiB\"",
    "6:25: limits.replies_per_principal: ",
    "must be at least twice limits.upstream_message and limits.sse_event",
    "a reply counts twice: it is copied"
)]
#[case::small_budget_of_replies(
    "[limits]\nreplies_total = \"150MiB\"",
    "6:17: limits.replies_total: ",
    "must be at least limits.replies_per_principal and twice limits.upstream_message",
    "a reply counts twice: it is copied"
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
#[case::neither(
    "[upstreams.b]\nmerged = true",
    "5:12: upstreams.b: ",
    "needs `command` or `url`",
    "command = \"…\" starts a stdio server, url ="
)]
#[case::both(
    "[upstreams.b]\ncommand = \"x\"\nurl = \"https://x\"",
    "7:7: upstreams.b.url: ",
    "beside `command`",
    "an upstream has one of them"
)]
#[case::url_key(
    "[upstreams.b]\ncommand = \"x\"\nproxy = \"http://p\"",
    "7:9: upstreams.b.proxy: ",
    "reached by `url`",
    "leave it out"
)]
#[case::child_key(
    "[upstreams.b]\nurl = \"https://x\"\nargs = [\"a\"]",
    "7:8: upstreams.b.args: ",
    "started by `command`",
    "leave it out"
)]
#[case::unfit_transport(
    "[upstreams.b]\nurl = \"wss://x\"\ntransport = \"sse\"",
    "7:13: upstreams.b.transport: ",
    "does not fit",
    "leave it out, or write an http:// or"
)]
#[case::unknown_era(
    "[upstreams.b]\ncommand = \"x\"\nera = \"2031-01-01\"",
    "7:7: upstreams.b.era: ",
    "\"2031-01-01\": not one of",
    "auto, legacy, modern"
)]
#[case::mirrored_header(
    "[upstreams.b]\nurl = \"https://x\"\nheaders = { Mcp-Param-Tenant = \"y\" }",
    "7:32: upstreams.b.headers.Mcp-Param-Tenant: ",
    "itself",
    "leave it out"
)]
#[case::taken_path(
    "[server.sse]\nenabled = true\npath = \"/mcp/sse\"",
    "7:8: server.sse.path: ",
    "collides with /mcp",
    "choose a path that is not below the other"
)]
#[case::nested_paths(
    "[server.sse]\nenabled = true\nmessages = \"/sse/messages\"",
    "7:12: server.sse.messages: ",
    "collides with /sse",
    "choose a path that is not below the other"
)]
#[case::no_path(
    "[server.websocket]\nenabled = true\npath = \"ws/\"",
    "7:8: server.websocket.path: ",
    "a path that starts",
    "for example \"/sse\""
)]
#[case::credentials(
    "[upstreams.b]\nurl = \"https://u:hunter2@x\"",
    "6:7: upstreams.b.url: ",
    "may not hold credentials",
    "`headers` of an upstream may"
)]
#[case::own_header(
    "[upstreams.b]\nurl = \"https://x\"\nheaders = { Host = \"y\" }",
    "7:20: upstreams.b.headers.Host: ",
    "itself",
    "leave it out"
)]
#[case::bad_limit(
    "[upstreams.b]\ncommand = \"x\"\nrlimits = { files = 1 }",
    "7:21: upstreams.b.rlimits.files: ",
    "not one of",
    "as, core, cpu, fsize, nofile, nproc"
)]
#[case::path_scheme(
    "[server]\npublic_url = \"ftp://localhost\"",
    "6:14: server.public_url: ",
    "\"ftp://localhost\"",
    "starts with https:// or http://"
)]
#[case::open_world(
    "[server]\npublic_url = \"https://mcp.example.com\"",
    "6:14: server.public_url: ",
    "must be a loopback URL",
    "or use mode = \"oauth\""
)]
#[case::open_listener(
    "[server]\nlisten = \"192.0.2.1:80\"",
    "6:10: server.listen: ",
    "must be a loopback address",
    "or use mode = \"oauth\""
)]
#[case::open_admin(
    "[admin]\nlisten = \"192.0.2.1:80\"",
    "6:10: admin.listen: ",
    "must be a loopback address",
    "or use mode = \"oauth\""
)]
#[case::one_port(
    "[admin]\nlisten = \"127.0.0.1:8080\"",
    "6:10: admin.listen: ",
    "address of server.listen",
    "give it another port, such as"
)]
#[case::same_port(
    "[server]\nlisten = \"127.0.0.1:9090\"\n[admin]\nlisten = \"0.0.0.0:9090\"",
    "8:10: admin.listen: ",
    "address of server.listen",
    "give it another port, such as"
)]
#[case::one_signal(
    "[telemetry]\notlp_endpoint = \"http://c:4318/v1/traces\"",
    "6:17: telemetry.otlp_endpoint: ",
    "collector's base URL",
    "for example \"http://collector:4318\""
)]
#[case::no_variable(
    "[upstreams.b]\ncommand = \"x\"\nenv = { \"A=B\" = \"hunter2\" }\ninherit = [\"\"]",
    "8:12: upstreams.b.inherit[0]: ",
    "not the name of a variable",
    "nor have `=` in it"
)]
#[case::any_origin(
    "[server]\nallowed_origins = [\"*\"]",
    "6:20: server.allowed_origins[0]: ",
    "would allow any web page",
    "such as \"https://claude.ai\""
)]
#[case::wrong_table(
    "[server.sse]\n[stdio]\nidle = 5\n[events]\n[limits.rate]",
    "9:9: limits.rate: ",
    "expected rate in quotes, found a table",
    "as in \"100/s\""
)]
#[case::too_many(
    "[sessions]\nmax_detached = 9223372036854775807",
    "6:16: sessions.max_detached: ",
    "must be a whole number",
    "from 1 to 100000000"
)]
#[case::threads_without_end(
    "[server]\nthreads = 5000",
    "6:11: server.threads: ",
    "must be a whole number",
    "from 1 to 1024"
)]
#[case::too_deep(
    "[limits]\njson_depth = 2000",
    "6:14: limits.json_depth: ",
    "must be a whole number",
    "from 1 to 1024"
)]
#[case::size_in_decimal_units(
    "[limits]\nbody = \"4MB\"",
    "6:8: limits.body: ",
    "\"4MB\"",
    "such as \"4MiB\""
)]
#[case::duration_in_words(
    "[server]\ndrain = \"10 seconds\"",
    "6:9: server.drain: ",
    "\"10 seconds\"",
    "such as \"10s\""
)]
#[case::duration_over_a_year(
    "[sessions]\nabsolute = \"400d\"",
    "6:12: sessions.absolute: ",
    "longer than a year",
    "which is the longest time"
)]
#[case::no_duration_at_all(
    "[server]\nheader_timeout = \"0s\"",
    "6:18: server.header_timeout: ",
    "\"0s\"",
    "must be longer than zero"
)]
#[case::rate_without_a_period(
    "[limits]\nrate = \"100\"",
    "6:8: limits.rate: ",
    "\"100\"",
    "such as \"100/s\""
)]
#[case::rate_of_nothing(
    "[limits]\nrate = \"0/s\"",
    "6:8: limits.rate: ",
    "\"0/s\"",
    "must be more than zero"
)]
#[case::host_name_to_listen(
    "[server]\nlisten = \"localhost:8080\"",
    "6:10: server.listen: ",
    "\"localhost:8080\"",
    "such as \"127.0.0.1:8080\""
)]
#[case::port_alone(
    "[server]\nlisten = \"8080\"",
    "6:10: server.listen: ",
    "\"8080\"",
    "an IP address and a port"
)]
#[case::block_too_long(
    "[server]\ntrusted_proxies = [\"10.0.0.0/33\"]",
    "6:20: server.trusted_proxies[0]: ",
    "\"10.0.0.0/33\"",
    "such as \"10.0.0.0/8\""
)]
#[case::origin_with_path(
    "[server]\nallowed_origins = [\"https://claude.ai/\"]",
    "6:20: server.allowed_origins[0]: ",
    "\"https://claude.ai/\"",
    "scheme and host, no path"
)]
#[case::host_with_scheme(
    "[server]\nallowed_hosts = [\"https://mcp.example.com\"]",
    "6:18: server.allowed_hosts[0]: ",
    "\"https://mcp.example.com\"",
    "no scheme, no path"
)]
#[case::url_without_scheme(
    "[upstreams.b]\nurl = \"tracker.example.net/mcp\"",
    "6:7: upstreams.b.url: ",
    "\"tracker.example.net/mcp\"",
    "starts with https:// or http://"
)]
#[case::url_with_port_beyond(
    "[upstreams.b]\nurl = \"https://tracker.example.net:99999/mcp\"",
    "6:7: upstreams.b.url: ",
    "invalid port number",
    "starts with https:// or http://"
)]
#[case::url_with_fragment(
    "[upstreams.b]\nurl = \"https://tracker.example.net/mcp#tools\"",
    "6:7: upstreams.b.url: ",
    "may not have a fragment",
    "leave out # and what follows"
)]
#[case::flag_in_quotes(
    "[upstreams.b]\ncommand = \"x\"\ndirect = \"yes\"",
    "7:10: upstreams.b.direct: ",
    "expected true or false, found text",
    "written without quotes"
)]
#[case::count_in_quotes(
    "[upstreams.b]\ncommand = \"x\"\nmax_children = \"3\"",
    "7:16: upstreams.b.max_children: ",
    "expected a whole number, found text",
    "written without quotes, dots and units"
)]
#[case::arguments_as_text(
    "[upstreams.b]\ncommand = \"npx\"\nargs = \"-y server\"",
    "7:8: upstreams.b.args: ",
    "expected a list of text, found text",
    "write args = [\"…\"], with each one in quotes"
)]
#[case::upstream_as_text(
    "[upstreams]\nb = \"npx\"",
    "6:5: upstreams.b: ",
    "expected a table, found text",
    "write [upstreams.b], and its keys below"
)]
#[case::list_of_numbers(
    "[upstreams.b]\ncommand = \"x\"\nargs = [1]",
    "7:9: upstreams.b.args[0]: ",
    "found a whole number",
    "expected text in quotes"
)]
#[case::header_with_line_break(
    "[upstreams.b]\nurl = \"https://x\"\nheaders = { A = \"hunter2\\n\" }",
    "7:17: upstreams.b.headers.A: ",
    "holds characters that no header can carry",
    "headers carry one line of ASCII: look for a"
)]
#[case::header_with_blank(
    "[upstreams.b]\nurl = \"https://x\"\nheaders = { \"X Key\" = \"hunter2\" }",
    "7:23: upstreams.b.headers.\"X Key\": ",
    "not a header name",
    "letters, digits and hyphens, as in"
)]
#[case::variable_without_end(
    "[upstreams.b]\ncommand = \"x\"\nenv = { A = \"${TOKEN\" }",
    "7:13: upstreams.b.env.A: ",
    "`${` without a closing `}`",
    "`${NAME}` is a variable of the environment"
)]
#[case::variable_not_set(
    "[upstreams.b]\ncommand = \"x\"\nenv = { A = \"${NOBODY}\" }",
    "7:13: upstreams.b.env.A: ",
    "environment variable NOBODY is not set",
    "`${NAME}` is a variable of the environment"
)]
#[case::share_in_percent(
    "[telemetry]\nsample_ratio = 5",
    "6:16: telemetry.sample_ratio: ",
    "expected a number from 0 to 1",
    "0.01 is one of a hundred"
)]
#[case::no_ca_file(
    "[upstreams.b]\nurl = \"https://x\"\nca_file = \"gone.pem\"",
    "7:11: upstreams.b.ca_file: ",
    "cannot be read: No such file",
    "begins at the directory of this file"
)]
#[case::no_certificate(
    "[server]\ntls = { cert = \"gone.pem\", key = \"gone.pem\" }",
    "6:16: server.tls.cert: ",
    "etc/gone.pem: cannot be read",
    "begins at the directory of this file"
)]
#[case::certificate_without_key(
    "[server]\ntls = { cert = \"gone.pem\" }",
    "6:1: server.tls.key: ",
    "is required",
    "a PEM file"
)]
#[case::era_of_another_transport(
    "[upstreams.b]\nurl = \"https://x\"\ntransport = \"sse\"\nera = \"modern\"",
    "7:13: upstreams.b.transport: ",
    "does not fit `era`",
    "HTTP+SSE is of the legacy era; use"
)]
#[case::socks_proxy(
    "[upstreams.b]\nurl = \"https://x\"\nproxy = \"socks5://p:1080\"",
    "7:9: upstreams.b.proxy: ",
    "\"socks5://p:1080\"",
    "starts with https:// or http://"
)]
#[case::query_of_public_url(
    "[server]\npublic_url = \"http://127.0.0.1:8080/?x=1\"",
    "6:14: server.public_url: ",
    "may not have a query",
    "end it with the path that a proxy in front"
)]
#[case::log_format(
    "[telemetry]\nlog_format = \"xml\"",
    "6:14: telemetry.log_format: ",
    "\"xml\"",
    "not one of json, text"
)]
#[case::servers_of_another_program(
    "[mcpServers.b]\ncommand = \"x\"",
    "5:2: mcpServers: ",
    "unknown key",
    "did you mean `upstreams`?"
)]
#[case::command_of_another_program(
    "[upstreams.b]\ncmd = \"x\"\ncommand = \"x\"",
    "6:1: upstreams.b.cmd: ",
    "unknown key",
    "did you mean `command`?"
)]
#[case::transport_of_another_program(
    "[upstreams.b]\ncommand = \"x\"\ntype = \"stdio\"",
    "7:1: upstreams.b.type: ",
    "unknown key",
    "did you mean `transport`?"
)]
#[case::empty_command(
    "[upstreams.b]\ncommand = \"\"",
    "5:12: upstreams.b: ",
    "needs `command` or `url`",
    "starts a stdio server"
)]
#[case::secret_of_a_missing_file(
    "[upstreams.b]\ncommand = \"x\"\nenv = { A = { file = \"gone\" } }",
    "7:9: upstreams.b.env.A: ",
    "etc/gone: No such file",
    "begins at the directory of this one"
)]
#[case::secret_as_number(
    "[upstreams.b]\ncommand = \"x\"\nenv = { A = 7 }",
    "7:13: upstreams.b.env.A: ",
    "found a whole number",
    "or a file"
)]
#[case::keys_of_one_id(
    "[keys]\nseal = [{ id = \"k1\", key = \"0123456789abcdef0123456789abcdef\" }, { id = \"k1\", key = \"fedcba9876543210fedcba9876543210\" }]",
    "6:73: keys.seal[1].id: ",
    "two keys have this id",
    "give each key an id of its own"
)]
#[case::name_of_21_letters(
    "[upstreams.a-server-with-a-long-name]\ncommand = \"x\"",
    "5:12: upstreams.a-server-with-a-long-name: ",
    "not a name",
    "up to 19 lower-case letters"
)]
#[case::transport_of_other_programs(
    "[upstreams.b]\nurl = \"https://x\"\ntransport = \"http\"",
    "7:13: upstreams.b.transport: ",
    "\"http\": not one of",
    "did you mean \"streamable\"?"
)]
fn a_mistake_is_refused(
    #[case] lines: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_said(&errors(&format!("{OPEN}{lines}\n")), place, cause, remedy);
}

// Columns: the file, the place, the cause, the remedy.
#[rstest]
#[case::no_issuer(
    "[auth]\nmode = \"oauth\"\n[upstreams.a]\ncommand = \"x\"",
    "1:2: auth: ",
    "needs an issuer",
    "[[auth.issuers]]"
)]
#[case::http_issuer(&OAUTH.replace("https:", "http:"), "5:10: auth.issuers[0].issuer: ", "must be https", "write the `issuer` of its own metadata, such")]
#[case::query_issuer(&OAUTH.replace(".com", ".com?x=1"), "5:10: auth.issuers[0].issuer: ", "query", "write the `issuer` of its own metadata, such")]
#[case::two_issuers(&format!("{OAUTH}[[auth.issuers]]\nissuer = \"https://auth.example.com\"\n"), "9:10: auth.issuers[1].issuer: ", "listed twice", "one [[auth.issuers]] has all keys of an")]
#[case::http_public(&format!("{OAUTH}[server]\npublic_url = \"http://a.example\"\n"), "9:14: server.public_url: ", "https", "tokens would travel in the clear; a proxy in")]
#[case::unspecified(&format!("{OAUTH}[server]\nlisten = \"0.0.0.0:1\"\n"), "8:2: server.public_url: ", "is required, as listen = \"0.0.0.0:1\" names", "write the URL that clients use, such as")]
#[case::bad_scope(&OAUTH.replace("mcp:tools", "two words"), "3:20: auth.required_scopes[0]: ", "\"two words\": not a scope", "without spaces")]
#[case::empty_rule(&format!("{OAUTH}[[auth.tool_scopes]]\n"), "8:1: auth.tool_scopes[0].scopes: ", "needs at least one item", "for example scopes = [\"mcp:admin\"]")]
#[case::no_upstream(
    "[auth]\nmode = \"none\"\n",
    "1:1: ",
    "no upstream is configured",
    "for example"
)]
#[case::issuer_that_is_no_url(&OAUTH.replace("https://auth.example.com", "auth.example.com"), "5:10: auth.issuers[0].issuer: ", "is not a URL", "write the `issuer` of its own metadata, such")]
#[case::issuer_with_credentials(&OAUTH.replace("https://auth", "https://me:hunter2@auth"), "5:10: auth.issuers[0].issuer: ", "may not hold credentials", "write the `issuer` of its own metadata, such")]
#[case::issuer_with_fragment(&OAUTH.replace(".com", ".com#x"), "5:10: auth.issuers[0].issuer: ", "may not have a query or a fragment", "write the `issuer` of its own metadata, such")]
#[case::unknown_mode(&OAUTH.replace("\"oauth\"", "\"oidc\""), "2:8: auth.mode: ", "\"oidc\": not one of oauth, none", "did you mean \"oauth\"?")]
#[case::no_mode(&OAUTH.replace("mode = \"oauth\"\n", ""), "1:2: auth: ", "who may call is not said: `mode` is required", "either ask every caller for a token")]
#[case::no_issuer_name(&format!("{OAUTH}[[auth.issuers]]\naudiences = [\"x\"]\n"), "8:1: auth.issuers[1].issuer: ", "is required", "for example issuer =")]
#[case::no_scopes_that_are_implied(&format!("{OAUTH}[[auth.scope_implies]]\nscope = \"a\"\n"), "8:1: auth.scope_implies[0].implies: ", "needs at least one item", "for example implies = [\"mcp:tools\"]")]
#[case::no_key_set(&OAUTH.replace(".com\"\n", ".com\"\njwks_file = \"gone.json\"\n"), "6:13: auth.issuers[0].jwks_file: ", "cannot be read: No such file", "begins at the directory of this file")]
#[case::clear_question(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { endpoint = \"http://a.example/ask\", client_id = \"g\", client_secret = \"hunter2\" }\n"), "6:30: auth.issuers[0].introspection.endpoint: ", "must be https", "plain http is for loopback hosts only")]
#[case::long_answers(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { client_id = \"g\", client_secret = \"hunter2\", max_age = \"6m\" }\n"), "6:73: auth.issuers[0].introspection.max_age: ", "may be", "5m at most")]
#[case::no_secret_to_ask_with(&OAUTH.replace(".com\"\n", ".com\"\nintrospection = { client_id = \"g\" }\n"), "6:1: auth.issuers[0].introspection.client_secret: ", "is required", "client_secret = \"${SECRET}\" or { file = \"…\"")]
#[case::one_issuer_table(&OAUTH.replace("[[auth.issuers]]", "[auth.issuers]"), "4:7: auth.issuers: ", "expected tables, found a table", "write [[auth.issuers]]")]
#[case::rule_of_no_upstream(&format!("{OAUTH}[[auth.tool_scopes]]\ntools = [\"x\"]\nupstreams = [\"file\"]\nscopes = [\"a\"]\n"), "10:14: auth.tool_scopes[0].upstreams[0]: ", "there is no upstream \"file\"", "did you mean \"files\"?")]
fn a_mistake_with_oauth_is_refused(
    #[case] text: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_said(&errors(text), place, cause, remedy);
}

// Columns as above; these are no TOML.
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
    assert_said(&errors(text), place, cause, remedy);
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
#[case::unused(&format!("{OPEN}restartable = true\n"), "5:15: upstreams.files.restartable: ", "no effect in this version", "leave it out")]
#[case::one_for_all(&OAUTH.replace(".com\"\n", ".com\"\naudiences = [\"x\"]\n"), "6:13: auth.issuers[0].audiences: ", "every other", "`audiences` of an endpoint or an upstream")]
#[case::open_admin(&format!("{OAUTH}[admin]\nlisten = \"0.0.0.0:9090\"\n"), "9:10: admin.listen: ", "the admin port, which asks for no token", "name the address that probes use; where only")]
#[case::never_lingers(&format!("{OPEN}[server]\ndrain = \"1s\"\ndrain_linger = \"2s\"\n"), "7:16: server.drain_linger: ", "is longer than `drain`, which ends it first", "make it shorter, or `drain` longer")]
#[case::never_opens(&format!("{OPEN}connect_timeout = \"2h\"\n"), "5:19: upstreams.files.connect_timeout: ", "is longer than `total_timeout`, which ends", "make it shorter, or `total_timeout` longer")]
#[case::itself(&format!("{OPEN}[upstreams.b]\nurl = \"http://localhost:8080/mcp\"\n"), "6:7: upstreams.b.url: ", "leads to this gateway itself: each call", "write the address of the server behind it")]
#[case::own_public_url(&format!("{OAUTH}[server]\npublic_url = \"https://a.example/x\"\n[upstreams.b]\nurl = \"https://a.example/x/mcp/files\"\n"), "11:7: upstreams.b.url: ", "leads to this gateway itself: each call", "write the address of the server behind it")]
#[case::ignored_issuers(&OPEN.replace("[upstreams", "[[auth.issuers]]\nissuer = \"https://a.example\"\n[upstreams"), "3:1: auth.issuers: ", "has no effect with auth.mode = \"none\"", "leave it out, or use mode = \"oauth\"")]
#[case::ignored_rules(&OPEN.replace("[upstreams", "[[auth.tool_scopes]]\ntools = [\"x\"]\nscopes = [\"a\"]\n[upstreams"), "3:1: auth.tool_scopes: ", "has no effect with auth.mode = \"none\"", "leave it out, or use mode = \"oauth\"")]
#[case::ignored_hierarchy(&OPEN.replace("[upstreams", "[[auth.scope_implies]]\nscope = \"a\"\nimplies = [\"b\"]\n[upstreams"), "3:1: auth.scope_implies: ", "has no effect with auth.mode = \"none\"", "leave it out, or use mode = \"oauth\"")]
#[case::ignored_scopes_of_mcp(&format!("{OPEN}[mcp]\nrequired_scopes = [\"a\"]\n"), "6:19: mcp.required_scopes: ", "has no effect with auth.mode = \"none\"", "leave it out, or use mode = \"oauth\"")]
#[case::home_of_a_program(&OPEN.replace("\"files\"", "\"$HOME/bin/files\""), "4:11: upstreams.files.command: ", "is taken as it is written: no shell reads", "write the whole path, or ${HOME} for the")]
#[case::home_alone(&format!("{OPEN}args = [\"~\"]\n"), "5:9: upstreams.files.args[0]: ", "is taken as it is written: no shell reads", "write the whole path, or ${HOME} for the")]
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
