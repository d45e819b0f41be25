//! `NotReached`: why an upstream could not be reached or started, for callers and for operators.

use std::borrow::Cow;
use std::sync::Arc;

use crate::cause::{ConnectionFault, DESCRIPTORS_WANTED, chain};

/// Why an upstream could not be reached or started. Its text is for callers and names no address.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}{}", .words.as_deref().unwrap_or_default())]
pub struct NotReached {
    /// The fault, in words for every caller.
    pub(super) text: String,
    /// Text appended for the principal that owns the child: the last words of the child.
    words: Option<String>,
    /// The remedy for the operator.
    pub(super) remedy: Option<&'static str>,
    /// Further causes, for the log.
    #[source]
    detail: Option<CauseDetail>,
}

/// The causes below, which may name addresses and paths.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
struct CauseDetail(Arc<str>);

impl NotReached {
    /// An error without remedy and last words.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            words: None,
            remedy: None,
            detail: None,
        }
    }

    /// The error of an upstream that is not tried for a moment, as the last attempts took long. `reason` says why the
    /// last one failed, in words for callers.
    pub(super) fn lately(reason: Option<Cow<'static, str>>) -> Self {
        let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        Self::new(format!(
            "it did not answer lately{reason}; it is tried again in a moment"
        ))
    }

    /// Adds the remedy for the operator, if one is known.
    pub(super) fn remedied(mut self, remedy: impl Into<Option<&'static str>>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Adds the last words of the child, if there are any, for its own principal.
    pub(super) fn with_words(mut self, words: Option<&str>) -> Self {
        self.words = words.map(|words| format!("; its last words: {words}"));
        self
    }

    /// Adds the sources of `error`, for the log.
    pub(super) fn caused_by(mut self, error: &dyn std::error::Error) -> Self {
        self.detail = error
            .source()
            .map(|source| CauseDetail(chain(source).into()));
        self
    }

    /// The remedy for the fault of a connection.
    pub(super) fn remedy_of(fault: Option<ConnectionFault>) -> &'static str {
        match fault {
            Some(ConnectionFault::Refused) => {
                "start the upstream, or correct host and port of `url`: no program listens there"
            }
            Some(ConnectionFault::UnknownHost) => {
                "correct the host of `url`, or the DNS of this machine: the name has no address here"
            }
            Some(ConnectionFault::TimedOut | ConnectionFault::NoRoute) => {
                "look whether a firewall or a missing route is between this machine and the upstream; \
                 `proxy` names a forward proxy"
            }
            Some(ConnectionFault::NotTls) => {
                "write `url` with http://, or with the port of https: the port speaks no TLS"
            }
            Some(ConnectionFault::UnknownIssuer | ConnectionFault::Authority) => {
                "name the authority of the upstream's certificate in `ca_file`"
            }
            Some(ConnectionFault::OtherName) => {
                "write the host name that the upstream's certificate is for into `url`; `ca_file` does not help here"
            }
            Some(ConnectionFault::Expired) => {
                "renew the upstream's certificate, or correct the clock of this machine; `ca_file` does not help here"
            }
            Some(ConnectionFault::Handshake | ConnectionFault::Untrusted) => {
                "look at the upstream's certificate and TLS settings; `ca_file` names further authorities"
            }
            Some(ConnectionFault::Proxy) => {
                "start the proxy that `proxy` names, or correct its host and port; without `proxy` the upstream \
                 is reached directly"
            }
            Some(ConnectionFault::ProxyRefused) => {
                "look into the log of the proxy that `proxy` names: it has to allow CONNECT to the upstream, \
                 without a login"
            }
            Some(ConnectionFault::NoDescriptor) => DESCRIPTORS_WANTED,
            None => "ask for `url` from this machine, for instance with curl",
        }
    }
}
