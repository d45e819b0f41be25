//! The digest of several fields whose borders count, and digests as text.

use std::fmt::Write as _;

use aws_lc_rs::digest::{Context, SHA256};

/// SHA-256 of `fields`, each preceded by its length in eight bytes: no two lists of fields have the same bytes.
#[must_use]
pub fn digest_of<T: AsRef<[u8]>>(fields: impl IntoIterator<Item = T>) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for field in fields {
        let field = field.as_ref();
        context.update(&(field.len() as u64).to_be_bytes());
        context.update(field);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// `bytes` as hexadecimal digits, as digests stand in names.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a `String` does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_of_fields_count() {
        assert_ne!(digest_of(["a", "bc"]), digest_of(["ab", "c"]));
    }

    // Rows of the database and keys in Redis have digests of earlier versions.
    #[test]
    fn digest_is_that_of_stored_records() {
        // SHA-256 of 00 00 00 00 00 00 00 01 61 00 00 00 00 00 00 00 02 62 63.
        let begin = [0x3f, 0xaf, 0xa1, 0xcf, 0x2f, 0x19, 0xa7, 0xc1];
        assert!(digest_of(["a", "bc"]).starts_with(&begin));
    }
}
