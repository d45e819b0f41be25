//! The documents agree with the tree: links lead somewhere, snippets are read or run, metrics are explained.
#![expect(clippy::expect_used, clippy::print_stderr, reason = "a test program")]

#[path = "documents/citations.rs"]
mod citations;
#[path = "documents/compose.rs"]
mod compose;
#[path = "documents/image.rs"]
mod image;
#[path = "documents/kubernetes.rs"]
mod kubernetes;
#[path = "documents/links.rs"]
mod links;
#[path = "documents/snippets.rs"]
mod snippets;
#[path = "documents/systemd.rs"]
mod systemd;
#[path = "documents/walked.rs"]
mod walked;
#[path = "documents/yaml.rs"]
mod yaml;

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

/// Every file below `deploy` with one of these extensions.
fn deployed(extensions: &[&str]) -> Vec<PathBuf> {
    let mut folders = vec![root().join("deploy")];
    let mut out = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                folders.push(path);
            } else if extension.is_some_and(|extension| extensions.contains(&extension)) {
                out.push(path);
            }
        }
    }
    out.sort();
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

/// Whether Prometheus has a series `name`: a metric with the end of its kind.
fn is_series(name: &str, metrics: &[Metric]) -> bool {
    const HISTOGRAM: [&str; 3] = ["_seconds_count", "_seconds_bucket", "_seconds_sum"];
    metrics.iter().any(|metric| {
        let end = name.strip_prefix(&metric.name.replace('.', "_"));
        match metric.kind {
            MetricKind::Counter => matches!(end, Some("_total" | "_bytes_total")),
            MetricKind::Gauge => matches!(end, Some("" | "_bytes" | "_seconds")),
            MetricKind::Other => end.is_some_and(|end| HISTOGRAM.contains(&end)),
        }
    })
}

/// The dashboard of Grafana.
fn dashboard() -> serde_json::Value {
    let text = read(&root().join("deploy/grafana/drawbridge.json"));
    serde_json::from_str(&text).expect("JSON")
}

/// The queries of the panels, with their legends.
fn targets() -> Vec<serde_json::Value> {
    let dashboard = dashboard();
    let panels = dashboard.get("panels").and_then(|panels| panels.as_array());
    let targets = panels.expect("panels").iter();
    let targets = targets.filter_map(|panel| panel.get("targets")?.as_array());
    targets.flatten().cloned().collect()
}

#[test]
fn every_series_of_dashboard_and_rules_is_a_metric() {
    let known = metrics_with_kinds();
    let labels = labels();
    let targets = targets();
    let queries = targets.iter().filter_map(|target| target["expr"].as_str());
    let mut names: Vec<String> = queries.flat_map(series).collect();
    let rules = read(&root().join("deploy/alerts/drawbridge.yaml"));
    let rules = rules.lines().filter(|line| {
        !line.contains("summary:") && !line.contains("description:") && !line.contains('#')
    });
    names.extend(rules.flat_map(series));
    assert!(names.len() > 120, "{} names", names.len());
    for part in [
        "drawbridge_cluster_",
        "drawbridge_redis_",
        "drawbridge_grants",
        "drawbridge_consents_",
        "drawbridge_exports_",
    ] {
        let all = known
            .iter()
            .filter(|metric| metric.name.replace('.', "_").starts_with(part));
        for metric in all {
            let name = metric.name.replace('.', "_");
            assert!(
                names.iter().any(|one| one.starts_with(&name)),
                "{name} is shown nowhere"
            );
        }
    }
    names.retain(|name| !labels.contains(name) && !is_series(name, &known));
    assert!(names.is_empty(), "{names:?}");
}

// Prometheus has a series for each replica. Where a query does not add them up, legends without the replica are the same.
#[test]
fn a_series_of_each_replica_has_the_replica_in_its_legend() {
    let mut count = 0;
    for target in targets() {
        let query = target["expr"].as_str().expect("a query");
        let legend = target["legendFormat"].as_str().expect("a legend");
        let is_added_up = ["sum", "max", "topk"].iter().any(|word| {
            query.contains(&format!("{word} by (")) || query.contains(&format!("{word}("))
        });
        if !is_added_up {
            count += 1;
            assert!(legend.contains("{{instance}}"), "{legend}: {query}");
        }
    }
    assert!(count > 30, "{count} series of each replica");
}

