//! The image is built from all files that the program needs.

use std::collections::BTreeSet;

use crate::{read, root};

/// The folders of the tree that `src` includes texts from, itself among them.
fn included() -> BTreeSet<String> {
    let base = root().canonicalize().expect("the tree");
    let mut folders = vec![base.join("src")];
    let mut out = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            for rest in read(&path).split("include_str!(\"").skip(1) {
                let name = rest.split('"').next().unwrap_or_default();
                let file = folder.join(name).canonicalize();
                let file = file.expect("an included file");
                let below = file.strip_prefix(&base).expect("a file of the tree");
                let first = below.components().next().expect("a folder");
                out.insert(first.as_os_str().to_string_lossy().into_owned());
            }
        }
    }
    out
}

#[test]
fn every_text_that_the_program_includes_reaches_the_build_of_the_image() {
    let recipe = read(&root().join("Dockerfile"));
    let context = read(&root().join(".dockerignore"));
    let folders = included();
    assert!(
        folders.contains("config") && folders.contains("src"),
        "{folders:?}"
    );
    for folder in folders {
        let copied = format!("COPY {folder} ./{folder}");
        let is_copied = recipe.lines().any(|line| line == copied);
        assert!(is_copied, "the Dockerfile has no line `{copied}`");
        let kept = format!("!{folder}");
        let is_kept = context.lines().any(|line| line == kept);
        assert!(is_kept, ".dockerignore has no line `{kept}`");
    }
}
