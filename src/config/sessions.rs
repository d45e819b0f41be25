//! `[sessions]`, `[events]`, `[stdio]` and `[lists]`.

use super::reader::ConfigSection;
use super::types::{EventsConfig, ListsConfig, SessionsConfig, StdioConfig};

/// Reads `[sessions]`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> SessionsConfig {
    SessionsConfig {
        idle: s
            .key(
                "idle",
                "A session ends after this long without a request or an open stream.",
            )
            .duration("30m"),
        absolute: s
            .key(
                "absolute",
                "A session ends after this long, whatever happens; calls of a modern client (2026-07-28) that run are finished.",
            )
            .duration("24h"),
        max_per_principal: s
            .key(
                "max_per_principal",
                "Live sessions of one principal; the least recently used idle one makes room. With [cluster] in all \
                 replicas together, where each makes room among its own and may have a sixteenth in any case.",
            )
            .count(1000),
        max_total: s
            .key("max_total", "Live sessions; with [cluster] of each replica.")
            .count(20_000),
        max_detached: s
            .key(
                "max_detached",
                "Calls that run on without a stream, at once: their client has gone, or comes back \
                 for the reply to a stream that the upstream has closed for polling.",
            )
            .count(2000),
        hold_question: s
            .key(
                "hold_question",
                "How long a question of an upstream that belongs to no call waits for a stream to \
                 the client.",
            )
            .duration_or_zero("10s"),
        token_grace: s
            .key(
                "token_grace",
                "A GET stream ends this long after the token that opened it has expired.",
            )
            .duration_or_zero("60s"),
    }
}

/// Reads `[events]`.
pub(super) fn events(s: &mut ConfigSection<'_>) -> EventsConfig {
    EventsConfig {
        max_age: s
            .key("max_age", "How long an event can be replayed.")
            .duration("5m"),
        per_session: s
            .key("per_session", "Events kept for one session; with [cluster] also in Redis.")
            .size("1MiB"),
        total: s
            .key(
                "total",
                "Events kept in one process; sessions with more than an equal share make room first.",
            )
            .size("64MiB"),
    }
}

/// Reads `[stdio]`.
pub(super) fn stdio(s: &mut ConfigSection<'_>) -> StdioConfig {
    StdioConfig {
        max_children: s.key("max_children", "Children at once.").count(256),
        max_children_per_principal: s
            .key(
                "max_children_per_principal",
                "Children of one principal at once. Default without authentication, where everybody is one \
                 principal: max_children.",
            )
            .count(64),
        idle: s
            .key(
                "idle",
                "A child that nobody uses is stopped after this long.",
            )
            .duration("10m"),
        spawn_wait: s
            .key(
                "spawn_wait",
                "How long a caller waits for a place under these caps, before 503.",
            )
            .duration_or_zero("10s"),
        trust_children: s
            .key(
                "trust_children",
                "Children are not isolated (Landlock): they may read each other's environment and memory, signal \
                 each other, and gain privileges (sudo, CAP_SYS_ADMIN).",
            )
            .flag(false),
    }
}

/// Reads `[lists]`.
pub(super) fn lists(s: &mut ConfigSection<'_>) -> ListsConfig {
    ListsConfig {
        fresh: s
            .key(
                "fresh",
                "A list of an upstream up to 2025-11-25 answers again for this long, and three times \
                 as long while its changes are announced. After a tool was called it is asked for \
                 again. 0s asks every time.",
            )
            .duration_or_zero("5s"),
        total: s.key("total", "Lists kept in all.").size("32MiB"),
        ttl: s
            .key(
                "ttl",
                "The lifetime that 2026-07-28 clients are promised for lists of upstreams that \
                 promise none.",
            )
            .duration_or_zero("0s"),
    }
}
