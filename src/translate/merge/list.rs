//! Merges the lists of several upstreams into one.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::protocol::json::{JsonError, JsonScanner, MAX_DEPTH, WalkStop};
use crate::protocol::methods::ListKind;
use crate::translate::naming::{NamePrefix, looks_like};
use crate::translate::rewrite::RewriteWalk;

/// Most items shown of one upstream, over all pages; further items are dropped.
/// Spec: SPEC G-05.
const MAX_ITEMS: usize = 10_000;
/// Bytes of one item; schemas are rarely over 20 KB.
const MAX_ITEM_BYTES: usize = 256 * 1024;
/// Items of a usual list.
const USUAL_ITEMS: usize = 100;
/// Look-alikes that are named.
const MAX_LOOKALIKES: usize = 8;

/// Builds one list result out of the lists of several upstreams, in the order of appending.
#[derive(Debug)]
pub struct ListMerger {
    kind: ListKind,
    out: String,
    shown: usize,
    dropped: usize,
    /// The upstream whose items are being appended, and their number so far.
    upstream: Option<Arc<str>>,
    count: usize,
    hasher: RandomState,
    names: HashSet<u64>,
    looks: HashSet<u64>,
    /// The name at hand, folded.
    look: String,
    lookalikes: Vec<String>,
}

/// A merged list.
#[derive(Debug, PartialEq, Eq)]
pub struct MergedList {
    /// JSON text of the list result.
    pub result: String,
    /// Items that could not be shown: without a name, ambiguous, too large, too many, or named like
    /// an earlier one. What the filter left out is not among them.
    pub dropped: usize,
    /// Some names that look like an earlier name, for a warning.
    pub lookalikes: Vec<String>,
}

impl ListMerger {
    /// An empty list of `kind`.
    #[must_use]
    pub fn new(kind: ListKind) -> Self {
        Self {
            kind,
            out: format!("{{\"{}\":[", kind.member()),
            shown: 0,
            dropped: 0,
            upstream: None,
            count: 0,
            hasher: RandomState::new(),
            names: HashSet::with_capacity(USUAL_ITEMS),
            looks: HashSet::with_capacity(USUAL_ITEMS),
            look: String::new(),
            lookalikes: Vec::new(),
        }
    }

    /// Appends the items of one upstream: the JSON text of its array of items, or of the next page of
    /// it. `is_shown` is called with each name or URI in the upstream's spelling. A flawed item is
    /// dropped; the others stay.
    ///
    /// # Errors
    /// When the text is no array. Then no item of the page is shown.
    pub fn append(
        &mut self,
        prefix: &NamePrefix,
        items: &str,
        mut is_shown: impl FnMut(&str) -> bool,
    ) -> Result<(), JsonError> {
        let before = (self.out.len(), self.shown);
        self.out.reserve(items.len() + items.len() / 16);
        let mut scanner = JsonScanner::new(items, MAX_DEPTH);
        let mut walk = RewriteWalk::new(prefix);
        if self.upstream.as_ref() != Some(prefix.upstream()) {
            self.upstream = Some(Arc::clone(prefix.upstream()));
            self.count = 0;
        }
        let counted = self.count;
        let walked = scanner.array(|scanner| {
            self.count += 1;
            if self.count > MAX_ITEMS {
                self.dropped += 1;
                return Ok(scanner.value().map(drop)?);
            }
            self.item(scanner, &mut walk, prefix, &mut is_shown)
        });
        let whole = walked.and_then(|()| Ok(scanner.finish()?));
        whole.map_err(|stop| {
            self.out.truncate(before.0);
            self.shown = before.1;
            self.count = counted;
            stop.at(scanner.offset())
        })
    }

    /// Appends an item of the gateway itself, JSON text, as it is.
    pub fn append_own(&mut self, item: &str) {
        if self.shown > 0 {
            self.out.push(',');
        }
        self.out.push_str(item);
        self.shown += 1;
    }

    /// The list.
    #[must_use]
    pub fn finish(mut self) -> MergedList {
        self.out.push_str("]}");
        MergedList {
            result: self.out,
            dropped: self.dropped,
            lookalikes: self.lookalikes,
        }
    }

    fn item<'t>(
        &mut self,
        scanner: &mut JsonScanner<'t>,
        walk: &mut RewriteWalk<'t>,
        prefix: &NamePrefix,
        is_shown: &mut impl FnMut(&str) -> bool,
    ) -> Result<(), WalkStop> {
        scanner.peek();
        let start = scanner.clone();
        walk.splices.clear();
        let original = match walk.item(scanner, self.kind) {
            Ok(key) => key.and_then(|raw| raw.decode().ok()),
            Err(WalkStop::Ambiguous(_)) => {
                scanner.clone_from(&start);
                scanner.value()?;
                None
            }
            Err(flaw) => return Err(flaw),
        };
        let span = start.offset()..scanner.offset();
        let Some(original) = original.filter(|_| span.len() <= MAX_ITEM_BYTES) else {
            self.dropped += 1;
            return Ok(());
        };
        if !is_shown(&original) {
            return Ok(());
        }
        if !self.is_first(prefix, &original) {
            self.dropped += 1;
            return Ok(());
        }
        if self.shown > 0 {
            self.out.push(',');
        }
        walk.splices.append(&mut self.out, scanner.text(), span);
        self.shown += 1;
        Ok(())
    }

    /// Whether nothing was shown under the same name or URI yet; notes look-alikes.
    fn is_first(&mut self, prefix: &NamePrefix, original: &str) -> bool {
        // A URL that clients fetch themselves is shown bare: the first upstream owns it.
        let owner = match self.kind {
            ListKind::Resources | ListKind::Templates | ListKind::Skills
                if prefix.uri(original) == original =>
            {
                ""
            }
            _ => prefix.upstream(),
        };
        if !self.names.insert(self.hasher.hash_one((owner, original))) {
            return false;
        }
        self.look.clear();
        self.look.extend(looks_like(original));
        let look = self.hasher.hash_one((owner, self.look.as_str()));
        if !self.looks.insert(look) && self.lookalikes.len() < MAX_LOOKALIKES {
            self.lookalikes.push(prefix.name(original));
        }
        true
    }
}

#[cfg(test)]
mod tests;
