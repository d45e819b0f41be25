//! `drawbridge check`: all mistakes, or what the configuration amounts to.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use url::Url;

use super::{BAD_CONFIG, LogOptions, machine, out, refuse, warn, with_levels};
use crate::app::asking::{self, ProbeOutcome};
use crate::budget::ProcessBound;
use crate::config::{self, AuthMode, CarrierConfig, Config, ConfigProblem};
use crate::descriptors::{self, DescriptorFit};
use crate::endpoint::{Endpoint, endpoints};
use crate::status::AskedOnce;
use crate::telemetry::chain::chain;

/// How a configuration is judged.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct CheckOptions {
    /// Ends with 1 where there is a warning.
    #[arg(long)]
    strict: bool,
    /// Prints mistakes and warnings as one JSON object; with `--online` what was asked as well.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: ReachReport,
}

// How far a check goes. No doc comment: it would stand in for that of the command.
#[derive(Debug, Clone, Copy, Args)]
struct ReachReport {
    /// Takes variables that are not set for set: for machines that do not have the secrets. Programs, directories and
    /// limits of this machine are not looked at.
    #[arg(long)]
    assume_env: bool,
    /// Asks as well: loads the keys of every issuer, opens and lists every upstream once, finds out where accounts
    /// and logins are to be had, and connects to Redis and to the server of the database. Starts the programs of stdio
    /// upstreams, and ends them. Exits with 1 where one fails.
    #[arg(long, conflicts_with_all = ["assume_env", "reference"])]
    online: bool,
}

/// Reads `file` and reports on it.
pub(super) fn check(file: &Path, how: CheckOptions, log: &LogOptions) -> ExitCode {
    let name = file.to_string_lossy();
    let environment = |name: &str| {
        let known = config::process_environment(name);
        known.or_else(|| how.reach.assume_env.then(|| config::placeholder(name)))
    };
    let look = |config: &Config| {
        if how.reach.assume_env {
            Vec::new()
        } else {
            machine::doubts(config)
        }
    };
    let loaded = with_levels(config::load_with(file, &environment, &look), log);
    match loaded {
        Err(refusal) if how.json => {
            let errors: Vec<_> = refusal.errors.iter().map(as_json).collect();
            out::say(&report(&name, &errors, &refusal.warnings, None).to_string());
            ExitCode::from(BAD_CONFIG)
        }
        Err(refusal) => refuse(&name, &refusal),
        Ok(config) if how.json => {
            let warnings = config.warnings.clone();
            let asked = match ask(config, how, log) {
                Ok(asked) => asked,
                Err(code) => return code,
            };
            out::say(&report(&name, &[], &warnings, asked.as_ref()).to_string());
            verdict(&warnings, asked.as_ref(), how)
        }
        Ok(config) => {
            warn(&config.warnings);
            let fit = DescriptorFit::new(&config, descriptors::attainable());
            let summary = summary(&name, &config);
            out::say(summary.trim_end());
            out::say(&format!("\nfile descriptors\n  {}", fit.summary()));
            let warnings = config.warnings.clone();
            let asked = match ask(config, how, log) {
                Ok(asked) => asked,
                Err(code) => return code,
            };
            for doubt in asked.iter().flat_map(|asked| &asked.doubts) {
                let (key, what, hint) = (&doubt.key, &doubt.what, &doubt.hint);
                out::complain(&format!("warning: {key}: {what}\n    {hint}"));
            }
            if let Some(asked) = &asked {
                out::say(&format!("\n{}", asked.to_string().trim_end()));
            }
            verdict(&warnings, asked.as_ref(), how)
        }
    }
}

/// Asks issuers and upstreams, with `--online`; the exit code where that is not possible.
fn ask(config: Config, how: CheckOptions, log: &LogOptions) -> Result<Option<AskedOnce>, ExitCode> {
    if !how.reach.online {
        return Ok(None);
    }
    let complaint = match asking::ask(config, log.given().is_some()) {
        Ok(ProbeOutcome::Asked(asked)) => return Ok(Some(asked)),
        Ok(ProbeOutcome::Stopped(signal)) => format!("{signal} came before all were asked"),
        Err(error) => chain(error.as_ref()),
    };
    out::complain(&format!("error: {complaint}"));
    Err(ExitCode::FAILURE)
}

