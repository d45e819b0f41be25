//! `OpenError`: why a child could not be opened.

use std::io;
use std::time::Duration;

use super::environment;
use super::full::NoChildSlot;

/// Why a child could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No place under the caps, or none became free within `stdio.spawn_wait`.
    #[error("too many upstream processes are running: {full}")]
    AtCapacity {
        /// Which cap leaves none.
        full: NoChildSlot,
        /// When it may be worth trying again.
        retry_after: Duration,
    },
    /// It crashed too often lately.
    #[error("the upstream process keeps crashing")]
    Backoff {
        /// Until the next start is allowed.
        retry_after: Duration,
        /// The last words of the last child; for the same principal only.
        last_words: Option<String>,
    },
    /// There is no such program. Its text names the program and no path: it is for callers.
    #[error("its program {program:?} cannot be found")]
    NoProgram {
        /// The last part of `command`.
        program: String,
        /// What was looked for.
        #[source]
        source: io::Error,
    },
    /// Its file may not be executed. The text names no path either.
    #[error("its program {program:?} may not be executed")]
    NotExecutable {
        /// The last part of `command`.
        program: String,
        /// What was looked for.
        #[source]
        source: io::Error,
    },
    /// `cwd` names no directory. The text names no path either.
    #[error("its working directory cannot be entered")]
    NoDirectory(#[source] io::Error),
    /// The system cannot start it. Its text names no path either.
    #[error("the upstream process cannot be started: {}", .0.kind())]
    Spawn(#[from] io::Error),
    /// The gateway is stopping.
    #[error("the gateway is stopping")]
    Stopping,
}

impl OpenError {
    /// Why the program of `command` was not found.
    pub(super) fn no_program(command: &str, source: io::Error) -> Self {
        let program = environment::bare_name(command).to_owned();
        if source.kind() == io::ErrorKind::PermissionDenied {
            Self::NotExecutable { program, source }
        } else {
            Self::NoProgram { program, source }
        }
    }

    /// One word for metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::AtCapacity { .. } => "capacity",
            Self::Backoff { .. } => "backoff",
            Self::NoProgram { .. }
            | Self::NotExecutable { .. }
            | Self::NoDirectory(_)
            | Self::Spawn(_) => "system",
            Self::Stopping => "stopping",
        }
    }
}
