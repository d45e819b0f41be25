//! Every name that operators see. Where the OpenTelemetry conventions for MCP have a name, it is
//! theirs (SPEC C-99); ours begin with `drawbridge.`.

/// The instrumentation scope of everything we emit.
pub const SCOPE: &str = "drawbridge";

/// Target of the access lines.
pub const ACCESS_TARGET: &str = "access";

/// Target of the audit records.
pub const AUDIT_TARGET: &str = "audit";

/// Metrics.
pub mod metric {
    /// Calls as clients see them, seconds.
    pub const SERVER_OPERATION_DURATION: &str = "mcp.server.operation.duration";
    /// Requests to upstreams, seconds.
    pub const CLIENT_OPERATION_DURATION: &str = "mcp.client.operation.duration";
    /// Sessions of clients, seconds.
    pub const SERVER_SESSION_DURATION: &str = "mcp.server.session.duration";
    /// Sessions with upstreams, seconds.
    pub const CLIENT_SESSION_DURATION: &str = "mcp.client.session.duration";

    /// Connections refused because the configured number was open.
    pub const CONNECTIONS_REFUSED: &str = "drawbridge.connections.refused";
    /// Connections that failed before the first request.
    pub const CONNECTIONS_FAILED: &str = "drawbridge.connections.failed";
    /// Connections closed to make room for others.
    pub const CONNECTIONS_EVICTED: &str = "drawbridge.connections.evicted";
    /// Requests refused because their principal had as many exchanges open as it may.
    pub const EXCHANGES_REFUSED: &str = "drawbridge.exchanges.refused";
    /// Changed certificates of `server.tls` that could not be used.
    pub const CERTIFICATES_REFUSED: &str = "drawbridge.certificates.refused";
    /// Connections given up because their peer took nothing of what was written.
    pub const CONNECTIONS_STALLED: &str = "drawbridge.connections.stalled";
    /// HTTP/2 streams given up because their peer took nothing of what was written.
    pub const STREAMS_STALLED: &str = "drawbridge.streams.stalled";
    /// Sessions refused because a cap was reached.
    pub const SESSIONS_REFUSED: &str = "drawbridge.sessions.refused";
    /// Sessions closed to make room for a new one of the same principal.
    pub const SESSIONS_EVICTED: &str = "drawbridge.sessions.evicted";
    /// Sessions closed for being idle or old.
    pub const SESSIONS_EXPIRED: &str = "drawbridge.sessions.expired";
    /// Implicit sessions closed to make room for a new one of the same principal.
    pub const IMPLICIT_SESSIONS_EVICTED: &str = "drawbridge.implicit_sessions.evicted";
    /// Implicit sessions closed for being idle or old.
    pub const IMPLICIT_SESSIONS_EXPIRED: &str = "drawbridge.implicit_sessions.expired";
    /// Requests with a session id that is forged, foreign, expired or closed.
    pub const SESSIONS_UNKNOWN: &str = "drawbridge.sessions.unknown";
    /// Streams continued with Last-Event-ID.
    pub const STREAMS_RESUMED: &str = "drawbridge.streams.resumed";
    /// Streams that could not be continued because events were gone.
    pub const STREAMS_UNRESUMABLE: &str = "drawbridge.streams.unresumable";
    /// Streams outside calls ended for a newer one of their session.
    pub const STREAMS_REPLACED: &str = "drawbridge.streams.replaced";
    /// Events removed from the log for age or size.
    pub const EVENTS_EVICTED: &str = "drawbridge.events.evicted";
    /// Events delivered without an id because the shared log could not take them.
    pub const EVENTS_UNLOGGED: &str = "drawbridge.events.unlogged";
    /// Notifications replaced by a newer one of the same kind.
    pub const NOTICES_COALESCED: &str = "drawbridge.notices.coalesced";
    /// Notifications dropped because the client did not keep up.
    pub const NOTICES_DROPPED: &str = "drawbridge.notices.dropped";
    /// Notifications dropped because no stream of the client was open for them, or because callers of
    /// several owners share the upstream and it does not say whose they are.
    pub const NOTICES_UNREAD: &str = "drawbridge.notices.unread";
    /// Notifications that no revision knows, dropped because no extension that both sides declare
    /// covers them.
    pub const NOTICES_UNKNOWN: &str = "drawbridge.notices.unknown";
    /// Calls that outlived the exchange they were asked on.
    pub const CALLS_DETACHED: &str = "drawbridge.calls.detached";
    /// Calls ended with their exchange because too many were detached.
    pub const CALLS_DETACH_REFUSED: &str = "drawbridge.calls.detach_refused";
    /// HTTP+SSE streams and sockets closed because their client did not keep up.
    pub const CHANNELS_SLOW: &str = "drawbridge.channels.slow";
    /// Questions of upstreams that were put to clients.
    pub const QUESTIONS_ASKED: &str = "drawbridge.questions.asked";
    /// Questions withdrawn before the client answered.
    pub const QUESTIONS_WITHDRAWN: &str = "drawbridge.questions.withdrawn";
    /// Questions put again on another stream because the first one brought no answer.
    pub const QUESTIONS_MOVED: &str = "drawbridge.questions.moved";
    /// Questions refused because no client could be asked.
    pub const QUESTIONS_REFUSED: &str = "drawbridge.questions.refused";
    /// Requests that had to wait because of the running calls or the rate.
    pub const CALLS_WAITED: &str = "drawbridge.calls.waited";
    /// Requests that wait now because of the running calls or the rate.
    pub const CALLS_WAITING: &str = "drawbridge.calls.waiting";
    /// Requests refused because of the running calls or the rate.
    pub const CALLS_REFUSED: &str = "drawbridge.calls.refused";
    /// Notifications of clients dropped because the rate or the byte budget allowed none in time.
    pub const MESSAGES_DROPPED: &str = "drawbridge.messages.dropped";
    /// Sealed records of the database that did not open.
    pub const VAULT_UNREADABLE: &str = "drawbridge.vault.unreadable";
    /// Grants removed because nothing used them for long.
    pub const VAULT_GRANTS_FORGOTTEN: &str = "drawbridge.vault.grants_forgotten";
    /// Authorizations evicted for a newer one of their principal.
    pub const VAULT_PENDING_EVICTED: &str = "drawbridge.vault.pending_evicted";
    /// Authorizations refused because too many waited for their callback.
    pub const VAULT_PENDING_REFUSED: &str = "drawbridge.vault.pending_refused";
    /// Tokens given up because their server could not be told of their revocation.
    pub const VAULT_REVOCATIONS_GIVEN_UP: &str = "drawbridge.vault.revocations_given_up";
    /// Grants in the database.
    pub const VAULT_GRANTS: &str = "drawbridge.vault.grants";
    /// Authorizations that wait for their callback.
    pub const VAULT_PENDING: &str = "drawbridge.vault.pending";
    /// Tokens whose server has still to be told of their revocation.
    pub const VAULT_REVOCATIONS: &str = "drawbridge.vault.revocations";
    /// Refused bodies that were read on for the ids of their requests.
    pub const BODIES_SCANNED: &str = "drawbridge.bodies.scanned";
    /// Refused bodies answered by a status alone because too many others were read on.
    pub const BODIES_UNSCANNED: &str = "drawbridge.bodies.unscanned";
    /// Messages refused because their caller's share of the byte budget was used up.
    pub const BYTES_SHARE_REFUSED: &str = "drawbridge.bytes.share_refused";
    /// Messages refused because the byte budget of all callers was used up.
    pub const BYTES_TOTAL_REFUSED: &str = "drawbridge.bytes.total_refused";
    /// Bytes taken out of the byte budget.
    pub const BYTES_HELD: &str = "drawbridge.bytes.held";
    /// Replies that had to wait for room in the byte budget of replies.
    pub const REPLIES_WAITED: &str = "drawbridge.replies.waited";
    /// Calls that ran and failed because their reply found no room.
    pub const REPLIES_FAILED: &str = "drawbridge.replies.failed";
    /// Bytes taken out of the byte budget of replies.
    pub const REPLIES_HELD: &str = "drawbridge.replies.held";
    /// Requests refused for the size of their body.
    pub const BODIES_TOO_LARGE: &str = "drawbridge.bodies.too_large";
    /// Requests refused by the rate limit of their principal.
    pub const RATE_LIMITED: &str = "drawbridge.requests.rate_limited";
    /// Requests whose token was verified before.
    pub const TOKEN_CACHE_HITS: &str = "drawbridge.token_cache.hits";
    /// Requests whose token had to be verified.
    pub const TOKEN_CACHE_MISSES: &str = "drawbridge.token_cache.misses";
    /// Fetches of issuers' keys.
    pub const KEY_SET_FETCHES: &str = "drawbridge.key_set.fetches";
    /// Fetches of issuers' keys that failed, or brought none for signatures.
    pub const KEY_SET_FAILURES: &str = "drawbridge.key_set.failures";
    /// Questions to issuers about tokens.
    pub const INTROSPECTIONS: &str = "drawbridge.introspection.requests";
    /// Questions to issuers about tokens that got no usable answer.
    pub const INTROSPECTION_FAILURES: &str = "drawbridge.introspection.failures";
    /// How long token requests for upstreams take, and how they end.
    pub const TOKEN_REQUEST_DURATION: &str = "drawbridge.token_request.duration";
    /// Duration of commands to Redis.
    pub const REDIS_COMMAND_DURATION: &str = "drawbridge.redis.command.duration";
    /// Connections to Redis that broke.
    pub const REDIS_CONNECTIONS_LOST: &str = "drawbridge.redis.connections_lost";
    /// Attempts to connect to Redis that failed.
    pub const REDIS_CONNECTS_FAILED: &str = "drawbridge.redis.connects_failed";
    /// Whether Redis is connected.
    pub const REDIS_CONNECTED: &str = "drawbridge.redis.connected";
    /// Duration of forwarding a request to another replica, up to the head of its answer.
    pub const CLUSTER_FORWARD_DURATION: &str = "drawbridge.cluster.forward.duration";
    /// Leases of this replica that ended before they were renewed.
    pub const CLUSTER_LEASES_LOST: &str = "drawbridge.cluster.leases_lost";
    /// Records of replicas that do not open.
    pub const CLUSTER_RECORDS_REFUSED: &str = "drawbridge.cluster.records_refused";
    /// Connections to the internal listener that no replica made.
    pub const CLUSTER_STRANGERS_REFUSED: &str = "drawbridge.cluster.strangers_refused";
    /// Replicas with a lease.
    pub const CLUSTER_REPLICAS: &str = "drawbridge.cluster.replicas";
    /// Whether this replica has its lease.
    pub const CLUSTER_LEASE_HELD: &str = "drawbridge.cluster.lease_held";
    /// Whether Redis evicts keys when its memory is full.
    pub const REDIS_EVICTING: &str = "drawbridge.redis.evicting";
    /// Lists answered from what is kept.
    pub const LISTS_HITS: &str = "drawbridge.list_cache.hits";
    /// Lists that had to be asked for.
    pub const LISTS_MISSES: &str = "drawbridge.list_cache.misses";
    /// Lists answered by a request for the same list that was under way.
    pub const LISTS_JOINED: &str = "drawbridge.list_cache.joined";
    /// Lists answered with a stale copy, because the upstream took too long.
    pub const LISTS_STALE: &str = "drawbridge.list_cache.stale";
    /// Kept lists dropped for size.
    pub const LISTS_EVICTED: &str = "drawbridge.list_cache.evicted";
    /// Size of the kept lists.
    pub const LISTS_BYTES: &str = "drawbridge.list_cache.size";
    /// Stdio children started.
    pub const CHILDREN_SPAWNED: &str = "drawbridge.children.spawned";
    /// Stdio children that had to be killed.
    pub const CHILDREN_KILLED: &str = "drawbridge.children.killed";
    /// Lines of children's stderr left out of the log.
    pub const STDERR_DROPPED: &str = "drawbridge.stderr.dropped";
    /// Log lines dropped because standard output did not keep up.
    pub const LOG_LINES_DROPPED: &str = "drawbridge.log.dropped";
    /// Audit records that could not be kept.
    pub const AUDIT_DROPPED: &str = "drawbridge.audit.dropped";
    /// Client connections that are open.
    pub const CONNECTIONS_OPEN: &str = "drawbridge.connections.open";
    /// Client sessions that are alive.
    pub const SESSIONS_OPEN: &str = "drawbridge.sessions.open";
    /// Sessions that the gateway keeps for modern clients.
    pub const IMPLICIT_SESSIONS_OPEN: &str = "drawbridge.implicit_sessions.open";
    /// Event streams that are open towards clients.
    pub const STREAMS_OPEN: &str = "drawbridge.streams.open";
    /// HTTP+SSE streams and sockets that are open towards clients.
    pub const CHANNELS_OPEN: &str = "drawbridge.channels.open";
    /// Calls that have no reply yet.
    pub const CALLS_RUNNING: &str = "drawbridge.calls.running";
    /// Running calls whose exchange is gone.
    pub const CALLS_DETACHED_NOW: &str = "drawbridge.calls.detached.running";
    /// Calls that wait for their client to come back with answers.
    pub const CALLS_PARKED: &str = "drawbridge.calls.parked";
    /// Calls whose questions had to wait for a place among the parked calls.
    pub const CALLS_PARK_WAITED: &str = "drawbridge.calls.park_waited";
    /// Calls whose client could not be asked because too many were parked.
    pub const CALLS_PARK_REFUSED: &str = "drawbridge.calls.park_refused";
    /// Parked calls whose client never came back.
    pub const CALLS_PARK_EXPIRED: &str = "drawbridge.calls.park_expired";
    /// Tasks forgotten for others while they ran or before their result was fetched.
    pub const TASKS_FORGOTTEN: &str = "drawbridge.tasks.forgotten";
    /// Tasks that run here for clients of 2025-11-25.
    pub const TASKS_HOSTED: &str = "drawbridge.tasks.hosted";
    /// Tasks whose result was not kept because there was no room for it.
    pub const TASKS_UNKEPT: &str = "drawbridge.tasks.unkept";
    /// Tasks not followed because their subscription names too many.
    pub const TASKS_UNFOLLOWED: &str = "drawbridge.tasks.unfollowed";
    /// Tasks whose progress is no longer passed on because a connection has too many.
    pub const TASKS_UNHEARD: &str = "drawbridge.tasks.unheard";
    /// Visits to URLs whose end would no longer be told because a shared link has too many that are not over.
    pub const URL_ELICITATIONS_FORGOTTEN: &str = "drawbridge.visits.forgotten";
    /// Events in the log.
    pub const EVENTS_KEPT: &str = "drawbridge.events.kept";
    /// Size of the event log.
    pub const EVENTS_BYTES: &str = "drawbridge.events.size";
    /// Questions that wait for a client's answer.
    pub const QUESTIONS_OPEN: &str = "drawbridge.questions.open";
    /// Sessions with upstreams that are open.
    pub const UPSTREAM_SESSIONS_OPEN: &str = "drawbridge.upstream.sessions.open";
    /// Stdio children that run.
    pub const CHILDREN_RUNNING: &str = "drawbridge.children.running";
    /// Callers that wait for a place for a stdio child.
    pub const CHILDREN_AWAITED: &str = "drawbridge.children.awaited";
    /// Verified tokens that are remembered.
    pub const TOKEN_CACHE_SIZE: &str = "drawbridge.token_cache.size";
    /// Requests refused before their token was looked at.
    pub const REQUESTS_REFUSED: &str = "drawbridge.requests.refused";
    /// Requests refused for their token.
    pub const AUTH_REFUSED: &str = "drawbridge.auth.refused";
    /// Calls refused by a rule.
    pub const POLICY_DENIED: &str = "drawbridge.policy.denied";
    /// Notifications of clients dropped because an upstream did not take them in time.
    pub const NOTIFICATIONS_DROPPED: &str = "drawbridge.notifications.dropped";
    /// Sessions opened with an upstream.
    pub const UPSTREAM_OPENED: &str = "drawbridge.upstream.opened";
    /// Sessions with an upstream that could not be opened.
    pub const UPSTREAM_FAILED: &str = "drawbridge.upstream.failed";
    /// Sessions with an upstream that broke off.
    pub const UPSTREAM_LOST: &str = "drawbridge.upstream.lost";
    /// Calls that were made again because their reply was lost or the upstream had not read them.
    pub const CALLS_REPEATED: &str = "drawbridge.calls.repeated";
    /// Calls refused because another call might be asked on their connection.
    pub const CALLS_ASK_REFUSED: &str = "drawbridge.calls.ask_refused";
    /// Questions refused because too many of the same session were open.
    pub const UPSTREAM_QUESTIONS_REFUSED: &str = "drawbridge.upstream.questions_refused";
    /// Merged answers that went out without an upstream.
    pub const UPSTREAM_SKIPPED: &str = "drawbridge.upstream.skipped";
    /// Progress of calls that were over already, dropped.
    pub const NOTICES_LATE: &str = "drawbridge.notices.late";
    /// Messages of an upstream that no MCP server may send, and tools left out of its lists because they
    /// repeat a member.
    pub const UPSTREAM_GARBAGE: &str = "drawbridge.upstream.garbage";
    /// Replies of an upstream that stood behind other text on their line.
    pub const UPSTREAM_SALVAGED: &str = "drawbridge.upstream.salvaged";
    /// Probes of what an upstream speaks.
    pub const UPSTREAM_PROBED: &str = "drawbridge.upstream.probed";
    /// Upstreams that spoke the modern era and no longer do.
    pub const UPSTREAM_DOWNGRADED: &str = "drawbridge.upstream.downgraded";
    /// How an upstream does.
    pub const UPSTREAM_STATE: &str = "drawbridge.upstream.state";
    /// Calls sent without parameter headers because the tools could not be listed.
    pub const SCHEMAS_UNKNOWN: &str = "drawbridge.upstream.schemas.unknown";
    /// Stdio children that were not started.
    pub const SPAWNS_REFUSED: &str = "drawbridge.spawns.refused";
    /// When the certificate of the public listener expires.
    pub const CERTIFICATE_EXPIRY: &str = "drawbridge.certificate.expiry";
    /// Always 1, with the version.
    pub const BUILD_INFO: &str = "drawbridge.build.info";
    /// Processor time used. Prometheus adds `_seconds_total`.
    pub const PROCESS_CPU: &str = "process.cpu";
    /// Resident memory. Prometheus adds `_bytes`.
    pub const PROCESS_RESIDENT_MEMORY: &str = "process.resident_memory";
    /// Open file descriptors.
    pub const PROCESS_OPEN_FDS: &str = "process.open_fds";
    /// File descriptors that may be open.
    pub const PROCESS_MAX_FDS: &str = "process.max_fds";
    /// When the process began. Prometheus adds `_seconds`.
    pub const PROCESS_START_TIME: &str = "process.start_time";
}

