//! The buffer of one body: its memory is taken out of the byte budget before bytes are kept.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::budget::{
    BudgetExhausted, BudgetHolder, BudgetLease, ByteBudget, EXEMPT_BYTES, ReservePermit,
};

/// First step of a body without `Content-Length` that is larger than one read buffer, bytes.
const FIRST_STEP: usize = 64 << 10;

/// Source of the memory of a body.
#[derive(Debug)]
pub(super) enum BodyMemory<'a> {
    /// The caller's share; no lease before the body is larger than one buffer.
    Share(&'a Arc<ByteBudget>, BudgetHolder, Option<BudgetLease>),
    /// The reserve.
    Reserve(ReservePermit),
}

/// Why a piece was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutOfMemory {
    /// The body is longer than it may be.
    TooLarge,
    /// The byte budget has no room.
    NoRoom(BudgetExhausted),
}

/// The bytes of a body so far.
#[derive(Debug)]
pub(super) struct CollectedBody<'a> {
    limit: usize,
    /// Its `Content-Length`.
    announced: Option<usize>,
    room: BodyMemory<'a>,
    /// The first piece, not copied: most bodies have only one.
    first: Bytes,
    all: BytesMut,
}

impl<'a> BodyMemory<'a> {
    /// In the share of `holder`.
    pub(super) fn share(budget: &'a Arc<ByteBudget>, holder: BudgetHolder) -> Self {
        Self::Share(budget, holder, None)
    }

    pub(super) fn grow_to(&mut self, len: usize) -> Result<(), BudgetExhausted> {
        match self {
            Self::Share(budget, holder, lease) if len > EXEMPT_BYTES => {
                let empty = || BudgetLease::empty(Arc::clone(budget), *holder);
                lease.get_or_insert_with(empty).grow_to(len)
            }
            Self::Share(..) | Self::Reserve(_) => Ok(()),
        }
    }

    pub(super) fn hold(self, message: Bytes) -> Bytes {
        match self {
            Self::Share(_, _, Some(lease)) => lease.hold(message),
            Self::Share(_, _, None) => message,
            Self::Reserve(permit) => permit.hold(message),
        }
    }
}

impl<'a> CollectedBody<'a> {
    /// Begins a body of at most `limit` bytes, with the `announced` length.
    ///
    /// # Errors
    /// The announced length has no room, or is over the limit.
    pub(super) fn begin(
        limit: usize,
        announced: Option<u64>,
        mut room: BodyMemory<'a>,
    ) -> Result<Self, OutOfMemory> {
        let announced = match announced.map(usize::try_from) {
            Some(Ok(len)) if len <= limit => Some(len),
            Some(_) => return Err(OutOfMemory::TooLarge),
            None => None,
        };
        room.grow_to(announced.unwrap_or_default())
            .map_err(OutOfMemory::NoRoom)?;
        Ok(Self {
            limit,
            announced,
            room,
            first: Bytes::new(),
            all: BytesMut::new(),
        })
    }

    /// Keeps the next piece.
    ///
    /// # Errors
    /// The piece exceeds a limit; none of its bytes is kept.
    pub(super) fn push(&mut self, piece: &Bytes) -> Result<(), OutOfMemory> {
        let len = self.first.len() + self.all.len() + piece.len();
        if len > self.limit {
            return Err(OutOfMemory::TooLarge);
        }
        if self.first.is_empty() && self.all.is_empty() {
            self.room.grow_to(len).map_err(OutOfMemory::NoRoom)?;
            self.first = piece.clone();
            return Ok(());
        }
        if len > self.all.capacity() {
            let wanted = self.announced.unwrap_or_else(|| self.step(len)).max(len);
            self.room.grow_to(wanted).map_err(OutOfMemory::NoRoom)?;
            self.all.reserve(wanted - self.all.len());
        }
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
        self.all.extend_from_slice(piece);
        Ok(())
    }

    /// How much to make room for, so that a long body is moved a few times only.
    fn step(&self, len: usize) -> usize {
        let doubled = len.saturating_mul(2);
        let wanted = if len > EXEMPT_BYTES {
            doubled.max(FIRST_STEP)
        } else {
            doubled.min(EXEMPT_BYTES)
        };
        wanted.min(self.limit)
    }

    /// The bytes so far; their lease lives as long as any slice of them.
    pub(super) fn finish(self) -> Bytes {
        let whole = if self.all.is_empty() {
            self.first
        } else {
            self.all.freeze()
        };
        self.room.hold(whole)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const KIB: usize = 1 << 10;

    fn share(budget: &Arc<ByteBudget>) -> BodyMemory<'_> {
        BodyMemory::share(
            budget,
            BudgetHolder::Address(IpAddr::V4(Ipv4Addr::LOCALHOST).into()),
        )
    }

    fn budget(share: usize) -> Arc<ByteBudget> {
        ByteBudget::new(64 << 20, share, 1 << 20)
    }

    #[test]
    fn announced_body_takes_its_room_before_it_comes() {
        let budget = budget(512 * KIB);
        let kept = CollectedBody::begin(1 << 20, Some(200 << 10), share(&budget));
        assert_eq!(budget.used(), 400 * KIB);
        let refused = CollectedBody::begin(1 << 20, Some(200 << 10), share(&budget));
        assert_eq!(
            refused.err(),
            Some(OutOfMemory::NoRoom(BudgetExhausted::Share))
        );
        drop(kept);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn body_without_a_length_takes_its_room_as_it_comes() {
        let budget = budget(512 * KIB);
        let mut body = CollectedBody::begin(1 << 20, None, share(&budget)).unwrap();
        let piece = Bytes::from(vec![b'x'; 5 * KIB]);
        let mut kept = 3;
        for _ in 0..kept {
            body.push(&piece).unwrap();
        }
        assert_eq!(budget.used(), 0, "one buffer is free");
        let full = loop {
            match body.push(&piece) {
                Ok(()) => kept += 1,
                Err(full) => break full,
            }
            assert!(budget.used() >= kept * piece.len(), "{kept} pieces");
        };
        assert_eq!(full, OutOfMemory::NoRoom(BudgetExhausted::Share));
        let begun = body.finish();
        assert_eq!(begun.len(), kept * piece.len());
        assert_eq!(budget.used(), 2 * begun.len());
    }

    #[test]
    fn whole_body_weighs_what_it_is() {
        let budget = budget(1 << 20);
        let mut body = CollectedBody::begin(1 << 20, None, share(&budget)).unwrap();
        let piece = Bytes::from(vec![b'x'; 50 * KIB]);
        body.push(&piece).unwrap();
        body.push(&piece).unwrap();
        assert_eq!(
            body.push(&Bytes::from(vec![0; 1 << 20])),
            Err(OutOfMemory::TooLarge)
        );
        let whole = body.finish();
        assert_eq!((whole.len(), budget.used()), (100 * KIB, 200 * KIB));
        drop(whole);
        assert_eq!(budget.used(), 0);
    }
}
