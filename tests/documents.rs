//! The documents agree with the tree: links lead somewhere, examples load, metrics are explained.
#![expect(clippy::expect_used, reason = "a test program")]

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
fn links_lead_to_files() {
    let mut broken = Vec::new();
    for document in documents() {
        for target in read(&document)
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = path.is_empty() || path.contains("://");
            if !elsewhere && !document.with_file_name(path).exists() {
                broken.push(format!("{} -> {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
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

/// The names of all metrics.
fn metrics() -> Vec<String> {
    let names = read(&root().join("src/telemetry/names.rs"));
    let metrics = names
        .split("pub mod ")
        .find(|part| part.starts_with("metric {"));
    let quoted = metrics.expect("a list of metrics").split('"');
    quoted.skip(1).step_by(2).map(str::to_owned).collect()
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
