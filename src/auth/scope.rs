//! Scope hierarchy: which scopes imply further scopes (SPEC A-13).

use std::collections::{BTreeMap, BTreeSet};

use crate::config::ScopeImplies;

/// Directly implied scopes, by scope.
#[derive(Debug, Default)]
pub(super) struct ScopeHierarchy(BTreeMap<String, Vec<String>>);

impl ScopeHierarchy {
    pub(super) fn new(rules: &[ScopeImplies]) -> Self {
        let mut implied: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for rule in rules {
            let below = implied.entry(rule.scope.clone()).or_default();
            below.extend_from_slice(&rule.implies);
        }
        Self(implied)
    }

    /// The granted scopes and all that they imply, however far down, each once.
    pub(super) fn expand(&self, granted: BTreeSet<String>) -> Vec<String> {
        let mut open: Vec<String> = granted.iter().cloned().collect();
        let mut all = granted;
        while let Some(scope) = open.pop() {
            for below in self.0.get(&scope).into_iter().flatten() {
                if all.insert(below.clone()) {
                    open.push(below.clone());
                }
            }
        }
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(rules: &[(&str, &[&str])], granted: &[&str]) -> Vec<String> {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let rules: Vec<ScopeImplies> = rules
            .iter()
            .map(|(scope, implies)| ScopeImplies {
                scope: (*scope).to_owned(),
                implies: owned(implies),
            })
            .collect();
        ScopeHierarchy::new(&rules).expand(owned(granted).into_iter().collect())
    }

    const RULES: [(&str, &[&str]); 3] = [
        ("admin", &["write"]),
        ("write", &["read", "list"]),
        ("list", &["write"]),
    ];

    // SPEC A-13
    #[test]
    fn a_scope_brings_all_below_it() {
        assert_eq!(
            expand(&RULES, &["admin", "x"]),
            ["admin", "list", "read", "write", "x"]
        );
    }

    #[test]
    fn a_scope_brings_nothing_above_it() {
        assert_eq!(expand(&RULES, &["read"]), ["read"]);
    }

    #[test]
    fn scopes_that_imply_each_other_come_to_an_end() {
        assert_eq!(expand(&RULES, &["list"]), ["list", "read", "write"]);
    }
}
