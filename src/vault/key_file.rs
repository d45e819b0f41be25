//! The key file of a gateway without `keys.vault`: created once, readable by its user alone.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::config::SealKey;
use crate::secret::Secret;

/// Read and write for the owner of the file alone.
const PRIVATE: u32 = 0o600;
/// Bytes of a new key.
const KEY_LEN: usize = 32;
/// Name of the key.
const NAME: &str = "default";

/// Reads the key in `path`, and creates it first if it is missing: two processes that do so get the same key.
///
/// # Errors
/// The file cannot be read or created, or holds fewer than 32 bytes.
pub fn key_file(path: &Path) -> io::Result<SealKey> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make(path)?;
            std::fs::read_to_string(path)?
        }
        read => read?,
    };
    if std::fs::metadata(path)?.mode() & 0o077 != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(PRIVATE))?;
    }
    let key = text.trim();
    if key.len() < KEY_LEN {
        let what = "holds no key of the vault: fewer than 32 bytes";
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    Ok(SealKey {
        id: NAME.to_owned(),
        key: Secret::new(key),
    })
}

/// Writes a new key to a temporary file and links it to `path`: the file appears whole, and never replaces another.
fn make(path: &Path) -> io::Result<()> {
    let material: [u8; KEY_LEN] = rand::random();
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{:016x}", rand::random::<u64>()));
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(&beside)?;
    let written = writeln!(file, "{}", BASE64_STANDARD.encode(material))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::hard_link(&beside, path));
    std::fs::remove_file(&beside)?;
    match written {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // The directory entry must survive a power cut too, as the records sealed under the key do.
    let folder = path.parent().unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vault.key");
        let first = key_file(&path).unwrap();
        let again = key_file(&path).unwrap();
        assert_eq!(first.key.expose(), again.key.expose());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, PRIVATE);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn key_made_by_many_at_once_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vault.key");
        let keys = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| key_file(&path).unwrap().key.expose().to_owned()))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect::<std::collections::BTreeSet<_>>()
        });
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn open_key_file_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vault.key");
        std::fs::write(&path, "k".repeat(32)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        key_file(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, PRIVATE);
    }

    #[test]
    fn short_key_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vault.key");
        std::fs::write(&path, "short").unwrap();
        let error = key_file(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
