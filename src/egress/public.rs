//! Which URLs and addresses belong to the public internet.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// Why a URL or an address is not contacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EgressRefusal {
    /// Anything but https.
    #[error("the URL is not https")]
    Scheme,
    /// The URL carries a user name or a password.
    #[error("the URL carries credentials")]
    Credentials,
    /// The URL has no host, or names this machine.
    #[error("the URL names no public host")]
    Host,
    /// The address is not a public one.
    #[error("the address is not public")]
    Address,
}

impl EgressRefusal {
    /// The refusal among the sources of `error`: the resolver of a client refuses a name by an error of the connection.
    #[must_use]
    pub fn within(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(refusal) = error.downcast_ref() {
                return Some(*refusal);
            }
            next = error.source();
        }
        None
    }
}

/// Checks a learned URL without resolving its name: scheme,
/// credentials, literal addresses in every spelling (the URL parser has already turned decimal,
/// octal, hexadecimal and short forms into addresses), names of this machine.
///
/// # Errors
/// The URL must not be contacted.
pub fn check_url(url: &Url) -> Result<(), EgressRefusal> {
    if url.scheme() != "https" {
        return Err(EgressRefusal::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(EgressRefusal::Credentials);
    }
    match url.host() {
        Some(Host::Ipv4(address)) => check_address(address.into()),
        Some(Host::Ipv6(address)) => check_address(address.into()),
        Some(Host::Domain(name)) => check_name(name),
        None => Err(EgressRefusal::Host),
    }
}

/// Checks one resolved address.
///
/// # Errors
/// It is not a public unicast address.
pub fn check_address(address: IpAddr) -> Result<(), EgressRefusal> {
    let public = match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    };
    public.then_some(()).ok_or(EgressRefusal::Address)
}

/// Refuses names reserved for this machine or this link, without a resolver. Spec: RFC 6761, RFC 6762.
fn check_name(name: &str) -> Result<(), EgressRefusal> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or_default();
    let ours = ["localhost", "local", "internal"]
        .iter()
        .any(|label| last.eq_ignore_ascii_case(label));
    if name.is_empty() || ours {
        return Err(EgressRefusal::Host);
    }
    Ok(())
}

/// Blocks of IPv4 that are not the public internet. Spec: IANA special-purpose registry, RFC 6890.
const NOT_PUBLIC_V4: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::UNSPECIFIED, 8),            // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // carrier-grade NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local: cloud metadata
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // documentation
    (Ipv4Addr::new(168, 63, 129, 16), 32), // a cloud's host agent, though from a public block
    (Ipv4Addr::new(224, 0, 0, 0), 4),      // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),      // reserved, broadcast
];

/// Blocks inside `2000::/3` that are not the public internet, or that carry an IPv4 address whose
/// way through a relay we cannot judge.
const NOT_PUBLIC_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments: Teredo, ORCHID
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16), // 6to4
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    !NOT_PUBLIC_V4
        .iter()
        .any(|(block, len)| (bits ^ block.to_bits()) >> (32 - len) == 0)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(embedded) = embedded_v4(address) {
        return is_public_v4(embedded);
    }
    let bits = address.to_bits();
    // Only 2000::/3 is assigned as global unicast: this leaves out ::, ::1, fc00::/7, fe80::/10,
    // fec0::/10, ff00::/8, 100::/64 and the IPv4-compatible addresses.
    bits >> 125 == 1
        && !NOT_PUBLIC_V6
            .iter()
            .any(|(block, len)| (bits ^ block.to_bits()) >> (128 - len) == 0)
}

