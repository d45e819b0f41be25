//! `LinkListening`: the change notices that the sessions of a link want, and the outcome of the latest wish.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::filter::ListenFilter;
use crate::call::ServerDeclaration;
use crate::upstream::error::LinkError;
use crate::upstream::lock;
use crate::upstream::notice_feed::NoticeFeed;

/// The change notices that the sessions of the link want.
#[derive(Debug, Default)]
pub(super) struct WantedNotices {
    pub(super) lists: bool,
    pub(super) uris: BTreeSet<String>,
}

/// The outcome of the latest wish.
#[derive(Debug, Clone, Default)]
pub(super) struct SettledWish {
    pub(super) generation: u64,
    pub(super) honoured: Arc<ListenFilter>,
    pub(super) failed: Option<LinkError>,
}

/// The state of one link's change notices.
#[derive(Debug, Default)]
pub(super) struct LinkListening {
    pub(super) wanted: Mutex<WantedNotices>,
    /// Number of the latest wish.
    pub(super) generation: watch::Sender<u64>,
    pub(super) settled: watch::Sender<SettledWish>,
    pub(super) running: AtomicBool,
    /// Whether change notices may have been missed before the next stream opens.
    pub(super) missed: AtomicBool,
    /// Whether the upstream announces list changes now.
    notice_feed: NoticeFeed,
}

impl LinkListening {
    /// Changes what is wanted; returns the number of the wish.
    pub(super) fn wish(&self, change: impl FnOnce(&mut WantedNotices)) -> u64 {
        let mut wanted = lock(&self.wanted);
        let had_lists = wanted.lists;
        change(&mut wanted);
        if wanted.lists && !had_lists {
            self.notice_feed.try_again();
        }
        let mut number = 0;
        self.generation.send_modify(|generation| {
            *generation += 1;
            number = *generation;
        });
        number
    }

    pub(super) fn filter(&self, declared: &ServerDeclaration) -> ListenFilter {
        let wanted = lock(&self.wanted);
        ListenFilter {
            lists: if wanted.lists {
                declared.announced()
            } else {
                Vec::new()
            },
            uris: wanted.uris.clone(),
        }
    }

    pub(super) fn wants_lists(&self) -> bool {
        lock(&self.wanted).lists
    }

    /// Sets whether every announced list change is received from now on; returns `true` if a new epoch begins. A stream
    /// that replaces another continues its epoch.
    pub(super) fn set_live(&self, hears: bool) -> bool {
        if hears {
            return self.notice_feed.begin();
        }
        self.notice_feed.end();
        false
    }

    /// Records that wish `number` brings no announcements of list changes: none is requested, or the upstream refuses
    /// them, which is remembered. Waiters for the notice feed are released (SPEC M-75).
    pub(super) fn hear_none(&self, number: u64, is_refused: bool) {
        // The lock keeps other wishes out.
        let _wanted = lock(&self.wanted);
        self.notice_feed.end();
        let is_latest = *self.generation.borrow() == number;
        match (is_latest, is_refused) {
            (true, true) => self.notice_feed.refused(),
            (true, false) => self.notice_feed.give_up(),
            (false, _) => {}
        }
    }

    pub(super) fn notice_feed(&self) -> &NoticeFeed {
        &self.notice_feed
    }

    pub(super) fn settle(
        &self,
        generation: u64,
        honoured: Arc<ListenFilter>,
        failed: Option<LinkError>,
    ) {
        self.settled.send_replace(SettledWish {
            generation,
            honoured,
            failed,
        });
    }
}
