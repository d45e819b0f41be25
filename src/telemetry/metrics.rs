//! Everything that is counted. A new instrument is one row of a table here.
//!
//! Counters and gauges are plain atomics, usable before telemetry is set up and from any thread;
//! exporters read the atomics on collection. Durations of calls are recorded by `trace::CallSpan`.

mod durations;
mod instrument;
mod load;
pub(super) mod process;
mod request_durations;
mod seconds_histogram;
mod sessions;

pub(super) use durations::{DurationHistogram, SeriesKey};
pub use instrument::{
    CounterHandle, GaugeGuard, GaugeHandle, LabeledCounter, LabeledGauge, PairGauge,
};
pub(super) use load::CallEnd;
pub use load::{LoadGuard, RecentCalls, UpstreamLoad};
pub use request_durations::{
    forward_ended, grant_refresh_ended, redis_command_ended, token_request_ended,
};
pub use sessions::{UpstreamSession, server_session_ended};

use super::names::attribute;

/// Declares a struct of instruments, its one static value, and the list that exporters walk.
macro_rules! table {
    ($(#[$about:meta])* $table:ident $value:ident of $kind:ident {
        $($field:ident = $name:literal $unit:literal $(by $label:expr,)? $help:literal;)+
    }) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $table {
            $(#[doc = $help] pub $field: $kind,)+
        }

        #[doc = concat!("The one value of [`", stringify!($table), "`].")]
        pub static $value: $table = $table {
            $($field: $kind::new($name, $unit, $help $(, $label)?),)+
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
        connections_refused = "drawbridge.connections.refused" "{connection}"
            "Connections refused because the configured number was open.";
        connections_stalled = "drawbridge.connections.stalled" "{connection}"
            "Connections given up because their peer took nothing of what was written.";
        exchanges_refused = "drawbridge.exchanges.refused" "{request}"
            "Requests refused because their principal had as many exchanges and streams open as it may.";
        certificates_refused = "drawbridge.certificates.refused" "{certificate}"
            "Changed certificates of server.tls that could not be used.";
        streams_stalled = "drawbridge.streams.stalled" "{stream}"
            "HTTP/2 streams given up because their peer took nothing of what was written.";
        sessions_refused = "drawbridge.sessions.refused" "{session}"
            "Sessions refused because a cap was reached.";
        sessions_evicted = "drawbridge.sessions.evicted" "{session}"
            "Sessions closed to make room for a new one of the same principal.";
        sessions_expired = "drawbridge.sessions.expired" "{session}"
            "Sessions closed for being idle or old.";
        implicit_sessions_evicted = "drawbridge.implicit_sessions.evicted" "{session}"
            "Implicit sessions closed to make room for a new one of the same principal.";
        implicit_sessions_expired = "drawbridge.implicit_sessions.expired" "{session}"
            "Implicit sessions closed for being idle or old.";
        sessions_unknown = "drawbridge.sessions.unknown" "{request}"
            "Requests with a session id that is forged, foreign, expired or closed.";
        streams_resumed = "drawbridge.streams.resumed" "{stream}"
            "Streams continued with Last-Event-ID.";
        streams_unresumable = "drawbridge.streams.unresumable" "{stream}"
            "Streams that could not be continued because events were gone.";
        streams_replaced = "drawbridge.streams.replaced" "{stream}"
            "Streams outside calls ended for a newer one of their session.";
        events_evicted = "drawbridge.events.evicted" "{event}"
            "Events removed from the log for age or size.";
        events_unlogged = "drawbridge.events.unlogged" "{event}"
            "Events delivered without an id because the shared log could not take them.";
        events_logged = "drawbridge.events.logged" "{event}"
            "Events that the shared log has taken.";
        events_logged_bytes = "drawbridge.events.logged_size" "By"
            "Sealed bytes of events that the shared log has taken.";
        notices_coalesced = "drawbridge.notices.coalesced" "{notice}"
            "Notifications replaced by a newer one of the same kind.";
        notices_dropped = "drawbridge.notices.dropped" "{notice}"
            "Notifications dropped because the client did not keep up.";
        notices_unread = "drawbridge.notices.unread" "{notice}"
            "Notifications dropped because no stream of the client was open for them, or because they may be another caller's.";
        calls_detached = "drawbridge.calls.detached" "{call}"
            "Calls that outlived the exchange they were asked on.";
        calls_detach_refused = "drawbridge.calls.detach_refused" "{call}"
            "Calls ended with their exchange because too many were detached.";
        channels_slow = "drawbridge.channels.slow" "{connection}"
            "HTTP+SSE streams and sockets closed because their client did not keep up.";
        calls_park_waited = "drawbridge.calls.park_waited" "{call}"
            "Calls whose questions had to wait because too many calls were parked.";
        calls_park_refused = "drawbridge.calls.park_refused" "{call}"
            "Calls whose client could not be asked because too many were parked.";
        calls_park_expired = "drawbridge.calls.park_expired" "{call}"
            "Parked calls whose client never came back.";
        tasks_forgotten = "drawbridge.tasks.forgotten" "{task}"
            "Tasks forgotten for others while they ran or before their result was fetched.";
        tasks_unkept = "drawbridge.tasks.unkept" "{task}"
            "Tasks whose result was not kept because there was no room for it.";
        tasks_unfollowed = "drawbridge.tasks.unfollowed" "{task}"
            "Tasks not followed because their subscription names too many.";
        tasks_unheard = "drawbridge.tasks.unheard" "{task}"
            "Tasks whose progress is no longer passed on because a connection has too many.";
        url_elicitations_forgotten = "drawbridge.visits.forgotten" "{visit}"
            "Visits to URLs whose end would no longer be told because a shared link has too many.";
        questions_asked = "drawbridge.questions.asked" "{question}"
            "Questions of upstreams that were put to clients.";
        questions_withdrawn = "drawbridge.questions.withdrawn" "{question}"
            "Questions withdrawn before the client answered.";
        questions_moved = "drawbridge.questions.moved" "{question}"
            "Questions put again on another stream because the first one brought no answer.";
        questions_refused = "drawbridge.questions.refused" "{question}"
            "Questions refused because no client could be asked.";
        calls_waited = "drawbridge.calls.waited" "{call}"
            "Requests that had to wait because of the running calls or the rate.";
        calls_refused = "drawbridge.calls.refused" "{call}"
            "Requests refused because of the running calls or the rate, after waiting or with too many waiting.";
        messages_dropped = "drawbridge.messages.dropped" "{message}"
            "Notifications of clients dropped because the rate or the byte budget allowed none in time.";
        vault_unreadable = "drawbridge.vault.unreadable" "{record}"
            "Sealed records of the database that did not open: their key is missing, or they were edited.";
        vault_grants_forgotten = "drawbridge.vault.grants_forgotten" "{grant}"
            "Grants removed because nothing used them for long.";
        vault_pending_evicted = "drawbridge.vault.pending_evicted" "{authorization}"
            "Authorizations evicted for a newer one of their principal.";
        vault_pending_refused = "drawbridge.vault.pending_refused" "{authorization}"
            "Authorizations refused because too many waited for their callback.";
        vault_revocations_given_up = "drawbridge.vault.revocations_given_up" "{token}"
            "Tokens given up because their server could not be told of their revocation.";
        bodies_scanned = "drawbridge.bodies.scanned" "{request}"
            "Refused bodies that were read on for the ids of their requests.";
        bodies_unscanned = "drawbridge.bodies.unscanned" "{request}"
            "Refused bodies answered by a status alone because too many others were read on.";
        bytes_share_refused = "drawbridge.bytes.share_refused" "{message}"
            "Messages refused because their caller's share of the byte budget was used up.";
        bytes_total_refused = "drawbridge.bytes.total_refused" "{message}"
            "Messages refused because the byte budget of all callers was used up.";
        replies_waited = "drawbridge.replies.waited" "{reply}"
            "Replies that had to wait for room in the byte budget of replies.";
        replies_failed = "drawbridge.replies.failed" "{call}"
            "Calls that ran and failed because their reply found no room in the byte budget of replies.";
        bodies_too_large = "drawbridge.bodies.too_large" "{request}"
            "Requests refused for the size of their body.";
        rate_limited = "drawbridge.requests.rate_limited" "{request}"
            "Requests refused by the rate limit of their principal.";
        token_cache_hits = "drawbridge.token_cache.hits" "{request}"
            "Requests whose token was verified before.";
        token_cache_misses = "drawbridge.token_cache.misses" "{request}"
            "Requests whose token had to be verified.";
        lists_hits = "drawbridge.list_cache.hits" "{list}"
            "Lists answered from what is kept.";
        lists_misses = "drawbridge.list_cache.misses" "{list}"
            "Lists that had to be asked for.";
        lists_joined = "drawbridge.list_cache.joined" "{list}"
            "Lists answered by a request for the same list that was under way.";
        lists_stale = "drawbridge.list_cache.stale" "{list}"
            "Lists of one upstream answered with what it listed before, because it took too long.";
        lists_evicted = "drawbridge.list_cache.evicted" "{entry}"
            "Kept lists dropped for size.";
        children_killed = "drawbridge.children.killed" "{process}"
            "Stdio children that had to be killed.";
        stderr_dropped = "drawbridge.stderr.dropped" "{line}"
            "Lines of children's stderr left out of the log.";
        log_lines_dropped = "drawbridge.log.dropped" "{line}"
            "Log lines dropped because standard output did not keep up.";
        audit_dropped = "drawbridge.audit.dropped" "{record}"
            "Audit records that could not be kept.";
        exports_failed = "drawbridge.exports.failed" "{export}"
            "Exports of traces, metrics or logs that the collector did not take.";
        redis_connections_lost = "drawbridge.redis.connections_lost" "{connection}"
            "Connections to Redis that broke.";
        redis_connects_failed = "drawbridge.redis.connects_failed" "{attempt}"
            "Attempts to connect to Redis that failed.";
        redis_sent = "drawbridge.redis.sent" "By"
            "Bytes of commands to Redis, without the framing of its protocol.";
        redis_received = "drawbridge.redis.received" "By"
            "Bytes of replies of Redis, without the framing of its protocol.";
        cluster_leases_lost = "drawbridge.cluster.leases_lost" "{lease}"
            "Leases of this replica that ended before they were renewed.";
        cluster_fencings = "drawbridge.cluster.fencings" "{lapse}"
            "Lapses of the lease in which this replica did not serve its sessions.";
        sessions_adopted = "drawbridge.cluster.sessions_adopted" "{session}"
            "Sessions of lost replicas that go on here.";
        sessions_lost = "drawbridge.cluster.sessions_lost" "{session}"
            "Sessions of lost replicas that ended, as an upstream of theirs cannot be rebuilt.";
        cluster_calls_lost = "drawbridge.cluster.calls_lost" "{call}"
            "Calls passed on to a replica that was lost after their answer had begun: they end with an error.";
        cluster_calls_repeated = "drawbridge.cluster.calls_repeated" "{call}"
            "Calls of tools in `retry_safe` that a lost replica had taken and that were made again here.";
        cluster_records_refused = "drawbridge.cluster.records_refused" "{record}"
            "Records of replicas in Redis that do not open: forged, of another secret, or of a later release.";
        cluster_strangers_refused = "drawbridge.cluster.strangers_refused" "{connection}"
            "Connections to the internal listener refused because no replica made them.";
    }
}

table! {
    /// What goes up and down.
    Gauges GAUGES of GaugeHandle {
        connections_open = "drawbridge.connections.open" "{connection}"
            "Client connections that are open.";
        sessions_open = "drawbridge.sessions.open" "{session}"
            "Client sessions that are alive.";
        implicit_sessions_open = "drawbridge.implicit_sessions.open" "{session}"
            "Sessions that the gateway keeps for modern clients.";
        streams_open = "drawbridge.streams.open" "{stream}"
            "Event streams that are open towards clients.";
        channels_open = "drawbridge.channels.open" "{connection}"
            "HTTP+SSE streams and sockets that are open towards clients.";
        calls_running = "drawbridge.calls.running" "{call}"
            "Calls that have no reply yet.";
        bytes_held = "drawbridge.bytes.held" "By"
            "Bytes taken out of the byte budget, by messages being received and running calls.";
        replies_held = "drawbridge.replies.held" "By"
            "Bytes taken out of the byte budget of replies, by replies being received or not yet written.";
        calls_waiting = "drawbridge.calls.waiting" "{call}"
            "Requests that wait because of the running calls or the rate.";
        calls_detached_now = "drawbridge.calls.detached.running" "{call}"
            "Running calls whose exchange is gone.";
        calls_parked = "drawbridge.calls.parked" "{call}"
            "Calls that wait for their client to come back with answers.";
        tasks_hosted = "drawbridge.tasks.hosted" "{task}"
            "Tasks that run here for clients of 2025-11-25.";
        events_kept = "drawbridge.events.kept" "{event}"
            "Events in the log.";
        events_bytes = "drawbridge.events.size" "By"
            "Size of the event log.";
        questions_open = "drawbridge.questions.open" "{question}"
            "Questions that wait for a client's answer.";
        upstream_sessions_open = "drawbridge.upstream.sessions.open" "{session}"
            "Sessions with upstreams that are open.";
        children_running = "drawbridge.children.running" "{process}"
            "Stdio children that run.";
        children_awaited = "drawbridge.children.awaited" "{call}"
            "Callers that wait for a place for a stdio child.";
        lists_bytes = "drawbridge.list_cache.size" "By"
            "Size of the kept lists.";
        vault_grants = "drawbridge.vault.grants" "{grant}"
            "Grants in the database, as of the last sweep.";
        vault_pending = "drawbridge.vault.pending" "{authorization}"
            "Authorizations that wait for their callback, as of the last sweep.";
        vault_revocations = "drawbridge.vault.revocations" "{token}"
            "Tokens whose server has still to be told of their revocation, as of the last sweep.";
        cluster_replicas = "drawbridge.cluster.replicas" "{replica}"
            "Replicas with a lease, this one included, as it knows them.";
        cluster_lease_held = "drawbridge.cluster.lease_held" "{lease}"
            "Whether this replica has its lease: 0 or 1.";
        cluster_fenced = "drawbridge.cluster.fenced" "{replica}"
            "Whether this replica is fenced and does not serve its sessions: 0 or 1.";
        cluster_other_configurations = "drawbridge.cluster.other_configurations" "{replica}"
            "Replicas of the same release whose configuration differs from this one's.";
        redis_connected = "drawbridge.redis.connected" "{connection}"
            "Whether Redis is connected: 0 or 1.";
        redis_commands = "drawbridge.redis.commands" "{command}"
            "Commands to Redis that have no reply yet.";
        redis_evicting = "drawbridge.redis.evicting" "{server}"
            "Whether Redis evicts keys when its memory is full, which loses sessions: 0 or 1.";
        token_cache_size = "drawbridge.token_cache.size" "{token}"
            "Verified tokens that are remembered.";
    }
}

table! {
    /// What only ever grows, told apart by one label; rare things only.
    LabeledCounters LABELED of LabeledCounter {
        connections_failed = "drawbridge.connections.failed" "{connection}" by attribute::REASON,
            "Connections that failed before they carried a request.";
        connections_evicted = "drawbridge.connections.evicted" "{connection}" by attribute::REASON,
            "Connections closed to make room for others.";
        requests_refused = "drawbridge.requests.refused" "{request}" by attribute::REASON,
            "Requests refused before their token was looked at.";
        auth_refused = "drawbridge.auth.refused" "{request}" by attribute::REASON,
            "Requests refused for their token.";
        key_set_fetches = "drawbridge.key_set.fetches" "{fetch}" by attribute::ISSUER,
            "Fetches of issuers' keys.";
        key_set_failures = "drawbridge.key_set.failures" "{fetch}" by attribute::ISSUER,
            "Fetches of issuers' keys that failed, or brought none for signatures.";
        introspections = "drawbridge.introspection.requests" "{request}" by attribute::ISSUER,
            "Questions to issuers about tokens.";
        introspection_failures = "drawbridge.introspection.failures" "{request}" by attribute::ISSUER,
            "Questions to issuers about tokens that got no usable answer.";
        connect_logins = "drawbridge.connect.logins" "{login}" by attribute::OUTCOME,
            "Logins at the connect pages, begun and ended.";
        connect_accounts = "drawbridge.connect.accounts" "{account}" by attribute::OUTCOME,
            "Accounts of callers at the connect pages: begun, connected, refused, disconnected.";
        rates_borrowed = "drawbridge.rates.borrowed" "{slice}" by attribute::OUTCOME,
            "Slices of callers' rates borrowed from all replicas' allowance.";
        hand_overs = "drawbridge.cluster.hand_overs" "{session}" by attribute::OUTCOME,
            "Sessions of replicas that stop, by what became of them.";
        policy_denied = "drawbridge.policy.denied" "{call}" by attribute::REASON,
            "Calls refused by a rule.";
        notices_unknown = "drawbridge.notices.unknown" "{notice}" by attribute::REASON,
            "Notifications that no revision knows, dropped because no extension that both sides declare covers them.";
        notifications_dropped = "drawbridge.notifications.dropped" "{notification}" by attribute::UPSTREAM,
            "Notifications of clients dropped because an upstream did not take them in time.";
        upstream_opened = "drawbridge.upstream.opened" "{session}" by attribute::UPSTREAM,
            "Sessions opened with an upstream.";
        upstream_failed = "drawbridge.upstream.failed" "{session}" by attribute::UPSTREAM,
            "Sessions with an upstream that could not be opened.";
        upstream_lost = "drawbridge.upstream.lost" "{session}" by attribute::UPSTREAM,
            "Sessions with an upstream that broke off.";
        calls_repeated = "drawbridge.calls.repeated" "{call}" by attribute::UPSTREAM,
            "Calls that were made again because their reply was lost or the upstream had not read them.";
        calls_ask_refused = "drawbridge.calls.ask_refused" "{call}" by attribute::UPSTREAM,
            "Calls refused because another call might be asked on their connection.";
        upstream_questions_refused = "drawbridge.upstream.questions_refused" "{question}" by attribute::UPSTREAM,
            "Questions refused because too many of the same session were open.";
        upstream_skipped = "drawbridge.upstream.skipped" "{list}" by attribute::UPSTREAM,
            "Merged answers that went out without an upstream.";
        notices_late = "drawbridge.notices.late" "{notice}" by attribute::UPSTREAM,
            "Progress of calls that were over already, dropped.";
        upstream_garbage = "drawbridge.upstream.garbage" "{message}" by attribute::UPSTREAM,
            "Messages of an upstream that no MCP server may send.";
        consents_begun = "drawbridge.consents.begun" "{consent}" by attribute::UPSTREAM,
            "Questions for an account at an upstream that were made for a session.";
        consents_finished = "drawbridge.consents.finished" "{consent}" by attribute::UPSTREAM,
            "Questions for an account that ended with the account.";
        consents_refused = "drawbridge.consents.refused" "{consent}" by attribute::UPSTREAM,
            "Questions for an account that the user declined.";
        tools_renamed = "drawbridge.tools.renamed" "{list}" by attribute::UPSTREAM,
            "Lists of an upstream with a tool that is named like the gateway's own, shown under another name.";
        upstream_salvaged = "drawbridge.upstream.salvaged" "{message}" by attribute::UPSTREAM,
            "Replies of an upstream that stood behind other text on their line.";
        upstream_probed = "drawbridge.upstream.probed" "{probe}" by attribute::UPSTREAM,
            "Probes of what an upstream speaks.";
        upstream_downgraded = "drawbridge.upstream.downgraded" "{verdict}" by attribute::UPSTREAM,
            "Upstreams that spoke the modern era and no longer do.";
        schemas_unknown = "drawbridge.upstream.schemas.unknown" "{call}" by attribute::UPSTREAM,
            "Calls sent without parameter headers because the tools could not be listed.";
        children_spawned = "drawbridge.children.spawned" "{process}" by attribute::UPSTREAM,
            "Stdio children started.";
        spawns_refused = "drawbridge.spawns.refused" "{process}" by attribute::REASON,
            "Stdio children that were not started.";
    }
}

table! {
    /// What goes up and down, told apart by one label.
    Levels LEVELS of LabeledGauge {
        upstream_state = "drawbridge.upstream.state" "{state}" by attribute::UPSTREAM,
            "How an upstream does: 0 not reached yet, 1 up, 2 degraded, 3 down.";
        certificate_expiry = "drawbridge.certificate.expiry" "s" by attribute::LISTENER,
            "When the certificate in use expires, seconds since the Unix epoch; of a chain, the earliest.";
    }
}

table! {
    /// What is counted in the background, told apart by two labels.
    States STATES of PairGauge {
        grants = "drawbridge.grants" "{grant}" by [attribute::UPSTREAM, attribute::STATE],
            "Grants in the database by upstream and state, as of the last count.";
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
            .chain(STATES.all().iter().map(|state| state.name))
            .collect();
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len());
        assert!(names.iter().all(|name| name.starts_with("drawbridge.")));
    }
}
