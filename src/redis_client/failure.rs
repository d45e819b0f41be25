//! Why a command has no answer.

use std::io;
use std::path::PathBuf;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use rustix::io::Errno;

/// In the error of a script whose server refuses writes, before version 7 of Redis.
const READONLY_IN_SCRIPT: &str = " -READONLY ";

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisFailure {
    /// There is no connection now: the command was not sent.
    #[error("Redis is not connected")]
    NotConnected,
    /// Too many commands are under way: this one was not sent.
    #[error("too many commands to Redis are under way")]
    TooManyCommands,
    /// No answer came in time: the command may have run.
    #[error("Redis did not answer in time")]
    Silent,
    /// The connection broke: the command may have run.
    #[error("the connection to Redis broke")]
    Broken(#[source] RedisError),
    /// Redis refused the command.
    #[error("Redis refused a command")]
    Refused(#[source] RedisError),
    /// No sentinel knows a master of this name.
    #[error("no sentinel knows a master named {0:?}")]
    NoMaster(String),
    /// The server cannot be written to: it is a replica, or still loads its data.
    #[error("Redis cannot be written to: {0}")]
    NotWritable(&'static str),
    /// A file of `cluster.redis` cannot be read.
    #[error("cannot read {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
}

impl RedisFailure {
    /// One word for metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotConnected => "not_connected",
            Self::TooManyCommands => "too_many",
            Self::Silent => "timeout",
            Self::Broken(_) => "broken",
            Self::Refused(_) => "refused",
            Self::NoMaster(_) => "no_master",
            Self::NotWritable(_) => "not_writable",
            Self::File { .. } => "file",
        }
    }

    /// What helps where a connection cannot be made.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoMaster(_) => "correct the name of the master in `cluster.redis`",
            Self::NotWritable(_) => {
                "name the master in `cluster.redis`, or wait until it has loaded its data"
            }
            Self::Broken(error) if lacks_descriptors(error) => {
                "raise the limit on file descriptors (ulimit -n, LimitNOFILE of systemd)"
            }
            _ => {
                "start Redis where `cluster.redis` says, or correct its address, user, password or certificates there"
            }
        }
    }

    /// Whether the command may have run.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Silent | Self::Broken(_))
    }

    /// Whether the connection is of no more use. A server that refuses writes may have lost its role: the next
    /// connection looks for the master.
    pub(super) fn ends_connection(&self) -> bool {
        match self {
            Self::Silent | Self::Broken(_) => true,
            Self::Refused(error) => match error.kind() {
                ErrorKind::Server(
                    ServerErrorKind::ReadOnly
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::BusyLoading,
                ) => true,
                // Before version 7 Redis says why a command of a script failed inside the error of the script.
                ErrorKind::Server(ServerErrorKind::ResponseError) => {
                    let detail = error.detail();
                    detail.is_some_and(|detail| detail.contains(READONLY_IN_SCRIPT))
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// Whether this process, or this machine, had no file descriptor left. Read from the text: the crate keeps the error of the
/// system to itself, and that of a Cluster as text only.
fn lacks_descriptors(error: &RedisError) -> bool {
    let text = error.to_string();
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|errno| text.contains(&format!("(os error {})", errno.raw_os_error())))
}

impl From<RedisError> for RedisFailure {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(_)
            | ErrorKind::Extension
            | ErrorKind::UnexpectedReturnType
            | ErrorKind::Client => Self::Refused(error),
            _ => Self::Broken(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn refused(reply: &str) -> RedisFailure {
        let parsed = parse_redis_value(reply.as_bytes());
        RedisFailure::from(parsed.and_then(Value::extract_error).unwrap_err())
    }

    #[test]
    fn server_that_refuses_writes_is_given_up() {
        let of_7 = "-READONLY You can't write against a read only replica. script: f3d1, on @user_script:25.\r\n";
        assert!(refused(of_7).ends_connection());
        let of_6 = "-ERR Error running script (call to f_f3d1): @user_script:25: @user_script: 25: \
            -READONLY You can't write against a read only replica.\r\n";
        assert!(refused(of_6).ends_connection());
    }

    #[test]
    fn lack_of_descriptors_is_not_called_a_fault_of_redis() {
        for errno in [Errno::MFILE, Errno::NFILE] {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            let text = error.to_string();
            let of_cluster = (ErrorKind::Io, "Failed to create initial connections", text);
            for error in [RedisError::from(error), RedisError::from(of_cluster)] {
                let remedy = RedisFailure::from(error).remedy();
                assert!(remedy.contains("file descriptors"), "{remedy}");
            }
        }
        let refused = io::Error::from_raw_os_error(Errno::CONNREFUSED.raw_os_error());
        let remedy = RedisFailure::from(RedisError::from(refused)).remedy();
        assert!(remedy.contains("start Redis"), "{remedy}");
    }

    #[test]
    fn server_that_refuses_one_script_is_kept() {
        let full = "-ERR Error running script (call to f_f3d1): @user_script:25: @user_script: 25: \
            -OOM command not allowed when used memory > 'maxmemory'.\r\n";
        assert!(!refused(full).ends_connection());
    }
}
