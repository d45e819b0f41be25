//! Every name that operators see. Where the OpenTelemetry conventions for MCP have a name, it is
//! theirs (SPEC C-99); ours begin with `drawbridge.`.

/// Metrics.
pub mod metric {
    /// Client connections that are open.
    pub const CONNECTIONS_OPEN: &str = "drawbridge.connections.open";
    /// Connections refused at the cap.
    pub const CONNECTIONS_REFUSED: &str = "drawbridge.connections.refused";
    /// Requests refused before authentication.
    pub const REQUESTS_REFUSED: &str = "drawbridge.requests.refused";
}
