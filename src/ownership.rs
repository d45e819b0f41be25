//! The replica that keeps a session, a parked call or a task, as its handle names it; and whether that replica may still
//! write.

mod fence;

pub use fence::Fence;

/// A replica, and the epoch in which the replica owns a session. Sealed into the handles of sessions, parked calls
/// and tasks of a session; a handle of another ownership is refused here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ownership {
    /// Number of the replica.
    pub node: u32,
    /// Increases each time another replica takes the session over.
    pub epoch: u16,
}

impl Ownership {
    /// The owner of everything in a gateway of one process.
    pub const ALONE: Self = Self { node: 0, epoch: 0 };
    /// Bytes inside a handle.
    pub const LEN: usize = 4 + 2;
    /// Ids per epoch, as a power of two: ids of all epochs stay below 2^53, which every JSON parser represents exactly.
    const NUMBERS: u32 = 53 - u16::BITS;

    /// The bytes inside a handle.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let number = u64::from(self.node) << u16::BITS | u64::from(self.epoch);
        let [_, _, bytes @ ..] = number.to_be_bytes();
        bytes
    }

    /// The ownership at the start of `bytes`, and the remaining bytes; `None` for fewer than [`LEN`](Self::LEN) bytes.
    #[must_use]
    pub fn split_from(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (node, rest) = bytes.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let ownership = Self {
            node: u32::from_be_bytes(*node),
            epoch: u16::from_be_bytes(*epoch),
        };
        Some((ownership, rest))
    }

    /// What the record of a session says that this owner has given up: no replica owns it, in the next epoch. `None` after
    /// the last epoch.
    #[must_use]
    pub fn given_up(self) -> Option<Self> {
        let epoch = self.epoch.checked_add(1)?;
        let node = Self::ALONE.node;
        Some(Self { node, epoch })
    }

    /// Whether no replica owns the session, as its last owner has given it up.
    #[must_use]
    pub fn is_given_up(self) -> bool {
        self.node == Self::ALONE.node && self.epoch > 0
    }

    /// The base of this epoch's numbers, for ids that must differ between the epochs of a session.
    #[must_use]
    pub fn first_number(self) -> u64 {
        u64::from(self.epoch) << Self::NUMBERS
    }

    /// The base of the next epoch's numbers.
    #[must_use]
    pub fn end_of_numbers(self) -> u64 {
        (u64::from(self.epoch) + 1) << Self::NUMBERS
    }

    /// Whether `number` is the first of its epoch, which need not follow the previous number.
    #[must_use]
    pub fn begins_epoch(number: u64) -> bool {
        number & ((1 << Self::NUMBERS) - 1) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_back_and_too_few_do_not() {
        let owner = Ownership {
            node: 0x0102_0304,
            epoch: 0x0506,
        };
        let bytes = [&owner.to_bytes()[..], b"rest"].concat();
        assert_eq!(Ownership::split_from(&bytes), Some((owner, &b"rest"[..])));
        for short in 0..Ownership::LEN {
            assert_eq!(Ownership::split_from(&bytes[..short]), None);
        }
    }

    #[test]
    fn session_that_is_given_up_is_of_no_replica() {
        let owner = Ownership { node: 7, epoch: 3 };
        let given_up = owner.given_up().unwrap();
        assert_eq!(given_up, Ownership { node: 0, epoch: 4 });
        assert!(given_up.is_given_up());
        assert!(!owner.is_given_up() && !Ownership::ALONE.is_given_up());
        let last = Ownership {
            epoch: u16::MAX,
            ..owner
        };
        assert_eq!(last.given_up(), None);
    }

    #[test]
    fn numbers_of_epochs_never_meet_and_are_exact_in_json() {
        let first = |epoch| Ownership { node: 1, epoch }.first_number();
        assert_eq!(first(0), 0);
        assert!(first(1) > 100_000_000_000);
        let last = first(u16::MAX) + (first(1) - 1);
        assert_eq!(last, (1 << 53) - 1);
        let end = |epoch| Ownership { node: 1, epoch }.end_of_numbers();
        assert_eq!(end(4), first(5));
        assert!(Ownership::begins_epoch(first(3) + 1));
        assert!(!Ownership::begins_epoch(first(3)) && !Ownership::begins_epoch(first(3) + 2));
    }
}