/// 0, or 1 where something that was asked fails, or where warnings count.
fn verdict(warnings: &[ConfigProblem], asked: Option<&AskedOnce>, how: CheckOptions) -> ExitCode {
    let is_down = asked.is_some_and(|asked| !asked.is_well());
    let is_doubtful = asked.is_some_and(|asked| !asked.doubts.is_empty());
    if is_down || how.strict && (is_doubtful || !warnings.is_empty()) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The JSON form.
fn report(
    file: &str,
    errors: &[Value],
    warnings: &[ConfigProblem],
    asked: Option<&AskedOnce>,
) -> Value {
    let doubts = asked.iter().flat_map(|asked| &asked.doubts);
    let doubts =
        doubts.map(|doubt| json!({"key": doubt.key, "what": doubt.what, "hint": doubt.hint}));
    let warnings: Vec<_> = warnings.iter().map(as_json).chain(doubts).collect();
    let mut report = json!({"file": file, "errors": errors, "warnings": warnings});
    if let Some((members, asked)) = report.as_object_mut().zip(asked) {
        members.insert("issuers".to_owned(), json!(asked.issuers));
        members.insert("upstreams".to_owned(), json!(asked.upstreams));
        members.insert("logins".to_owned(), json!(asked.logins));
        members.insert("stores".to_owned(), json!(asked.stores));
    }
    report
}

fn as_json(problem: &ConfigProblem) -> Value {
    json!({
        "line": problem.line, "column": problem.column, "key": problem.key,
        "what": problem.what, "hint": problem.hint,
    })
}

/// Endpoints and upstreams, a line each.
fn summary(file: &str, config: &Config) -> String {
    let mut text = match config.warnings.len() {
        0 => format!("{file}: correct\n"),
        1 => format!("{file}: usable, with a warning\n"),
        count => format!("{file}: usable, with {count} warnings\n"),
    };
    let auth = match config.auth.mode {
        AuthMode::None => "none, loopback only".to_owned(),
        AuthMode::OAuth => {
            let issuers = config.auth.issuers.iter().map(|issuer| &*issuer.issuer);
            format!(
                "bearer tokens of {}",
                issuers.collect::<Vec<_>>().join(", ")
            )
        }
    };
    let (server, limits) = (&config.server, &config.limits);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\nlistens on {} (admin: {})\n\
         authentication: {auth}\n\
         memory for what clients send: {} MiB at most, {} MiB for one caller\n\
         memory for replies: {} MiB at most, {} MiB for one caller\n\
         memory of the process: {}\n\n\
         endpoints",
        server.listen,
        config.admin.listen,
        limits.bytes_total >> 20,
        limits.bytes_per_principal >> 20,
        limits.replies_total >> 20,
        limits.replies_per_principal >> 20,
        ProcessBound::new(config).summary()
    );
    for endpoint in endpoints(config) {
        let _ = writeln!(text, "  {}", endpoint_line(&endpoint));
        let events = server.sse.iter().map(|paths| (&paths.stream, "HTTP+SSE"));
        let sockets = server.websocket.iter().map(|path| (path, "WebSocket"));
        for (path, transport) in events.chain(sockets) {
            let further = endpoint.below(path, &server.public_url);
            let _ = writeln!(text, "    {}  over {transport}", further.resource);
        }
    }
    let _ = writeln!(text, "\nupstreams");
    for upstream in &config.upstreams {
        let how = match &upstream.carrier {
            CarrierConfig::Stdio(stdio) => {
                // Arguments may hold secrets.
                let arguments = if stdio.args.is_empty() { "" } else { " …" };
                format!("stdio  {}{arguments}", stdio.command)
            }
            CarrierConfig::Http(http) => format!("http   {}", without_query(&http.url)),
        };
        let _ = writeln!(text, "  {:<20}  {how}", upstream.name);
        if let Some(account) = &upstream.auth {
            let kind = account.kind();
            let whose = if kind.is_of_callers() {
                "each caller's own"
            } else {
                "one for all callers"
            };
            let _ = writeln!(text, "  {:<20}  account: {whose} ({})", "", kind.as_str());
        }
    }
    text
}

