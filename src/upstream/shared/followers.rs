//! The resources that the members of a shared link follow, with a bound for each member.

use std::collections::{HashMap, HashSet};

use crate::tally::Tally;

/// Resources per member, at most.
const MAX_FOLLOWED: usize = 1024;

/// Members by followed URI.
#[derive(Debug, Default)]
pub(super) struct Followers {
    by_uri: HashMap<String, HashSet<u64>>,
    counts: Tally<u64>,
}

impl Followers {
    /// Notes a subscription: whether the member did not have it before. `None` where the member has as many
    /// as it may have.
    pub(super) fn follow(&mut self, uri: &str, member: u64) -> Option<bool> {
        if self.follows(uri, member) {
            return Some(false);
        }
        if self.counts.of(&member) >= MAX_FOLLOWED {
            return None;
        }
        self.counts.add(member);
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
        if members.remove(&member) {
            self.counts.remove(&member);
        }
        let is_last = members.is_empty();
        if is_last {
            self.by_uri.remove(uri);
        }
        is_last
    }

    /// Ends all subscriptions of a member; those that it alone had.
    pub(super) fn leave(&mut self, member: u64) -> Vec<String> {
        let (counts, mut left) = (&mut self.counts, Vec::new());
        self.by_uri.retain(|uri, members| {
            if members.remove(&member) {
                counts.remove(&member);
                if members.is_empty() {
                    left.push(uri.clone());
                }
            }
            !members.is_empty()
        });
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Spec: SPEC O-01.
    #[test]
    fn member_that_follows_too_much_leaves_room_to_others() {
        let mut followers = Followers::default();
        for number in 0..MAX_FOLLOWED {
            assert_eq!(followers.follow(&number.to_string(), 1), Some(true));
        }
        assert_eq!(followers.follow("more", 1), None);
        assert_eq!(followers.follow("0", 1), Some(false), "it has that");
        assert_eq!(followers.follow("more", 2), Some(true));
        assert_eq!(followers.follow("0", 2), Some(true));
        assert!(!followers.unfollow("0", 1), "another has it");
        assert_eq!(followers.follow("more", 1), Some(true));
        assert_eq!(followers.leave(1).len(), MAX_FOLLOWED - 1);
        assert_eq!(followers.follow("even more", 1), Some(true));
        assert!(followers.unfollow("even more", 1));
    }
}
