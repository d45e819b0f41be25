//! Programs and directories that a child needs and this machine lacks, found before any child is started.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::environment::{self, find_program};
use crate::config::StdioCarrier;

/// A key of an upstream whose program or directory does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPath {
    /// `command` or `cwd`.
    pub key: &'static str,
    /// The problem, in words for the operator. Names the value of the key.
    pub what: String,
    /// The remedy.
    pub remedy: &'static str,
}

/// The keys of `carrier` with a missing program or directory, with `host` as the gateway's own environment. Reads the
/// file system, and starts nothing.
#[must_use]
pub fn missing(host: &BTreeMap<OsString, OsString>, carrier: &StdioCarrier) -> Vec<MissingPath> {
    let mut all = Vec::new();
    let path = carrier.env.get("PATH").map(|path| path.expose().into());
    let path = path.or_else(|| host.get(OsStr::new("PATH")).cloned());
    let path = path.unwrap_or_else(|| environment::DEFAULT_PATH.into());
    let around = BTreeMap::from([(OsString::from("PATH"), path)]);
    let command = &carrier.command;
    if find_program(command, &around).is_err() {
        let (what, remedy) = if command.contains('/') {
            (
                format!("there is no program {command} that can be run"),
                "correct the path, or make the file executable",
            )
        } else {
            (
                format!("the program {command} is in no directory of PATH"),
                "install it, correct the name, or write its whole path; children get the PATH of the \
                 gateway unless `env` sets one",
            )
        };
        all.push(MissingPath {
            key: "command",
            what,
            remedy,
        });
    }
    if let Some(directory) = carrier.cwd.as_ref().filter(|directory| !directory.is_dir()) {
        all.push(MissingPath {
            key: "cwd",
            what: format!("there is no directory {}", directory.display()),
            remedy: "create it, or leave `cwd` out: each child then has a directory of its own",
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    fn host(path: &str) -> BTreeMap<OsString, OsString> {
        BTreeMap::from([("PATH".into(), path.into())])
    }

    #[test]
    fn programs_are_looked_for_in_the_path_of_the_child() {
        assert_eq!(missing(&host("/bin"), &StdioCarrier::sample("sh")), []);
        let found = missing(&host("/nowhere"), &StdioCarrier::sample("sh"));
        let expected = "the program sh is in no directory of PATH";
        assert_eq!((found[0].key, &*found[0].what), ("command", expected));
        let mut own = StdioCarrier::sample("sh");
        own.env.insert("PATH".to_owned(), Secret::new("/bin"));
        assert_eq!(missing(&host("/nowhere"), &own), []);
        let found = missing(&host("/bin"), &StdioCarrier::sample("/opt/nope/server"));
        assert!(found[0].what.contains("/opt/nope/server"), "{found:?}");
    }

    #[test]
    fn a_directory_that_is_not_there_is_missing() {
        let mut carrier = StdioCarrier::sample("sh");
        carrier.cwd = Some("/".into());
        assert_eq!(missing(&host("/bin"), &carrier), []);
        carrier.cwd = Some("/no/such/directory".into());
        let found = missing(&host("/bin"), &carrier);
        let expected = "there is no directory /no/such/directory";
        assert_eq!((found[0].key, &*found[0].what), ("cwd", expected));
    }
}
