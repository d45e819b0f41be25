//! `[upstreams.<name>]`.

use rstest::rstest;

use super::{OPEN, assert_refused};

// Columns: lines added to a valid file, the place, the cause, the remedy.
#[rstest]
#[case::reserved(
    "[upstreams.ws]\ncommand = \"x\"",
    "5:12: upstreams.ws: ",
    "reserved",
    "reserved"
)]
// Reserved: documents about servers may be served below the endpoint later. Spec: SPEC N-08
#[case::server_card(
    "[upstreams.server-card]\ncommand = \"x\"",
    "5:12: upstreams.server-card: ",
    "reserved",
    "reserved"
)]
#[case::bad_name(
    "[upstreams.Files]\ncommand = \"x\"",
    "5:12: upstreams.Files: ",
    "not a name",
    "a lower-case letter, then up to 19"
)]
#[case::of_no_upstream(
    "[upstreams.b]\ncommand = \"x\"\nenabled = false",
    "7:1: upstreams.b.enabled: ",
    "unknown key",
    "known here: "
)]
#[case::other_word(
    "[upstreams.b]\ncommand = \"x\"\nisolation = \"user\"",
    "7:13: upstreams.b.isolation: ",
    "\"user\": not one of session",
    "did you mean \"principal\"?"
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
#[case::credentials(
    "[upstreams.b]\nurl = \"https://u:hunter2@x\"",
    "6:7: upstreams.b.url: ",
    "may not hold credentials",
    "`headers` of an upstream may"
)]
#[case::query_of_a_wrong_url(
    "[upstreams.b]\nurl = \"htps://x/mcp?api_key=hunter2\"",
    "6:7: upstreams.b.url: ",
    "expected a URL",
    "starts with https:// or http://"
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
#[case::limit_with_a_unit_of_time(
    "[upstreams.b]\ncommand = \"x\"\nrlimits = { cpu = \"10s\" }",
    "7:19: upstreams.b.rlimits.cpu: ",
    "expected a whole number",
    "without quotes and units"
)]
#[case::number_of_files_as_size(
    "[upstreams.b]\ncommand = \"x\"\nrlimits = { nofile = \"4MiB\" }",
    "7:22: upstreams.b.rlimits.nofile: ",
    "expected a whole number",
    "without quotes and units"
)]
#[case::fraction_of_a_second(
    "[upstreams.b]\ncommand = \"x\"\nrlimits = { cpu = 1.5 }",
    "7:19: upstreams.b.rlimits.cpu: ",
    "expected a whole number",
    "found a number"
)]
#[case::no_variable(
    "[upstreams.b]\ncommand = \"x\"\nenv = { \"A=B\" = \"hunter2\" }\ninherit = [\"\"]",
    "8:12: upstreams.b.inherit[0]: ",
    "not the name of a variable",
    "nor have `=` in it"
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
#[case::url_with_a_wrong_variable(
    "[upstreams.b]\nurl = \"https://x:${TOKEN}/?a\"",
    "6:7: upstreams.b.url: ",
    "invalid port number",
    "look at the variable's value"
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
#[case::environment_as_text(
    "[upstreams.b]\ncommand = \"x\"\nenv = \"A=b\"",
    "7:7: upstreams.b.env: ",
    "expected a table, found text",
    "write env = { key = \"…\" }"
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
#[case::no_ca_file(
    "[upstreams.b]\nurl = \"https://x\"\nca_file = \"gone.pem\"",
    "7:11: upstreams.b.ca_file: ",
    "cannot be read: No such file",
    "begins at the directory of this file"
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
    assert_refused(&format!("{OPEN}{lines}\n"), place, cause, remedy);
}

#[test]
fn a_file_without_upstreams_is_refused() {
    assert_refused(
        "[auth]\nmode = \"none\"\n",
        "1:1: ",
        "no upstream is configured",
        "for example",
    );
}
