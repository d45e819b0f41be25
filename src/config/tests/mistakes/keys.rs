//! `[keys]`.

use rstest::rstest;

use super::{OPEN, assert_refused};

// Columns: lines added to a valid file, the place, the cause, the remedy.
#[rstest]
#[case::missing_file(
    "[keys]\nseal = [{ id = \"k1\", file = \"gone\" }]",
    "6:29: keys.seal[0].file: ",
    "etc/gone: No such file",
    "begins at the directory of this file"
)]
#[case::short_key(
    "[keys]\nseal = [{ id = \"k1\", key = \"short\" }]",
    "6:9: keys.seal[0]: ",
    "shorter than 32 bytes",
    "make one with: openssl rand -base64 32"
)]
#[case::no_key(
    "[keys]\nseal = [{ id = \"k1\" }]",
    "6:9: keys.seal[0]: ",
    "needs `file` or `key`",
    "file = \"seal.key\", or key = \"${NAME}\" for a"
)]
#[case::keys_of_one_id(
    "[keys]\nseal = [{ id = \"k1\", key = \"0123456789abcdef0123456789abcdef\" }, { id = \"k1\", key = \"fedcba9876543210fedcba9876543210\" }]",
    "6:73: keys.seal[1].id: ",
    "two keys have this id",
    "give each key an id of its own"
)]
fn a_mistake_is_refused(
    #[case] lines: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(&format!("{OPEN}{lines}\n"), place, cause, remedy);
}
