//! What the code cites is in the repository: ids of `docs/reference/requirements.md`, sections of that page, of
//! `docs/reference/bridging.md` and of `docs/architecture.md` (cited as `DESIGN`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{read, root};

/// An id such as `T-25`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    letter: char,
    number: u32,
    /// As in `C-12b`.
    suffix: String,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{:02}{}", self.letter, self.number, self.suffix)
    }
}

/// The id at the start of `text`, and the rest of `text`.
fn id(text: &str) -> Option<(Id, &str)> {
    let letter = text.chars().next().filter(char::is_ascii_uppercase)?;
    let rest = text.get(1..)?.strip_prefix('-')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number = rest.get(..digits)?.parse().ok()?;
    let rest = rest.get(digits..)?;
    let suffix = rest.chars().next().filter(char::is_ascii_lowercase);
    let rest = rest.get(suffix.map_or(0, char::len_utf8)..)?;
    let suffix = suffix.map(String::from).unwrap_or_default();
    Some((
        Id {
            letter,
            number,
            suffix,
        },
        rest,
    ))
}

/// The ids of a list such as `T-01, T-03…T-05 and C-20`, ranges expanded.
fn ids(mut text: &str) -> Vec<Id> {
    let mut out: Vec<Id> = Vec::new();
    let mut is_range = false;
    while let Some((found, rest)) = id(text) {
        match out.last() {
            Some(first) if is_range && first.letter == found.letter => {
                let (letter, range) = (found.letter, first.number + 1..found.number);
                out.extend(range.map(|number| Id {
                    letter,
                    number,
                    suffix: String::new(),
                }));
            }
            _ => {}
        }
        out.push(found);
        is_range = rest.starts_with('…') || rest.starts_with(" to ");
        let between = rest.trim_start_matches([' ', ',', '/', '…', '\n']);
        let between = between.trim_start_matches("//! ");
        let between = between.trim_start_matches("/// ");
        let between = between.trim_start_matches("// ");
        let between = between.trim_start_matches("and ");
        let between = between.trim_start_matches("to ");
        text = between.trim_start_matches("SPEC ");
    }
    out
}

/// Every file that may contain citations.
fn citing() -> Vec<PathBuf> {
    let kinds = ["rs", "md", "mjs", "py", "toml", "sh"];
    let folders = ["src", "tests", "benches", "docs", "fuzz"];
    let mut folders: Vec<PathBuf> = folders.iter().map(|name| root().join(name)).collect();
    let mut out = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default();
            if path.is_dir() && name != "node_modules" && name != "reference" && name != "target" {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|kind| kinds.iter().any(|known| kind == *known))
                && name != "citations.rs"
            {
                out.push(path);
            }
        }
    }
    out
}

/// The ids that `page` defines.
fn defined(page: &str) -> BTreeSet<Id> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("- **"));
    lines
        .filter_map(|line| id(line).map(|(id, _)| id))
        .collect()
}

/// The numbers of the sections of `page`, as they are cited: `3.4`, `2a`.
fn sections(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let titles = headings.map(|line| line.trim_start_matches(['#', ' ']));
    let numbers = titles.filter_map(|title| title.split(' ').next());
    numbers
        .map(|number| number.trim_end_matches('.').to_owned())
        .filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))
        .collect()
}

/// The sections that a citation of `document` names: `§3, §5` after its name.
fn cited_sections(text: &str, document: &str) -> Vec<String> {
    let name = format!("{document} §");
    let mut out = Vec::new();
    for (at, _) in text.match_indices(&name) {
        let mut rest = text.get(at + name.len()..).unwrap_or_default();
        loop {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.';
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let (number, after) = rest.split_at(end);
            out.push(number.trim_end_matches('.').to_owned());
            match after.strip_prefix(", §") {
                Some(more) => rest = more,
                None => break,
            }
        }
    }
    out
}

/// The ids that `text` cites.
fn cited_ids(text: &str) -> Vec<Id> {
    let found = text.match_indices("SPEC ");
    let rests = found.filter_map(|(at, name)| text.get(at + name.len()..));
    rests.flat_map(ids).collect()
}

#[test]
fn a_list_of_ids_is_read_whole() {
    let cited = cited_ids("Spec: SPEC T-01, C-12b; SPEC M-03…M-05.");
    let cited: Vec<String> = cited.iter().map(Id::to_string).collect();
    assert_eq!(cited, ["T-01", "C-12b", "M-03", "M-04", "M-05"]);
    let sections = cited_sections("DESIGN §3, §5.2. And DESIGN §6 (health)", "DESIGN");
    assert_eq!(sections, ["3", "5.2", "6"]);
}

#[test]
fn every_citation_leads_to_its_requirement() {
    let page = |path: &str| read(&root().join(path));
    let requirements = page("docs/reference/requirements.md");
    let defined = defined(&requirements);
    assert!(defined.len() > 200, "the requirements were not found");
    let documents = BTreeMap::from([
        ("SPEC", sections(&requirements)),
        ("BRIDGING", sections(&page("docs/reference/bridging.md"))),
        ("DESIGN", sections(&page("docs/architecture.md"))),
    ]);
    let mut wrong = Vec::new();
    for file in citing() {
        let text = read(&file);
        let place = |path: &Path| {
            path.strip_prefix(root())
                .unwrap_or(path)
                .display()
                .to_string()
        };
        for id in cited_ids(&text) {
            if !defined.contains(&id) {
                wrong.push(format!("{}: there is no {id}", place(&file)));
            }
        }
        for (document, sections) in &documents {
            for section in cited_sections(&text, document) {
                if !sections.contains(&section) {
                    wrong.push(format!(
                        "{}: there is no {document} §{section}",
                        place(&file)
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn requirements_that_nothing_cites_are_listed() {
    let requirements = read(&root().join("docs/reference/requirements.md"));
    let list = requirements.split("## 18. ").nth(1).expect("the list");
    let rows = list.lines().filter_map(|line| line.strip_prefix("| "));
    let listed: BTreeSet<Id> = rows.flat_map(ids).collect();
    let cited: BTreeSet<Id> = citing()
        .iter()
        .flat_map(|file| cited_ids(&read(file)))
        .collect();
    let uncited: BTreeSet<Id> = defined(&requirements).difference(&cited).cloned().collect();
    let text = |ids: Vec<&Id>| {
        ids.into_iter()
            .map(Id::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let missing = text(uncited.difference(&listed).collect());
    let stale = text(listed.difference(&uncited).collect());
    assert!(missing.is_empty(), "nothing cites {missing}");
    assert!(stale.is_empty(), "listed as uncited, but cited: {stale}");
}
