//! `[keys]`.

use std::collections::BTreeSet;

use super::reader::{ConfigSection, read_keys};
use super::types::{KeysConfig, SealKey};

/// The least key material, in bytes.
const MIN_KEY_BYTES: usize = 32;

/// A key of a ring, and whether a file has it, also the configuration itself.
struct RingKey {
    key: SealKey,
    is_in_file: bool,
}

/// Reads `[keys]`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> KeysConfig {
    read_keys!(s => let {
        /// Keys for the handles we give out: the first seals, all open. Each is { id = "k1", file = "seal.key" } with
        /// at least 32 bytes of random text in the file (openssl rand -base64 32), or key = "${NAME}" instead of the
        /// file. Without any, a random key per process. With one, requests of 2026-07-28 may go on at another process.
        /// Sessions live in memory and are unknown after a restart either way.
        seal: inline_list(one),
        /// Keys of the accounts in `[database]`, like `seal`: the first seals, all open. Without any, vault.key in the
        /// state directory, made once; PostgreSQL needs one. A lost key disconnects every account. Keep them in another
        /// backup than the database.
        vault: inline_list(one),
    });
    let [seal, vault] = [seal, vault].map(|keys| ring(s, keys));
    KeysConfig {
        vault_in_file: vault.iter().position(|one| one.is_in_file),
        seal: seal.into_iter().map(|one| one.key).collect(),
        vault: vault.into_iter().map(|one| one.key).collect(),
    }
}

/// The keys of one list; reports keys with the same id.
fn ring(s: &ConfigSection<'_>, keys: Vec<(String, RingKey)>) -> Vec<RingKey> {
    let mut seen = BTreeSet::new();
    for (path, RingKey { key, .. }) in &keys {
        if !seen.insert(&key.id) {
            let hint = Some("give each key an id of its own");
            let path = format!("{path}.id");
            s.report.error(&path, "two keys have this id", hint);
        }
    }
    keys.into_iter().map(|(_, key)| key).collect()
}

/// Reads one key, with its place: unusable keys are left out, and would shift an index.
fn one(s: &mut ConfigSection<'_>) -> Option<(String, RingKey)> {
    let id = s.key("id", "Short name.").required("k1");
    let file = s.key("file", "File with the key.").secret_file();
    let key = s.key("key", "The key itself.");
    let is_in_file = !key.has_variable();
    let key = key.key_material();
    if id.len() > 16 || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        s.error(
            "id",
            "not a key id: up to 16 letters, digits and hyphens",
            None,
        );
    }
    let key = match (file, key) {
        (Some(key), None) | (None, Some(key)) => key,
        (Some(_), Some(_)) => {
            s.error("key", "stands beside `file`", Some("a key has one of them"));
            return None;
        }
        (None, None) => {
            if !s.has("file") && !s.has("key") {
                let hint = "file = \"seal.key\", or key = \"${NAME}\" for a variable";
                s.error("", "needs `file` or `key`", Some(hint));
            }
            return None;
        }
    };
    if key.expose().len() < MIN_KEY_BYTES {
        let hint = "make one with: openssl rand -base64 32";
        s.error("", "the key is shorter than 32 bytes", Some(hint));
    }
    let key = SealKey { id, key };
    Some((s.path.clone(), RingKey { key, is_in_file }))
}
