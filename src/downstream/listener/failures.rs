//! Counts connections that end before their first request, and logs one line a minute per cause.

use std::io;
use std::net::SocketAddr;

use crate::cause::{DESCRIPTORS_WANTED, chain, lacks_descriptors};
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::LABELED;

/// Why a connection failed; the label of `drawbridge.connections.failed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ConnectionFailure {
    /// No common protocol version, a certificate that the client does not trust, no TLS at all.
    TlsHandshake,
    /// The client closed during the handshake, as probes of load balancers do: never logged.
    TlsClosed,
    /// The handshake took longer than `server.handshake_timeout`.
    TlsTimeout,
    /// The bytes are no head of HTTP/1.1, or it is too large.
    BadHead,
    /// A head began and took longer than `server.header_timeout`.
    HeadTimeout,
    /// The frames are no HTTP/2.
    Http2,
    /// As many connections as `server.max_connections` are open.
    Full,
    /// The system gives no connection: no descriptor or no memory is left.
    Accept,
}

impl ConnectionFailure {
    const fn word(self) -> &'static str {
        match self {
            Self::TlsHandshake => "tls_handshake",
            Self::TlsClosed => "tls_closed",
            Self::TlsTimeout => "tls_timeout",
            Self::BadHead => "bad_head",
            Self::HeadTimeout => "head_timeout",
            Self::Http2 => "http2",
            Self::Full => "full",
            Self::Accept => "accept",
        }
    }

    /// What helps against `error`, where it tells that the client speaks another protocol than the port, or does not trust
    /// the certificate.
    fn remedy(self, error: &str) -> Option<&'static str> {
        let has = |words: &[&str]| words.iter().any(|word| error.contains(*word));
        match self {
            // The first byte of a TLS record begins no method.
            Self::BadHead if has(&["invalid HTTP method"]) => Some(
                "if the client or proxy speaks TLS: give it an http:// URL, or set `server.tls`",
            ),
            Self::TlsHandshake if has(&["InvalidContentType"]) => {
                Some("if the client or proxy speaks plain HTTP: give it an https:// URL")
            }
            Self::TlsHandshake
                if has(&[
                    "UnknownCA",
                    "CertificateUnknown",
                    "BadCertificate",
                    "CertificateExpired",
                ]) =>
            {
                Some(
                    "the client refuses the certificate: look at its expiry, names and chain with \
                     `openssl s_client -showcerts`",
                )
            }
            _ => None,
        }
    }

    /// The cause of a failed TLS handshake.
    pub(super) fn of_handshake(error: &io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match error.kind() {
            UnexpectedEof | ConnectionReset | BrokenPipe => Self::TlsClosed,
            _ => Self::TlsHandshake,
        }
    }

    /// The cause of a failed HTTP/1.1 connection; `None` if the client only closed it, or if `is_idle`: no request had
    /// begun.
    pub(super) fn of_http1(error: &hyper::Error, is_idle: bool) -> Option<Self> {
        if error.is_timeout() {
            (!is_idle).then_some(Self::HeadTimeout)
        } else {
            error.is_parse().then_some(Self::BadHead)
        }
    }

    /// The same for HTTP/2: only a protocol violation is a failure.
    pub(super) fn of_http2(error: &hyper::Error) -> Option<Self> {
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            // A lost connection is no fault of the protocol.
            if cause.is::<io::Error>() {
                return None;
            }
            source = cause.source();
        }
        Some(Self::Http2)
    }
}

/// Log limits of one listener, per cause.
#[derive(Debug, Default)]
pub(super) struct ConnectionFailures {
    logged: LineLimit,
}

impl ConnectionFailures {
    /// Has a count of clients' failed handshakes from now on, for the alert: `increase` of Prometheus does not see the
    /// first one of a new series.
    pub(super) fn begin_handshakes() {
        let word = ConnectionFailure::TlsHandshake.word();
        LABELED.connections_failed.begin(word);
    }

    /// Counts a client's failed connection, and logs the failure unless the same cause was logged within a minute.
    /// Failures on the admin listener are only logged.
    pub(super) fn note(
        &self,
        is_public: bool,
        cause: ConnectionFailure,
        peer: SocketAddr,
        error: &dyn std::error::Error,
    ) {
        if is_public {
            LABELED.connections_failed.add(cause.word(), 1);
        }
        if cause == ConnectionFailure::TlsClosed {
            return;
        }
        if let Some(muted) = self.logged.admit(cause.word()) {
            let error = chain(error);
            let (reason, remedy) = (cause.word(), cause.remedy(&error));
            tracing::warn!(reason, %peer, error, remedy, muted, "client connection failed");
        }
    }

    /// Counts a connection that the system does not hand over, and logs it once a minute.
    pub(super) fn note_accept(&self, error: &io::Error) {
        let cause = ConnectionFailure::Accept;
        LABELED.connections_failed.add(cause.word(), 1);
        if let Some(muted) = self.logged.admit(cause.word()) {
            let remedy = lacks_descriptors(error).then_some(DESCRIPTORS_WANTED);
            let error: &dyn std::error::Error = error;
            tracing::error!(error, muted, remedy, "cannot accept connections");
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::telemetry::captured::LogCapture;

    #[rstest]
    #[case(ConnectionFailure::BadHead, "invalid HTTP method parsed", "http://")]
    #[case(
        ConnectionFailure::TlsHandshake,
        "received corrupt message of type InvalidContentType",
        "https://"
    )]
    #[case(
        ConnectionFailure::TlsHandshake,
        "received fatal alert: UnknownCA",
        "expiry"
    )]
    fn usual_failure_has_a_remedy(
        #[case] cause: ConnectionFailure,
        #[case] error: &str,
        #[case] remedy: &str,
    ) {
        let caught = LogCapture::begin();
        let peer = SocketAddr::from(([192, 0, 2, 1], 4000));
        let failures = ConnectionFailures::default();
        failures.note(true, cause, peer, &io::Error::other(error));
        let lines = caught.of_level("WARN");
        let [line] = &lines[..] else {
            panic!("one line: {lines:?}")
        };
        let said = line["remedy"].as_str().unwrap_or_default();
        assert!(said.contains(remedy), "{line}");
    }
}
