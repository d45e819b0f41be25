//! `ConnectionShares`: how the connection permits of a listener are shared out, and why one is taken back.

use crate::config;

/// Evicted connections that are not closed yet, at most: beyond this count, new connections are refused.
pub(super) const LEAVING: usize = 64;

/// How the places are shared out.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionShares {
    /// Open connections.
    pub(super) total: usize,
    /// Connections of one address that have not brought a good token, while places are short.
    pub(super) address: usize,
    /// Open exchanges of one principal.
    pub(super) principal: usize,
}

impl ConnectionShares {
    /// Shares from the configuration; a quarter of `max_connections` each where not configured.
    pub(super) fn new(settings: &config::HttpServerConfig) -> Self {
        let total = settings.max_connections;
        let quarter = total.div_ceil(4).max(1);
        Self {
            total,
            address: settings.connections_per_address.unwrap_or(quarter),
            principal: settings.exchange_share(),
        }
    }
}

/// Why a connection had to make room; the label of `drawbridge.connections.evicted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EvictionReason {
    /// Its address had its share of connections without a good token.
    Address,
    /// No valid token was presented.
    NoToken,
    /// Its principal had more than its share of connections.
    Share,
    /// The connection was idle.
    Idle,
}

impl EvictionReason {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::NoToken => "no_token",
            Self::Share => "share",
            Self::Idle => "idle",
        }
    }
}
