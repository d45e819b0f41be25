//! `ReadReport`: the errors and warnings of one reading, and the position of every value in the file.

use std::cell::RefCell;
use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::declarations::ConfigReference;
use super::problem::{ConfigErrors, ConfigProblem};
use super::source::ConfigSource;

/// Errors and warnings of one reading; shared by all its sections.
pub(super) struct ReadReport<'r> {
    pub(super) source: &'r ConfigSource<'r>,
    places: BTreeMap<String, usize>,
    errors: RefCell<Vec<ConfigProblem>>,
    warnings: RefCell<Vec<ConfigProblem>>,
    /// The recorded reference, in a run without a file.
    pub(super) reference: Option<RefCell<ConfigReference>>,
}

impl<'r> ReadReport<'r> {
    /// A report for reading `root`.
    pub(super) fn new(source: &'r ConfigSource<'r>, root: &DeTable<'_>) -> Self {
        let mut places = BTreeMap::new();
        index_table(root, "", &mut places);
        Self {
            source,
            places,
            errors: RefCell::default(),
            warnings: RefCell::default(),
            reference: None,
        }
    }

    /// A report for recording the reference.
    pub(super) fn recording(source: &'r ConfigSource<'r>) -> Self {
        Self {
            source,
            places: BTreeMap::new(),
            errors: RefCell::default(),
            warnings: RefCell::default(),
            reference: Some(RefCell::default()),
        }
    }

    /// Records an error at `key`, or at the nearest enclosing key that the file has.
    pub(super) fn error(&self, key: &str, what: impl Into<String>, hint: Option<&str>) {
        let problem = self.problem(key, self.offset(key), what.into(), hint);
        self.errors.borrow_mut().push(problem);
    }

    /// Records a warning at `key`.
    pub(super) fn warning(&self, key: &str, what: impl Into<String>, hint: Option<&str>) {
        let problem = self.problem(key, self.offset(key), what.into(), hint);
        self.warnings.borrow_mut().push(problem);
    }

    /// Records an error at a byte offset.
    pub(super) fn error_at(&self, offset: usize, key: &str, what: String, hint: Option<&str>) {
        let problem = self.problem(key, offset, what, hint);
        self.errors.borrow_mut().push(problem);
    }

    /// Whether the file has `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// Whether an error was recorded at `key` itself.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        self.errors
            .borrow()
            .iter()
            .any(|problem| problem.key == key)
    }

    /// Whether an error was recorded at `key` or below it.
    pub(super) fn has_wrong_below(&self, key: &str) -> bool {
        let errors = self.errors.borrow();
        errors.iter().any(|problem| problem.key.starts_with(key))
    }

    /// Whether any error was recorded.
    pub(super) fn has_errors(&self) -> bool {
        !self.errors.borrow().is_empty()
    }

    /// Errors and warnings, each in file order; there may be no errors.
    pub(super) fn into_problems(self) -> ConfigErrors {
        let sorted = |problems: RefCell<Vec<ConfigProblem>>| {
            let mut problems = problems.into_inner();
            problems.sort_by_key(|problem| (problem.line, problem.column));
            problems
        };
        ConfigErrors {
            errors: sorted(self.errors),
            warnings: sorted(self.warnings),
        }
    }

    fn problem(&self, key: &str, offset: usize, what: String, hint: Option<&str>) -> ConfigProblem {
        let (line, column) = self.source.place(offset);
        ConfigProblem {
            file: self.source.file.to_owned(),
            line,
            column,
            key: key.to_owned(),
            what,
            hint: hint.map(str::to_owned),
        }
    }

    fn offset(&self, key: &str) -> usize {
        let mut around = key;
        loop {
            if let Some(offset) = self.places.get(around) {
                return *offset;
            }
            match around.rfind(['.', '[']) {
                Some(end) => around = around.get(..end).unwrap_or_default(),
                None => return 0,
            }
        }
    }
}

/// Records the position of every value. Tables and their keys are indexed at the key.
fn index_table(table: &DeTable<'_>, path: &str, places: &mut BTreeMap<String, usize>) {
    for (key, value) in table {
        index_value(value, join(path, key.get_ref()), key.span().start, places);
    }
}

fn index_value(
    value: &Spanned<DeValue<'_>>,
    path: String,
    key_start: usize,
    places: &mut BTreeMap<String, usize>,
) {
    let start = match value.get_ref() {
        DeValue::Table(table) => {
            index_table(table, &path, places);
            key_start
        }
        DeValue::Array(array) => {
            for (index, item) in array.iter().enumerate() {
                index_value(item, format!("{path}[{index}]"), item.span().start, places);
            }
            value.span().start
        }
        _ => value.span().start,
    };
    places.insert(path, start);
}

/// Joins `a` and `b` to `a.b`; keys that are not bare are quoted.
pub(super) fn join(path: &str, key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let plain = !key.is_empty() && key.chars().all(bare);
    let key = if plain {
        key.to_owned()
    } else {
        format!("{key:?}")
    };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

/// The type of a value, in words.
pub(super) fn found(value: &Spanned<DeValue<'_>>) -> &'static str {
    match value.get_ref() {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_are_quoted_in_paths() {
        assert_eq!(join("upstreams", "a b"), "upstreams.\"a b\"");
    }
}
