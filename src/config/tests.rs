//! Reads whole files.

mod mistakes;

use std::time::Duration;

use super::*;

fn env(name: &str) -> Option<String> {
    match name {
        "TOKEN" => Some("hunter2".to_owned()),
        "PORT" => Some("9999".to_owned()),
        "LINE" => Some("hunter2\r\n".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

fn read(text: &str) -> Result<Config, ConfigErrors> {
    parse(text, "etc/g.toml", &env)
}

/// The errors of a valid file with the lines `text` added.
fn errors(text: &str) -> Vec<String> {
    let errors = read(text).expect_err("a refused file").errors;
    errors.iter().map(ToString::to_string).collect()
}

/// The first upstream, which is a child.
fn child(config: &Config) -> &StdioCarrier {
    let CarrierConfig::Stdio(stdio) = &config.upstreams[0].carrier else {
        panic!("a child")
    };
    stdio
}

const OPEN: &str = "[auth]\nmode = \"none\"\n[upstreams.files]\ncommand = \"files\"\n";
const OAUTH: &str = "[auth]\nmode = \"oauth\"\nrequired_scopes = [\"mcp:tools\"]\n\
    [[auth.issuers]]\nissuer = \"https://auth.example.com\"\n\
    [upstreams.files]\ncommand = \"files\"\n";

#[test]
fn the_smallest_file_gets_every_default() {
    let config = read(OPEN).unwrap();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.server.public_url.as_str(), "http://127.0.0.1:8080/");
    assert_eq!(config.server.sse_after, Duration::from_millis(250));
    // Cloudflare keeps an idle connection for 15 minutes, Traefik and Caddy for two at most.
    assert_eq!(config.server.idle_timeout, Duration::from_mins(16));
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9090");
    assert_eq!(config.mcp.upstreams, ["files"]);
    assert_eq!(config.limits.body, 4 << 20);
    assert_eq!(
        config.limits.rate,
        RateConfig {
            count: 100,
            per: Duration::from_secs(1)
        }
    );
    assert_eq!(config.sessions.max_total, 20_000);
    let stdio = child(&config);
    assert_eq!((stdio.command.as_str(), stdio.max_children), ("files", 128));
    assert_eq!(stdio.stop_eof, Duration::from_secs(2));
    let upstream = &config.upstreams[0];
    assert_eq!(upstream.ask_wait, upstream.ask_timeout, "people answer");
    assert!(config.warnings.is_empty());
}

#[test]
fn every_mistake_is_reported_at_once_with_its_place() {
    let text = "[server]\nlistn = \"127.0.0.1:1\"\ndrain = \"10\"\n[auth]\nmode = \"nobody\"\n\
        [upstreams.files]\ncommand = \"x\"\nmax_children = \"3\"\n";
    assert_eq!(
        errors(text),
        [
            "etc/g.toml:2:1: server.listn: unknown key\n    did you mean `listen`?",
            "etc/g.toml:3:9: server.drain: \"10\": expected a number with ms, s, m, h or d, such \
             as \"10s\"",
            "etc/g.toml:5:8: auth.mode: \"nobody\": not one of oauth, none",
            "etc/g.toml:8:16: upstreams.files.max_children: expected a whole number, found text\n    \
             written without quotes, dots and units",
        ]
    );
}

#[test]
fn a_missing_auth_section_shows_both_ways_out() {
    let said = errors("[upstreams.files]\ncommand = \"x\"\n").join("\n");
    assert!(
        said.contains("mode = \"oauth\"") && said.contains("mode = \"none\""),
        "{said}"
    );
    assert!(said.contains("[[auth.issuers]]"), "{said}");
}

#[test]
fn broken_syntax_is_reported_with_places_and_without_the_line() {
    let said = errors("[auth]\nmode = \"none\nkey = \"hunter2\n");
    assert!(said.len() >= 2, "{said:?}");
    assert!(said[0].starts_with("etc/g.toml:2:"), "{said:?}");
    assert!(!said.join("").contains("hunter2"), "{said:?}");
}

#[test]
fn the_json_of_a_client_is_shown_how_a_server_is_written_here() {
    let said = errors("{\n  \"mcpServers\": {\"files\": {\"command\": \"npx\"}}\n}\n");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("looks like JSON"), "{said:?}");
    assert!(said[0].contains("\n    [upstreams.files]\n"), "{said:?}");
    let shown = said[0].split_once("like this:\n").unwrap().1;
    let toml = format!("[auth]\nmode = \"none\"\n{}", shown.replace("${KEY}", "k"));
    assert!(read(&toml).is_ok(), "{toml}");
}

#[test]
fn an_unreadable_file_is_one_error() {
    let errors = load(Path::new("/nonexistent/g.toml")).unwrap_err().errors;
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().contains("cannot be read"));
}