/// Attributes of spans and metrics.
pub mod attribute {
    /// The MCP method.
    pub const METHOD: &str = "mcp.method.name";
    /// The revision spoken.
    pub const PROTOCOL_VERSION: &str = "mcp.protocol.version";
    /// The session's tag, never its id.
    pub const SESSION: &str = "mcp.session.id";
    /// URI of a resource; spans only.
    pub const RESOURCE: &str = "mcp.resource.uri";
    /// A resolved tool name.
    pub const TOOL: &str = "gen_ai.tool.name";
    /// A resolved prompt name.
    pub const PROMPT: &str = "gen_ai.prompt.name";
    /// `execute_tool` for tool calls.
    pub const OPERATION: &str = "gen_ai.operation.name";
    /// The id of the HTTP request, or message of a WebSocket, that callers may quote.
    pub const REQUEST_TAG: &str = "drawbridge.request.id";
    /// The JSON-RPC id, as text.
    pub const REQUEST_ID: &str = "jsonrpc.request.id";
    /// The JSON-RPC error code, as text; in metrics bounded as `error.type` is.
    pub const RPC_STATUS: &str = "rpc.response.status_code";
    /// Why a call failed.
    pub const ERROR_TYPE: &str = "error.type";
    /// `tcp` or `pipe`.
    pub const TRANSPORT: &str = "network.transport";
    /// One of ours: `mcp`, or the last segment of its path.
    pub const ENDPOINT: &str = "drawbridge.endpoint";
    /// The configured name of an upstream.
    pub const UPSTREAM: &str = "drawbridge.upstream";
    /// Our version.
    pub const SERVICE_VERSION: &str = "service.version";
    /// This process.
    pub const SERVICE_INSTANCE: &str = "service.instance.id";
    /// The table of the configuration that a certificate stands in.
    pub const LISTENER: &str = "drawbridge.listener";
    /// A trusted issuer, as it is configured.
    pub const ISSUER: &str = "drawbridge.issuer";
    /// The version of the program, on the metric that says nothing else.
    pub const BUILD_VERSION: &str = "version";
    /// How the gateway comes by a token of an upstream: `kind` of its account.
    pub const ACCOUNT_KIND: &str = "drawbridge.account.kind";
    /// What a command to Redis is for; one word.
    pub const REDIS_OPERATION: &str = "drawbridge.redis.operation";
    /// How something ended; one word.
    pub const OUTCOME: &str = "drawbridge.outcome";
    /// Why something was refused; one word.
    pub const REASON: &str = "drawbridge.reason";
}

