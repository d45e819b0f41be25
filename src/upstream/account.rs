//! The account that a cached fact about an upstream belongs to: common to all, or one principal's. With a personal
//! credential the upstream's declaration, lists, schemas and era may differ for each principal, and may name the user.

use std::sync::Arc;
use std::time::Duration;

use crate::call::OwnerKey;
use crate::sync::lazy_cache::LazyCache;

/// Principals with a cached value, per upstream at most.
const PRINCIPALS: u64 = 4096;
/// Lifetime of a principal's value after its last use.
const IDLE: Duration = Duration::from_hours(24);

/// The account, which is part of the key of every cached fact about an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Account {
    /// The account that all principals share.
    Common,
    /// One principal's, shown to no other.
    Principal(OwnerKey),
    /// The account that a principal connected, by its connection number; `0` without an account, or while the number is
    /// unknown. Connecting another account changes the number.
    Connected(OwnerKey, i64),
}

impl Account {
    /// The key for facts of `owner` alone, where `self` may be common to all.
    #[must_use]
    pub fn private_to(self, owner: OwnerKey) -> Self {
        match self {
            Self::Common => Self::Principal(owner),
            own => own,
        }
    }

    /// The principal whose account it is; `None` where it is common to all.
    #[must_use]
    pub fn owner(self) -> Option<OwnerKey> {
        match self {
            Self::Common => None,
            Self::Principal(owner) | Self::Connected(owner, _) => Some(owner),
        }
    }

    /// The connection number; `0` where principals connect nothing.
    #[must_use]
    pub fn connection(self) -> i64 {
        match self {
            Self::Common | Self::Principal(_) => 0,
            Self::Connected(_, number) => number,
        }
    }
}

/// A value for [`Account::Common`], and one for each principal's account.
#[derive(Debug)]
pub(super) struct PerAccount<T: Send + Sync + 'static> {
    common: Arc<T>,
    own: LazyCache<Account, Arc<T>>,
}

impl<T: Send + Sync + 'static> PerAccount<T> {
    /// `common`, and no values of principals yet.
    pub(super) fn new(common: T) -> Self {
        Self {
            common: Arc::new(common),
            own: LazyCache::new(PRINCIPALS).time_to_idle(IDLE),
        }
    }

    /// The value of [`Account::Common`].
    pub(super) fn common(&self) -> &T {
        &self.common
    }

    /// The value of `account`; a principal's first one is made by `make`.
    pub(super) fn of(&self, account: Account, make: impl FnOnce() -> T) -> Arc<T> {
        match account {
            Account::Common => Arc::clone(&self.common),
            own => self.own.get_with(own, || Arc::new(make())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    fn account(subject: &str) -> Account {
        Account::Principal(Principal::new("issuer", subject, "", Vec::new(), None).owner())
    }

    #[test]
    fn each_principal_has_a_value_of_its_own() {
        let values = PerAccount::new(0);
        assert_eq!(*values.of(account("alice"), || 1), 1);
        assert_eq!(*values.of(account("bob"), || 2), 2);
        assert_eq!(*values.of(account("alice"), || 3), 1);
        let Account::Principal(alice) = account("alice") else {
            panic!("a principal's");
        };
        assert_eq!(*values.of(Account::Connected(alice, 7), || 5), 5);
        assert_eq!(*values.of(Account::Connected(alice, 8), || 6), 6);
        assert_eq!(*values.of(Account::Common, || 4), 0);
        assert_eq!(*values.common(), 0);
    }
}
