//! `PagePermits`: how many requests for the connect pages are answered at once, of one client address and in all.
//!
//! A visitor has brought no token yet: the bytes of a form, up to 32 KiB for `server.body_timeout`, are in no caller's share
//! of the byte budget, and one HTTP/2 connection can send 256 forms at once.

use std::sync::{Arc, Mutex};

use crate::address::ClientNetwork;
use crate::lock::lock;
use crate::sync::keyed_counter::KeyedCounter;

/// Requests of one client address at once. A person has one or two; a proxy that is not trusted has those of all persons
/// behind it.
const PER_ADDRESS: usize = 64;
/// Requests at once in all: their forms take 16 MiB at most.
const TOTAL: usize = 512;

/// The permits for requests for pages.
#[derive(Debug, Default)]
pub(super) struct PagePermits {
    running: Mutex<KeyedCounter<ClientNetwork>>,
}

/// The permit of one request for a page, given back on drop.
#[derive(Debug)]
#[must_use = "the request counts until the permit is dropped"]
pub(super) struct PagePermit {
    permits: Arc<PagePermits>,
    client: ClientNetwork,
}

impl PagePermits {
    /// A permit for a request of `client`; `None` where the address, or all addresses together, have as many as they may.
    pub(super) fn enter(self: &Arc<Self>, client: ClientNetwork) -> Option<PagePermit> {
        let mut running = lock(&self.running);
        if running.of(&client) >= PER_ADDRESS || running.total() >= TOTAL {
            return None;
        }
        running.add(client);
        Some(PagePermit {
            permits: Arc::clone(self),
            client,
        })
    }
}

impl Drop for PagePermit {
    fn drop(&mut self) {
        lock(&self.permits.running).remove(&self.client);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(number: usize) -> ClientNetwork {
        let bits = u32::try_from(number).unwrap();
        IpAddr::V4(Ipv4Addr::from_bits(bits)).into()
    }

    #[test]
    fn pages_of_one_address_leave_room_for_another() {
        let permits = Arc::<PagePermits>::default();
        let enter = |number| permits.enter(client(number));
        let held: Vec<_> = (0..PER_ADDRESS).map(|_| enter(1).unwrap()).collect();
        assert!(enter(1).is_none());
        assert!(enter(2).is_some());
        drop(held);
        assert!(enter(1).is_some());
    }

    #[test]
    fn pages_of_many_addresses_are_bounded() {
        let permits = Arc::<PagePermits>::default();
        let enter = |number| permits.enter(client(number));
        let held: Vec<_> = (0..TOTAL).map(|number| enter(number).unwrap()).collect();
        assert!(enter(TOTAL).is_none());
        drop(held);
        assert!(enter(TOTAL).is_some());
    }
}
