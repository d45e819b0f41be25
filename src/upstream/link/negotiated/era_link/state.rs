//! `NegotiatedState`: the link of the era that was found, and what every use of it passes on.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::future::BoxFuture;

use crate::call::{Call, Reply, ServerDeclaration};
use crate::protocol::{Era, Message};
use crate::upstream::error::LinkError;
use crate::upstream::link::legacy::LegacyLink;
use crate::upstream::link::modern::ModernServerLink;

/// The link of the era that was found.
#[derive(Debug, Clone)]
pub(super) enum NegotiatedState {
    /// `presumed` until it has shaken hands.
    Legacy {
        link: Arc<LegacyLink>,
        presumed: Arc<AtomicBool>,
    },
    Modern(Arc<ModernServerLink>),
}

impl NegotiatedState {
    pub(super) fn era(&self) -> Era {
        match self {
            Self::Legacy { .. } => Era::Legacy,
            Self::Modern(_) => Era::Modern,
        }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Legacy { link, .. }, Self::Legacy { link: other, .. }) => {
                Arc::ptr_eq(link, other)
            }
            (Self::Modern(link), Self::Modern(other)) => Arc::ptr_eq(link, other),
            _ => false,
        }
    }

    /// Each era needs room of its own size.
    pub(super) fn call<'a>(
        &'a self,
        request: &'a Message,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, LinkError>> {
        match self {
            Self::Legacy { link, .. } => Box::pin(link.call_inner(request, call)),
            Self::Modern(link) => Box::pin(link.call_inner(request, call)),
        }
    }

    pub(super) fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, LinkError>> {
        match self {
            Self::Legacy { link, .. } => Box::pin(link.open_inner()),
            Self::Modern(link) => Box::pin(link.open_inner()),
        }
    }

    pub(super) fn listen(&self, wanted: bool) {
        match self {
            Self::Legacy { link, .. } => link.listen(wanted),
            Self::Modern(link) => link.listen(wanted),
        }
    }

    /// Closes the link, whether or not the future is polled, which resolves when that is done.
    pub(super) fn close(&self) -> BoxFuture<'static, ()> {
        match self {
            Self::Legacy { link, .. } => Box::pin(link.close()),
            Self::Modern(link) => Box::pin(link.close()),
        }
    }
}
