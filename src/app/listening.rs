//! Listeners at the start: an address that cannot be used is named by its key in the configuration, with what to do.

use std::io::ErrorKind;

use anyhow::anyhow;
use rustix::io::Errno;

use crate::cause::chain;
use crate::config::HttpServerConfig;
use crate::downstream::listener::{ListenError, Listener};

/// Binds `settings.listen`, which `key` names.
pub(super) fn bind(
    key: &str,
    settings: &HttpServerConfig,
    header_bytes: usize,
) -> anyhow::Result<Listener> {
    Listener::bind(settings, header_bytes).map_err(|error| refused(key, error))
}

/// The error that ends the start: `error`, about the address that `key` names.
pub(super) fn refused(key: &str, error: ListenError) -> anyhow::Error {
    let ListenError::Bind { source, .. } = &error else {
        return error.into();
    };
    let remedy = match source.kind() {
        ErrorKind::AddrInUse => "another program listens there: end it, or write another port",
        ErrorKind::AddrNotAvailable => "this machine has no such address: write one that it has",
        ErrorKind::PermissionDenied => {
            "ports below 1024 need the capability CAP_NET_BIND_SERVICE (AmbientCapabilities= of systemd): grant it, or \
             write another port"
        }
        // The standard library has no kind for it.
        _ if Errno::from_io_error(source) == Some(Errno::AFNOSUPPORT) => {
            "this machine, or its container, has no IPv6: write an IPv4 address, as 0.0.0.0 for all"
        }
        _ => return anyhow::Error::from(error).context(key.to_owned()),
    };
    anyhow!("{key}: {}\n    {remedy}", chain(&error))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(ErrorKind::AddrInUse.into(), "another program listens there")]
    #[case(ErrorKind::AddrNotAvailable.into(), "this machine has no such address")]
    #[case(ErrorKind::PermissionDenied.into(), "CAP_NET_BIND_SERVICE")]
    #[case(Errno::AFNOSUPPORT.into(), "write an IPv4 address")]
    #[case(ErrorKind::OutOfMemory.into(), "out of memory")]
    fn address_that_cannot_be_used_is_named_by_its_key(
        #[case] source: io::Error,
        #[case] said: &str,
    ) {
        let error = ListenError::Bind {
            address: SocketAddr::from(([127, 0, 0, 1], 9090)),
            source,
        };
        let text = format!("{:#}", refused("admin.listen", error));
        let begin = "admin.listen: cannot listen on 127.0.0.1:9090: ";
        assert!(text.starts_with(begin) && text.contains(said), "{text}");
    }
}
