//! Reads `src/` and fails on an import against the arrow, on a crate outside its place and on
//! files that have grown too large. The layers are the table in `src/lib.rs`.
#![expect(clippy::expect_used, clippy::panic, reason = "a test program")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crates that only some modules may name (DESIGN §13).
const CAGED: [(&str, &[&str]); 4] = [
    ("axum", &["downstream", "app"]),
    ("reqwest", &["egress", "upstream", "auth", "grants"]),
    ("redis", &["store"]),
    ("sqlx", &["store"]),
];

/// One source file without its tests.
struct Source {
    path: PathBuf,
    /// The module directly below the crate root; empty for the root and `main.rs`.
    module: String,
    code: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// Every file but those that are compiled for tests only, without inline tests.
fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    rust_files(&root(), &mut paths);
    paths.sort();
    let test_only: BTreeSet<PathBuf> = paths.iter().flat_map(|path| test_modules(path)).collect();
    let mut out = Vec::new();
    for path in paths {
        if test_only
            .iter()
            .any(|test| path.starts_with(test) || path.with_extension("") == *test)
        {
            continue;
        }
        let text = read(&path);
        let code = text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default()
            .to_owned();
        let below = path
            .strip_prefix(root())
            .expect("below src")
            .with_extension("");
        let first = below
            .iter()
            .next()
            .expect("a component")
            .to_string_lossy()
            .into_owned();
        let module = if matches!(&*first, "lib" | "main") {
            String::new()
        } else {
            first
        };
        out.push(Source { path, module, code });
    }
    out
}

/// The modules that a file declares for tests only, as paths without extension.
fn test_modules(path: &Path) -> Vec<PathBuf> {
    let text = read(path);
    let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => path.parent().expect("a folder").to_owned(),
        _ => path.with_extension(""),
    };
    let declared = text.split("#[cfg(test)]\n").skip(1).filter_map(|after| {
        let line = after.lines().next()?.trim();
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("pub(crate) ")
            .unwrap_or(line)
            .strip_prefix("mod ")?
            .strip_suffix(';')
    });
    declared.map(|name| folder.join(name)).collect()
}

/// Module → layer, from the table in `src/lib.rs`.
fn layers() -> BTreeMap<String, usize> {
    let mut layers = BTreeMap::new();
    for line in read(&root().join("lib.rs")).lines() {
        let Some(row) = line.strip_prefix("//! | ") else {
            continue;
        };
        let Some((number, rest)) = row.split_once(" | ") else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        for name in rest
            .split("[`")
            .skip(1)
            .filter_map(|part| part.split('`').next())
        {
            layers.insert(name.to_owned(), number);
        }
    }
    layers
}

/// The modules of ours that code names, as `crate::name` or in `crate::{…}`.
fn imports(code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '_')
            .collect()
    };
    let mut out = BTreeSet::new();
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    for after in code.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            out.insert(word(after));
            continue;
        };
        let mut depth = 0;
        let mut at_start = true;
        for (index, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => at_start = true,
                _ if at_start && !c.is_whitespace() => {
                    out.insert(word(&group[index..]));
                    at_start = false;
                }
                _ => {}
            }
        }
    }
    out.remove("");
    out
}

#[test]
fn every_module_has_a_layer() {
    let layers = layers();
    let modules: BTreeSet<_> = sources().into_iter().map(|source| source.module).collect();
    for module in modules.iter().filter(|module| !module.is_empty()) {
        assert!(
            layers.contains_key(module),
            "`{module}` stands in no layer of src/lib.rs"
        );
    }
}

#[test]
fn modules_use_only_what_is_lower() {
    let layers = layers();
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.module.is_empty()) {
        let own = layers.get(&source.module).copied().unwrap_or_default();
        for used in imports(&source.code) {
            if used == source.module {
                continue;
            }
            if layers.get(&used).is_some_and(|layer| *layer >= own) {
                wrong.push(format!("{} uses crate::{used}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "against the arrow:\n{}", wrong.join("\n"));
}

#[test]
fn crates_stay_in_their_places() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (name, places) in CAGED {
            let named = source.code.lines().any(|line| {
                let line = line.trim_start();
                !line.starts_with("//")
                    && (line.contains(&format!("{name}::"))
                        || line.contains(&format!("use {name}")))
            });
            if named && !places.contains(&source.module.as_str()) {
                wrong.push(format!("{} names {name}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "out of place:\n{}", wrong.join("\n"));
}

// An operator needs the cause below the outermost text: `chain(&error)`, or the error itself as a field.
#[test]
fn logged_errors_have_their_chain() {
    let mut wrong = Vec::new();
    for source in sources() {
        for line in source.code.lines() {
            if ["%error", "?error", "error = %", "error = ?"]
                .iter()
                .any(|form| line.contains(form))
            {
                wrong.push(format!("{}: {}", source.path.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "cut off:\n{}", wrong.join("\n"));
}

#[test]
fn files_stay_small() {
    let sizes = sources()
        .into_iter()
        .map(|source| (source.code.lines().count(), source.path));
    let mut sizes: Vec<_> = sizes.collect();
    sizes.sort();
    let (largest, path) = sizes.last().expect("a file");
    assert!(*largest <= 600, "{} has {largest} lines", path.display());
    let (median, _) = &sizes[sizes.len() / 2];
    assert!(*median <= 150, "the median file has {median} lines");
    let long: Vec<_> = sizes.iter().filter(|(lines, _)| *lines >= 400).collect();
    assert!(
        long.len() * 10 <= sizes.len(),
        "more than a tenth has 400 lines: {long:?}"
    );
}

#[test]
fn the_reader_of_imports_sees_groups_and_paths() {
    let code =
        "use crate::{call::{Call, link}, fault};\nlet x = crate::seal::open();\n// crate::no";
    let seen = imports(code);
    let seen: Vec<_> = seen.iter().map(String::as_str).collect();
    assert_eq!(seen, ["call", "fault", "seal"]);
}
