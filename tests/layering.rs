//! Reads `src/` and fails on an import against the arrow, on a crate outside its place and on
//! files that have grown too large. The layers are the table in `src/lib.rs`.
#![expect(clippy::expect_used, clippy::panic, reason = "a test program")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crates that only some modules may name (DESIGN §13).
const CAGED: [(&str, &[&str]); 5] = [
    ("axum", &["downstream", "app"]),
    (
        "reqwest",
        &["egress", "upstream", "auth", "grants", "telemetry"],
    ),
    ("oauth2", &["grants"]),
    ("redis", &["redis_client"]),
    ("sqlx", &["database"]),
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

/// The path of a file's module, without `crate`.
fn module_path(path: &Path) -> Vec<String> {
    let below = path
        .strip_prefix(root())
        .expect("below src")
        .with_extension("");
    let parts = below.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| part != "mod").collect()
}

/// What the code of the module `own` names as `crate::…` or `super::…`, whole paths without `crate`. In `{…}` the names
/// at its outermost level.
fn targets(own: &[String], code: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let path = |text: &str| -> String { text.chars().take_while(|c| is_part(*c)).collect() };
    let mut out = BTreeSet::new();
    // `pub(in crate::…)` says who may see an item, and imports nothing.
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    let after = parts.filter_map(|part| part.split_once(')'));
    let code = after.fold(first, |code, (_, rest)| code + "pub" + rest);
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    for (at, line) in lines.clone().enumerate() {
        for head in ["crate::", "self::", "super::"] {
            let Some(start) = line.find(head) else {
                continue;
            };
            let mut rest = line.get(start + head.len()..).unwrap_or_default();
            let mut base: &[String] = if head == "self::" { own } else { &[] };
            if head == "super::" {
                base = own.split_last().map_or(&[], |(_, above)| above);
                while let Some(above) = rest.strip_prefix("super::") {
                    base = base.split_last().map_or(&[], |(_, above)| above);
                    rest = above;
                }
            }
            let named = path(rest);
            let base = base.join("::");
            let prefix = format!("{base}::{named}");
            let prefix = prefix.trim_matches(':');
            if rest[named.len()..].starts_with('{') {
                let mut group = rest[named.len() + 1..].to_owned();
                let following = lines.clone().skip(at + 1);
                if !group.contains("};") {
                    group.extend(following.take_while(|line| line.trim() != "};"));
                }
                let elements = group.split([',', '{']).map(|element| path(element.trim()));
                let elements = elements.filter(|element| !element.is_empty());
                out.extend(elements.map(|element| format!("{prefix}::{element}")));
            } else {
                out.insert(prefix.to_owned());
            }
        }
    }
    out
}

/// Rooms below a top module, and the paths that they do not name.
const ROOMS: [(&str, &[&str]); 8] = [
    // Moves messages and knows no era.
    (
        "upstream::carrier",
        &["upstream::link", "upstream::registry"],
    ),
    // One logical connection: whose it is has been decided.
    ("upstream::link", &["upstream::registry"]),
    // Tools without knowledge of their users.
    (
        "sync",
        &["address", "secret", "clock", "protocol", "runtime"],
    ),
    // Lists: nothing of carriers and of how a link speaks.
    ("catalog", &["upstream::carrier", "upstream::link"]),
    // Tasks: how a link speaks is told by what the upstream declares.
    ("tasks", &["upstream::carrier", "upstream::link"]),
    // Tokens: nothing of MCP, and of a call only its caller and the caller's token.
    (
        "grants",
        &[
            "protocol",
            "call::Call",
            "call::Reply",
            "call::DownstreamLink",
            "call::UpstreamLink",
            "call::ServerDeclaration",
        ],
    ),
    // Pure functions.
    ("translate", &["session", "runtime", "sync", "store"]),
    // Children and their lines: nothing of MCP but JSON and the id of a broken message.
    (
        "process",
        &[
            "protocol::Message",
            "protocol::Revision",
            "protocol::methods",
            "call::Call",
        ],
    ),
];

#[test]
fn rooms_import_what_they_may() {
    let mut wrong = Vec::new();
    for source in sources() {
        let own = module_path(&source.path);
        let name = own.join("::");
        let inside = |room: &str| name == room || name.starts_with(&format!("{room}::"));
        for (_, barred) in ROOMS.iter().filter(|(room, _)| inside(room)) {
            let targets = targets(&own, &source.code);
            let is_barred = |path: &&String| {
                barred
                    .iter()
                    .any(|no| path == no || path.starts_with(&format!("{no}::")))
            };
            wrong.extend(
                targets
                    .iter()
                    .filter(is_barred)
                    .map(|path| format!("{name} uses {path}")),
            );
        }
    }
    assert!(wrong.is_empty(), "out of its room:\n{}", wrong.join("\n"));
}