/// A query may hold secrets.
fn without_query(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    let query = if url.query().is_some() { "?…" } else { "" };
    format!("{shown}{query}")
}

fn endpoint_line(endpoint: &Endpoint) -> String {
    let names: Vec<&str> = endpoint.upstreams.iter().map(|name| &**name).collect();
    let mut line = format!("{}  shows {}", endpoint.resource, names.join(", "));
    if !endpoint.required_scopes.is_empty() {
        let _ = write!(line, "  needs {}", endpoint.required_scopes.join(" "));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_endpoints_and_upstreams_but_no_argument() {
        let text = "[auth]\nmode = \"none\"\n\
            [upstreams.files]\ncommand = \"npx\"\nargs = [\"--key=hunter2\"]\n\
            [upstreams.tracker]\nurl = \"https://tracker.example.net/mcp\"\n";
        let config = config::parse(text, "g.toml", &|_| None).unwrap();
        let summary = summary("g.toml", &config);
        assert!(
            summary.contains("http://127.0.0.1:8080/mcp  shows files, tracker"),
            "{summary}"
        );
        assert!(
            summary.contains("512 MiB at most, 128 MiB for one caller"),
            "{summary}"
        );
        let process = ProcessBound::new(&config).summary();
        let line = format!("\nmemory of the process: {process}\n");
        assert!(summary.contains(&line), "{summary}");
        assert!(
            summary.contains("files                 stdio  npx …"),
            "{summary}"
        );
        assert!(!summary.contains("hunter2"), "{summary}");
    }

    #[test]
    fn the_summary_says_whose_an_account_is() {
        let text = "[auth]\nmode = \"none\"\n\
            [upstreams.tracker]\nurl = \"https://tracker.example.net/mcp\"\n[upstreams.tracker.auth]\n\
            kind = \"client_credentials\"\nclient_id = \"me\"\nclient_secret = \"hunter2\"\n";
        let config = config::parse(text, "g.toml", &|_| None).unwrap();
        let summary = summary("g.toml", &config);
        let line = "account: one for all callers (client_credentials)";
        assert!(summary.contains(line), "{summary}");
        assert!(!summary.contains("hunter2"), "{summary}");
    }

    #[test]
    fn the_summary_shows_urls_of_upstreams_without_their_queries() {
        let text = "[auth]\nmode = \"none\"\n[upstreams.tracker]\n\
            url = \"https://tracker.example.net/mcp?api_key=${KEY}\"\n";
        let env = |name: &str| (name == "KEY").then(|| "hunter2".to_owned());
        let config = config::parse(text, "g.toml", &env).unwrap();
        let summary = summary("g.toml", &config);
        assert!(
            summary.contains("http   https://tracker.example.net/mcp?…\n"),
            "{summary}"
        );
        assert!(!summary.contains("hunter2"), "{summary}");
    }

    #[test]
    fn the_summary_names_the_urls_of_the_transports_that_are_switched_on() {
        let text = "[auth]\nmode = \"none\"\n[upstreams.files]\ncommand = \"npx\"\n";
        let summary_of = |more: &str| {
            let text = format!("{text}{more}");
            let config = config::parse(&text, "g.toml", &|_| None).unwrap();
            summary("g.toml", &config)
        };
        let both = summary_of(
            "[server.sse]\nenabled = true\n[server.websocket]\nenabled = true\npath = \"/socket\"",
        );
        for line in [
            "    http://127.0.0.1:8080/sse  over HTTP+SSE\n",
            "    http://127.0.0.1:8080/socket  over WebSocket\n",
            "    http://127.0.0.1:8080/sse/files  over HTTP+SSE\n",
            "    http://127.0.0.1:8080/socket/files  over WebSocket\n",
        ] {
            assert!(both.contains(line), "{both}");
        }
        let neither = summary_of("");
        assert!(!neither.contains("  over "), "{neither}");
    }
}
