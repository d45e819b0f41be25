//! The upstreams of a session: its links to them, and whether the accounts behind these have been looked up.

use std::sync::Arc;

use bytes::Bytes;

use super::{Session, lock};
use crate::call::UpstreamLink;
use crate::vault::AccountCheck;

/// The longest self-description of a program that is compared with that of the next call, in bytes.
const MAX_PROGRAM: usize = 1024;

/// A link, and the account that it was made for.
#[derive(Debug)]
pub(super) struct SessionLink {
    pub(super) link: Arc<dyn UpstreamLink>,
    /// Boxed: most links have none.
    account: Option<Box<LinkAccount>>,
}

/// The account of a link.
#[derive(Debug)]
struct LinkAccount {
    /// The number of its connection; `0` where it is not known.
    connection: i64,
    /// The last look-up of the account, where it was connected.
    checked: Option<CheckedUse>,
}

/// An account that was looked up, and the program whose use of it was noted.
#[derive(Debug)]
struct CheckedUse {
    check: AccountCheck,
    program: Option<Bytes>,
}

impl LinkAccount {
    fn is_good(&self, generation: u64) -> bool {
        let checked = self.checked.as_ref();
        checked.is_some_and(|checked| checked.check.is_good(generation))
    }
}

impl Session {
    /// The session's link to `upstream`, if open.
    #[must_use]
    pub fn link(&self, upstream: &str) -> Option<Arc<dyn UpstreamLink>> {
        lock(&self.links)
            .get(upstream)
            .map(|it| Arc::clone(&it.link))
    }

    /// The session's link to `upstream`, if open and if its account need not be looked up: sessions have none there, or
    /// [`account_checked`](Self::account_checked) says that it is [good](AccountCheck::is_good) at `generation`.
    #[must_use]
    pub fn checked_link(&self, upstream: &str, generation: u64) -> Option<Arc<dyn UpstreamLink>> {
        let links = lock(&self.links);
        let it = links.get(upstream)?;
        let account = it.account.as_ref();
        let is_good = account.is_none_or(|account| account.is_good(generation));
        is_good.then(|| Arc::clone(&it.link))
    }

    /// Whether there is a [`checked_link`](Self::checked_link), and the use of its account by `program` was noted.
    /// `program` is what a call says of its program, where that is not what the session's `initialize` said.
    #[must_use]
    pub fn has_checked_account<'p>(
        &self,
        upstream: &str,
        generation: u64,
        program: impl FnOnce() -> Option<&'p str>,
    ) -> bool {
        let links = lock(&self.links);
        let Some(it) = links.get(upstream) else {
            return false;
        };
        let Some(account) = &it.account else {
            return true;
        };
        let is_noted = |checked: &CheckedUse| {
            checked.check.is_good(generation)
                && checked.program.as_deref() == program().map(str::as_bytes)
        };
        account.checked.as_ref().is_some_and(is_noted)
    }

    /// Remembers that the account behind the link to `upstream` was looked up, and its use by `program` noted. Does
    /// nothing where the link is of another account.
    pub fn account_checked(&self, upstream: &str, check: AccountCheck, program: Option<&str>) {
        if program.is_some_and(|program| program.len() > MAX_PROGRAM) {
            return;
        }
        let mut links = lock(&self.links);
        let account = links.get_mut(upstream).and_then(|it| it.account.as_mut());
        if let Some(account) = account.filter(|it| it.connection == check.connection()) {
            let program = program.map(|program| Bytes::copy_from_slice(program.as_bytes()));
            account.checked = Some(CheckedUse { check, program });
        }
    }

    /// The session's link to `upstream`, made by `make` if absent, for the account of `connection` where sessions have
    /// accounts there; `None` after the session's end.
    pub fn link_or(
        &self,
        upstream: &Arc<str>,
        connection: Option<i64>,
        make: impl FnOnce() -> Arc<dyn UpstreamLink>,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.links);
        if self.closed.is_cancelled() {
            return None;
        }
        let entry = || SessionLink {
            link: make(),
            account: connection.map(|connection| {
                Box::new(LinkAccount {
                    connection,
                    checked: None,
                })
            }),
        };
        let it = links.entry(Arc::clone(upstream)).or_insert_with(entry);
        Some(Arc::clone(&it.link))
    }

    /// Takes the session's link to `upstream` if it was made for another account than that of `connection`; the next
    /// call makes another.
    #[must_use]
    pub fn take_link_of_another(
        &self,
        upstream: &str,
        connection: i64,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.links);
        let account = links.get(upstream)?.account.as_ref();
        let made_for = account.map_or(0, |account| account.connection);
        let taken = (made_for != connection).then(|| links.remove(upstream));
        taken.flatten().map(|it| it.link)
    }

    /// Every upstream link of this session.
    #[must_use]
    pub fn links(&self) -> Vec<Arc<dyn UpstreamLink>> {
        let links = lock(&self.links);
        links.values().map(|it| Arc::clone(&it.link)).collect()
    }
}
