//! The environment of a child: its variables, and programs found through these (DESIGN §6, SPEC D-13).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::home_dirs::{HomeDir, first_usable, is_ours, private_dir};
use crate::config::StdioCarrier;
use crate::secret::Secret;
use crate::telemetry::redact::{cut, is_secret_name};

/// Our own variables that every child gets.
const INHERITED: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// Where programs are looked up when we have no `PATH` ourselves.
pub(super) const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Resources of the gateway's own process for its children.
#[derive(Clone)]
pub struct HostEnvironment {
    /// The program that answers to `exec-child` and `guardian`.
    pub exe: PathBuf,
    /// Directories to keep the children's homes and caches in; the first usable one is taken.
    pub state_dirs: Vec<PathBuf>,
    /// The variables children may inherit from.
    pub environment: BTreeMap<OsString, OsString>,
    /// The soft limit on file descriptors that children get, where it is not the gateway's own: programs
    /// that close every possible one at their start take long under a high limit, and `select` fails
    /// above 1,024.
    pub descriptors: Option<u64>,
}

impl fmt::Debug for HostEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the environment: it holds the operator's secrets.
        f.debug_struct("HostEnvironment")
            .field("exe", &self.exe)
            .field("state_dirs", &self.state_dirs)
            .finish_non_exhaustive()
    }
}

impl HostEnvironment {
    /// This very process: its program, its state directory, its environment.
    #[must_use]
    pub fn current() -> Self {
        let environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let under = |name: &str, rest: &str| {
            let base = environment
                .get(OsStr::new(name))
                .filter(|value| !value.is_empty());
            base.map(|base| Path::new(base).join(rest))
        };
        let temporary = format!("drawbridge-{}", rustix::process::getuid().as_raw());
        let state_dirs = [
            under("XDG_STATE_HOME", "drawbridge"),
            under("HOME", ".local/state/drawbridge"),
            Some(std::env::temp_dir().join(temporary)),
        ];
        Self {
            exe: PathBuf::from("/proc/self/exe"),
            state_dirs: state_dirs.into_iter().flatten().collect(),
            environment,
            descriptors: None,
        }
    }

    /// The file of this name in the first state directory of ours that has it.
    #[must_use]
    pub fn state_file(&self, name: &str) -> Option<PathBuf> {
        let ours = self.state_dirs.iter().filter(|dir| is_ours(dir));
        ours.map(|dir| dir.join(name)).find(|file| file.is_file())
    }

    /// The first state directory that is, or can be made, ours alone: what outlives the process lies there.
    ///
    /// # Errors
    /// None can be; the error names each of them with its cause.
    pub fn state_dir(&self) -> io::Result<&Path> {
        let contents = "database and key of the vault";
        let ours_alone = |dir| private_dir(dir).map(|()| dir);
        first_usable(&self.state_dirs, contents, ours_alone).map_err(io::Error::other)
    }
}

/// How one child is configured: as every child of its upstream, and with a secret of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChildConfig<'a> {
    /// As every child of its upstream.
    pub(super) carrier: &'a StdioCarrier,
    /// Name and value of a variable of this child alone.
    pub(super) own: Option<(&'a str, &'a Secret)>,
}

/// The whole environment of a child; later entries of this list win: ours by the inclusion list, ours by `inherit`, the
/// private directories, `env`, the variable of its own.
// Spec: SPEC D-13
pub(super) fn variables(
    host: &BTreeMap<OsString, OsString>,
    ChildConfig { carrier, own }: ChildConfig<'_>,
    home: &HomeDir,
) -> BTreeMap<OsString, OsString> {
    let mut all = BTreeMap::from([("PATH".into(), DEFAULT_PATH.into())]);
    let names = INHERITED
        .into_iter()
        .chain(carrier.inherit.iter().map(String::as_str));
    for name in names {
        if let Some(value) = host.get(OsStr::new(name)) {
            all.insert(name.into(), value.clone());
        }
    }
    all.insert("HOME".into(), home.path().into());
    for (name, path) in home.caches() {
        all.insert(name.into(), path.into());
    }
    let configured = carrier.env.iter();
    for (name, value) in configured
        .map(|(name, value)| (name.as_str(), value))
        .chain(own)
    {
        all.insert(name.into(), value.expose().into());
    }
    all
}

/// From this length on, bytes, an inherited value is hidden whatever its name.
const LONG: usize = 16;

