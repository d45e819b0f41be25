//! JSON-RPC and MCP error codes. Spec: JSON-RPC 2.0 §5.1, MCP 2025-11-25 and 2026-07-28.

/// Not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// JSON, but no valid message here.
pub const INVALID_REQUEST: i64 = -32600;
/// Unknown method, or not available in this session.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// Parameters that cannot be served.
pub const INVALID_PARAMS: i64 = -32602;
/// An internal failure, not caused by the message.
pub const INTERNAL_ERROR: i64 = -32603;

/// Legacy: no such resource. Spec: SPEC C-51.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// Legacy: no such session, as the official SDKs for TypeScript and C# answer. Spec: SPEC T-43.
pub const SESSION_NOT_FOUND: i64 = -32001;
/// 2025-11-25 only: URLs must be visited first. Spec: SPEC C-83.
pub const URL_ELICITATION_REQUIRED: i64 = -32042;

/// Modern, hop-by-hop: header and body disagree. Spec: SPEC M-07.
pub const HEADER_MISMATCH: i64 = -32020;
/// Modern: the client lacks a capability. Spec: SPEC M-16.
pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
/// Modern, hop-by-hop: the revision is not served. Spec: SPEC M-13.
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// Whether an upstream's error code may reach a client as it is.
///
/// -32020…-32099 is the specification's own range: what it does not define must not be emitted
/// (E-01), and -32020 and -32022 are about one hop only: a client would renegotiate with us (E-04).
///
/// Up to 2025-11-25 the range is a server's own: between two peers of those revisions [`is_of_one_hop`]
/// alone decides.
#[must_use]
pub fn is_relayable(code: i64) -> bool {
    match code {
        URL_ELICITATION_REQUIRED | MISSING_CLIENT_CAPABILITY => true,
        -32099..=-32020 => false,
        _ => true,
    }
}

/// Whether an error is about one hop only (E-04).
#[must_use]
pub fn is_of_one_hop(code: i64) -> bool {
    matches!(code, HEADER_MISMATCH | UNSUPPORTED_VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPEC E-01, E-04.
    #[test]
    fn reserved_and_hop_by_hop_codes_are_not_relayed() {
        for code in [-32050, HEADER_MISMATCH, UNSUPPORTED_VERSION, -32099] {
            assert!(!is_relayable(code), "{code}");
        }
        for code in [
            RESOURCE_NOT_FOUND,
            INVALID_PARAMS,
            URL_ELICITATION_REQUIRED,
            -32100,
            7,
        ] {
            assert!(is_relayable(code), "{code}");
        }
    }
}