/// Module → the modules that it imports, whole paths.
fn module_graph() -> BTreeMap<String, BTreeSet<String>> {
    let sources: BTreeMap<String, String> = sources()
        .into_iter()
        .filter(|source| !source.module.is_empty())
        .map(|source| (module_path(&source.path).join("::"), source.code))
        .collect();
    let module_of = |target: &String| {
        let mut path = target.as_str();
        loop {
            if sources.contains_key(path) {
                return Some(path.to_owned());
            }
            path = path.rsplit_once("::")?.0;
        }
    };
    let imports = |(name, code): (&String, &String)| {
        let own: Vec<String> = name.split("::").map(str::to_owned).collect();
        let targets = targets(&own, code);
        let used = targets.iter().filter_map(module_of);
        (name.clone(), used.filter(|used| used != name).collect())
    };
    sources.iter().map(imports).collect()
}

/// All that `start` reaches over imports.
fn reached<'a>(graph: &'a BTreeMap<String, BTreeSet<String>>, start: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(next) = open.pop() {
        for used in graph.get(next).into_iter().flatten() {
            if seen.insert(used.as_str()) {
                open.push(used);
            }
        }
    }
    seen
}

#[test]
fn circles_of_imports_are_a_parent_and_its_child() {
    let graph = module_graph();
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|name| (name.as_str(), reached(&graph, name)))
        .collect();
    let mut wrong = Vec::new();
    for (name, from) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|to| to.contains(name));
        let mut circle: BTreeSet<&str> = from.iter().filter(back).copied().collect();
        circle.insert(name);
        if circle.len() > 2 {
            wrong.push(format!("{circle:?}"));
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "import each other:\n{}", wrong.join("\n"));
}

/// The type that a line begins to implement; traits of other crates count too.
fn implemented(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generic) => generic.split_once("> ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    let of = rest.split_once(" for ").map_or(rest, |(_, of)| of);
    let of = of.trim_start_matches('&');
    let is_part = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    Some(of.chars().take_while(is_part).collect())
}

#[test]
fn no_class_stands_in_more_than_three_files() {
    let mut files: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for source in sources() {
        for class in source.code.lines().filter_map(implemented) {
            let class = format!("{}::{class}", source.module);
            files.entry(class).or_default().insert(source.path.clone());
        }
    }
    let wide = files.into_iter().filter(|(_, files)| files.len() > 3);
    let wide: Vec<(String, usize)> = wide.map(|(class, files)| (class, files.len())).collect();
    assert!(wide.is_empty(), "in too many files: {wide:?}");
}

#[test]
fn the_reader_of_classes_sees_generics_and_traits() {
    let seen = [
        "impl Relay {",
        "impl<K: Eq> Leader<K> {",
        "impl Drop for Relay {",
        "impl<'a> From<&'a str> for Leader<'a> {",
    ];
    let seen = seen.map(|line| implemented(line).unwrap_or_default());
    assert_eq!(seen, ["Relay", "Leader", "Relay", "Leader"]);
}

#[test]
fn translation_waits_for_nothing() {
    let rooms = sources()
        .into_iter()
        .filter(|source| source.module == "translate");
    for source in rooms {
        for word in ["async ", ".await", "tokio::"] {
            let path = source.path.display();
            assert!(!source.code.contains(word), "{path} has `{word}`");
        }
    }
}

#[test]
fn the_map_of_rooms_names_what_exists() {
    let page = read(&root().join("../docs/architecture.md"));
    let map = page.split("### 9.1").nth(1).unwrap_or_default();
    let map = map.split("\n### ").next().unwrap_or_default();
    let rooms: Vec<&str> = map
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    for room in &rooms {
        let path = root().join(room.replace("::", "/"));
        assert!(
            path.is_dir() || path.with_extension("rs").is_file(),
            "`{room}`"
        );
    }
    for (room, _) in ROOMS {
        assert!(rooms.contains(&room), "`{room}` is not in the map");
    }
    let tops: BTreeSet<&str> = rooms
        .iter()
        .filter_map(|room| room.split("::").next())
        .collect();
    for module in layers().keys() {
        assert!(tops.contains(&**module), "`{module}` is not in the map");
    }
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
    assert!(*largest <= 500, "{} has {largest} lines", path.display());
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

#[test]
fn the_reader_of_targets_follows_super() {
    let own = ["upstream", "link", "legacy"].map(str::to_owned);
    let code = "use super::super::carrier::Carrier;\nuse super::{modern, shared::A};\nuse crate::call::{\n    Call,\n    link,\n};";
    let seen = targets(&own, code);
    let seen: Vec<_> = seen.iter().map(String::as_str).collect();
    let expected = [
        "call::Call",
        "call::link",
        "upstream::carrier::Carrier",
        "upstream::link::modern",
        "upstream::link::shared::A",
    ];
    assert_eq!(seen, expected);
}
