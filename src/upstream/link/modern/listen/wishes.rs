//! What the sessions at a link want to hear of, and what became of it.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::filter::Filter;
use crate::call::ServerDeclaration;
use crate::upstream::error::LinkError;
use crate::upstream::hearing::Hearing;
use crate::upstream::lock;

/// What the sessions at the link want.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) lists: bool,
    pub(super) uris: BTreeSet<String>,
}

/// What became of the latest wish.
#[derive(Debug, Clone, Default)]
pub(super) struct Settled {
    pub(super) generation: u64,
    pub(super) honoured: Arc<Filter>,
    pub(super) failed: Option<LinkError>,
}

/// The listening of one link.
#[derive(Debug)]
pub(in super::super) struct Listening {
    pub(super) wanted: Mutex<Wanted>,
    /// Counts wishes.
    pub(super) generation: watch::Sender<u64>,
    pub(super) settled: watch::Sender<Settled>,
    pub(super) running: AtomicBool,
    /// Whether changes may have been missed before the stream that is opened next.
    pub(super) missed: AtomicBool,
    /// Whether changes of lists are announced to us.
    hearing: Hearing,
}

impl Default for Listening {
    fn default() -> Self {
        Self {
            wanted: Mutex::default(),
            generation: watch::Sender::new(0),
            settled: watch::Sender::default(),
            running: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            hearing: Hearing::default(),
        }
    }
}

impl Listening {
    /// Changes what is wanted; the number of the wish.
    pub(super) fn wish(&self, change: impl FnOnce(&mut Wanted)) -> u64 {
        let mut wanted = lock(&self.wanted);
        let had_lists = wanted.lists;
        change(&mut wanted);
        if wanted.lists && !had_lists {
            self.hearing.try_again();
        }
        let mut number = 0;
        self.generation.send_modify(|generation| {
            *generation += 1;
            number = *generation;
        });
        number
    }

    pub(super) fn filter(&self, declared: &ServerDeclaration) -> Filter {
        let wanted = lock(&self.wanted);
        Filter {
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

    /// Whether no announced change of a list can be missed from now on; `true` when that is new. A
    /// stream that takes over from another goes on with its stretch.
    pub(super) fn hear(&self, hears: bool) -> bool {
        if hears {
            return self.hearing.begin();
        }
        self.hearing.end();
        false
    }

    /// No change of a list will be announced, as far as wish `number` goes: none is, or the upstream
    /// refuses to, which is remembered. Whoever waits for it waits no longer (SPEC M-75).
    pub(super) fn hear_none(&self, number: u64, is_refused: bool) {
        // No wish comes in between.
        let _wanted = lock(&self.wanted);
        self.hearing.end();
        let is_latest = *self.generation.borrow() == number;
        match (is_latest, is_refused) {
            (true, true) => self.hearing.refused(),
            (true, false) => self.hearing.give_up(),
            (false, _) => {}
        }
    }

    pub(in super::super) fn hearing(&self) -> &Hearing {
        &self.hearing
    }

    pub(super) fn settle(&self, generation: u64, honoured: Arc<Filter>, failed: Option<LinkError>) {
        self.settled.send_replace(Settled {
            generation,
            honoured,
            failed,
        });
    }
}
