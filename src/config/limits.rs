//! `[limits]`.

use super::reader::ConfigSection;
use super::types::{HostedTaskLimits, LimitsConfig, RateConfig};
use crate::protocol::json;

/// Reads `[limits]`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> LimitsConfig {
    LimitsConfig {
        body: s.key("body", "A request body.").size("4MiB"),
        bytes_per_principal: bytes_per_principal(s),
        bytes_total: bytes_total(s),
        replies_per_principal: replies_per_principal(s),
        replies_total: replies_total(s),
        headers: s.key("headers", "A request head.").size("16KiB"),
        upstream_message: s
            .key("upstream_message", "One message from an upstream.")
            .size("16MiB"),
        sse_event: s
            .key("sse_event", "One event from an upstream.")
            .size("16MiB"),
        json_depth: json_depth(s),
        json_values: json_values(s),
        batch: s
            .key("batch", "Messages in one JSON-RPC array (2025-03-26 only).")
            .count(50),
        streams_per_session: s
            .key(
                "streams_per_session",
                "Open GET streams of a session; each running call may have a stream beside them.",
            )
            .count(8),
        subscriptions_per_session: s
            .key(
                "subscriptions_per_session",
                "Open subscriptions (`subscriptions/listen`, 2026-07-28) of one caller on one endpoint; \
                 all its programs that declare the same capabilities share them.",
            )
            .count(64),
        calls_per_session: s
            .key(
                "calls_per_session",
                "Running calls of a session; as many requests more wait for `call_wait`.",
            )
            .count(256),
        calls_per_principal: s
            .key(
                "calls_per_principal",
                "Running calls of a principal, and tasks that the gateway runs for it: none begins beyond half of this, calls included. \
                 As many requests more wait for `call_wait`. With [cluster] at each replica.",
            )
            .count(1024),
        call_wait: s
            .key(
                "call_wait",
                "How long a request above the running calls or the rate waits before it is refused, and a \
                 notification above the rate before it is dropped.",
            )
            .duration_or_zero("5s"),
        parked_per_principal: s
            .key(
                "parked_per_principal",
                "Calls of a modern client's principal that wait for its answer. Further questions wait in order for as \
                 long as the upstream's `ask_wait`, then it cannot be asked. 128 calls may wait so, or half of \
                 `server.exchanges_per_principal` if that is less; and 128 on one HTTP/2 connection. With [cluster] in all \
                 replicas together, where each may have a sixteenth in any case; tasks that ask count at each replica.",
            )
            .count(16),
        parked_per_upstream: parked_per_upstream(s),
        parked_total: parked_total(s),
        tasks_per_session: s
            .key(
                "tasks_per_session",
                "Tasks of 2025-11-25 that are kept for a session. To make room for one more, one \
                 that the gateway ran and that is over is forgotten, else the oldest. A forgotten \
                 task runs on at its upstream; one that the gateway runs is ended.",
            )
            .count(64),
        hosted_tasks: hosted_tasks(s),
        tasks_per_subscription: s
            .key(
                "tasks_per_subscription",
                "Tasks that one subscription follows; those beyond are not acknowledged.",
            )
            .count(64),
        unread: unread(s),
        rate: rate(s),
    }
}

fn parked_per_upstream(s: &mut ConfigSection<'_>) -> usize {
    s.key(
        "parked_per_upstream",
        "Calls that wait for an answer to one upstream; further questions of it wait as above. With [cluster] at \
         each replica.",
    )
    .count(5_000)
}

fn parked_total(s: &mut ConfigSection<'_>) -> usize {
    s.key(
        "parked_total",
        "Calls that wait for an answer, in all; further questions wait as above. With [cluster] at each replica.",
    )
    .count(10_000)
}

fn bytes_per_principal(s: &mut ConfigSection<'_>) -> usize {
    s.key(
        "bytes_per_principal",
        "Messages over 16 KiB of one caller that are being received or kept by running calls; each \
         counts twice, as a copy of it is sent on. At least twice `body`.",
    )
    .size("128MiB")
}

fn bytes_total(s: &mut ConfigSection<'_>) -> usize {
    s.key(
        "bytes_total",
        "The same of all callers. An eighth of it is reserved for messages that are never refused.",
    )
    .size("512MiB")
}

fn json_depth(s: &mut ConfigSection<'_>) -> usize {
    s.key("json_depth", "Nesting of a message, 1024 at most.")
        .count_to(128, json::MAX_DEPTH)
}

fn json_values(s: &mut ConfigSection<'_>) -> usize {
    s.key(
        "json_values",
        "Values in a message of a client, those within others included. Many small ones take ten times as long \
         to check as one string of the size.",
    )
    .count(524_288)
}

fn replies_per_principal(s: &mut ConfigSection<'_>) -> usize {
    s.key(
        "replies_per_principal",
        "Replies over 16 KiB for one caller that are being received or not yet written; each counts twice, as \
         it is copied. Above, replies wait. At least twice `upstream_message` and `sse_event`.",
    )
    .size("128MiB")
}

fn replies_total(s: &mut ConfigSection<'_>) -> usize {
    s.key(
        "replies_total",
        "The same for all callers. An eighth of it is reserved for replies that wait.",
    )
    .size("512MiB")
}

fn unread(s: &mut ConfigSection<'_>) -> usize {
    s.key(
        "unread",
        "What may wait for a slow client of HTTP+SSE or WebSocket before its connection \
         is closed; a single message of any size may.",
    )
    .size("32MiB")
}

fn rate(s: &mut ConfigSection<'_>) -> RateConfig {
    s.key(
        "rate",
        "Requests of one principal; bursts may be twice as large. A message of a WebSocket counts as \
         one, and so does each request and notification of an array. With [cluster] the rate holds for all replicas \
         together.",
    )
    .rate("100/s")
}

fn hosted_tasks(s: &mut ConfigSection<'_>) -> HostedTaskLimits {
    HostedTaskLimits {
        ttl: s
            .key(
                "task_ttl",
                "How long a task of 2025-11-25 that the gateway runs is known at most, from its beginning on.",
            )
            .duration("1h"),
        results_per_principal: s
            .key(
                "task_results_per_principal",
                "Results of such tasks of a principal that are kept; a task whose result finds no room fails. With \
                 [cluster] in all replicas together, where each may have a sixteenth in any case.",
            )
            .size("16MiB"),
        results_total: s
            .key(
                "task_results_total",
                "Results of such tasks that are kept, in all; with [cluster] at each replica.",
            )
            .size("256MiB"),
    }
}
