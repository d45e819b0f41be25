//! `CheckedLinks`: the links to children, which background checks ask.

use std::sync::{Arc, Mutex, Weak};

use crate::upstream::link::negotiated::EraLink;
use crate::upstream::lock;

/// Links whose children can be asked.
#[derive(Debug, Default)]
pub(super) struct CheckedLinks {
    all: Mutex<Vec<Weak<EraLink>>>,
}

impl CheckedLinks {
    /// Remembers a link for as long as it lives.
    pub(super) fn add(&self, link: &Arc<EraLink>) {
        let mut all = lock(&self.all);
        // Cheap on average: only when the list would grow anyway.
        if all.len() == all.capacity() {
            all.retain(|link| link.strong_count() > 0);
        }
        all.push(Arc::downgrade(link));
    }

    /// The newest first.
    pub(super) fn living(&self) -> Vec<Arc<EraLink>> {
        let all = lock(&self.all);
        all.iter().rev().filter_map(Weak::upgrade).collect()
    }
}
