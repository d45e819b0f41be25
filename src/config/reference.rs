//! The reference file: every key with its meaning, type and default, recorded by the reader.

use std::cell::RefCell;

use super::declarations::ConfigReference;
use super::reader::ConfigSection;
use super::report::ReadReport;
use super::source::ConfigSource;

/// The text of `config/gateway.reference.toml`.
#[must_use]
pub fn reference() -> String {
    record().write()
}

/// The top-level tables that have a key of this name, formatted for a message.
pub(super) fn tables_with(name: &str) -> Vec<String> {
    record().tables_with(name)
}

fn record() -> ConfigReference {
    let source = ConfigSource::new("gateway.reference.toml", "", &|_| None);
    let report = ReadReport::recording(&source);
    drop(ConfigSection::read_root(&report, None, super::read_all));
    report
        .reference
        .map(RefCell::into_inner)
        .unwrap_or_default()
}
