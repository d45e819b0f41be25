//! Names that operators see; those of counters and gauges stand in the tables of `metrics`. Where the OpenTelemetry
//! conventions for MCP have a name, it is theirs (SPEC C-99); ours begin with `drawbridge.`.

/// The instrumentation scope of everything we emit.
pub const SCOPE: &str = "drawbridge";

/// Target of the access lines.
pub const ACCESS_TARGET: &str = "access";

/// Target of the audit records.
pub const AUDIT_TARGET: &str = "audit";

/// Metrics that are neither counter nor gauge of ours.
pub mod metric {
    /// Calls as clients see them, seconds.
    pub const SERVER_OPERATION_DURATION: &str = "mcp.server.operation.duration";
    /// Requests to upstreams, seconds.
    pub const CLIENT_OPERATION_DURATION: &str = "mcp.client.operation.duration";
    /// Sessions of clients, seconds.
    pub const SERVER_SESSION_DURATION: &str = "mcp.server.session.duration";
    /// Sessions with upstreams, seconds.
    pub const CLIENT_SESSION_DURATION: &str = "mcp.client.session.duration";
    /// How long token requests for upstreams take, and how they end.
    pub const TOKEN_REQUEST_DURATION: &str = "drawbridge.token_request.duration";
    /// How long refreshes of grants take, the wait for another process included, and how they end.
    pub const GRANT_REFRESH_DURATION: &str = "drawbridge.grant.refresh.duration";
    /// How long commands to Redis take, seconds.
    pub const REDIS_COMMAND_DURATION: &str = "drawbridge.redis.command.duration";
    /// How long forwarding a request to another replica takes, up to the head of its answer, seconds.
    pub const CLUSTER_FORWARD_DURATION: &str = "drawbridge.cluster.forward.duration";
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

/// Names of spans that are those of no call.
pub mod span {
    /// A token request to an authorization server.
    pub const TOKEN_REQUEST: &str = "token_request";
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
    /// How something ended; one word.
    pub const OUTCOME: &str = "drawbridge.outcome";
    /// Why something was refused; one word.
    pub const REASON: &str = "drawbridge.reason";
    /// Whether grants can be used; one word.
    pub const STATE: &str = "drawbridge.state";
    /// The host that a request goes to.
    pub const SERVER_ADDRESS: &str = "server.address";
    /// The HTTP method of a page.
    pub const HTTP_METHOD: &str = "http.request.method";
    /// The pattern of the path of a page.
    pub const HTTP_ROUTE: &str = "http.route";
    /// The HTTP status of a page.
    pub const HTTP_STATUS: &str = "http.response.status_code";
    /// What a command to Redis is for; one word.
    pub const REDIS_OPERATION: &str = "drawbridge.redis.operation";
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
    use crate::protocol::methods;

    /// Stands for every method that is not one of MCP.
    pub const OTHER: &str = "_OTHER";

    /// The method itself when MCP has it: what clients invent must not make new series.
    #[must_use]
    pub fn known(method: &str) -> &'static str {
        methods::lookup(method).map_or(OTHER, |known| known.name)
    }
}
