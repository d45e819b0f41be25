//! Errors and warnings about a configuration file, as an operator reads them.

use std::fmt;

/// An error or warning, with its position in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The file, as named on the command line.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The offending key, such as `upstreams.files.args[2]`; empty for the file itself.
    pub key: String,
    /// The error. Never holds the content of a secret.
    pub what: String,
    /// The remedy.
    pub hint: Option<String>,
}

/// A warning about a valid configuration that needs more than its text, such as the answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDoubt {
    /// The key that the warning is about.
    pub key: String,
    /// The warning.
    pub what: String,
    /// The remedy; empty where `what` has it.
    pub hint: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.what)?;
        for line in self.hint.iter().flat_map(|hint| hint.lines()) {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// The errors that make a file unusable, in file order, and the warnings beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The errors; at least one.
    pub errors: Vec<ConfigProblem>,
    /// Settings that are valid, but probably a mistake.
    pub warnings: Vec<ConfigProblem>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_reads_as_place_key_fault_and_indented_hint() {
        let problem = ConfigProblem {
            file: "a.toml".to_owned(),
            line: 3,
            column: 7,
            key: "server.listn".to_owned(),
            what: "unknown key".to_owned(),
            hint: Some("did you mean `listen`?".to_owned()),
        };
        assert_eq!(
            problem.to_string(),
            "a.toml:3:7: server.listn: unknown key\n    did you mean `listen`?"
        );
    }
}
