//! The configuration: one TOML file, its types, its reading and checking, its generated reference.
//!
//! `reader` walks the file once, section by section, and collects every error with its position; `check` then validates
//! across sections. Other modules get a complete and validated [`Config`].

mod access;
mod account_checks;
mod account_types;
mod accounts;
mod auth;
mod auth_types;
mod budget;
mod carriers;
mod check;
mod cluster;
mod cluster_types;
mod collection;
mod database;
mod database_types;
mod declarations;
mod doubts;
mod endpoint_types;
mod endpoints;
mod entry;
mod files;
mod keys;
mod limits;
mod log_levels;
mod logins;
mod nearest;
mod problem;
mod reader;
pub(crate) mod redis_url;
mod reference;
mod report;
mod server;
mod sessions;
mod source;
mod syntax;
mod telemetry;
mod token_place;
mod types;
mod units;
mod upstream_types;
mod upstreams;
mod words;

#[cfg(test)]
mod shipped;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use toml::de::DeTable;

pub use account_types::*;
pub use auth_types::*;
pub use cluster_types::*;
pub use database_types::*;
pub use endpoint_types::*;
pub use log_levels::LogLevels;
pub use problem::{ConfigDoubt, ConfigErrors, ConfigProblem};
pub use reference::reference;
pub use source::{OWN_PROGRAM, VariableSource, placeholder, process_environment};
pub use types::*;
pub use units::is_loopback;
pub use upstream_types::*;

use reader::{ConfigSection, SampleEntry};
use report::ReadReport;
use source::ConfigSource;

/// About `[sessions]`.
const SESSIONS: &str = "Sessions of clients. With [cluster] each replica counts for itself, but for max_per_principal.";
/// About `[stdio]`.
const STDIO: &str = "All stdio children together. With [cluster] each replica counts for itself.";
/// About `[limits]`.
const LIMITS: &str = "What one caller may send, hold and ask for. With [cluster] each replica counts for itself, but for \
    parked_per_principal, task_results_per_principal and rate.";
/// Hint for the configuration file of an MCP client. TOML never begins with a brace.
const NOT_JSON: &str = "this looks like JSON, and TOML is read; \
    a server of \"mcpServers\" is written like this:\n\
    [upstreams.files]\n\
    command = \"npx\"\n\
    args = [\"-y\", \"some-server\"]\n\
    env = { KEY = \"${KEY}\" }";

/// Hint for a YAML file of another program.
const NOT_YAML: &str = "this looks like YAML, and TOML is read: tables are written [upstreams.files], \
    and their keys command = \"npx\"";

/// Whether the first line with content is a YAML key.
fn looks_like_yaml(text: &str) -> bool {
    let lines = text.lines().map(str::trim_end);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_key = |line: &str| {
        line == "---"
            || line.split_once(':').is_some_and(|(key, rest)| {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                !key.is_empty()
                    && key.chars().all(plain)
                    && (rest.is_empty() || rest.starts_with(' '))
            })
    };
    lines.next().is_some_and(is_key)
}

/// Reads and checks the file at `path`, with the environment of this process.
///
/// # Errors
///
/// Every error in the file at once; the operator has to correct them.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    load_with(path, &process_environment, &|_| Vec::new())
}

/// As [`load`], with the variables of `env`. `look` returns further warnings about a valid configuration.
///
/// # Errors
///
/// As for [`load`].
pub fn load_with(
    path: &Path,
    env: VariableSource<'_>,
    look: &dyn Fn(&Config) -> Vec<ConfigDoubt>,
) -> Result<Config, ConfigErrors> {
    let file = path.to_string_lossy();
    let text = read_file(path)?;
    parse_with(&text, &file, env, look)
}

/// Reads `[admin]` alone: other sections may have errors, or need variables that are not set.
///
/// # Errors
///
/// Every error in `[admin]`, and every syntax error of the file.
pub fn load_admin(path: &Path) -> Result<AdminConfig, ConfigErrors> {
    let file = path.to_string_lossy();
    let text = read_file(path)?;
    let source = ConfigSource::new(&file, &text, &process_environment);
    let (root, syntax) = DeTable::parse_recoverable(&text);
    let report = ReadReport::new(&source, root.get_ref());
    for error in &syntax {
        let offset = error.span().map_or(0, |span| span.start);
        report.error_at(offset, "", error.message().to_owned(), None);
    }
    if !syntax.is_empty() {
        return Err(report.into_problems());
    }
    let admin = ConfigSection::read_root(&report, Some(root.get_ref()), |root| {
        root.table("admin", ADMIN, server::admin)
    });
    let mut refused = report.into_problems();
    refused
        .errors
        .retain(|error| error.key == "admin" || error.key.starts_with("admin."));
    if refused.errors.is_empty() {
        Ok(admin)
    } else {
        Err(refused)
    }
}

/// The description of `[admin]` in the reference.
const ADMIN: &str = "The operators' side.";

fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    std::fs::read_to_string(path).map_err(|error| {
        let file = path.to_string_lossy();
        let source = ConfigSource::new(&file, "", &process_environment);
        let report = ReadReport::new(&source, &DeTable::new());
        let hint = match error.kind() {
            ErrorKind::NotFound => {
                Some("--config, or the variable DRAWBRIDGE_CONFIG, names the file")
            }
            ErrorKind::PermissionDenied => Some("let the user that the gateway runs as read it"),
            ErrorKind::InvalidData => Some("save it as UTF-8 (PowerShell writes UTF-16 with `>`)"),
            _ => None,
        };
        report.error("", format!("cannot be read: {error}"), hint);
        report.into_problems()
    })
}

/// Reads and checks `text`, the content of `file`: relative paths start at the file's directory.
///
/// # Errors
///
/// Every error at once; for text that is not TOML only the syntax errors.
pub fn parse(text: &str, file: &str, env: VariableSource<'_>) -> Result<Config, ConfigErrors> {
    parse_with(text, file, env, &|_| Vec::new())
}

fn parse_with(
    text: &str,
    file: &str,
    env: VariableSource<'_>,
    look: &dyn Fn(&Config) -> Vec<ConfigDoubt>,
) -> Result<Config, ConfigErrors> {
    let source = ConfigSource::new(file, text, env);
    let (root, syntax) = DeTable::parse_recoverable(text);
    let root = root.get_ref();
    let report = ReadReport::new(&source, root);
    if !syntax.is_empty() {
        let is_json = text.trim_start().starts_with('{');
        let is_yaml = !is_json && looks_like_yaml(text);
        // Every line of a JSON or YAML file is wrong: report only the first error.
        let count = if is_json || is_yaml { 1 } else { syntax.len() };
        for error in syntax.into_iter().take(count) {
            // Only the message: the error's own text repeats the line, which may hold a secret.
            let offset = error.span().map_or(0, |span| span.start);
            let hint = match error.message() {
                _ if is_json => Some(NOT_JSON),
                _ if is_yaml => Some(NOT_YAML),
                message => syntax::hint(message),
            };
            report.error_at(offset, "", error.message().to_owned(), hint);
        }
        return Err(report.into_problems());
    }
    let mut config = ConfigSection::read_root(&report, Some(root), read_all);
    check::check(&mut config, &report);
    doubts::check(&config, &report);
    if !report.has_errors() {
        for doubt in look(&config) {
            let hint = Some(&*doubt.hint).filter(|hint| !hint.is_empty());
            report.warning(&doubt.key, doubt.what, hint);
        }
    }
    let problems = report.into_problems();
    if problems.errors.is_empty() {
        config.warnings = problems.warnings;
        Ok(config)
    } else {
        Err(problems)
    }
}

/// Reads the whole file, in the order of the reference.
fn read_all(root: &mut ConfigSection<'_>) -> Config {
    let server = root.table("server", "The public side.", server::read);
    let admin = root.table("admin", ADMIN, server::admin);
    let health = root.table(
        "health",
        "Upstreams that nobody calls are looked at in the background: over HTTP by one OPTIONS request, which opens no \
         session (any status below 500 and 501 mean up), running children by a ping. None is started for it.",
        server::health,
    );
    let auth = root.table("auth", "Who may call. Has no default.", auth::read);
    let merged = root.table("mcp", "The merged endpoint, /mcp.", endpoints::merged);
    let endpoints = root.named(
        "endpoints",
        &[SampleEntry {
            name: "dev",
            doc: "A further endpoint, /mcp/dev. The name is free.",
        }],
        |name, s| (name.to_owned(), endpoints::named(s)),
    );
    let samples = [
        SampleEntry {
            name: upstreams::STDIO_SAMPLE,
            doc: "An MCP server, here a stdio child. The name is free: [a-z][a-z0-9-]{0,19}.",
        },
        SampleEntry {
            name: upstreams::HTTP_SAMPLE,
            doc: "An MCP server over HTTP; from `isolation` on, keys are as above.",
        },
    ];
    let upstreams = root.named("upstreams", &samples, upstreams::read);
    let mut upstreams: Vec<_> = upstreams.into_iter().flatten().collect();
    let mcp = merged(&upstreams);
    if !mcp.list_changed {
        for upstream in &mut upstreams {
            upstream.list_changed = false;
        }
    }
    Config {
        server,
        admin,
        health,
        auth,
        mcp,
        endpoints: endpoints.into_iter().collect::<BTreeMap<_, _>>(),
        upstreams,
        sessions: root.table("sessions", SESSIONS, sessions::read),
        events: root.table(
            "events",
            "What a client can have again after a lost connection.",
            sessions::events,
        ),
        stdio: root.table("stdio", STDIO, sessions::stdio),
        lists: root.table("lists", "Lists that upstreams gave.", sessions::lists),
        limits: root.table("limits", LIMITS, limits::read),
        keys: root.table("keys", "Keys that must outlive the process.", keys::read),
        egress: root.table(
            "egress",
            "Where the gateway asks, beyond what stands in this file.",
            accounts::egress,
        ),
        database: root.table(
            "database",
            "Where accounts at upstreams are kept. Made when it is first needed.",
            database::read,
        ),
        connect: root.table(
            "connect",
            "Accounts of callers at upstreams.",
            database::connect,
        ),
        cluster: root
            .optional_table("cluster", cluster::ABOUT, cluster::read)
            .flatten(),
        telemetry: root.table("telemetry", "What operators see.", telemetry::read),
        warnings: Vec::new(),
    }
}
