//! The bound on the memory of the whole process, as the configuration makes it.

use crate::config::{CarrierConfig, Config, Isolation, TransportKind};
use crate::protocol::Revision;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What the process takes before the first call: code, tables, the allocator's spare pages.
const START: usize = 32 * MIB;
/// The read buffer of a call, and what it keeps of a message that is exempt.
const CALL: usize = 64 * KIB;
/// A session without a running call.
const SESSION: usize = 16 * KIB;
/// A call that waits for an answer of its client (`drill parked`).
const PARKED: usize = 48 * KIB;
/// Queues of the log and the audit, each twice while standard output is not read, and tables of 20,480 tokens.
const QUEUES: usize = 2 * (1 + 4) * MIB + 20 * MIB;

/// A part of the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundTerm {
    /// Bytes at most.
    pub bytes: usize,
    /// What takes them.
    pub what: &'static str,
}

/// What the process takes at most, part by part. `docs/operations/sizing.md` explains each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessBound {
    terms: Vec<BoundTerm>,
}

impl ProcessBound {
    /// That of `config`. Calls that run at once are as many as there may be client connections.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let limits = &config.limits;
        let times = usize::saturating_mul;
        let kept = [
            config.events.total,
            config.lists.total,
            limits.hosted_tasks.results_total,
        ];
        let terms = [
            (START, "start"),
            (limits.bytes_total, "messages of clients"),
            (limits.replies_total, "replies"),
            (
                times(CALL, config.server.max_connections),
                "buffers of calls",
            ),
            (
                times(limits.upstream_message, shared_connections(config)),
                "messages on shared connections",
            ),
            (times(SESSION, config.sessions.max_total), "idle sessions"),
            (times(PARKED, limits.parked_total), "calls that ask"),
            (
                kept.into_iter().fold(0, usize::saturating_add),
                "events, lists and results of tasks",
            ),
            (QUEUES, "queues and tokens"),
        ];
        let terms = terms.into_iter().filter(|(bytes, _)| *bytes > 0);
        Self {
            terms: terms
                .map(|(bytes, what)| BoundTerm { bytes, what })
                .collect(),
        }
    }

    /// All parts together, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = self.terms.iter().map(|term| term.bytes);
        bytes.fold(0, usize::saturating_add)
    }

    /// The bound and its parts on one line, MiB.
    #[must_use]
    pub fn summary(&self) -> String {
        let mib = |bytes: usize| bytes.div_ceil(MIB);
        let parts = self.terms.iter();
        let parts = parts.map(|term| format!("{} {}", mib(term.bytes), term.what));
        let parts: Vec<_> = parts.collect();
        format!("at most {} MiB ({})", mib(self.bytes()), parts.join(", "))
    }
}

/// Upstream connections shared by several sessions, on which the recipient of a message is known only
/// once the message is complete: per client revision if shared by all callers, else per caller.
fn shared_connections(config: &Config) -> usize {
    let connections = config.upstreams.iter().map(|upstream| {
        let most = match &upstream.carrier {
            CarrierConfig::Stdio(stdio) => stdio.max_children.min(config.stdio.max_children),
            CarrierConfig::Http(http) => match http.transport {
                TransportKind::Sse | TransportKind::WebSocket => config.sessions.max_total,
                TransportKind::Auto | TransportKind::Streamable => 0,
            },
        };
        match upstream.isolation {
            Isolation::Session => 0,
            Isolation::Principal => most,
            Isolation::Shared => most.min(Revision::SERVED.len()),
        }
    });
    connections.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn bound(more: &str) -> ProcessBound {
        let text = format!(
            "[auth]\nmode = \"none\"\n[upstreams.a]\nurl = \"http://127.0.0.1:9/mcp\"\n{more}"
        );
        ProcessBound::new(&config::parse(&text, "g.toml", &|_| None).unwrap())
    }

    fn mib(bound: &ProcessBound, what: &str) -> Option<usize> {
        let term = bound.terms.iter().find(|term| term.what == what);
        term.map(|term| term.bytes / MIB)
    }

    // Spec: SPEC O-01.
    #[test]
    fn bound_of_the_process_is_the_sum_of_its_parts() {
        let bound = bound("");
        let parts: usize = bound.terms.iter().map(|term| term.bytes).sum();
        assert_eq!(bound.bytes(), parts);
        assert_eq!(mib(&bound, "messages of clients"), Some(512));
        assert_eq!(mib(&bound, "replies"), Some(512));
        assert_eq!(mib(&bound, "buffers of calls"), Some(625));
        assert_eq!(mib(&bound, "idle sessions"), Some(312));
        let summary = bound.summary();
        assert!(summary.starts_with("at most "), "{summary}");
        assert!(summary.contains("512 replies, "), "{summary}");
    }

    #[test]
    fn each_key_moves_the_bound_by_its_part() {
        let before = bound("").bytes();
        let more = |keys: &str| bound(keys).bytes() - before;
        assert_eq!(more("[limits]\nbytes_total = \"612MiB\""), 100 * MIB);
        assert_eq!(more("[limits]\nreplies_total = \"612MiB\""), 100 * MIB);
        assert_eq!(more("[events]\ntotal = \"164MiB\""), 100 * MIB);
        assert_eq!(more("[lists]\ntotal = \"132MiB\""), 100 * MIB);
        assert_eq!(more("[server]\nmax_connections = 10016"), MIB);
        assert_eq!(more("[sessions]\nmax_total = 20064"), MIB);
    }

    #[test]
    fn shared_children_count_a_message_each() {
        let with = |keys: &str| {
            let child = format!("[upstreams.b]\ncommand = \"b\"\n{keys}");
            mib(&bound(&child), "messages on shared connections")
        };
        assert_eq!(with(""), None);
        assert_eq!(with("isolation = \"shared\"\nmax_children = 3"), Some(48));
        assert_eq!(with("isolation = \"shared\""), Some(80));
        let each = with("isolation = \"principal\"\nmax_children = 9");
        assert_eq!(each, Some(144));
        let with = |keys: &str| {
            let socket = format!(
                "[upstreams.c]\nurl = \"ws://127.0.0.1:9/ws\"\n{keys}\n[sessions]\nmax_total = 2"
            );
            mib(&bound(&socket), "messages on shared connections")
        };
        assert_eq!(with(""), None);
        assert_eq!(with("isolation = \"principal\""), Some(32));
    }
}
