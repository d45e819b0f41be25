//! Scripts: text files beside the code that runs them, called by their digest.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, cmd};

use crate::digest::hex;

/// A Lua script. It reads and writes the keys of its arguments only, all of one slot.
#[derive(Debug)]
pub struct RedisScript {
    code: &'static str,
    hash: String,
}

impl RedisScript {
    /// The script with this text.
    #[must_use]
    pub fn new(code: &'static str) -> Self {
        // Redis names scripts by SHA-1.
        let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, code.as_bytes());
        let hash = hex(digest.as_ref());
        Self { code, hash }
    }

    pub(super) fn by_hash(&self, keys: &[String], arguments: &[&[u8]]) -> Cmd {
        call("EVALSHA", &self.hash, keys, arguments)
    }

    pub(super) fn in_full(&self, keys: &[String], arguments: &[&[u8]]) -> Cmd {
        call("EVAL", self.code, keys, arguments)
    }
}

fn call(name: &str, script: &str, keys: &[String], arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd(name);
    command.arg(script).arg(keys.len());
    for key in keys {
        command.arg(key);
    }
    for argument in arguments {
        command.arg(*argument);
    }
    command
}

/// Whether the server does not have the script.
pub(super) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
