//! The documents agree with the tree: links lead somewhere, snippets are read or run, metrics are explained.
#![expect(clippy::expect_used, reason = "a test program")]

#[path = "documents/citations.rs"]
mod citations;
#[path = "documents/links.rs"]
mod links;
#[path = "documents/snippets.rs"]
mod snippets;
#[path = "documents/walked.rs"]
mod walked;

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a readable file")
}

/// Every Markdown file at the top level and below `docs`.
fn documents() -> Vec<PathBuf> {
    let mut folders = vec![root().to_owned(), root().join("docs")];
    let mut out = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && folder != root() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                out.push(path);
            }
        }
    }
    out
}

#[test]
fn the_first_configuration_of_the_readme_loads() {
    let readme = read(&root().join("README.md"));
    let block = readme
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let config = drawbridge::config::parse(block.expect("a block"), "README.md", &|_| None);
    assert!(config.expect("a valid configuration").warnings.is_empty());
}

/// The names of series in a query or a rule: words that begin like metrics of ours.
fn series(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_series = |word: &&str| word.starts_with("mcp_") || word.starts_with("drawbridge_");
    words.filter(is_series).map(str::to_owned).collect()
}

#[test]
fn every_series_of_dashboard_and_rules_is_a_metric() {
    const LABELS: [&str; 3] = [
        "mcp_method_name",
        "drawbridge_upstream",
        "drawbridge_reason",
    ];
    const ENDS: [&str; 7] = [
        "",
        "_total",
        "_bytes",
        "_seconds",
        "_seconds_count",
        "_seconds_bucket",
        "_seconds_sum",
    ];
    let known: Vec<String> = metrics()
        .iter()
        .map(|name| name.replace('.', "_"))
        .collect();
    let is_known = |name: &str| {
        let bare = ENDS.iter().filter_map(|end| name.strip_suffix(end));
        bare.into_iter()
            .any(|bare| known.iter().any(|metric| metric == bare))
    };
    let text = read(&root().join("deploy/grafana/drawbridge.json"));
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let queries = targets.filter_map(|target| target["expr"].as_str());
    let mut names: Vec<String> = queries.flat_map(series).collect();
    let rules = read(&root().join("deploy/alerts/drawbridge.yaml"));
    let rules = rules
        .lines()
        .filter(|line| !line.contains("summary:") && !line.contains('#'));
    names.extend(rules.flat_map(series));
    assert!(names.len() > 80, "{} names", names.len());
    names.retain(|name| !LABELS.contains(&&**name) && !is_known(name));
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn each_alert_has_a_paragraph_and_each_paragraph_an_alert() {
    let rules = read(&root().join("deploy/alerts/drawbridge.yaml"));
    let page = read(&root().join("docs/operations/alerts.md"));
    let explained: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    let mut alerts = Vec::new();
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap_or_default();
        let runbook = format!(
            "runbook_url: docs/operations/alerts.md#{}",
            name.to_lowercase()
        );
        assert!(rule.contains(&runbook), "{name}: no `{runbook}`");
        assert!(rule.contains("description: "), "{name}: no description");
        alerts.push(name);
    }
    assert_eq!(alerts, explained, "rules and docs/operations/alerts.md");
}

/// The names of all metrics.
fn metrics() -> Vec<String> {
    let names = read(&root().join("src/telemetry/names.rs"));
    let metrics = names
        .split("pub mod ")
        .find(|part| part.starts_with("metric {"));
    let quoted = metrics.expect("a list of metrics").split('"');
    let tables = read(&root().join("src/telemetry/metrics.rs"));
    let rows = tables
        .lines()
        .filter_map(|line| line.split_once(" = \"")?.1.split_once("\" \""));
    let rows: Vec<&str> = rows.map(|(name, _unit)| name).collect();
    assert!(!rows.is_empty(), "no row in the tables of instruments");
    let all = quoted.skip(1).step_by(2).chain(rows);
    all.map(str::to_owned).collect()
}

#[test]
fn every_metric_is_explained() {
    let page = read(&root().join("docs/logging.md"));
    let mut missing = metrics();
    missing.retain(|name| !page.contains(&format!("`{name}`")));
    assert!(missing.is_empty(), "not in docs/logging.md: {missing:?}");
}

#[test]
fn every_metric_that_a_page_names_exists() {
    let known = metrics();
    let mut unknown = Vec::new();
    for document in documents() {
        for name in read(&document).split('`').skip(1).step_by(2) {
            let is_metric = name.starts_with("drawbridge.")
                && name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || "._".contains(c));
            if is_metric && !known.iter().any(|metric| metric == name) {
                unknown.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

#[test]
fn alert_rules_say_what_their_tests_expect() {
    #[expect(clippy::disallowed_methods, reason = "it is no child of a gateway")]
    let mut promtool = std::process::Command::new("promtool");
    let cases = root().join("deploy/alerts/tests/drawbridge.yaml");
    match promtool.args(["test", "rules"]).arg(cases).output() {
        Ok(done) => assert!(done.status.success(), "{done:#?}"),
        Err(_) => eprintln!("SKIPPED: there is no promtool; install Prometheus"),
    }
}
