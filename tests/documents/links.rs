//! Every link resolves; external links are listed with the day they were checked.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use crate::{documents, read, root};

/// `text` without fenced blocks and inline code, whose addresses are examples.
fn prose(text: &str) -> String {
    let mut out = String::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            // Outside backquotes, even where a span goes over several lines.
            out.push_str(line);
            out.push('\n');
        }
    }
    out.split('`').step_by(2).collect()
}

/// The targets of the links in `text`.
fn targets(text: &str) -> Vec<String> {
    let links = prose(text);
    let rest = links.split("](").skip(1);
    rest.filter_map(|rest| rest.split(')').next())
        .map(str::to_owned)
        .collect()
}

/// The anchors that a Markdown file offers, by the rule of the usual renderers.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut fenced = false;
    let mut out = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        // Of a link only its text is shown.
        let title: String = title
            .split("](")
            .enumerate()
            .map(|(i, part)| {
                if i == 0 {
                    part
                } else {
                    part.split_once(')').map_or("", |p| p.1)
                }
            })
            .collect();
        let slug: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = seen.entry(slug.clone()).or_default();
        out.insert(if *count == 0 {
            slug
        } else {
            format!("{slug}-{count}")
        });
        *count += 1;
    }
    out
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for document in documents() {
        for target in targets(&read(&document)) {
            if target.contains("://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = match path {
                "" => document.clone(),
                path => document.with_file_name(path),
            };
            let is_there = file.exists()
                && (anchor.is_empty() || file.is_file() && anchors(&read(&file)).contains(anchor));
            if !is_there {
                broken.push(format!("{} -> {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn an_anchor_is_what_renderers_make_of_a_heading() {
    let text = "# Which `era`?\n## 1. A, B\n```sh\n# no heading\n```\n## 1. A, B\n### [x](y) z";
    let expected = ["1-a-b", "1-a-b-1", "which-era", "x-z"];
    assert_eq!(anchors(text), expected.map(str::to_owned).into());
}

/// The addresses in the first column of the list of external links.
fn listed() -> BTreeSet<String> {
    let page = read(&root().join("docs/external-links.md"));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| http"));
    rows.filter_map(|row| row.split(" |").next())
        .map(|rest| format!("http{rest}"))
        .collect()
}

#[test]
fn external_links_are_https_and_listed_with_the_day_they_were_read() {
    let listed = listed();
    assert!(listed.len() > 10, "the list was not found");
    let page = read(&root().join("docs/external-links.md"));
    let mut wrong: Vec<String> = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| http")) {
        if !row.starts_with("| https://") {
            wrong.push(format!("no https: {row}"));
        }
    }
    for section in page.split("\n## ").skip(1) {
        let day = section.contains("on 20");
        for row in section.lines().filter(|line| line.starts_with("| http")) {
            let own = row.split(" | ").nth(1).is_some_and(|c| c.starts_with("20"));
            if !day && !own {
                wrong.push(format!("no day: {row}"));
            }
        }
    }
    for document in documents() {
        if document.ends_with("external-links.md") {
            continue;
        }
        for address in addresses(&document) {
            if !listed.contains(&address) {
                wrong.push(format!("{}: {address} is not listed", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The addresses that the prose of `document` leads to.
fn addresses(document: &Path) -> Vec<String> {
    let text = prose(&read(document));
    let starts = text.match_indices("http");
    let rests = starts.map(|(at, _)| text.split_at(at).1);
    rests
        .filter(|rest| rest.starts_with("http://") || rest.starts_with("https://"))
        .map(|rest| {
            let end = rest.find(|c: char| c.is_whitespace() || ")>]|\"".contains(c));
            let address = end.map_or(rest, |end| rest.split_at(end).0);
            address.trim_end_matches(['.', ',', ';']).to_owned()
        })
        .collect()
}
