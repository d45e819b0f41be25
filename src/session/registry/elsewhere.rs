//! Ids of sessions that live at other replicas, as they were opened last: a further request with the same text, of the
//! same caller, need not have it opened again.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, OnceLock};

use crate::call::{BindingKey, Principal};
use crate::endpoint::Endpoint;
use crate::lock::lock;
use crate::session::SessionId;
use crate::sync::fast_maps::FastState;

/// Ids that are kept at most. An id takes the place of another one that falls into the same slot.
const SLOTS: usize = 4096;

/// Opened ids. Nothing is allocated before the first one.
#[derive(Debug, Default)]
pub(super) struct IdsOfOthers {
    slots: OnceLock<Box<[Mutex<Option<OpenedId>>]>>,
    digest: FastState,
}

/// An id that was opened for this caller and endpoint.
#[derive(Debug)]
struct OpenedId {
    text: Box<str>,
    binding: BindingKey,
    endpoint: Arc<str>,
    read: SessionId,
}

impl IdsOfOthers {
    /// The content of the id `text`, if it was opened before for this caller on this endpoint.
    pub(super) fn get(
        &self,
        text: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionId> {
        let slot = lock(self.slot(self.slots.get()?, text)?);
        let opened = slot.as_ref()?;
        let is_same = *opened.text == *text
            && opened.binding == principal.binding()
            && opened.endpoint == endpoint.name;
        is_same.then_some(opened.read)
    }

    /// Keeps what was read from an id of this caller and endpoint.
    pub(super) fn keep(
        &self,
        text: &str,
        principal: &Principal,
        endpoint: &Endpoint,
        read: SessionId,
    ) {
        let empty = || (0..SLOTS).map(|_| Mutex::default()).collect();
        if let Some(slot) = self.slot(self.slots.get_or_init(empty), text) {
            *lock(slot) = Some(OpenedId {
                text: text.into(),
                binding: principal.binding(),
                endpoint: Arc::clone(&endpoint.name),
                read,
            });
        }
    }

    fn slot<'a>(
        &self,
        slots: &'a [Mutex<Option<OpenedId>>],
        text: &str,
    ) -> Option<&'a Mutex<Option<OpenedId>>> {
        let digest = self.digest.hash_one(text);
        // The remainder is below the number of slots.
        let place = usize::try_from(digest % (SLOTS as u64)).ok()?;
        slots.get(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::Ownership;
    use crate::session::registry::tests::{endpoint, principal};

    fn session(key: u8) -> SessionId {
        SessionId {
            key: [key; 16],
            owner: Ownership { node: 1, epoch: 0 },
            issued: std::time::Duration::ZERO,
        }
    }

    #[test]
    fn id_that_was_kept_is_found_for_its_caller_and_endpoint_alone() {
        let ids = IdsOfOthers::default();
        let (alice, files) = (principal("alice"), endpoint("files"));
        assert_eq!(ids.get("a", &alice, &files), None);
        ids.keep("a", &alice, &files, session(1));
        assert_eq!(ids.get("a", &alice, &files), Some(session(1)));
        assert_eq!(ids.get("a", &principal("bob"), &files), None);
        assert_eq!(ids.get("a", &alice, &endpoint("mail")), None);
    }

    #[test]
    fn id_in_the_slot_of_another_one_takes_its_place() {
        let ids = IdsOfOthers::default();
        let (alice, files) = (principal("alice"), endpoint("files"));
        ids.keep("a", &alice, &files, session(1));
        let slots = ids.slots.get().unwrap();
        assert_eq!(slots.len(), SLOTS);
        let place = |text: &str| std::ptr::from_ref(ids.slot(slots, text).unwrap());
        let mut others = (0..1 << 20).map(|number| number.to_string());
        let other = others.find(|text| place(text) == place("a")).unwrap();
        assert_eq!(ids.get(&other, &alice, &files), None, "another text");
        ids.keep(&other, &alice, &files, session(2));
        assert_eq!(ids.get(&other, &alice, &files), Some(session(2)));
        assert_eq!(ids.get("a", &alice, &files), None);
    }
}
