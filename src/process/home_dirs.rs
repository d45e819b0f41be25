//! The private directories of children: a home per principal and upstream, caches per upstream, all
//! below a root that no other gateway uses at the same time. Spec: DESIGN §6; SPEC D-13.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};

use crate::call::OwnerKey;
use crate::digest::hex;
use crate::lock::lock;
use crate::sync::keyed_counter::KeyedCounter;

/// Where the homes are, below the root.
const HOMES: &str = "homes";

/// Readable, writable and searchable by us alone.
const PRIVATE: u32 = 0o700;

/// Creates `path` and missing parents, for us alone; refuses a directory open to further users.
pub(super) fn private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE)
        .create(path)?;
    let found = std::fs::symlink_metadata(path)?;
    if !is_ours(path) {
        let text = format!("{} is not a directory of ours", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if found.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

/// Whether `path` is a directory that belongs to our user: in the temporary directory anyone could have made it.
pub(super) fn is_ours(path: &Path) -> bool {
    let uid = rustix::process::getuid().as_raw();
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == uid)
}

/// Takes the first of `candidates` that `open` can, for `contents`, and logs where that is not the first one of all.
///
/// # Errors
/// `open` refuses them all: the text names each of them with its cause.
pub(super) fn first_usable<'a, T>(
    candidates: &'a [PathBuf],
    contents: &str,
    open: impl Fn(&'a Path) -> io::Result<T>,
) -> Result<T, String> {
    let mut refused: Vec<String> = Vec::new();
    for directory in candidates {
        match open(directory) {
            Ok(opened) => {
                if !refused.is_empty() {
                    let is_last = refused.len() + 1 == candidates.len();
                    log_passed_over(contents, directory, &refused.join("; "), is_last);
                }
                return Ok(opened);
            }
            Err(error) => refused.push(format!("{}: {error}", directory.display())),
        }
    }
    Err(refused.join("; "))
}

/// Logs that `contents` are in `directory`, as the candidates before it are `refused`: a warning for the last one, the
/// temporary directory, which may be emptied at any time.
fn log_passed_over(contents: &str, directory: &Path, refused: &str, is_last: bool) {
    let directory = directory.display();
    if is_last {
        tracing::warn!(
            contents,
            %directory,
            refused,
            "state is kept in the temporary directory, which may be emptied: the state directory cannot be used"
        );
    } else {
        tracing::info!(contents, %directory, refused, "another state directory is used");
    }
}

/// Tries while the last holder's guardian is still at work.
const TRIES: u32 = 1_000;

/// Between two of them.
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// Takes the lock in `file`; `None` when another gateway holds it.
fn lock_file(file: &Path) -> io::Result<Option<File>> {
    let mut lock = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(file)?;
    for _ in 0..TRIES {
        match lock.try_lock() {
            Ok(()) => {
                lock.set_len(0)?;
                write!(lock, "{}", std::process::id())?;
                return Ok(Some(lock));
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let holder: u32 = std::fs::read_to_string(file)?.parse().unwrap_or(0);
        if Path::new(&format!("/proc/{holder}")).exists() {
            return Ok(None);
        }
        std::thread::sleep(TRY_AGAIN);
    }
    Ok(None)
}

/// Gateways that may share one state directory, each with its own part of it.
const MAX_SHARES: u32 = 64;

/// The directories of all children.
#[derive(Debug)]
pub(super) struct HomeDirs {
    root: PathBuf,
    /// Held while the gateway or its guardian lives: a process with a path below `root` is a child of ours.
    lock: File,
    /// Children that live in a home now.
    used: Mutex<KeyedCounter<PathBuf>>,
}

/// The private directory of one (principal, upstream), while a child uses it.
#[derive(Debug)]
pub(super) struct HomeDir {
    homes: Arc<HomeDirs>,
    path: PathBuf,
    caches: PathBuf,
}

impl HomeDirs {
    /// Takes a part of the first usable directory of `candidates`: the same part at every start,
    /// unless another gateway holds it.
    ///
    /// # Errors
    /// None of them can be created for us alone; the error names each of them with its cause.
    pub(super) fn open(candidates: &[PathBuf]) -> io::Result<Arc<Self>> {
        let homes = first_usable(candidates, "homes of children", Self::share_of);
        homes.map(Arc::new).map_err(|refused| {
            io::Error::other(format!(
                "no directory for the homes of children can be used; name one in XDG_STATE_HOME that the user of the gateway \
                 may write in: {refused}"
            ))
        })
    }

    fn share_of(directory: &Path) -> io::Result<Self> {
        private_dir(directory)?;
        let directory = std::path::absolute(directory)?;
        for share in 0..MAX_SHARES {
            let root = directory.join(share.to_string());
            private_dir(&root)?;
            if let Some(lock) = lock_file(&root.join("lock"))? {
                return Ok(Self {
                    root,
                    lock,
                    used: Mutex::default(),
                });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// The lock on the root, for the guardian: the next gateway must not take the root while the guardian still kills
    /// processes that carry it.
    pub(super) fn lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// The directory that all homes and caches are below.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The home of `owner` at `upstream`; nothing is created yet.
    pub(super) fn home(self: &Arc<Self>, owner: OwnerKey, upstream: &str) -> HomeDir {
        let digest = digest(&SHA256, owner.bytes());
        let name = hex(digest.as_ref().get(..16).unwrap_or_default());
        let path = self.root.join(HOMES).join(upstream).join(name);
        let caches = self.root.join("caches").join(upstream);
        self.used().add(path.clone());
        HomeDir {
            homes: Arc::clone(self),
            path,
            caches,
        }
    }

    /// Whether a process that carries these directories of ours belongs to a living child. Its
    /// home decides; without one, any child will do.
    pub(super) fn are_used(&self, marks: &[PathBuf]) -> bool {
        let homes = self.root.join(HOMES);
        let used = self.used();
        let home = marks.iter().find(|mark| mark.starts_with(&homes));
        home.map_or_else(|| used.holders() > 0, |home| used.of(home) > 0)
    }

    /// Homes in use now.
    pub(super) fn in_use(&self) -> usize {
        self.used().holders()
    }

    fn used(&self) -> MutexGuard<'_, KeyedCounter<PathBuf>> {
        lock(&self.used)
    }
}

impl HomeDir {
    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that all homes and caches are below.
    pub(super) fn root(&self) -> &Path {
        self.homes.root()
    }

    /// Creates the directory and those of the package caches. Blocks.
    pub(super) fn create(&self) -> io::Result<()> {
        private_dir(&self.path)?;
        self.caches()
            .iter()
            .try_for_each(|(_, path)| private_dir(path))
    }

    /// The caches of the upstream, shared by all principals, so that `npx` and `uvx` servers start fast.
    pub(super) fn caches(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("XDG_CACHE_HOME", self.caches.join("xdg")),
            ("npm_config_cache", self.caches.join("npm")),
            ("UV_CACHE_DIR", self.caches.join("uv")),
        ]
    }
}

impl Drop for HomeDir {
    fn drop(&mut self) {
        let mut used = lock(&self.homes.used);
        used.remove(&self.path);
        if used.of(&self.path) == 0 {
            // Removes only an empty directory: files of a server stay for its next start.
            drop(std::fs::remove_dir(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::samples::owner;
    use crate::telemetry::captured::LogCapture;

    fn homes() -> (tempfile::TempDir, Arc<HomeDirs>) {
        let directory = tempfile::tempdir().unwrap();
        let homes = HomeDirs::open(&[directory.path().join("state")]).unwrap();
        (directory, homes)
    }

    #[test]
    fn directories_that_cannot_be_used_are_all_named() {
        let candidates = ["/proc/one", "/proc/two"].map(PathBuf::from);
        let error = HomeDirs::open(&candidates).unwrap_err().to_string();
        assert!(
            error.contains("/proc/one: ") && error.contains("/proc/two: "),
            "{error}"
        );
    }

    #[test]
    fn a_home_belongs_to_one_principal_and_upstream() {
        let (_directory, homes) = homes();
        let home = |who, upstream| homes.home(owner(who), upstream).path().to_owned();
        assert_eq!(home("alice", "up"), home("alice", "up"));
        assert_ne!(home("alice", "up"), home("bob", "up"));
        assert_ne!(home("alice", "up"), home("alice", "other"));
    }

    #[test]
    fn homes_are_private_and_go_when_empty() {
        let (_directory, homes) = homes();
        let (first, second) = (homes.home(owner("a"), "up"), homes.home(owner("a"), "up"));
        first.create().unwrap();
        let path = first.path().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, PRIVATE);
        drop(first);
        assert!(path.exists(), "another child uses it");
        drop(second);
        assert!(!path.exists());
        assert_eq!(homes.in_use(), 0);
    }

    #[test]
    fn what_a_server_kept_in_its_home_stays() {
        let (_directory, homes) = homes();
        let home = homes.home(owner("a"), "up");
        home.create().unwrap();
        let kept = home.path().join("kept");
        std::fs::write(&kept, "1").unwrap();
        drop(home);
        assert!(kept.exists());
    }

    #[test]
    fn two_gateways_never_share_a_root() {
        let (directory, homes) = homes();
        let other = HomeDirs::open(&[directory.path().join("state")]).unwrap();
        assert_ne!(homes.root(), other.root());
        let first = homes.root().to_owned();
        drop(homes);
        let again = HomeDirs::open(&[directory.path().join("state")]).unwrap();
        assert_eq!(again.root(), first);
    }

    #[test]
    fn a_directory_that_cannot_be_ours_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        let candidates = [
            directory.path().join("file/below"),
            directory.path().join("good"),
        ];
        let homes = HomeDirs::open(&candidates).unwrap();
        assert!(homes.root().starts_with(&candidates[1]));
        assert!(HomeDirs::open(&candidates[..1]).is_err());
    }

    #[test]
    fn directory_that_is_passed_over_is_logged() {
        let directory = tempfile::tempdir().unwrap();
        let good = directory.path().join("good");
        let caught = LogCapture::begin();
        let candidates = [
            "/proc/one".into(),
            good.clone(),
            directory.path().join("last"),
        ];
        let homes = HomeDirs::open(&candidates).unwrap();
        assert!(homes.root().starts_with(&good));
        let lines = caught.of_level("INFO");
        let [line] = &lines[..] else {
            panic!("one line: {lines:?}")
        };
        let refused = line["refused"].as_str().unwrap();
        assert!(refused.starts_with("/proc/one: "), "{line}");
        assert_eq!(line["contents"], "homes of children");
        assert_eq!(line["directory"], good.to_str().unwrap());
        assert!(caught.of_level("WARN").is_empty());
        HomeDirs::open(&candidates[..2]).unwrap();
        assert_eq!(caught.of_level("WARN").len(), 1, "the last one");
        HomeDirs::open(&candidates[1..]).unwrap();
        let lines = [caught.of_level("INFO"), caught.of_level("WARN")].concat();
        assert_eq!(lines.len(), 2, "the first one was usable");
    }

    #[test]
    fn a_link_is_not_taken_for_a_directory_of_ours() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(HomeDirs::open(&[link]).is_err());
    }

    #[test]
    fn a_stray_belongs_to_its_home_as_long_as_a_child_lives_there() {
        let (_directory, homes) = homes();
        let home = homes.home(owner("a"), "up");
        let (path, cache) = (home.path().to_owned(), homes.root().join("caches/up/npm"));
        let marks = [cache.clone(), path];
        assert!(homes.are_used(&marks));
        drop(home);
        let _other = homes.home(owner("b"), "up");
        assert!(!homes.are_used(&marks));
        assert!(homes.are_used(&[cache]), "its home is unknown");
    }
}