#[test]
fn variables_fill_text_and_secrets() {
    let text = format!(
        "{OPEN}args = [\"--port=${{PORT}}\", \"$$5\"]\nenv = {{ KEY = \"Bearer ${{TOKEN}}\" }}\n"
    );
    let config = read(&text).unwrap();
    let stdio = child(&config);
    assert_eq!(stdio.args, ["--port=9999", "$5"]);
    assert_eq!(stdio.env["KEY"].expose(), "Bearer hunter2");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn a_secret_loses_the_line_break_at_its_end_and_a_variable_of_a_child_keeps_it() {
    let asking = "introspection = { client_id = \"g\", client_secret = \"${LINE}\" }\n";
    let text = OAUTH.replace(".com\"\n", &format!(".com\"\n{asking}"));
    let config = read(&format!("{text}env = {{ KEY = \"${{LINE}}\" }}\n")).unwrap();
    let introspection = config.auth.issuers[0].introspection.as_ref().unwrap();
    assert_eq!(introspection.client_secret.expose(), "hunter2");
    let stdio = child(&config);
    assert_eq!(stdio.env["KEY"].expose(), "hunter2\r\n");
}

// Without it the key would be another one, and what was sealed before would not open.
#[test]
fn a_key_keeps_the_line_break_at_its_end() {
    let key = "0123456789abcdef0123456789abcdef\n";
    let text = format!("{OPEN}[keys]\nseal = [{{ id = \"k1\", key = {key:?} }}]\n");
    let config = read(&text).unwrap();
    assert_eq!(config.keys.seal[0].key.expose(), key);
}

#[test]
fn a_key_of_a_table_that_stands_in_none_is_shown_its_table() {
    let said = errors(&format!("listen = \"127.0.0.1:1\"\n{OPEN}"));
    assert_eq!(said.len(), 1, "{said:?}");
    let hint = "did you mean `listen` in [server] or [admin]?";
    assert!(said[0].contains(hint), "{said:?}");
}

#[test]
fn an_unset_variable_is_named() {
    let said = errors(&format!("{OPEN}env = {{ KEY = \"${{NOBODY}}\" }}\n"));
    assert!(said[0].contains("upstreams.files.env.KEY: environment variable NOBODY is not set"));
    let text = errors(&format!("{OPEN}cwd = \"${{NOBODY}}\"\n"));
    for said in [&said[0], &text[0]] {
        assert!(
            said.contains("the environment that drawbridge is started with"),
            "{said}"
        );
    }
}

#[test]
fn no_error_shows_what_a_variable_holds() {
    let text = format!(
        "{OPEN}cwd = \"${{TOKEN}}\"\n[server]\nlisten = \"${{TOKEN}}\"\n\
         [upstreams.tracker]\nurl = \"https://x/${{TOKEN}}#f\"\nheaders = {{ A = \"\\n${{TOKEN}}\" }}\n"
    );
    let said = errors(&text);
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(!said.join("\n").contains("hunter2"), "{said:?}");
}

#[test]
fn a_secret_that_is_taken_for_the_name_of_its_file_is_not_shown() {
    let said = errors(&format!(
        "{OPEN}env = {{ KEY = {{ file = \"${{TOKEN}}\" }} }}\n\
         [keys]\nseal = [{{ id = \"k1\", file = \"${{TOKEN}}\" }}, {{ id = \"k2\", file = \"gone\" }}]\n"
    ));
    let said = said.join("\n");
    assert!(!said.contains("hunter2"), "{said}");
    assert_eq!(said.matches("${TOKEN}: No such file").count(), 2, "{said}");
    assert!(said.contains("etc/gone: No such file"), "{said}");
}

#[test]
fn secrets_come_from_files_beside_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), "0123456789abcdef0123456789abcdef\n").unwrap();
    let file = dir.path().join("g.toml");
    let text = format!(
        "{OPEN}env = {{ KEY = {{ file = \"key\" }} }}\n\
         [keys]\nseal = [{{ id = \"k1\", file = \"key\" }}]\n"
    );
    std::fs::write(&file, text).unwrap();
    let config = load(&file).unwrap();
    assert_eq!(
        config.keys.seal[0].key.expose(),
        "0123456789abcdef0123456789abcdef"
    );
    let stdio = child(&config);
    assert_eq!(
        stdio.env["KEY"].expose(),
        "0123456789abcdef0123456789abcdef"
    );
}