/// Secrets of a child, to be masked elsewhere: its own, the values of `env`, and inherited ones that may be secrets.
pub(super) fn secrets<'a>(
    host: &'a BTreeMap<OsString, OsString>,
    ChildConfig { carrier, own }: ChildConfig<'a>,
) -> impl Iterator<Item = Cow<'a, str>> {
    let inherited = carrier
        .inherit
        .iter()
        .filter(|name| !INHERITED.contains(&name.as_str()))
        .filter_map(|name| {
            let value = host.get(OsStr::new(name))?.to_string_lossy();
            (value.len() >= LONG || is_secret_name(name)).then_some(value)
        });
    let configured = carrier.env.values().chain(own.map(|(_, value)| value));
    inherited.chain(configured.map(|value| value.expose().into()))
}

/// Paths of the program of `carrier` on this machine: its file, absolute arguments and directories, among them the root of
/// homes and package caches. Names without a directory are no paths: a package may have such a name.
pub(super) fn paths(carrier: &StdioCarrier, home: &HomeDir) -> Vec<String> {
    let command = Path::new(&carrier.command);
    // A relative path is tied to our own directory before it is run.
    let command = [Some(command.to_owned()), std::path::absolute(command).ok()];
    let command = command.into_iter().flatten();
    let arguments = carrier.args.iter().map(PathBuf::from);
    let directories = carrier
        .cwd
        .clone()
        .into_iter()
        .chain([home.path(), home.root()].map(Path::to_owned));
    command
        .filter(|_| carrier.command.contains('/'))
        .chain(arguments.filter(|path| path.is_absolute()))
        .chain(directories)
        .map(|path| path.to_string_lossy().into_owned())
        .collect()
}

/// Checks that `command` can be found by a child with this environment and returns what to run:
/// a relative path is tied to our working directory, a bare name stays for `PATH`.
///
/// # Errors
/// `NotFound`, or `PermissionDenied` where no file of the name may be executed; with a text for the operator.
pub(super) fn find_program(
    command: &str,
    environment: &BTreeMap<OsString, OsString>,
) -> io::Result<OsString> {
    let mut is_there = false;
    let mut runnable = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| {
            is_there |= found.is_file();
            found.is_file() && found.mode() & 0o111 != 0
        })
    };
    if command.contains('/') {
        let path = std::path::absolute(command)?;
        if runnable(&path) {
            return Ok(path.into_os_string());
        }
    } else if let Some(path) = environment.get(OsStr::new("PATH"))
        && std::env::split_paths(path).any(|dir| runnable(&dir.join(command)))
    {
        return Ok(command.into());
    }
    let (kind, text) = if is_there {
        let text = format!("{command:?} is there, and no permission to execute it");
        (io::ErrorKind::PermissionDenied, text)
    } else {
        let text = format!("no program {command:?} that can be run");
        (io::ErrorKind::NotFound, text)
    };
    Err(io::Error::new(kind, text))
}

/// Whether a child can begin in this directory.
///
/// # Errors
/// Errors of the system, with the path; `NotADirectory` for a file.
pub(super) fn check_directory(path: &Path) -> io::Result<()> {
    let found = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => io::ErrorKind::NotADirectory.into(),
        Err(error) => error,
    };
    let text = format!("{}: {found}", path.display());
    Err(io::Error::new(found.kind(), text))
}

