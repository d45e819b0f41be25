//! `[sessions]`, `[events]`, `[stdio]` and `[lists]`.

use super::reader::{ConfigSection, read_keys};
use super::types::{EventsConfig, ListsConfig, SessionsConfig, StdioConfig};

/// Reads `[sessions]`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> SessionsConfig {
    read_keys!(s => SessionsConfig {
        /// A session ends after this long without a request or an open stream.
        idle: duration("30m"),
        /// A session ends at this age, also in use; running calls of a modern client (2026-07-28) are finished.
        absolute: duration("24h"),
        /// Live sessions of one principal; the least recently used idle one makes room. With [cluster] in all replicas
        /// together, where each makes room among its own and may have a sixteenth in any case.
        max_per_principal: count(1000),
        /// Live sessions; with [cluster] of each replica.
        max_total: count(20_000),
        /// Calls that run on without a stream, at once: their client has gone, or comes back for the reply to a stream
        /// that the upstream has closed for polling.
        max_detached: count(2000),
        /// How long a question of an upstream that belongs to no call waits for a stream to the client.
        hold_question: duration_or_zero("10s"),
        /// A GET stream ends this long after the token that opened it has expired.
        token_grace: duration_or_zero("60s"),
    })
}

/// Reads `[events]`.
pub(super) fn events(s: &mut ConfigSection<'_>) -> EventsConfig {
    read_keys!(s => EventsConfig {
        /// How long an event can be replayed.
        max_age: duration("5m"),
        /// Events kept for one session; with [cluster] also in Redis.
        per_session: size("1MiB"),
        /// Events kept in one process; sessions with more than an equal share make room first.
        total: size("64MiB"),
    })
}

/// Reads `[stdio]`.
pub(super) fn stdio(s: &mut ConfigSection<'_>) -> StdioConfig {
    read_keys!(s => StdioConfig {
        /// Children at once.
        max_children: count(256),
        /// Children of one principal at once. Default without authentication, where everybody is one principal:
        /// max_children.
        max_children_per_principal: count(64),
        /// An unused child is stopped after this long.
        idle: duration("10m"),
        /// How long a caller waits for a place under these caps, before 503.
        spawn_wait: duration_or_zero("10s"),
        /// Children are not isolated (Landlock): they may read each other's environment and memory, signal each other,
        /// and gain privileges (sudo, CAP_SYS_ADMIN).
        trust_children: flag(false),
    })
}

/// Reads `[lists]`.
pub(super) fn lists(s: &mut ConfigSection<'_>) -> ListsConfig {
    read_keys!(s => ListsConfig {
        /// A list of an upstream up to 2025-11-25 answers again for this long, and three times as long while its
        /// changes are announced. After a tool was called it is asked for again. 0s asks every time.
        fresh: duration_or_zero("5s"),
        /// Lists kept in all.
        total: size("32MiB"),
        /// The lifetime that 2026-07-28 clients are promised for lists of upstreams that promise none.
        ttl: duration_or_zero("0s"),
    })
}
