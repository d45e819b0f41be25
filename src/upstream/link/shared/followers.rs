//! The resources that the members of a shared link follow, with a bound for each member and each principal.

use std::collections::{HashMap, HashSet};

use crate::call::OwnerKey;
use crate::sync::keyed_counter::KeyedCounter;

/// Resources per member, at most.
const MAX_FOLLOWED: usize = 1024;
/// Resources of all members of one principal, at most: a quarter of what a link of the modern era follows in all,
/// so that one principal with many sessions leaves room to others.
const MAX_OF_OWNER: usize = 16 * MAX_FOLLOWED;

/// Members by followed URI.
#[derive(Debug, Default)]
pub(super) struct UriFollowers {
    by_uri: HashMap<String, HashSet<u64>>,
    counts: KeyedCounter<u64>,
    /// Principals of the members with subscriptions.
    owners: HashMap<u64, OwnerKey>,
    of_owners: KeyedCounter<OwnerKey>,
}

impl UriFollowers {
    /// Notes a subscription: whether the member did not have it before. `None` where the member, or its principal
    /// with all members, has as many as it may have.
    pub(super) fn follow(&mut self, uri: &str, member: u64, owner: OwnerKey) -> Option<bool> {
        if self.follows(uri, member) {
            return Some(false);
        }
        if self.counts.of(&member) >= MAX_FOLLOWED || self.of_owners.of(&owner) >= MAX_OF_OWNER {
            return None;
        }
        self.counts.add(member);
        self.of_owners.add(owner);
        self.owners.insert(member, owner);
        Some(
            self.by_uri
                .entry(uri.to_owned())
                .or_default()
                .insert(member),
        )
    }

    pub(super) fn follows(&self, uri: &str, member: u64) -> bool {
        let members = self.by_uri.get(uri);
        members.is_some_and(|members| members.contains(&member))
    }

    /// Ends a subscription; `true` when no member has it any more.
    pub(super) fn unfollow(&mut self, uri: &str, member: u64) -> bool {
        let Some(members) = self.by_uri.get_mut(uri) else {
            return true;
        };
        let is_removed = members.remove(&member);
        let is_last = members.is_empty();
        if is_last {
            self.by_uri.remove(uri);
        }
        if is_removed {
            self.give_back(member);
        }
        is_last
    }

    /// Ends all subscriptions of a member; those that it alone had.
    pub(super) fn leave(&mut self, member: u64) -> Vec<String> {
        let (mut ended, mut left) = (0, Vec::new());
        self.by_uri.retain(|uri, members| {
            if members.remove(&member) {
                ended += 1;
                if members.is_empty() {
                    left.push(uri.clone());
                }
            }
            !members.is_empty()
        });
        for _ in 0..ended {
            self.give_back(member);
        }
        left
    }

    /// One subscription of a member is over.
    fn give_back(&mut self, member: u64) {
        self.counts.remove(&member);
        if let Some(owner) = self.owners.get(&member) {
            self.of_owners.remove(owner);
        }
        if self.counts.of(&member) == 0 {
            self.owners.remove(&member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::samples::owner;

    // Spec: SPEC O-01.
    #[test]
    fn member_that_follows_too_much_leaves_room_to_others() {
        let (mut followers, alice) = (UriFollowers::default(), owner("alice"));
        for number in 0..MAX_FOLLOWED {
            let followed = followers.follow(&number.to_string(), 1, alice);
            assert_eq!(followed, Some(true));
        }
        assert_eq!(followers.follow("more", 1, alice), None);
        assert_eq!(followers.follow("0", 1, alice), Some(false), "it has that");
        assert_eq!(followers.follow("more", 2, alice), Some(true));
        assert_eq!(followers.follow("0", 2, alice), Some(true));
        assert!(!followers.unfollow("0", 1), "another has it");
        assert_eq!(followers.follow("more", 1, alice), Some(true));
        assert_eq!(followers.leave(1).len(), MAX_FOLLOWED - 1);
        assert_eq!(followers.follow("even more", 1, alice), Some(true));
        assert!(followers.unfollow("even more", 1));
    }

    // Spec: SPEC O-01.
    #[test]
    fn principal_with_many_sessions_leaves_room_to_others() {
        let (mut followers, alice) = (UriFollowers::default(), owner("alice"));
        for number in 0..MAX_OF_OWNER {
            let member = (number / MAX_FOLLOWED) as u64;
            let followed = followers.follow(&number.to_string(), member, alice);
            assert_eq!(followed, Some(true));
        }
        assert_eq!(followers.follow("more", 99, alice), None);
        assert_eq!(followers.follow("more", 100, owner("bob")), Some(true));
        assert_eq!(followers.leave(0).len(), MAX_FOLLOWED);
        assert_eq!(followers.follow("more", 99, alice), Some(true));
        for member in 1..=100 {
            followers.leave(member);
        }
        assert!(followers.owners.is_empty());
        assert_eq!(followers.of_owners.holders(), 0);
    }
}
