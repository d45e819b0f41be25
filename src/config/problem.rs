//! What is wrong with a configuration file, as an operator reads it.

use std::fmt;

/// A mistake or doubt, with its position in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The file as it was named on the command line.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The offending key, such as `upstreams.files.args[2]`; empty for the file itself.
    pub key: String,
    /// What is wrong. Never holds the content of a secret.
    pub what: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Something doubtful about a correct configuration that its text alone does not show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDoubt {
    /// The key it is about.
    pub key: String,
    /// What is doubtful.
    pub what: String,
    /// What to do about it.
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

/// Everything that keeps a file from being used, in file order, and the doubts beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The mistakes; at least one.
    pub errors: Vec<ConfigProblem>,
    /// What is legal, but probably not meant.
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