/// The file name of a program, cut, for callers.
pub(super) fn bare_name(command: &str) -> &str {
    const MAX_NAME: usize = 64;
    cut(command.rsplit('/').next().unwrap_or_default(), MAX_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;
    use crate::process::home_dirs::HomeDirs;
    use crate::telemetry::captured::LogCapture;

    // Spec: SPEC D-13
    #[test]
    fn only_listed_variables_reach_a_child() {
        let directory = tempfile::tempdir().unwrap();
        let homes = HomeDirs::open(&[directory.path().to_owned()]).unwrap();
        let host = ["PATH", "LANG", "SECRET_TOKEN", "EXTRA", "HOME"];
        let host = host
            .map(|name| (name.into(), "ours".into()))
            .into_iter()
            .collect();
        let mut carrier = StdioCarrier::sample("server");
        carrier.inherit = vec!["EXTRA".to_owned(), "MISSING".to_owned()];
        carrier.env.insert("LANG".to_owned(), Secret::new("theirs"));
        let home = homes.home(Principal::anonymous().owner(), "up");
        let token = Secret::new("one caller's");
        let config = ChildConfig {
            carrier: &carrier,
            own: Some(("TRACKER_TOKEN", &token)),
        };
        let found = variables(&host, config, &home);
        let names: Vec<_> = found.keys().filter_map(|name| name.to_str()).collect();
        let expected = [
            "EXTRA",
            "HOME",
            "LANG",
            "PATH",
            "TRACKER_TOKEN",
            "UV_CACHE_DIR",
            "XDG_CACHE_HOME",
            "npm_config_cache",
        ];
        assert_eq!(names, expected);
        assert_eq!(found[OsStr::new("HOME")], home.path());
        assert_eq!(found[OsStr::new("LANG")], "theirs");
        assert_eq!(found[OsStr::new("TRACKER_TOKEN")], "one caller's");
    }

    // Spec: SPEC D-03
    #[test]
    fn what_a_child_is_told_is_secret_where_it_may_be_one() {
        let host = [
            ("PATH", "/usr/local/bin:/usr/bin"),
            ("USER", "root"),
            ("GH_TOKEN", "short"),
            ("LICENSE", "0123456789abcdef"),
            ("OTHER_TOKEN", "not inherited"),
        ];
        let host = host.map(|(name, value)| (name.into(), value.into())).into();
        let mut carrier = StdioCarrier::sample("server");
        let inherited = ["PATH", "USER", "GH_TOKEN", "LICENSE", "MISSING"];
        carrier.inherit = inherited.map(str::to_owned).into();
        carrier.env.insert("MODE".to_owned(), Secret::new("own"));
        let token = Secret::new("token");
        let config = ChildConfig {
            carrier: &carrier,
            own: Some(("TRACKER_TOKEN", &token)),
        };
        let secrets: Vec<_> = secrets(&host, config).collect();
        assert_eq!(secrets, ["short", "0123456789abcdef", "own", "token"]);
    }

    #[test]
    fn what_a_child_is_started_with_tells_its_paths() {
        let directory = tempfile::tempdir().unwrap();
        let homes = HomeDirs::open(&[directory.path().to_owned()]).unwrap();
        let home = homes.home(Principal::anonymous().owner(), "up");
        let own = home.path().to_str().unwrap();
        let root = homes.root().to_str().unwrap();
        let mut carrier = StdioCarrier::sample("server");
        carrier.args = ["@scope/package", "/srv/data", "https://a/b"]
            .map(str::to_owned)
            .into();
        assert_eq!(paths(&carrier, &home), ["/srv/data", own, root]);
        carrier.command = "/opt/server".to_owned();
        carrier.cwd = Some("/work".into());
        let all = [
            "/opt/server",
            "/opt/server",
            "/srv/data",
            "/work",
            own,
            root,
        ];
        assert_eq!(paths(&carrier, &home), all);
        for (_, cache) in home.caches() {
            assert!(cache.starts_with(root), "{}", cache.display());
        }
    }

    #[test]
    fn state_directory_that_is_passed_over_is_logged() {
        let directory = tempfile::tempdir().unwrap();
        let good = directory.path().join("good");
        let mut host = HostEnvironment::current();
        host.state_dirs = vec!["/proc/one".into(), good.clone()];
        let caught = LogCapture::begin();
        assert_eq!(host.state_dir().unwrap(), good);
        let lines = caught.of_level("WARN");
        let [line] = &lines[..] else {
            panic!("one line: {lines:?}")
        };
        assert_eq!(line["directory"], good.to_str().unwrap());
        let refused = line["refused"].as_str().unwrap();
        assert!(refused.starts_with("/proc/one: "), "{line}");
        host.state_dirs.remove(0);
        host.state_dir().unwrap();
        assert_eq!(caught.of_level("WARN").len(), 1, "the first one is usable");
        host.state_dirs = vec!["/proc/one".into(), "/proc/two".into()];
        let error = host.state_dir().unwrap_err().to_string();
        assert!(error.starts_with("/proc/one: "), "{error}");
        assert!(error.contains("; /proc/two: "), "{error}");
    }

    #[test]
    fn programs_are_looked_up_where_the_child_would() {
        let environment = BTreeMap::from([("PATH".into(), "/nowhere:/bin".into())]);
        assert_eq!(find_program("sh", &environment).unwrap(), "sh");
        assert_eq!(find_program("/bin/sh", &environment).unwrap(), "/bin/sh");
        for missing in ["no-such-program", "/bin/no-such-program", "/bin", ""] {
            let error = find_program(missing, &environment).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{missing}");
        }
        let error = find_program("/etc/passwd", &environment).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_file_is_no_working_directory() {
        check_directory(Path::new("/")).unwrap();
        let error = check_directory(Path::new("/etc/passwd")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        let error = check_directory(Path::new("/no/such")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
