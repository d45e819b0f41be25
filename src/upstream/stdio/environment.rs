//! What a child finds around it: variables and directories (DESIGN §6, SPEC D-13).

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};

use crate::call::OwnerKey;
use crate::config::StdioCarrier;

/// Our own variables that every child gets.
const INHERITED: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// Where programs are looked up when we have no `PATH` ourselves.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Readable, writable and searchable by us alone.
const PRIVATE: u32 = 0o700;

/// What the gateway's own process lends to its children.
#[derive(Debug, Clone)]
pub struct Host {
    /// The program that answers to `exec-child` and `guardian`.
    pub exe: PathBuf,
    /// Directories to keep the children's homes and caches in; the first usable one is taken.
    pub state_dirs: Vec<PathBuf>,
    /// The variables children may inherit from.
    pub environment: BTreeMap<OsString, OsString>,
}

impl Host {
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
        }
    }
}

/// Makes `path` and what is missing above it, for us alone; refuses one that others could use.
fn private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE)
        .create(path)?;
    let found = std::fs::symlink_metadata(path)?;
    let ours = found.is_dir() && found.uid() == rustix::process::getuid().as_raw();
    if !ours {
        let text = format!("{} is not a directory of ours", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if found.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

/// The directories of all children.
#[derive(Debug)]
pub(super) struct Homes {
    root: PathBuf,
    /// Children that live in a home now.
    used: Mutex<HashMap<PathBuf, usize>>,
}

/// The private directory of one (principal, upstream), while a child uses it.
#[derive(Debug)]
pub(super) struct Home {
    homes: Arc<Homes>,
    path: PathBuf,
    caches: PathBuf,
}

impl Homes {
    /// Takes the first usable directory of `candidates`.
    ///
    /// # Errors
    /// None of them can be created for us alone; the error is that of the last.
    pub(super) fn open(candidates: &[PathBuf]) -> io::Result<Arc<Self>> {
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for root in candidates {
            match private_dir(root) {
                Ok(()) => {
                    let root = std::path::absolute(root)?;
                    return Ok(Arc::new(Self {
                        root,
                        used: Mutex::default(),
                    }));
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The home of `owner` at `upstream`; nothing is created yet.
    pub(super) fn home(self: &Arc<Self>, owner: OwnerKey, upstream: &str) -> Home {
        let name: String = digest(&SHA256, owner.bytes())
            .as_ref()
            .iter()
            .take(16)
            .flat_map(|byte| [byte >> 4, byte & 15])
            .filter_map(|nibble| char::from_digit(nibble.into(), 16))
            .collect();
        let path = self.root.join("homes").join(upstream).join(name);
        let caches = self.root.join("caches").join(upstream);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used.entry(path.clone()).or_default() += 1;
        drop(used);
        Home {
            homes: Arc::clone(self),
            path,
            caches,
        }
    }

    /// Homes in use now.
    pub(super) fn in_use(&self) -> usize {
        self.used
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }
}

impl Home {
    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory and those of the package caches. Blocks.
    pub(super) fn create(&self) -> io::Result<()> {
        private_dir(&self.path)?;
        self.caches()
            .iter()
            .try_for_each(|(_, path)| private_dir(path))
    }

    /// One cache per upstream, so that `npx` and `uvx` servers start fast for everybody.
    fn caches(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("XDG_CACHE_HOME", self.caches.join("xdg")),
            ("npm_config_cache", self.caches.join("npm")),
            ("UV_CACHE_DIR", self.caches.join("uv")),
        ]
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let mut used = self
            .homes
            .used
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(count) = used.get_mut(&self.path) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            used.remove(&self.path);
            // Only an empty directory goes: what a server keeps there stays for its next start.
            drop(std::fs::remove_dir(&self.path));
        }
    }
}

/// The whole environment of a child of `carrier`; later entries of this list win: ours by the
/// inclusion list, ours by `inherit`, the private directories, `env`.
// Spec: SPEC D-13
pub(super) fn variables(
    host: &BTreeMap<OsString, OsString>,
    carrier: &StdioCarrier,
    home: &Home,
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
    for (name, value) in &carrier.env {
        all.insert(name.into(), value.expose().into());
    }
    all
}

/// Checks that `command` can be found by a child with this environment and returns what to run:
/// a relative path is tied to our working directory, a bare name stays for `PATH`.
///
/// # Errors
/// `NotFound` with a text for the operator.
pub(super) fn find_program(
    command: &str,
    environment: &BTreeMap<OsString, OsString>,
) -> io::Result<OsString> {
    let runnable = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
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
    let text = format!("no program {command:?} that can be run");
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}
