//! What counts as one client address: connections and questions about tokens are shared out by it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The bits of an IPv6 address that name the network of one customer. Spec: RFC 6177 §2.
const NETWORK: u128 = u128::MAX << 64;

/// An IPv4 address, or the /64 of an IPv6 address: a host with one address of a /64 can use all of them. Bytes, as a
/// number of 128 bits would align what holds it to 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNetwork([u8; 16]);

impl From<IpAddr> for ClientNetwork {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self((v6.to_bits() & NETWORK).to_be_bytes()),
        }
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Ipv6Addr::from(self.0).to_canonical() {
            IpAddr::V4(v4) => v4.fmt(f),
            IpAddr::V6(v6) => write!(f, "{v6}/64"),
        }
    }
}

impl fmt::Debug for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ClientNetwork {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn networks_of_ipv6_count_as_one_address() {
        assert_eq!(address("2001:db8:1:2::3"), address("2001:db8:1:2:ffff::9"));
        assert_ne!(address("2001:db8:1:2::3"), address("2001:db8:1:3::3"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
        assert_eq!(address("192.0.2.1"), address("::ffff:192.0.2.1"));
    }

    #[test]
    fn addresses_are_shown_as_an_operator_writes_them() {
        assert_eq!(address("192.0.2.1").to_string(), "192.0.2.1");
        assert_eq!(address("2001:db8::9:1").to_string(), "2001:db8::/64");
    }
}
