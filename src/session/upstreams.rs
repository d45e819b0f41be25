//! `UpstreamLinks`: the links of a session to its upstreams, and whether the accounts behind these have been looked up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::lock;
use crate::call::UpstreamLink;
use crate::vault::AccountCheck;

/// The longest self-description of a program that is compared with that of the next call, in bytes.
const MAX_PROGRAM: usize = 1024;

/// A link, and the account that it was made for.
#[derive(Debug)]
struct SessionLink {
    link: Arc<dyn UpstreamLink>,
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

/// Links by the names of upstreams. Ordered: most sessions have few, and a name is hashed no quicker than it is found.
#[derive(Debug, Default)]
pub struct UpstreamLinks(Mutex<BTreeMap<Arc<str>, SessionLink>>);

impl UpstreamLinks {
    /// The link to `upstream`, if open.
    #[must_use]
    pub fn get(&self, upstream: &str) -> Option<Arc<dyn UpstreamLink>> {
        lock(&self.0).get(upstream).map(|it| Arc::clone(&it.link))
    }

    /// The link to `upstream`, if open and if its account need not be looked up: sessions have none there, or
    /// [`set_checked`](Self::set_checked) says that it is [good](AccountCheck::is_good) at `generation`.
    #[must_use]
    pub fn checked(&self, upstream: &str, generation: u64) -> Option<Arc<dyn UpstreamLink>> {
        let links = lock(&self.0);
        let it = links.get(upstream)?;
        let account = it.account.as_ref();
        let is_good = account.is_none_or(|account| account.is_good(generation));
        is_good.then(|| Arc::clone(&it.link))
    }

    /// Whether there is a [`checked`](Self::checked) link, and the use of its account by `program` was noted.
    /// `program` is what a call says of its program, where that is not what the session's `initialize` said.
    #[must_use]
    pub fn is_checked<'p>(
        &self,
        upstream: &str,
        generation: u64,
        program: impl FnOnce() -> Option<&'p str>,
    ) -> bool {
        let links = lock(&self.0);
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
    pub fn set_checked(&self, upstream: &str, check: AccountCheck, program: Option<&str>) {
        if program.is_some_and(|program| program.len() > MAX_PROGRAM) {
            return;
        }
        let mut links = lock(&self.0);
        let account = links.get_mut(upstream).and_then(|it| it.account.as_mut());
        if let Some(account) = account.filter(|it| it.connection == check.connection()) {
            let program = program.map(|program| Bytes::copy_from_slice(program.as_bytes()));
            account.checked = Some(CheckedUse { check, program });
        }
    }

    /// The link to `upstream`, made by `make` if absent, for the account of `connection` where sessions have accounts
    /// there; `None` after the session was `closed`.
    pub fn get_or(
        &self,
        closed: &CancellationToken,
        upstream: &Arc<str>,
        connection: Option<i64>,
        make: impl FnOnce() -> Arc<dyn UpstreamLink>,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.0);
        // `closed` is cancelled before the links are taken out, so that no link is made afterwards.
        if closed.is_cancelled() {
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

    /// Takes out the link to `upstream` if it was made for another account than that of `connection`. The next call makes
    /// a new link.
    #[must_use]
    pub fn take_of_another(
        &self,
        upstream: &str,
        connection: i64,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.0);
        let account = links.get(upstream)?.account.as_ref();
        let made_for = account.map_or(0, |account| account.connection);
        let taken = (made_for != connection).then(|| links.remove(upstream));
        taken.flatten().map(|it| it.link)
    }

    /// Every link.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<dyn UpstreamLink>> {
        let links = lock(&self.0);
        links.values().map(|it| Arc::clone(&it.link)).collect()
    }

    /// Takes every link out, at the end of the session.
    pub(super) fn take_all(&self) -> Vec<Arc<dyn UpstreamLink>> {
        let links = std::mem::take(&mut *lock(&self.0));
        links.into_values().map(|it| it.link).collect()
    }
}
