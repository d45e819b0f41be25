//! `[limits]`.

use super::reader::{ConfigSection, read_keys};
use super::types::{HostedTaskLimits, LimitsConfig};
use crate::protocol::json;

/// Reads `[limits]`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> LimitsConfig {
    read_keys!(s => LimitsConfig {
        /// A request body.
        body: size("4MiB"),
        /// Messages over 16 KiB of one caller that are being received or kept by running calls; each counts twice, as a
        /// copy of it is sent on. At least twice `body`.
        bytes_per_principal: size("128MiB"),
        /// The same of all callers. An eighth of it is reserved for messages that are never refused.
        bytes_total: size("512MiB"),
        /// Replies over 16 KiB for one caller that are being received or not yet written; each counts twice, as it is
        /// copied. Above, replies wait. At least twice `upstream_message` and `sse_event`.
        replies_per_principal: size("128MiB"),
        /// The same for all callers. An eighth of it is reserved for replies that wait.
        replies_total: size("512MiB"),
        /// A request head.
        headers: size("16KiB"),
        /// One message from an upstream.
        upstream_message: size("16MiB"),
        /// One event from an upstream.
        sse_event: size("16MiB"),
        /// Nesting of a message, 1024 at most.
        json_depth: count_to(128, json::MAX_DEPTH),
        /// Values in a message of a client, those within others included. Many small ones take ten times as long to
        /// check as one string of the size.
        json_values: count(524_288),
        /// Messages in one JSON-RPC array (2025-03-26 only).
        batch: count(50),
        /// Open GET streams of a session; each running call may have a stream beside them.
        streams_per_session: count(8),
        /// Open subscriptions (`subscriptions/listen`, 2026-07-28) of one caller on one endpoint; all its programs that
        /// declare the same capabilities share them.
        subscriptions_per_session: count(64),
        /// Running calls of a session; as many requests more wait for `call_wait`.
        calls_per_session: count(256),
        /// Running calls of a principal, and tasks that the gateway runs for it: none begins beyond half of this, calls
        /// included. As many requests more wait for `call_wait`. With [cluster] at each replica.
        calls_per_principal: count(1024),
        /// How long a request above the running calls or the rate waits before it is refused, and a notification above
        /// the rate before it is dropped.
        call_wait: duration_or_zero("5s"),
        /// Calls of a modern client's principal that wait for its answer. Further questions wait in order for as long
        /// as the upstream's `ask_wait`, then it cannot be asked. 128 calls may wait so, or half of
        /// `server.exchanges_per_principal` if that is less; and 128 on one HTTP/2 connection. With [cluster] in all
        /// replicas together, where each may have a sixteenth in any case; tasks that ask count at each replica.
        parked_per_principal: count(16),
        /// Calls that wait for an answer to one upstream; further questions of it wait as above. With [cluster] at each
        /// replica.
        parked_per_upstream: count(5_000),
        /// Calls that wait for an answer, in all; further questions wait as above. With [cluster] at each replica.
        parked_total: count(10_000),
        /// Tasks of 2025-11-25 that are kept for a session. To make room for one more, one that the gateway ran and
        /// that is over is forgotten, else the oldest. A forgotten task runs on at its upstream; one that the gateway
        /// runs is ended.
        tasks_per_session: count(64),
        hosted_tasks: hosted_tasks(s),
        /// Tasks that one subscription follows; those beyond are not acknowledged.
        tasks_per_subscription: count(64),
        /// What may wait for a slow client of HTTP+SSE or WebSocket before its connection is closed; a single message
        /// of any size may.
        unread: size("32MiB"),
        /// Requests of one principal; bursts may be twice as large. A message of a WebSocket counts as one, and so does
        /// each request and notification of an array. With [cluster] the rate holds for all replicas together.
        rate: rate("100/s"),
    })
}

fn hosted_tasks(s: &mut ConfigSection<'_>) -> HostedTaskLimits {
    read_keys!(s => let {
        /// How long a task of 2025-11-25 that the gateway runs is known at most, from its beginning on.
        task_ttl: duration("1h"),
        /// Results of such tasks of a principal that are kept; a task whose result finds no room fails. With [cluster]
        /// in all replicas together, where each may have a sixteenth in any case.
        task_results_per_principal: size("16MiB"),
        /// Results of such tasks that are kept, in all; with [cluster] at each replica.
        task_results_total: size("256MiB"),
    });
    HostedTaskLimits {
        ttl: task_ttl,
        results_per_principal: task_results_per_principal,
        results_total: task_results_total,
    }
}
