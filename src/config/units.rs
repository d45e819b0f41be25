//! Parsers of values written as text: durations, sizes, rates, addresses.
//!
//! Each parser's error says which form is expected, without repeating the input.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use url::{Host, ParseError, Url};

use super::types::RateConfig;

/// The longest accepted duration: a year. Longer ones are typing errors.
const LONGEST: Duration = Duration::from_hours(366 * 24);

/// Splits `"250ms"` into 250 and `ms`.
fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, unit.trim_start()))
}

/// A duration, `0s` included.
pub(super) fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let wanted = || "expected a number with ms, s, m, h or d, such as \"10s\"".to_owned();
    let (number, unit) = number_and_unit(text).ok_or_else(wanted)?;
    let millis_each = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wanted()),
    };
    number
        .checked_mul(millis_each)
        .map(Duration::from_millis)
        .filter(|length| *length <= LONGEST)
        .ok_or_else(|| "longer than a year, which is the longest time".to_owned())
}

/// A duration above zero.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match duration_or_zero(text) {
        Ok(Duration::ZERO) => Err("must be longer than zero".to_owned()),
        other => other,
    }
}

/// A size in bytes.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let wanted = || "expected a number with B, KiB, MiB or GiB, such as \"4MiB\"".to_owned();
    let (number, unit) = number_and_unit(text).ok_or_else(wanted)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(wanted()),
    };
    let bytes = number
        .checked_mul(1 << shift)
        .and_then(|bytes| usize::try_from(bytes).ok());
    match bytes {
        Some(0) => Err("must be larger than zero".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err("larger than this machine can address".to_owned()),
    }
}

/// A rate such as `100/s`.
pub(super) fn rate(text: &str) -> Result<RateConfig, String> {
    let wanted = || "expected a number per s, m or h, such as \"100/s\"".to_owned();
    let (count, unit) = text.split_once('/').ok_or_else(wanted)?;
    let per = match unit.trim() {
        "s" => Duration::from_secs(1),
        "m" => Duration::from_mins(1),
        "h" => Duration::from_hours(1),
        _ => return Err(wanted()),
    };
    match count.trim().parse() {
        Ok(0) => Err("must be more than zero".to_owned()),
        Ok(count) => Ok(RateConfig { count, per }),
        Err(_) => Err(wanted()),
    }
}

/// An address to listen on.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected an IP address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"".to_owned()
    })
}

/// An address block; a bare address is a block of one address.
pub(super) fn cidr(text: &str) -> Result<String, String> {
    let wanted = || "expected an address block, such as \"10.0.0.0/8\"".to_owned();
    let (address, length) = text
        .split_once('/')
        .map_or((text, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().map_err(|_| wanted())?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    match length.map(str::parse::<u8>) {
        None => Ok(format!("{address}/{longest}")),
        Some(Ok(length)) if length <= longest => Ok(text.to_owned()),
        Some(_) => Err(wanted()),
    }
}

/// An `http` or `https` URL without credentials or fragment.
pub(super) fn web_url(text: &str) -> Result<Url, String> {
    let url = endpoint_url(text)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("expected a URL that starts with https:// or http://".to_owned());
    }
    Ok(url)
}

/// An `http`, `https` or WebSocket URL without credentials or fragment.
pub(super) fn endpoint_url(text: &str) -> Result<Url, String> {
    let wanted = || "expected a URL that starts with https:// or http://".to_owned();
    let url = Url::parse(text).map_err(|error| match error {
        ParseError::RelativeUrlWithoutBase => wanted(),
        error => format!("not a URL: {error}; {}", wanted()),
    })?;
    if !matches!(url.scheme(), "http" | "https" | "ws" | "wss") {
        return Err(wanted());
    }
    if !url.username().is_empty() || url.password().is_some() {
        let what =
            "a URL may not hold credentials, as URLs end up in logs: `headers` of an upstream may";
        return Err(what.to_owned());
    }
    if url.fragment().is_some() {
        return Err("a URL may not have a fragment here: leave out # and what follows".to_owned());
    }
    Ok(url)
}

/// A URL path that the gateway can serve: plain segments, no trailing slash.
pub(super) fn url_path(text: &str) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let mut segments = text.split('/');
    let starts = segments.next() == Some("") && text.len() > 1;
    let fits = segments.all(|segment| {
        !segment.is_empty() && segment.bytes().all(plain) && !segment.bytes().all(|b| b == b'.')
    });
    if starts && fits {
        Ok(())
    } else {
        Err("expected a path that starts with a slash and does not end with one".to_owned())
    }
}

/// A web origin as browsers send it: scheme, host, optional port.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let wanted = "expected an origin, such as \"https://claude.ai\": scheme and host, no path";
    if text == "*" || text == "null" {
        return Err(format!("would allow any web page to call: {wanted}"));
    }
    let url = Url::parse(text).map_err(|_| wanted.to_owned())?;
    let spelled = url.origin().ascii_serialization();
    if spelled == text {
        Ok(spelled)
    } else {
        Err(wanted.to_owned())
    }
}