/// The IPv4 address behind a mapped (`::ffff:a.b.c.d`) or NAT64 (`64:ff9b::a.b.c.d`) one.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    // Spec: RFC 6052 §2.1
    const NAT64: u128 = 0x0064_ff9b << 96;
    let bits = address.to_bits();
    if bits >> 32 == NAT64 >> 32 {
        return u32::try_from(bits & u128::from(u32::MAX))
            .ok()
            .map(Ipv4Addr::from_bits);
    }
    address.to_ipv4_mapped()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_name("https://auth.example.com/jwks")]
    #[case::public_v4("https://93.184.216.34/")]
    #[case::public_v6("https://[2606:2800:220:1:248:1893:25c8:1946]/")]
    #[case::nat64_of_public("https://[64:ff9b::5db8:d822]/")]
    #[case::just_outside_cgnat("https://100.128.0.1/")]
    #[case::just_outside_private("https://172.32.0.1/")]
    fn a_public_https_url_may_be_contacted(#[case] url: &str) {
        assert_eq!(check_url(&Url::parse(url).expect("a URL")), Ok(()));
    }

    // SPEC X-01
    #[rstest]
    #[case::loopback("https://127.0.0.1/")]
    #[case::loopback_elsewhere("https://127.8.9.10/")]
    #[case::short("https://127.1/")]
    #[case::decimal("https://2130706433/")]
    #[case::octal("https://0177.0.0.1/")]
    #[case::long_octal("https://017700000001/")]
    #[case::hexadecimal("https://0x7f.0.0.1/")]
    #[case::long_hexadecimal("https://0x7f000001/")]
    #[case::full_width_digits("https://１２７.0.0.1/")]
    #[case::unspecified("https://0.0.0.0/")]
    #[case::this_network("https://0.1.2.3/")]
    #[case::private_10("https://10.1.2.3/")]
    #[case::private_172("https://172.31.255.255/")]
    #[case::private_192("https://192.168.0.1/")]
    #[case::cgnat("https://100.64.0.1/")]
    #[case::metadata("https://169.254.169.254/latest/meta-data")]
    #[case::decimal_metadata("https://2852039166/")]
    #[case::protocol_assignments("https://192.0.0.192/")]
    #[case::documentation("https://203.0.113.7/")]
    #[case::benchmarks("https://198.19.0.1/")]
    #[case::host_agent("https://168.63.129.16/")]
    #[case::multicast("https://224.0.0.1/")]
    #[case::broadcast("https://255.255.255.255/")]
    #[case::v6_unspecified("https://[::]/")]
    #[case::v6_loopback("https://[::1]/")]
    #[case::v6_mapped("https://[::ffff:127.0.0.1]/")]
    #[case::v6_mapped_metadata("https://[::ffff:a9fe:a9fe]/")]
    #[case::v6_compatible("https://[::10.0.0.1]/")]
    #[case::v6_nat64_of_private("https://[64:ff9b::10.0.0.1]/")]
    #[case::v6_local_nat64("https://[64:ff9b:1::a00:1]/")]
    #[case::v6_6to4("https://[2002:7f00:1::]/")]
    #[case::v6_teredo("https://[2001::7f00:1]/")]
    #[case::v6_unique_local("https://[fd00:ec2::254]/")]
    #[case::v6_link_local("https://[fe80::1]/")]
    #[case::v6_site_local("https://[fec0::1]/")]
    #[case::v6_multicast("https://[ff02::1]/")]
    #[case::v6_discard("https://[100::1]/")]
    #[case::v6_documentation("https://[2001:db8::1]/")]
    fn an_address_that_is_not_public_is_refused(#[case] url: &str) {
        let url = Url::parse(url).expect("a URL");
        assert_eq!(check_url(&url), Err(EgressRefusal::Address));
    }

    #[rstest]
    #[case::plain("http://auth.example.com/", EgressRefusal::Scheme)]
    #[case::file("file:///etc/passwd", EgressRefusal::Scheme)]
    #[case::script("javascript:alert(1)", EgressRefusal::Scheme)]
    #[case::user("https://u@auth.example.com/", EgressRefusal::Credentials)]
    #[case::password("https://:p@auth.example.com/", EgressRefusal::Credentials)]
    #[case::localhost("https://localhost/", EgressRefusal::Host)]
    #[case::localhost_dot("https://LOCALHOST./", EgressRefusal::Host)]
    #[case::below_localhost("https://a.localhost/", EgressRefusal::Host)]
    #[case::mdns("https://printer.local/", EgressRefusal::Host)]
    #[case::cloud_metadata("https://metadata.google.internal/", EgressRefusal::Host)]
    fn what_is_no_public_https_url_is_refused(#[case] url: &str, #[case] why: EgressRefusal) {
        assert_eq!(check_url(&Url::parse(url).expect("a URL")), Err(why));
    }
}
