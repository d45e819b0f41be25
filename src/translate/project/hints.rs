//! Cache hints of a result: lifetime and scope. Spec: SPEC M-80, M-83, M-85; BRIDGING §5.5.

use std::time::Duration;

use crate::protocol::{Message, json};
use crate::translate::merge::DISCOVERED_MS;

/// Cache scope: which clients may share a cached result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CacheScope {
    /// Everybody.
    Public,
    /// One authorization context.
    Private,
}

/// Cache hints: lifetime and scope of a result. Spec: SPEC M-80.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CacheHints {
    /// Milliseconds.
    pub(crate) ttl_ms: u64,
    pub(crate) scope: CacheScope,
}

impl CacheScope {
    /// The JSON text.
    pub(crate) fn as_json(self) -> &'static str {
        match self {
            Self::Public => "\"public\"",
            Self::Private => "\"private\"",
        }
    }
}

impl CacheHints {
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        ttl_ms: 0,
        scope: CacheScope::Private,
    };

    /// What follows from declarations and rules alone: as our own discovery of them.
    pub(crate) const DECLARED: Self = Self {
        ttl_ms: DISCOVERED_MS,
        scope: CacheScope::Private,
    };

    /// For one authorization context, for `ttl`.
    pub(crate) fn private(ttl: Duration) -> Self {
        Self {
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(0),
            scope: CacheScope::Private,
        }
    }

    /// What takes nothing from any other.
    pub(crate) const ANY: Self = Self {
        ttl_ms: 24 * 60 * 60 * 1000,
        scope: CacheScope::Public,
    };

    /// What holds for two parts together (SPEC M-83).
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        let public = self.scope == CacheScope::Public && other.scope == CacheScope::Public;
        Self {
            ttl_ms: self.ttl_ms.min(other.ttl_ms),
            scope: if public {
                CacheScope::Public
            } else {
                CacheScope::Private
            },
        }
    }

    /// What a result says; nothing where it promises nothing.
    pub(crate) fn read(message: &Message) -> Self {
        Self::said(message, Self::NONE)
    }

    /// Cache hints of a result, a day at most; each missing or invalid hint (negative or non-integer TTL,
    /// unknown scope) is taken from `otherwise` (SPEC M-80, M-85).
    pub(crate) fn said(message: &Message, otherwise: Self) -> Self {
        let ttl = message.result_member("ttlMs");
        let ttl = ttl.and_then(json::whole_number);
        Self {
            ttl_ms: ttl.unwrap_or(otherwise.ttl_ms).min(Self::ANY.ttl_ms),
            scope: match message.result_member("cacheScope") {
                Some("\"public\"") => CacheScope::Public,
                Some("\"private\"") => CacheScope::Private,
                _ => otherwise.scope,
            },
        }
    }
}
