//! `drawbridge check`: all mistakes, or what the configuration amounts to.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use url::Url;

use super::{load, out, refuse};
use crate::config::{AuthMode, Carrier, Config};
use crate::descriptors::{self, Fit};
use crate::endpoint::{Endpoint, endpoints};

/// Reads `file` and reports on it.
pub(super) fn check(file: &Path) -> ExitCode {
    let name = file.to_string_lossy();
    match load(Some(file)) {
        Err(refusal) => refuse(&name, &refusal),
        Ok(config) => {
            for warning in &config.warnings {
                out::complain(&format!("warning: {warning}"));
            }
            let fit = Fit::new(&config, descriptors::attainable());
            if let Some(complaint) = fit.complaint() {
                out::complain(&format!("warning: started like this, {complaint}"));
            }
            let summary = summary(&name, &config);
            out::say(summary.trim_end());
            out::say(&format!("\nfile descriptors\n  {}", fit.summary()));
            ExitCode::SUCCESS
        }
    }
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
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\nlistens on {} (admin: {})",
        config.server.listen, config.admin.listen
    );
    let _ = writeln!(text, "authentication: {auth}");
    let limits = &config.limits;
    let _ = writeln!(
        text,
        "memory for what clients send: {} MiB at most, {} MiB for one caller\n\nendpoints",
        limits.bytes_total >> 20,
        limits.bytes_per_principal >> 20
    );
    let server = &config.server;
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
            Carrier::Stdio(stdio) => {
                // Arguments may hold secrets.
                let arguments = if stdio.args.is_empty() { "" } else { " …" };
                format!("stdio  {}{arguments}", stdio.command)
            }
            Carrier::Http(http) => format!("http   {}", without_query(&http.url)),
        };
        let _ = writeln!(text, "  {:<20}  {how}", upstream.name);
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
        let config = crate::config::parse(text, "g.toml", &|_| None).unwrap();
        let summary = summary("g.toml", &config);
        assert!(
            summary.contains("http://127.0.0.1:8080/mcp  shows files, tracker"),
            "{summary}"
        );
        assert!(
            summary.contains("512 MiB at most, 128 MiB for one caller"),
            "{summary}"
        );
        assert!(
            summary.contains("files                 stdio  npx …"),
            "{summary}"
        );
        assert!(!summary.contains("hunter2"), "{summary}");
    }

    #[test]
    fn the_summary_shows_urls_of_upstreams_without_their_queries() {
        let text = "[auth]\nmode = \"none\"\n[upstreams.tracker]\n\
            url = \"https://tracker.example.net/mcp?api_key=${KEY}\"\n";
        let env = |name: &str| (name == "KEY").then(|| "hunter2".to_owned());
        let config = crate::config::parse(text, "g.toml", &env).unwrap();
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
            let config = crate::config::parse(&text, "g.toml", &|_| None).unwrap();
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
