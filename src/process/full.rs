//! The cap that leaves no place for a child, and whether one session has all places under it.

use std::fmt;

/// Which cap leaves no place for a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildCap {
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
pub struct NoChildSlot {
    /// The cap that is reached.
    pub cap: ChildCap,
    /// Whether the session that asks holds every place under it: it would wait for itself.
    pub is_own: bool,
}

impl fmt::Display for NoChildSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, limit) = match self.cap {
            ChildCap::Total(limit) => ("stdio.max_children", limit),
            ChildCap::Principal(limit) => ("stdio.max_children_per_principal", limit),
            ChildCap::Upstream(limit) => ("max_children of this upstream", limit),
            ChildCap::Waiting(limit) => {
                return write!(f, "{limit} callers wait for one already");
            }
            ChildCap::Starts => return f.write_str("other processes were starting all the time"),
        };
        if self.is_own {
            write!(f, "this session holds all {limit} that {name} allows")
        } else {
            write!(f, "all {limit} that {name} allows are in use")
        }
    }
}
