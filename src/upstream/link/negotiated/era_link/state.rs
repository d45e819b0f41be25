//! `NegotiatedState`: the link of the negotiated era, and the methods that both eras share.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::presumption::EraPresumption;
use crate::call::{Call, Reply, ServerDeclaration};
use crate::protocol::{Era, Message};
use crate::upstream::error::LinkError;
use crate::upstream::link::legacy::LegacyLink;
use crate::upstream::link::modern::ModernServerLink;

/// The link of the negotiated era.
#[derive(Debug, Clone)]
pub(super) enum NegotiatedState {
    /// A legacy link.
    Legacy {
        link: Arc<LegacyLink>,
        presumption: EraPresumption,
    },
    /// A modern link.
    Modern(Arc<ModernServerLink>),
}

impl NegotiatedState {
    /// The legacy `link`, whose era does not depend on the success of its handshake.
    pub(super) fn legacy(link: Arc<LegacyLink>) -> Self {
        let presumption = EraPresumption::none();
        Self::Legacy { link, presumption }
    }

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

    /// Boxed per era, since the futures differ in size.
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
            Self::Modern(link) => link.notices().listen(wanted),
        }
    }

    /// Closes the link, even if the returned future is never polled; it resolves when the link is closed.
    pub(super) fn close(&self) -> BoxFuture<'static, ()> {
        match self {
            Self::Legacy { link, .. } => Box::pin(link.close()),
            Self::Modern(link) => Box::pin(link.close()),
        }
    }
}