/// Values of `error.type` for calls that no upstream answered.
pub mod error_type {
    /// The caller went away or cancelled.
    pub const CANCELLED: &str = "cancelled";
    /// The upstream did not answer in time.
    pub const TIMEOUT: &str = "timeout";
    /// The upstream cannot be reached or started.
    pub const UNAVAILABLE: &str = "upstream_unavailable";
    /// The upstream broke off.
    pub const LOST: &str = "upstream_lost";
    /// The upstream sent what no MCP server may send.
    pub const INVALID: &str = "upstream_invalid";
    /// The caller sent what cannot be served.
    pub const BAD_REQUEST: &str = "bad_request";
    /// A rule refused.
    pub const DENIED: &str = "denied";
    /// Unknown session, or another caller's.
    pub const SESSION: &str = "session";
    /// A limit was reached.
    pub const BUSY: &str = "busy";
    /// Our own fault.
    pub const INTERNAL: &str = "internal";
}

/// Methods as values of an attribute.
pub mod method {
    /// Stands for every method that is not one of MCP.
    pub const OTHER: &str = "_OTHER";

    /// The method itself when MCP has it: what clients invent must not make new series.
    #[must_use]
    pub fn known(method: &str) -> &'static str {
        KNOWN
            .iter()
            .copied()
            .find(|known| *known == method)
            .unwrap_or(OTHER)
    }

    /// The most frequent first.
    const KNOWN: [&str; 35] = [
        "tools/call",
        "tools/list",
        "initialize",
        "notifications/initialized",
        "resources/read",
        "prompts/get",
        "resources/list",
        "prompts/list",
        "ping",
        "resources/templates/list",
        "completion/complete",
        "resources/subscribe",
        "resources/unsubscribe",
        "logging/setLevel",
        "server/discover",
        "subscriptions/listen",
        "tasks/get",
        "tasks/result",
        "tasks/list",
        "tasks/cancel",
        "tasks/update",
        "skills/list",
        "skills/get",
        "resources/directory/read",
        "elicitation/create",
        "sampling/createMessage",
        "roots/list",
        "notifications/cancelled",
        "notifications/progress",
        "notifications/message",
        "notifications/roots/list_changed",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
    ];
}
