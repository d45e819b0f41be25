//! The cap that leaves no place for a child, and whether one session has all places under it.

use std::fmt;

/// Which cap leaves no place for a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cap {
    /// `stdio.max_children`.
    Total(usize),
    /// `stdio.max_children_per_principal`.
    Principal(usize),
    /// `max_children` of the upstream.
    Upstream(usize),
    /// Callers that may wait for a place.
    Waiting(usize),
    /// `stdio.spawn_wait` has passed while others were starting.
    Starts,
}

/// Why there is no place for a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The cap that is reached.
    pub cap: Cap,
    /// Whether the session that asks holds every place under it: it would wait for itself.
    pub is_own: bool,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, limit) = match self.cap {
            Cap::Total(limit) => ("stdio.max_children", limit),
            Cap::Principal(limit) => ("stdio.max_children_per_principal", limit),
            Cap::Upstream(limit) => ("max_children of this upstream", limit),
            Cap::Waiting(limit) => {
                return write!(f, "{limit} callers wait for one already");
            }
            Cap::Starts => return f.write_str("other processes were starting all the time"),
        };
        if self.is_own {
            write!(f, "this session holds all {limit} that {name} allows")
        } else {
            write!(f, "all {limit} that {name} allows are in use")
        }
    }
}
