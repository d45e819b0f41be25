//! The files of an `SQLite` database: readable by their user alone.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::DatabaseError;

/// Readable and writable by us alone.
const PRIVATE: u32 = 0o600;
/// `f_type` of file systems in memory: tmpfs and ramfs (`linux/magic.h`).
const IN_MEMORY: [i128; 2] = [0x0102_1994, 0x8584_58f6];

/// Makes an empty file for us alone where there is none: `SQLite` gives `-wal` and `-shm` the mode of the file.
pub(super) fn create(path: &Path) -> Result<(), DatabaseError> {
    let made = File::options()
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(path);
    match made {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => restrict(path),
        Err(error) => Err(failed(path, error)),
    }
}

/// Takes the rights of all others to the database and its side files.
pub(super) fn restrict(path: &Path) -> Result<(), DatabaseError> {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let file = PathBuf::from(name);
        let found = match std::fs::metadata(&file) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&file, error)),
        };
        if found.mode() & 0o077 != 0 {
            let set = std::fs::set_permissions(&file, Permissions::from_mode(PRIVATE));
            set.map_err(|error| failed(&file, error))?;
        }
    }
    Ok(())
}

/// Whether `path` lies in a file system in memory, whose files end with the machine. `false` where the system does not say.
#[must_use]
pub fn is_in_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| IN_MEMORY.contains(&i128::from(found.f_type)))
}

fn failed(path: &Path, error: std::io::Error) -> DatabaseError {
    DatabaseError::File {
        path: path.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Spec: shm_overview(7): POSIX shared memory is a tmpfs at /dev/shm.
    #[test]
    fn file_system_in_memory_is_known() {
        assert!(is_in_memory(Path::new("/dev/shm")));
        for other in ["/proc", "/nowhere"] {
            assert!(!is_in_memory(Path::new(other)), "{other}");
        }
    }
}
