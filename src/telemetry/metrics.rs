//! Everything that is counted. A new instrument is one line here and one name in `names`.
//!
//! Counters and gauges are plain atomics, usable before telemetry is set up and from any thread;
//! exporters read the atomics on collection. Durations of calls are recorded by `trace::CallSpan`.

mod durations;
mod forwards;
mod instrument;
mod load;
pub(super) mod process;
mod sessions;
mod store_commands;
mod token_requests;

pub(super) use durations::{DurationHistogram, SeriesKey};
pub use forwards::forward_ended;
pub use instrument::{CounterHandle, GaugeGuard, GaugeHandle, LabeledCounter, LabeledGauge};
pub(super) use load::CallEnd;
pub use load::{LoadGuard, RecentCalls, UpstreamLoad};
pub use sessions::{UpstreamSession, server_session_ended};
pub use store_commands::redis_command_ended;
pub use token_requests::token_request_ended;

use super::names::{attribute, metric};

/// Declares a struct of instruments, its one static value, and the list that exporters walk.
macro_rules! table {
    ($(#[$about:meta])* $table:ident $value:ident of $kind:ident {
        $($field:ident = $name:ident $unit:literal $(by $label:expr,)? $help:literal;)+
    }) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $table {
            $(#[doc = $help] pub $field: $kind,)+
        }

        #[doc = concat!("The one value of [`", stringify!($table), "`].")]
        pub static $value: $table = $table {
            $($field: $kind::new(metric::$name, $unit, $help $(, $label)?),)+
        };

        impl $table {
            /// Every instrument, in the order of declaration.
            #[must_use]
            pub fn all(&'static self) -> Vec<&'static $kind> {
                vec![$(&self.$field),+]
            }
        }
    };
}

table! {
    /// What only ever grows.
    Counters COUNTERS of CounterHandle {
        connections_refused = CONNECTIONS_REFUSED "{connection}"
            "Connections refused because the configured number was open.";
        connections_stalled = CONNECTIONS_STALLED "{connection}"
            "Connections given up because their peer took nothing of what was written.";
        exchanges_refused = EXCHANGES_REFUSED "{request}"
            "Requests refused because their principal had as many exchanges and streams open as it may.";
        certificates_refused = CERTIFICATES_REFUSED "{certificate}"
            "Changed certificates of server.tls that could not be used.";
        streams_stalled = STREAMS_STALLED "{stream}"
            "HTTP/2 streams given up because their peer took nothing of what was written.";
        sessions_refused = SESSIONS_REFUSED "{session}"
            "Sessions refused because a cap was reached.";
        sessions_evicted = SESSIONS_EVICTED "{session}"
            "Sessions closed to make room for a new one of the same principal.";
        sessions_expired = SESSIONS_EXPIRED "{session}"
            "Sessions closed for being idle or old.";
        implicit_sessions_evicted = IMPLICIT_SESSIONS_EVICTED "{session}"
            "Implicit sessions closed to make room for a new one of the same principal.";
        implicit_sessions_expired = IMPLICIT_SESSIONS_EXPIRED "{session}"
            "Implicit sessions closed for being idle or old.";
        sessions_unknown = SESSIONS_UNKNOWN "{request}"
            "Requests with a session id that is forged, foreign, expired or closed.";
        streams_resumed = STREAMS_RESUMED "{stream}"
            "Streams continued with Last-Event-ID.";
        streams_unresumable = STREAMS_UNRESUMABLE "{stream}"
            "Streams that could not be continued because events were gone.";
        streams_replaced = STREAMS_REPLACED "{stream}"
            "Streams outside calls ended for a newer one of their session.";
        events_evicted = EVENTS_EVICTED "{event}"
            "Events removed from the log for age or size.";
        events_unlogged = EVENTS_UNLOGGED "{event}"
            "Events delivered without an id because the shared log could not take them.";
        notices_coalesced = NOTICES_COALESCED "{notice}"
            "Notifications replaced by a newer one of the same kind.";
        notices_dropped = NOTICES_DROPPED "{notice}"
            "Notifications dropped because the client did not keep up.";
        notices_unread = NOTICES_UNREAD "{notice}"
            "Notifications dropped because no stream of the client was open for them, or because they may be another caller's.";
        calls_detached = CALLS_DETACHED "{call}"
            "Calls that outlived the exchange they were asked on.";
        calls_detach_refused = CALLS_DETACH_REFUSED "{call}"
            "Calls ended with their exchange because too many were detached.";
        channels_slow = CHANNELS_SLOW "{connection}"
            "HTTP+SSE streams and sockets closed because their client did not keep up.";
        calls_park_waited = CALLS_PARK_WAITED "{call}"
            "Calls whose questions had to wait because too many calls were parked.";
        calls_park_refused = CALLS_PARK_REFUSED "{call}"
            "Calls whose client could not be asked because too many were parked.";
        calls_park_expired = CALLS_PARK_EXPIRED "{call}"
            "Parked calls whose client never came back.";
        tasks_forgotten = TASKS_FORGOTTEN "{task}"
            "Tasks forgotten for others while they ran or before their result was fetched.";
        tasks_unkept = TASKS_UNKEPT "{task}"
            "Tasks whose result was not kept because there was no room for it.";
        tasks_unfollowed = TASKS_UNFOLLOWED "{task}"
            "Tasks not followed because their subscription names too many.";
        tasks_unheard = TASKS_UNHEARD "{task}"
            "Tasks whose progress is no longer passed on because a connection has too many.";
        url_elicitations_forgotten = URL_ELICITATIONS_FORGOTTEN "{visit}"
            "Visits to URLs whose end would no longer be told because a shared link has too many.";
        questions_asked = QUESTIONS_ASKED "{question}"
            "Questions of upstreams that were put to clients.";
        questions_withdrawn = QUESTIONS_WITHDRAWN "{question}"
            "Questions withdrawn before the client answered.";
        questions_moved = QUESTIONS_MOVED "{question}"
            "Questions put again on another stream because the first one brought no answer.";
        questions_refused = QUESTIONS_REFUSED "{question}"
            "Questions refused because no client could be asked.";
        calls_waited = CALLS_WAITED "{call}"
            "Requests that had to wait because of the running calls or the rate.";
        calls_refused = CALLS_REFUSED "{call}"
            "Requests refused because of the running calls or the rate, after waiting or with too many waiting.";
        messages_dropped = MESSAGES_DROPPED "{message}"
            "Notifications of clients dropped because the rate or the byte budget allowed none in time.";
        vault_unreadable = VAULT_UNREADABLE "{record}"
            "Sealed records of the database that did not open: their key is missing, or they were edited.";
        vault_grants_forgotten = VAULT_GRANTS_FORGOTTEN "{grant}"
            "Grants removed because nothing used them for long.";
        vault_pending_evicted = VAULT_PENDING_EVICTED "{authorization}"
            "Authorizations evicted for a newer one of their principal.";
        vault_pending_refused = VAULT_PENDING_REFUSED "{authorization}"
            "Authorizations refused because too many waited for their callback.";
        vault_revocations_given_up = VAULT_REVOCATIONS_GIVEN_UP "{token}"
            "Tokens given up because their server could not be told of their revocation.";
        bodies_scanned = BODIES_SCANNED "{request}"
            "Refused bodies that were read on for the ids of their requests.";
        bodies_unscanned = BODIES_UNSCANNED "{request}"
            "Refused bodies answered by a status alone because too many others were read on.";
        bytes_share_refused = BYTES_SHARE_REFUSED "{message}"
            "Messages refused because their caller's share of the byte budget was used up.";
        bytes_total_refused = BYTES_TOTAL_REFUSED "{message}"
            "Messages refused because the byte budget of all callers was used up.";
        replies_waited = REPLIES_WAITED "{reply}"
            "Replies that had to wait for room in the byte budget of replies.";
        replies_failed = REPLIES_FAILED "{call}"
            "Calls that ran and failed because their reply found no room in the byte budget of replies.";
        bodies_too_large = BODIES_TOO_LARGE "{request}"
            "Requests refused for the size of their body.";
        rate_limited = RATE_LIMITED "{request}"
            "Requests refused by the rate limit of their principal.";
        token_cache_hits = TOKEN_CACHE_HITS "{request}"
            "Requests whose token was verified before.";
        token_cache_misses = TOKEN_CACHE_MISSES "{request}"
            "Requests whose token had to be verified.";
        lists_hits = LISTS_HITS "{list}"
            "Lists answered from what is kept.";
        lists_misses = LISTS_MISSES "{list}"
            "Lists that had to be asked for.";
        lists_joined = LISTS_JOINED "{list}"
            "Lists answered by a request for the same list that was under way.";
        lists_stale = LISTS_STALE "{list}"
            "Lists of one upstream answered with what it listed before, because it took too long.";
        lists_evicted = LISTS_EVICTED "{entry}"
            "Kept lists dropped for size.";
        children_killed = CHILDREN_KILLED "{process}"
            "Stdio children that had to be killed.";
        stderr_dropped = STDERR_DROPPED "{line}"
            "Lines of children's stderr left out of the log.";
        log_lines_dropped = LOG_LINES_DROPPED "{line}"
            "Log lines dropped because standard output did not keep up.";
        audit_dropped = AUDIT_DROPPED "{record}"
            "Audit records that could not be kept.";
        redis_connections_lost = REDIS_CONNECTIONS_LOST "{connection}"
            "Connections to Redis that broke.";
        redis_connects_failed = REDIS_CONNECTS_FAILED "{attempt}"
            "Attempts to connect to Redis that failed.";
        cluster_leases_lost = CLUSTER_LEASES_LOST "{lease}"
            "Leases of this replica that ended before they were renewed.";
        cluster_records_refused = CLUSTER_RECORDS_REFUSED "{record}"
            "Records of replicas in Redis that do not open: forged, of another secret, or of a later release.";
        cluster_strangers_refused = CLUSTER_STRANGERS_REFUSED "{connection}"
            "Connections to the internal listener refused because no replica made them.";
    }
}

table! {
    /// What goes up and down.
    Gauges GAUGES of GaugeHandle {
        connections_open = CONNECTIONS_OPEN "{connection}"
            "Client connections that are open.";
        sessions_open = SESSIONS_OPEN "{session}"
            "Client sessions that are alive.";
        implicit_sessions_open = IMPLICIT_SESSIONS_OPEN "{session}"
            "Sessions that the gateway keeps for modern clients.";
        streams_open = STREAMS_OPEN "{stream}"
            "Event streams that are open towards clients.";
        channels_open = CHANNELS_OPEN "{connection}"
            "HTTP+SSE streams and sockets that are open towards clients.";
        calls_running = CALLS_RUNNING "{call}"
            "Calls that have no reply yet.";
        bytes_held = BYTES_HELD "By"
            "Bytes taken out of the byte budget, by messages being received and running calls.";
        replies_held = REPLIES_HELD "By"
            "Bytes taken out of the byte budget of replies, by replies being received or not yet written.";
        calls_waiting = CALLS_WAITING "{call}"
            "Requests that wait because of the running calls or the rate.";
        calls_detached_now = CALLS_DETACHED_NOW "{call}"
            "Running calls whose exchange is gone.";
        calls_parked = CALLS_PARKED "{call}"
            "Calls that wait for their client to come back with answers.";
        tasks_hosted = TASKS_HOSTED "{task}"
            "Tasks that run here for clients of 2025-11-25.";
        events_kept = EVENTS_KEPT "{event}"
            "Events in the log.";
        events_bytes = EVENTS_BYTES "By"
            "Size of the event log.";
        questions_open = QUESTIONS_OPEN "{question}"
            "Questions that wait for a client's answer.";
        upstream_sessions_open = UPSTREAM_SESSIONS_OPEN "{session}"
            "Sessions with upstreams that are open.";
        children_running = CHILDREN_RUNNING "{process}"
            "Stdio children that run.";
        children_awaited = CHILDREN_AWAITED "{call}"
            "Callers that wait for a place for a stdio child.";
        lists_bytes = LISTS_BYTES "By"
            "Size of the kept lists.";
        vault_grants = VAULT_GRANTS "{grant}"
            "Grants in the database, as of the last sweep.";
        vault_pending = VAULT_PENDING "{authorization}"
            "Authorizations that wait for their callback, as of the last sweep.";
        vault_revocations = VAULT_REVOCATIONS "{token}"
            "Tokens whose server has still to be told of their revocation, as of the last sweep.";
        cluster_replicas = CLUSTER_REPLICAS "{replica}"
            "Replicas with a lease, this one included, as it knows them.";
        cluster_lease_held = CLUSTER_LEASE_HELD "{lease}"
            "Whether this replica has its lease: 0 or 1.";
        redis_connected = REDIS_CONNECTED "{connection}"
            "Whether Redis is connected: 0 or 1.";
        redis_evicting = REDIS_EVICTING "{server}"
            "Whether Redis evicts keys when its memory is full, which loses sessions: 0 or 1.";
        token_cache_size = TOKEN_CACHE_SIZE "{token}"
            "Verified tokens that are remembered.";
    }
}

table! {
    /// What only ever grows, told apart by one label; rare things only.
    LabeledCounters LABELED of LabeledCounter {
        connections_failed = CONNECTIONS_FAILED "{connection}" by attribute::REASON,
            "Connections that failed before they carried a request.";
        connections_evicted = CONNECTIONS_EVICTED "{connection}" by attribute::REASON,
            "Connections closed to make room for others.";
        requests_refused = REQUESTS_REFUSED "{request}" by attribute::REASON,
            "Requests refused before their token was looked at.";
        auth_refused = AUTH_REFUSED "{request}" by attribute::REASON,
            "Requests refused for their token.";
        key_set_fetches = KEY_SET_FETCHES "{fetch}" by attribute::ISSUER,
            "Fetches of issuers' keys.";
        key_set_failures = KEY_SET_FAILURES "{fetch}" by attribute::ISSUER,
            "Fetches of issuers' keys that failed, or brought none for signatures.";
        introspections = INTROSPECTIONS "{request}" by attribute::ISSUER,
            "Questions to issuers about tokens.";
        introspection_failures = INTROSPECTION_FAILURES "{request}" by attribute::ISSUER,
            "Questions to issuers about tokens that got no usable answer.";
        policy_denied = POLICY_DENIED "{call}" by attribute::REASON,
            "Calls refused by a rule.";
        notices_unknown = NOTICES_UNKNOWN "{notice}" by attribute::REASON,
            "Notifications that no revision knows, dropped because no extension that both sides declare covers them.";
        notifications_dropped = NOTIFICATIONS_DROPPED "{notification}" by attribute::UPSTREAM,
            "Notifications of clients dropped because an upstream did not take them in time.";
        upstream_opened = UPSTREAM_OPENED "{session}" by attribute::UPSTREAM,
            "Sessions opened with an upstream.";
        upstream_failed = UPSTREAM_FAILED "{session}" by attribute::UPSTREAM,
            "Sessions with an upstream that could not be opened.";
        upstream_lost = UPSTREAM_LOST "{session}" by attribute::UPSTREAM,
            "Sessions with an upstream that broke off.";
        calls_repeated = CALLS_REPEATED "{call}" by attribute::UPSTREAM,
            "Calls that were made again because their reply was lost or the upstream had not read them.";
        calls_ask_refused = CALLS_ASK_REFUSED "{call}" by attribute::UPSTREAM,
            "Calls refused because another call might be asked on their connection.";
        upstream_questions_refused = UPSTREAM_QUESTIONS_REFUSED "{question}" by attribute::UPSTREAM,
            "Questions refused because too many of the same session were open.";
        upstream_skipped = UPSTREAM_SKIPPED "{list}" by attribute::UPSTREAM,
            "Merged answers that went out without an upstream.";
        notices_late = NOTICES_LATE "{notice}" by attribute::UPSTREAM,
            "Progress of calls that were over already, dropped.";
        upstream_garbage = UPSTREAM_GARBAGE "{message}" by attribute::UPSTREAM,
            "Messages of an upstream that no MCP server may send.";
        upstream_salvaged = UPSTREAM_SALVAGED "{message}" by attribute::UPSTREAM,
            "Replies of an upstream that stood behind other text on their line.";
        upstream_probed = UPSTREAM_PROBED "{probe}" by attribute::UPSTREAM,
            "Probes of what an upstream speaks.";
        upstream_downgraded = UPSTREAM_DOWNGRADED "{verdict}" by attribute::UPSTREAM,
            "Upstreams that spoke the modern era and no longer do.";
        schemas_unknown = SCHEMAS_UNKNOWN "{call}" by attribute::UPSTREAM,
            "Calls sent without parameter headers because the tools could not be listed.";
        children_spawned = CHILDREN_SPAWNED "{process}" by attribute::UPSTREAM,
            "Stdio children started.";
        spawns_refused = SPAWNS_REFUSED "{process}" by attribute::REASON,
            "Stdio children that were not started.";
    }
}

table! {
    /// What goes up and down, told apart by one label.
    Levels LEVELS of LabeledGauge {
        upstream_state = UPSTREAM_STATE "{state}" by attribute::UPSTREAM,
            "How an upstream does: 0 not reached yet, 1 up, 2 degraded, 3 down.";
        certificate_expiry = CERTIFICATE_EXPIRY "s" by attribute::LISTENER,
            "When the certificate in use expires, seconds since the Unix epoch; of a chain, the earliest.";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_instrument_has_its_own_name() {
        let names: Vec<&str> = COUNTERS
            .all()
            .iter()
            .map(|counter| counter.name)
            .chain(GAUGES.all().iter().map(|gauge| gauge.name))
            .chain(LABELED.all().iter().map(|labeled| labeled.name))
            .chain(LEVELS.all().iter().map(|level| level.name))
            .collect();
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len());
        assert!(names.iter().all(|name| name.starts_with("drawbridge.")));
    }
}
