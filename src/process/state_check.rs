//! State directories that cannot be used, found before anything is made in one.

use std::io;
use std::path::Path;

use rustix::fs::{Access, access};

use super::environment::HostEnvironment;
use super::home_dirs::is_ours;

/// State directories of `host` that come before the first usable one, each with the cause: all of them where none is
/// usable, none where the first one is. Reads the file system, and makes nothing.
#[must_use]
pub fn refused_state_dirs(host: &HostEnvironment) -> Vec<String> {
    let mut refused = Vec::new();
    for directory in &host.state_dirs {
        match check(directory) {
            Ok(()) => break,
            Err(error) => refused.push(format!("{}: {error}", directory.display())),
        }
    }
    refused
}

/// Whether `directory` is ours to write in, or can be made. Without it, its nearest ancestor decides.
fn check(directory: &Path) -> io::Result<()> {
    let directory = std::path::absolute(directory)?;
    let mut existing = directory.ancestors();
    // A link that leads nowhere exists.
    let Some(found) = existing.find(|path| path.symlink_metadata().is_ok()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let writable = if found == directory && !is_ours(found) {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "not a directory of this user",
        ))
    } else if found.is_dir() {
        access(found, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from)
    } else {
        Err(io::ErrorKind::NotADirectory.into())
    };
    writable.map_err(|error| {
        if found == directory {
            error
        } else {
            let text = format!("cannot be made in {}: {error}", found.display());
            io::Error::new(error.kind(), text)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_directories_before_a_usable_one_are_named() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        let new = place.path().join("a").join("b");
        let below_file = file.join("drawbridge");
        let mut host = HostEnvironment::current();

        host.state_dirs = vec![new.clone(), file.clone()];
        assert!(refused_state_dirs(&host).is_empty());
        assert!(!place.path().join("a").exists(), "nothing is made");

        host.state_dirs = vec![file.clone(), below_file.clone(), new, file.clone()];
        let refused = refused_state_dirs(&host);
        let [first, second] = &refused[..] else {
            panic!("two: {refused:?}");
        };
        let said = format!("{}: not a directory of this user", file.display());
        assert_eq!(*first, said);
        let said = format!(
            "{}: cannot be made in {}: not a directory",
            below_file.display(),
            file.display()
        );
        assert_eq!(*second, said);
    }
}