// These gauges are 0 without `[cluster]`, too.
#[test]
fn a_gateway_without_replicas_has_neither_a_missing_lease_nor_a_lost_connection_to_redis() {
    let targets = targets();
    for gauge in [
        "drawbridge_cluster_lease_held",
        "drawbridge_redis_connected",
    ] {
        let shown = targets
            .iter()
            .filter_map(|target| target["expr"].as_str())
            .filter(|query| query.contains(gauge));
        let of: Vec<&str> = shown.collect();
        let is_held_back = |query: &&str| {
            query.contains(" and (drawbridge_cluster_replicas{") && query.contains("} > 0 or ")
        };
        assert!(!of.is_empty() && of.iter().all(is_held_back), "{of:?}");
    }
}

#[test]
fn every_panel_that_a_page_names_is_on_the_dashboard() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let titles: Vec<_> = panels
        .iter()
        .filter_map(|panel| panel["title"].as_str())
        .collect();
    let mut named = Vec::new();
    for document in documents() {
        let page = read(&document).replace('\n', " ");
        let rest = page.split("panel *").skip(1);
        named.extend(
            rest.filter_map(|rest| rest.split('*').next())
                .map(str::to_owned),
        );
    }
    assert!(named.len() > 5, "{named:?}");
    named.retain(|title| !titles.contains(&title.as_str()));
    assert!(named.is_empty(), "{named:?}");
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

/// A metric, as the source declares it.
struct Metric {
    name: String,
    kind: MetricKind,
}

#[derive(Clone, Copy)]
enum MetricKind {
    Counter,
    Gauge,
    /// A histogram, or of the process.
    Other,
}

/// The quoted texts of the module `name` in the file of names.
fn named(module: &str) -> Vec<String> {
    let names = read(&root().join("src/telemetry/names.rs"));
    let begin = format!("{module} {{");
    let mut modules = names.split("pub mod ");
    let module = modules.find(|part| part.starts_with(&begin));
    let quoted = module.expect("a module of names").split('"');
    quoted.skip(1).step_by(2).map(str::to_owned).collect()
}

/// Labels of series.
fn labels() -> Vec<String> {
    let labels = named("attribute");
    labels.iter().map(|name| name.replace('.', "_")).collect()
}

fn metrics_with_kinds() -> Vec<Metric> {
    let others = named("metric").into_iter();
    let others = others.map(|name| Metric {
        name,
        kind: MetricKind::Other,
    });
    let tables = read(&root().join("src/telemetry/metrics.rs"));
    let mut all: Vec<Metric> = Vec::new();
    for table in tables.split("\ntable! {").skip(1) {
        let head = table
            .lines()
            .find(|line| line.contains(" of "))
            .expect("a head");
        let kind = if head.contains("Counter") {
            MetricKind::Counter
        } else {
            MetricKind::Gauge
        };
        let rows = table
            .lines()
            .filter_map(|line| line.split_once(" = \"")?.1.split_once("\" \""));
        all.extend(rows.map(|(name, _unit)| Metric {
            name: name.to_owned(),
            kind,
        }));
    }
    assert!(!all.is_empty(), "no row in the tables of instruments");
    all.extend(others);
    all
}

/// The names of all metrics.
fn metrics() -> Vec<String> {
    metrics_with_kinds()
        .into_iter()
        .map(|metric| metric.name)
        .collect()
}

#[test]
fn every_metric_is_explained() {
    let page = read(&root().join("docs/logging.md"));
    let mut missing = metrics();
    missing.retain(|name| !page.contains(&format!("`{name}`")));
    assert!(missing.is_empty(), "not in docs/logging.md: {missing:?}");
}

#[test]
fn every_label_of_a_metric_is_explained() {
    let page = read(&root().join("docs/logging.md"));
    let names = read(&root().join("src/telemetry/names.rs"));
    let tables = read(&root().join("src/telemetry/metrics.rs"));
    let rows = tables.lines().filter(|line| line.contains("\" by "));
    let labels = rows.flat_map(|row| row.split("attribute::").skip(1));
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let mut labels: Vec<&str> = labels
        .filter_map(|rest| rest.split(|c| !is_name(c)).next())
        .collect();
    labels.sort_unstable();
    labels.dedup();
    assert!(labels.len() > 4, "{labels:?}");
    for label in labels {
        let declared = format!("pub const {label}: &str = \"");
        let name = names
            .split(&declared)
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        let name = name.expect("a name").replace('.', "_");
        assert!(
            page.contains(&format!("`{name}`")),
            "{name} is not in docs/logging.md"
        );
    }
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