#[test]
fn upstreams_keep_the_order_of_the_file() {
    let text = format!(
        "{OPEN}[upstreams.b]\ncommand = \"x\"\n[upstreams.a]\nurl = \"https://x\"\nmerged = false\n"
    );
    let config = read(&text).unwrap();
    let names: Vec<_> = config
        .upstreams
        .iter()
        .map(|upstream| &*upstream.name)
        .collect();
    assert_eq!(names, ["files", "b", "a"]);
    assert_eq!(config.mcp.upstreams, ["files", "b"]);
}

#[test]
fn empty_text_means_absent_where_a_key_may_be_missing() {
    let text = format!(
        "{OPEN}cwd = \"\"\n[upstreams.t]\nurl = \"https://t.example\"\nca_file = \"\"\nproxy = \"\"\n"
    );
    let config = read(&text).unwrap();
    let CarrierConfig::Http(http) = &config.upstreams[1].carrier else {
        panic!("an HTTP upstream")
    };
    assert!(http.ca_file.is_none() && http.proxy.is_none());
}

#[test]
fn the_public_url_loses_its_trailing_slash() {
    let text = format!("{OAUTH}[server]\npublic_url = \"https://mcp.example.com/base/\"\n");
    assert_eq!(
        read(&text).unwrap().server.public_url.as_str(),
        "https://mcp.example.com/base"
    );
}

#[test]
fn a_command_with_a_slash_is_found_from_the_file() {
    let config = read(&OPEN.replace("\"files\"", "\"./bin/files\"")).unwrap();
    let stdio = child(&config);
    assert_eq!(stdio.command, "etc/./bin/files");
}

#[test]
fn the_reference_loads_and_says_only_defaults() {
    let all = parse(&reference(), "g.toml", &env).expect("a valid reference");
    let least = "[auth]\nmode = \"oauth\"\n[[auth.issuers]]\nissuer = \"https://auth.example.com\"\n\
        [[auth.tool_scopes]]\ntools = [\"admin_*\"]\nscopes = [\"mcp:admin\"]\n\
        [[auth.scope_implies]]\nscope = \"mcp:admin\"\nimplies = [\"mcp:tools\"]\n\
        [endpoints.dev]\nupstreams = [\"files\"]\n\
        [upstreams.files]\ncommand = \"npx\"\n\
        [upstreams.tracker]\nurl = \"https://tracker.example.net/mcp\"\n";
    let least = parse(least, "g.toml", &env).unwrap();
    let shape = |mut config: Config| {
        config.warnings.clear();
        format!("{config:#?}")
    };
    assert_eq!(shape(all), shape(least));
}

#[test]
fn introspection_needs_credentials_and_belongs_to_one_issuer() {
    let with = |introspection: &str, rest: &str| {
        OAUTH.replace(
            "[upstreams.files]",
            &format!("introspection = {introspection}\n{rest}[upstreams.files]"),
        )
    };
    let good = "{ client_id = \"gw\", client_secret = \"${TOKEN}\" }";
    let config = read(&with(good, "")).unwrap();
    let introspection = config.auth.issuers[0].introspection.as_ref().unwrap();
    assert_eq!(introspection.client_secret.expose(), "hunter2");
    assert_eq!(introspection.max_age, Duration::from_secs(30));
    assert_eq!(introspection.tokens, IntrospectedTokens::Opaque);
    let said = errors(&with(
        "{ endpoint = \"http://as.test/ask\", max_age = \"6m\", secret = \"hunter2\" }",
        &format!("[[auth.issuers]]\nissuer = \"https://b.test\"\nintrospection = {good}\n"),
    ));
    let said = said.join("\n");
    for part in [
        "introspection.endpoint: must be https",
        "introspection.client_secret: is required",
        "introspection.client_id: is required",
        "introspection.max_age: may be 5m at most",
        "introspection.secret: unknown key",
        "issuers[1].introspection: another issuer has this already",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn check_warns_of_upstreams_over_the_cap() {
    let read = |stdio: &str, auth: &str| {
        let mut text = format!("[auth]\n{auth}\n[stdio]\n{stdio}\n");
        let all = (0..6).map(|number| format!("[upstreams.up{number}]\ncommand = \"x\"\n"));
        text.extend(all);
        parse(&text, "g.toml", &|_| None).unwrap()
    };
    let open = "mode = \"none\"";
    let config = read("max_children_per_principal = 4", open);
    let [warning] = config.warnings.as_slice() else {
        panic!("{:?}", config.warnings);
    };
    let said = warning.to_string();
    assert!(said.contains("stdio.max_children_per_principal"), "{said}");
    assert!(
        said.contains("6 stdio upstreams") && said.contains("2 are left out"),
        "{said}"
    );
    assert!(
        read("max_children_per_principal = 6", open)
            .warnings
            .is_empty()
    );
    // With `mode = "none"` all callers are one principal.
    let stdio = read("max_children = 100", open).stdio;
    assert_eq!(stdio.max_children_per_principal, 100);
}
