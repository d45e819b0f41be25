//! The files of `config/` are what they claim to be.

use std::path::{Path, PathBuf};

use super::{Config, load, parse, reference};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name)
}

fn read(path: &Path) -> Config {
    let text = std::fs::read_to_string(path).unwrap();
    // Every variable is set, and long enough to be a key.
    let env = |name: &str| Some(format!("the-value-of-{name}-which-is-long-enough"));
    match parse(&text, &path.to_string_lossy(), &env) {
        Ok(config) => config,
        Err(refusal) => panic!("{refusal}"),
    }
}

#[test]
fn the_reference_file_is_up_to_date() {
    let written = std::fs::read_to_string(folder("gateway.reference.toml")).unwrap();
    assert!(
        written == reference(),
        "config/gateway.reference.toml is stale: run `make reference`"
    );
}

#[test]
fn the_small_file_and_the_quickstart_load_without_a_doubt() {
    assert!(load(&folder("gateway.toml")).unwrap().warnings.is_empty());
    assert!(
        load(&folder("quickstart.toml"))
            .unwrap()
            .warnings
            .is_empty()
    );
}

#[test]
fn every_example_loads_without_a_doubt() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder("examples")).unwrap() {
        let config = read(&entry.unwrap().path());
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        seen += 1;
    }
    assert!(seen >= 5, "{seen} examples");
}
