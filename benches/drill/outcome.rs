//! What a check found: printed as one JSON object.

use std::io::Write as _;

use serde_json::{Map, Value, json};

/// Violations whose text is kept.
const MAX_KEPT: usize = 20;

/// Facts and violations of one check.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    violations: Vec<String>,
    count: usize,
    facts: Map<String, Value>,
}

impl Outcome {
    /// Notes a broken invariant.
    pub(crate) fn violation(&mut self, text: impl Into<String>) {
        self.count += 1;
        if self.violations.len() < MAX_KEPT {
            self.violations.push(text.into());
        }
    }

    /// Notes a broken invariant unless `holds`.
    pub(crate) fn check(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.violation(text());
        }
    }

    /// Notes a fact.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// Takes in what another part found.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.count += other.count;
        let room = MAX_KEPT.saturating_sub(self.violations.len());
        self.violations
            .extend(other.violations.into_iter().take(room));
        self.facts.extend(other.facts);
    }

    /// Prints everything; true when nothing is broken.
    pub(crate) fn report(self, check: &str) -> anyhow::Result<bool> {
        let passed = self.count == 0;
        let report = json!({
            "check": check, "passed": passed, "violations": self.count,
            "first_violations": self.violations, "facts": self.facts,
        });
        writeln!(std::io::stdout(), "{report}")?;
        Ok(passed)
    }
}
