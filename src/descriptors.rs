//! File descriptors: how many this process may have open, and how many the configuration may use.
//!
//! A process that has used up its descriptors accepts no connection, not even a probe, and starts no
//! child. So the soft limit is raised to the hard limit, and settings that do not fit are reported.

mod fit;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use self::fit::DescriptorFit;

/// The limit on file descriptors of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The soft limit that the process was started with, restored for its children; `None` for unlimited.
    pub inherited: Option<u64>,
    /// How many may be open now.
    pub limit: usize,
}

/// How many descriptors may be open once the soft limit is raised.
#[must_use]
pub fn attainable() -> usize {
    count(getrlimit(Resource::Nofile).maximum)
}

/// Raises the soft limit to the hard limit. If the system refuses, the soft limit is unchanged.
#[must_use]
pub fn raise() -> DescriptorLimit {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    DescriptorLimit {
        inherited: current,
        limit: count(limit),
    }
}

fn count(limit: Option<u64>) -> usize {
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    limit.unwrap_or(usize::MAX)
}
