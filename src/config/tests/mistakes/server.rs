//! `[server]` with its tables, `[admin]` and `[health]`.

use rstest::rstest;

use super::{OAUTH, OPEN, assert_refused, errors};

// Columns: lines added to a valid file, the place, the cause, the remedy.
#[rstest]
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
#[case::any_origin(
    "[server]\nallowed_origins = [\"*\"]",
    "6:20: server.allowed_origins[0]: ",
    "would allow any web page",
    "such as \"https://claude.ai\""
)]
#[case::threads_without_end(
    "[server]\nthreads = 5000",
    "6:11: server.threads: ",
    "must be a whole number",
    "from 1 to 1024"
)]
#[case::duration_in_words(
    "[server]\ndrain = \"10 seconds\"",
    "6:9: server.drain: ",
    "\"10 seconds\"",
    "such as \"10s\""
)]
#[case::duration_without_a_unit(
    "[server]\ndrain = 10",
    "6:9: server.drain: ",
    "expected duration in quotes, found a whole number",
    "as in \"10s\""
)]
#[case::port_without_an_address(
    "[server]\nlisten = 8080",
    "6:10: server.listen: ",
    "expected address and port in quotes",
    "as in \"127.0.0.1:8080\""
)]
#[case::empty_variable(
    "[server]\nlisten = \"127.0.0.1:${EMPTY}\"",
    "6:10: server.listen: ",
    "\"127.0.0.1:${EMPTY}\": expected an IP address and a port",
    "look at the variable's value"
)]
#[case::no_duration_at_all(
    "[server]\nheader_timeout = \"0s\"",
    "6:18: server.header_timeout: ",
    "\"0s\"",
    "must be longer than zero"
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
#[case::query_of_public_url(
    "[server]\npublic_url = \"http://127.0.0.1:8080/?x=1\"",
    "6:14: server.public_url: ",
    "may not have a query",
    "end it with the path that a proxy in front"
)]
#[case::taken_path(
    "[server.sse]\nenabled = true\npath = \"/mcp/sse\"",
    "7:8: server.sse.path: ",
    "collides with /mcp",
    "choose a path that is not below the other"
)]
#[case::path_of_the_connect_pages(
    "[server.websocket]\nenabled = true\npath = \"/connect\"\n[upstreams.a]\nurl = \"https://a.test/mcp\"\n\
     [upstreams.a.auth]\nkind = \"user_key\"",
    "7:8: server.websocket.path: ",
    "collides with /connect",
    "choose a path that is not below the other"
)]
#[case::nested_paths(
    "[server.sse]\nenabled = true\nmessages = \"/sse/messages\"",
    "7:12: server.sse.messages: ",
    "collides with /sse",
    "choose a path that is not below the other"
)]
#[case::of_a_table_below(
    "[server.websocket]\ndrain = \"1s\"",
    "6:1: server.websocket.drain: ",
    "unknown key",
    "known here: enabled, path (`drain` is a key of [server])"
)]
#[case::no_path(
    "[server.websocket]\nenabled = true\npath = \"ws/\"",
    "7:8: server.websocket.path: ",
    "a path that starts",
    "for example \"/sse\""
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
fn a_mistake_is_refused(
    #[case] lines: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(&format!("{OPEN}{lines}\n"), place, cause, remedy);
}

// Columns: the file, the place, the cause, the remedy.
#[rstest]
#[case::http_public(&format!("{OAUTH}[server]\npublic_url = \"http://a.example\"\n"), "9:14: server.public_url: ", "https", "tokens would travel in the clear; a proxy in")]
#[case::unspecified(&format!("{OAUTH}[server]\nlisten = \"0.0.0.0:1\"\n"), "8:2: server.public_url: ", "is required, as listen = \"0.0.0.0:1\" names", "write the URL that clients use, such as")]
fn a_mistake_with_oauth_is_refused(
    #[case] text: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(text, place, cause, remedy);
}

#[test]
fn url_that_nobody_wrote_is_no_second_mistake() {
    for listen in ["192.0.2.1:80", "0.0.0.0:80"] {
        let said = errors(&format!("{OPEN}[server]\nlisten = \"{listen}\"\n"));
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].contains("must be a loopback address"), "{said:#?}");
    }
}

#[test]
fn doubled_dollar_is_no_variable() {
    let said = errors(&format!("{OPEN}[server]\nlisten = \"$${{PORT}}\"\n"));
    assert!(!said.concat().contains("variable"), "{said:#?}");
}