/// A host as in a `Host` header, with an optional port.
pub(super) fn host(text: &str) -> Result<String, String> {
    let wanted = || "expected a host name, perhaps with a port: no scheme, no path".to_owned();
    let url = Url::parse(&format!("http://{text}/")).map_err(|_| wanted())?;
    let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    if text.is_empty() || text.contains(['/', '@', '*']) || !plain {
        return Err(wanted());
    }
    Ok(text.to_ascii_lowercase())
}

/// An OAuth scope token. Spec: RFC 6749 §3.3.
pub(super) fn scope(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
    if text.is_empty() || !text.chars().all(fits) {
        return Err(
            "not a scope: printable ASCII without spaces, quotes and backslashes".to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// A name that is used as path segment and prefix.
pub(super) fn name(text: &str) -> Result<(), String> {
    let starts = text.starts_with(|c: char| c.is_ascii_lowercase());
    let goes_on = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if starts && text.len() <= 20 && text.chars().all(goes_on) {
        Ok(())
    } else {
        Err(
            "not a name: a lower-case letter, then up to 19 lower-case letters, digits and hyphens"
                .to_owned(),
        )
    }
}

/// Whether two listeners cannot use both addresses.
pub(super) fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    let meets = one.ip() == other.ip() || one.is_ipv4() == other.is_ipv4() && is_any;
    meets && one.port() == other.port() && one.port() != 0
}

/// Whether a URL can only lead to this machine.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("250ms", 250)]
    #[case("10s", 10_000)]
    #[case("30m", 1_800_000)]
    #[case("24h", 86_400_000)]
    #[case("1d", 86_400_000)]
    #[case("5 s", 5_000)]
    fn durations_carry_their_unit(#[case] text: &str, #[case] millis: u64) {
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)));
    }

    #[rstest]
    #[case("10")]
    #[case("s")]
    #[case("-1s")]
    #[case("1.5s")]
    #[case("10 weeks")]
    #[case("0s")]
    #[case("99999d")]
    #[case("99999999999999999999s")]
    fn durations_without_sense_are_refused(#[case] text: &str) {
        assert!(duration(text).is_err());
    }

    #[rstest]
    #[case("512B", 512)]
    #[case("16KiB", 16 * 1024)]
    #[case("4MiB", 4 * 1024 * 1024)]
    #[case("1GiB", 1024 * 1024 * 1024)]
    fn sizes_are_bytes(#[case] text: &str, #[case] bytes: usize) {
        assert_eq!(size(text), Ok(bytes));
    }

    #[rstest]
    #[case("100/s", 100, 1)]
    #[case("6/m", 6, 60)]
    #[case("1 / h", 1, 3600)]
    fn rates_name_their_period(#[case] text: &str, #[case] count: u32, #[case] secs: u64) {
        assert_eq!(
            rate(text),
            Ok(RateConfig {
                count,
                per: Duration::from_secs(secs)
            })
        );
    }

    #[rstest]
    #[case("10.0.0.0/8", true)]
    #[case("::1", true)]
    #[case("10.0.0.0/33", false)]
    #[case("proxy.example.com", false)]
    fn blocks_are_addresses_with_a_length(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(cidr(text).is_ok(), fits);
    }

    #[rstest]
    #[case("https://claude.ai", true)]
    #[case("http://localhost:5173", true)]
    #[case("https://claude.ai/", false)]
    #[case("claude.ai", false)]
    #[case("null", false)]
    #[case("*", false)]
    fn origins_are_spelled_as_browsers_do(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(origin(text).is_ok(), fits);
    }

    #[rstest]
    #[case("mcp.example.com", true)]
    #[case("mcp.example.com:8443", true)]
    #[case("[::1]:8080", true)]
    #[case("https://mcp.example.com", false)]
    #[case("*.example.com", false)]
    #[case("", false)]
    fn hosts_have_no_scheme_and_no_wildcard(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(host(text).is_ok(), fits);
    }

    #[rstest]
    #[case("http://127.0.0.1:8080", true)]
    #[case("http://127.8.9.1", true)]
    #[case("http://[::1]:1", true)]
    #[case("http://localhost", true)]
    #[case("http://localhost.example.com", false)]
    #[case("http://127.0.0.1.example.com", false)]
    fn loopback_is_judged_by_the_parsed_host(#[case] url: &str, #[case] loopback: bool) {
        assert_eq!(is_loopback(&Url::parse(url).unwrap()), loopback);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,40}") {
            drop((duration_or_zero(&text), size(&text), rate(&text), address(&text), cidr(&text)));
            drop((web_url(&text), origin(&text), host(&text), scope(&text), name(&text)));
        }
    }
}
