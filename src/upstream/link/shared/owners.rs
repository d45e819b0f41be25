//! `MemberOwners`: whether a shared link has, or had, members of several owners.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::call::OwnerKey;

/// The owners of a link's members. Never shrinks: an upstream may log late on behalf of a member that has left.
#[derive(Debug, Default)]
pub(super) struct MemberOwners {
    first: OnceLock<OwnerKey>,
    several: AtomicBool,
}

impl MemberOwners {
    /// Notes the owner of a new member, before the member gets any message.
    pub(super) fn join(&self, owner: OwnerKey) {
        if *self.first.get_or_init(|| owner) != owner {
            self.several.store(true, Ordering::SeqCst);
        }
    }

    pub(super) fn are_several(&self) -> bool {
        self.several.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::samples::owner;

    // BRIDGING §3.5.
    #[test]
    fn second_owner_makes_them_several_for_good() {
        let owners = MemberOwners::default();
        owners.join(owner("a"));
        owners.join(owner("a"));
        assert!(!owners.are_several());
        owners.join(owner("b"));
        owners.join(owner("a"));
        assert!(owners.are_several());
    }
}
