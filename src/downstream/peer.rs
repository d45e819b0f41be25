//! The client's address, also behind proxies that we trust.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A block of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressBlock {
    network: u128,
    mask: u128,
}

/// The blocks of `server.trusted_proxies`: only these may tell us another address than their own.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Vec<AddressBlock>);

/// A text that is no address block.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no address block: write it like 10.0.0.0/8 or fd00::/8")]
pub struct BlockError(String);

impl TrustedProxies {
    /// Reads CIDR blocks; an address without a length stands for itself.
    ///
    /// # Errors
    /// Names the first text that is no block.
    pub fn parse(blocks: &[String]) -> Result<Self, BlockError> {
        let parse =
            |text: &String| AddressBlock::parse(text).ok_or_else(|| BlockError(text.clone()));
        blocks.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// All addresses: the left-most hop is the client.
    pub(super) fn all() -> Self {
        let (network, mask) = (0, 0);
        Self(vec![AddressBlock { network, mask }])
    }

    /// The client behind the connection from `peer`: the right-most address of `X-Forwarded-For` that is not a trusted
    /// proxy, if every hop to its right is one. An unreadable hop ends the walk, so a client can only add addresses to
    /// the left, which are never used.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut nearest = peer.to_canonical();
        if self.0.is_empty() {
            return nearest;
        }
        let hops = headers
            .get_all(FORWARDED_FOR)
            .iter()
            .rev()
            .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        for hop in hops {
            if !self.trusts(nearest) {
                break;
            }
            let Some(address) = parse_hop(hop) else {
                break;
            };
            nearest = address;
        }
        nearest
    }

    /// Whether `address` is a trusted proxy.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        let bits = as_bits(address);
        self.0
            .iter()
            .any(|block| bits & block.mask == block.network)
    }
}

impl AddressBlock {
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let (width, offset) = if address.is_ipv4() {
            (32, 96)
        } else {
            (128, 0)
        };
        let length = length.unwrap_or(width);
        if length > width {
            return None;
        }
        let mask = u128::MAX.checked_shl(128 - offset - length).unwrap_or(0);
        Some(Self {
            network: as_bits(address) & mask,
            mask,
        })
    }
}

/// Both address families on one number line: IPv4 as mapped IPv6.
fn as_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:4711`. Another hop of the line may hold
/// any bytes.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop.trim_ascii()).ok()?;
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, _port) = rest.split_once(']')?;
        return inside
            .parse::<Ipv6Addr>()
            .ok()
            .map(|v6| IpAddr::V6(v6).to_canonical());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let (address, _port) = text.split_once(':')?;
    address.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;

    use super::*;

    fn client(blocks: &[&str], peer: &str, forwarded: &[&str]) -> String {
        let blocks: Vec<String> = blocks.iter().map(|b| (*b).to_owned()).collect();
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append(
                FORWARDED_FOR,
                HeaderValue::from_bytes(line.as_bytes()).unwrap(),
            );
        }
        let proxies = TrustedProxies::parse(&blocks).unwrap();
        let client = proxies.client(peer.parse().unwrap(), &headers);
        client.to_string()
    }

    #[rstest]
    #[case::nobody_is_trusted(&[], "10.0.0.1", &["192.0.2.9"], "10.0.0.1")]
    #[case::stranger_is_not_believed(&["10.0.0.0/8"], "203.0.113.7", &["192.0.2.9"], "203.0.113.7")]
    #[case::proxy_is_believed(&["10.0.0.0/8"], "10.0.0.1", &["192.0.2.9"], "192.0.2.9")]
    #[case::left_of_an_untrusted_hop_nothing_counts(
        &["10.0.0.0/8"], "10.0.0.1", &["6.6.6.6, 192.0.2.9, 10.0.0.2"], "192.0.2.9")]
    #[case::lines_are_one_list(&["10.0.0.0/8"], "10.0.0.1", &["192.0.2.9", "10.0.0.2"], "192.0.2.9")]
    #[case::garbage_ends_the_walk(&["10.0.0.0/8"], "10.0.0.1", &["192.0.2.9, unknown, 10.0.0.2"], "10.0.0.2")]
    #[case::bytes_of_the_client_hide_nothing(&["10.0.0.0/8"], "10.0.0.1", &["\u{ff}, 192.0.2.9"], "192.0.2.9")]
    #[case::ports_are_cut(&["::1"], "::1", &["[2001:db8::5]:99"], "2001:db8::5")]
    #[case::v4_ports_are_cut(&["10.0.0.1"], "10.0.0.1", &["192.0.2.9:4711"], "192.0.2.9")]
    #[case::mapped_addresses_are_ipv4(&["10.0.0.0/8"], "::ffff:10.0.0.1", &["192.0.2.9"], "192.0.2.9")]
    #[case::every_address(&["0.0.0.0/0"], "203.0.113.7", &["192.0.2.9"], "192.0.2.9")]
    fn only_trusted_hops_are_believed(
        #[case] blocks: &[&str],
        #[case] peer: &str,
        #[case] forwarded: &[&str],
        #[case] expected: &str,
    ) {
        assert_eq!(client(blocks, peer, forwarded), expected);
    }

    #[rstest]
    #[case("10.0.0.0/33")]
    #[case("fd00::/129")]
    #[case("example.com")]
    #[case("10.0.0.0/")]
    fn what_is_no_block_is_refused(#[case] text: &str) {
        assert!(TrustedProxies::parse(&[text.to_owned()]).is_err());
    }
}
