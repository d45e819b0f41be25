//! `ConnectionFault`: why a connection could not be made, read from the errors of the HTTP clients.

use std::error::Error;
use std::io;

use rustls::CertificateError;

/// Why a connection could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFault {
    /// No process listens at the port.
    Refused,
    /// No answer in time.
    TimedOut,
    /// No network leads there.
    NoRoute,
    /// The host name has no address.
    UnknownHost,
    /// The port answers a TLS handshake with something else.
    NotTls,
    /// The TLS handshake failed for another reason.
    Handshake,
    /// The certificate is signed by an authority that is not trusted here, or by itself.
    UnknownIssuer,
    /// The certificate is for another host name.
    OtherName,
    /// The certificate has expired.
    Expired,
    /// The certificate is that of an authority.
    Authority,
    /// The certificate is wrong in another way.
    Untrusted,
    /// The forward proxy itself was not reached.
    Proxy,
    /// The forward proxy was reached and opened no tunnel.
    ProxyRefused,
    /// This process, or this machine, has no file descriptor left.
    NoDescriptor,
}

impl ConnectionFault {
    /// The first known fault among `error` and its sources; a lack of descriptors before all others, as a name is not resolved
    /// without one either.
    #[must_use]
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut fault = None;
        let mut next = Some(error);
        while let Some(error) = next {
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(lacks_descriptors)
            {
                return Some(Self::NoDescriptor);
            }
            fault = fault.or_else(|| known(error));
            next = inner(error);
        }
        fault
    }
}

/// The remedy where [`lacks_descriptors`].
pub const DESCRIPTORS_WANTED: &str = "raise the limit on file descriptors (ulimit -n, LimitNOFILE of systemd), or lower \
    server.max_connections or stdio.max_children";

/// Whether the system refused a file or connection because too many are open: in this process, or on this machine.
#[must_use]
pub fn lacks_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    code == Some(Errno::MFILE.raw_os_error()) || code == Some(Errno::NFILE.raw_os_error())
}

/// The error that another one wraps. `source()` of an `io::Error` skips the wrapped error and returns the source of
/// that.
fn inner<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

fn known(error: &(dyn Error + 'static)) -> Option<ConnectionFault> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(of_tls(error));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return match error.kind() {
            io::ErrorKind::ConnectionRefused => Some(ConnectionFault::Refused),
            io::ErrorKind::TimedOut => Some(ConnectionFault::TimedOut),
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                Some(ConnectionFault::NoRoute)
            }
            _ => None,
        };
    }
    // hyper-util keeps the types of these to itself.
    let text = error.to_string();
    if text.starts_with("tunnel error") {
        // Its sources are faults of the way to the proxy, and say nothing of the host behind it.
        let fault = if error.source().is_some() {
            ConnectionFault::Proxy
        } else {
            ConnectionFault::ProxyRefused
        };
        return Some(fault);
    }
    (text == "dns error").then_some(ConnectionFault::UnknownHost)
}

fn of_tls(error: &rustls::Error) -> ConnectionFault {
    let fault = match error {
        rustls::Error::InvalidCertificate(fault) => fault,
        rustls::Error::InvalidMessage(_) => return ConnectionFault::NotTls,
        _ => return ConnectionFault::Handshake,
    };
    match fault {
        CertificateError::UnknownIssuer => ConnectionFault::UnknownIssuer,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            ConnectionFault::OtherName
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            ConnectionFault::Expired
        }
        // webpki says this in its own words only.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => ConnectionFault::Authority,
        _ => ConnectionFault::Untrusted,
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("dns error")]
    struct Unresolved(#[source] io::Error);

    #[test]
    fn lack_of_descriptors_is_found_below_other_faults() {
        for code in [Errno::MFILE, Errno::NFILE] {
            let error = Unresolved(io::Error::from_raw_os_error(code.raw_os_error()));
            let fault = ConnectionFault::of(&error);
            assert_eq!(fault, Some(ConnectionFault::NoDescriptor));
        }
        let error = Unresolved(io::Error::other("no such name"));
        let fault = ConnectionFault::of(&error);
        assert_eq!(fault, Some(ConnectionFault::UnknownHost));
    }
}
