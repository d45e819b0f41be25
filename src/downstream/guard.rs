//! Host and Origin checks, against DNS rebinding and foreign web pages.
//!
//! Spec: MCP 2025-11-25, Transports, "Security Warning"; SPEC T-02, T-03, T-04. Lists: DESIGN §4.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use url::{Origin, Url};

use crate::config;

/// The kind of a request decides which checks apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// MCP traffic on any transport: both checks.
    Mcp,
    /// Published metadata, meant for every page: Host only.
    Metadata,
    /// A page of ours for a browser, which checks the origin of its forms itself: Host only.
    Page,
    /// A CORS preflight; its answer carries the verdict on the origin: Host only.
    Preflight,
}

/// Why a request is refused before any other check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardFailure {
    /// The request does not name one host in a form that can be read.
    MalformedHost,
    /// The name the client used for us is not one of ours.
    Host,
    /// The page that sent the request is not allowed to.
    Origin,
}

impl GuardFailure {
    /// 400 for a host that cannot be read, 421 for a foreign one, 403 for an origin. Spec: SPEC T-03, T-04; RFC 9112 §3.2.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::MalformedHost => StatusCode::BAD_REQUEST,
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// The text for the caller, possibly an operator who tests the setup.
    #[must_use]
    pub fn public(self) -> &'static str {
        match self {
            Self::MalformedHost => "the request must name one host, in one Host header",
            Self::Host => "this host name is not served here (server.allowed_hosts)",
            Self::Origin => "this origin is not allowed (server.allowed_origins)",
        }
    }

    /// The word for metrics and the access log.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::MalformedHost | Self::Host => "host",
            Self::Origin => "origin",
        }
    }
}

/// The names we answer to and the origins that may ask. Built once.
#[derive(Debug, Clone)]
pub struct OriginGuard {
    hosts: Vec<AllowedHost>,
    origins: Vec<String>,
    loopback_origins: bool,
    /// Whether every address is one of ours, and a request without a Host too: a page can only name a host
    /// of its own by a name.
    any_address: bool,
}

/// A host name, with the one port it is served on or with any.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    name: String,
    port: Option<u16>,
}

const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl OriginGuard {
    /// The lists of DESIGN §4: `public_url`, the configured ones, and loopback names where the
    /// listener (for origins: and `public_url`) is loopback.
    #[must_use]
    pub fn new(settings: &config::HttpServerConfig) -> Self {
        let loopback_listener = settings.listen.ip().is_loopback();
        let public_host = settings.public_url.host_str().unwrap_or_default();
        let mut hosts = vec![AllowedHost {
            name: public_host.to_owned(),
            port: None,
        }];
        hosts.extend(
            settings
                .allowed_hosts
                .iter()
                .filter_map(|text| AllowedHost::read(text)),
        );
        if loopback_listener {
            let own = Uri::try_from(settings.listen.to_string()).ok();
            let own = own.as_ref().and_then(Uri::host).map(str::to_owned);
            let names = LOOPBACK_NAMES
                .iter()
                .map(|name| (*name).to_owned())
                .chain(own);
            hosts.extend(names.map(|name| AllowedHost { name, port: None }));
        }
        let mut origins = vec![settings.public_url.origin().ascii_serialization()];
        origins.extend(
            settings
                .allowed_origins
                .iter()
                .map(|text| read_origin(text)),
        );
        // `null` is every sandboxed page at once, so it cannot be allowed.
        origins.retain(|origin| origin != "null");
        let loopback_origins = loopback_listener && is_loopback_name(public_host);
        Self {
            hosts,
            origins,
            loopback_origins,
            any_address: false,
        }
    }

    /// Hosts of the admin port: addresses, as probes know no name, loopback names, and the configured hosts.
    #[must_use]
    pub fn for_operators(settings: &config::AdminConfig) -> Self {
        let loopback = LOOPBACK_NAMES.iter().map(|name| AllowedHost {
            name: (*name).to_owned(),
            port: None,
        });
        let configured = settings.allowed_hosts.iter();
        let configured = configured.filter_map(|text| AllowedHost::read(text));
        Self {
            hosts: loopback.chain(configured).collect(),
            origins: Vec::new(),
            loopback_origins: false,
            any_address: true,
        }
    }

    /// Decides whether the request may go on.
    ///
    /// # Errors
    /// The check that failed; Host comes first.
    pub fn check(
        &self,
        kind: RequestKind,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), GuardFailure> {
        self.check_host(uri, headers)?;
        if kind != RequestKind::Mcp {
            return Ok(());
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(()),
            (Some(origin), None) if self.allows_origin(origin) => Ok(()),
            _ => Err(GuardFailure::Origin),
        }
    }

    /// Whether pages of `origin` may use us.
    #[must_use]
    pub fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else {
            return false;
        };
        self.origins
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(origin))
            || (self.loopback_origins && is_loopback_origin(origin))
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), GuardFailure> {
        let authority = match host(uri, headers) {
            Ok(Some(authority)) => authority,
            Ok(None) if self.any_address => return Ok(()),
            Ok(None) | Err(AmbiguousHost) => return Err(GuardFailure::MalformedHost),
        };
        let (name, port) = split_authority(authority).ok_or(GuardFailure::MalformedHost)?;
        let matches = |allowed: &AllowedHost| {
            allowed.name.eq_ignore_ascii_case(name)
                && allowed.port.is_none_or(|wanted| Some(wanted) == port)
        };
        let is_ours = self.hosts.iter().any(matches) || (self.any_address && is_address(name));
        is_ours.then_some(()).ok_or(GuardFailure::Host)
    }
}

impl AllowedHost {
    fn read(text: &str) -> Option<Self> {
        let (name, port) = split_authority(text.trim())?;
        Some(Self {
            name: name.to_owned(),
            port,
        })
    }
}

/// A request that names several hosts.
struct AmbiguousHost;

/// The authority of the request target (HTTP/2, or the absolute form of HTTP/1) precedes the `Host` header; if a
/// request has both, they must be equal. Spec: RFC 9112 §3.2.2, RFC 9113 §8.3.1.
fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Result<Option<&'r str>, AmbiguousHost> {
    let mut lines = headers.get_all(HOST).iter();
    let header = match (lines.next(), lines.next()) {
        (Some(line), None) => Some(line.to_str().map_err(|_| AmbiguousHost)?),
        (Some(_), Some(_)) => return Err(AmbiguousHost),
        (None, _) => None,
    };
    match (uri.authority(), header) {
        (Some(target), Some(header)) if !target.as_str().eq_ignore_ascii_case(header) => {
            Err(AmbiguousHost)
        }
        (Some(target), None) => Ok(Some(target.as_str())),
        (_, header) => Ok(header),
    }
}

/// Whether a request names this machine by a loopback name or address.
pub(super) fn is_loopback_host(uri: &Uri, headers: &HeaderMap) -> bool {
    match host(uri, headers) {
        Ok(Some(authority)) => {
            split_authority(authority).is_some_and(|(name, _)| is_loopback_name(name))
        }
        Ok(None) | Err(AmbiguousHost) => false,
    }
}

/// Name (IPv6 in brackets, no final dot) and port; `None` if `authority` is malformed or has user information.
fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let end_of_name = match authority.find(']') {
        Some(bracket) if authority.starts_with('[') => bracket + 1,
        Some(_) => return None,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (name, rest) = authority.split_at_checked(end_of_name)?;
    let port = match rest.strip_prefix(':') {
        // Spec: RFC 3986 §3.2.3: a port may be empty.
        Some("") => None,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Some(digits.parse().ok()?),
        None if rest.is_empty() => None,
        Some(_) | None => return None,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    (!name.is_empty() && !name.contains('@')).then_some((name, port))
}

/// An origin in the form that browsers send: scheme, host, and the port unless it is the scheme's default. Origins of
/// other programs (`vscode-webview://…`) are kept verbatim.
fn read_origin(text: &str) -> String {
    let text = text.trim().trim_end_matches('/');
    match Url::parse(text).map(|url| url.origin()) {
        Ok(origin @ Origin::Tuple(..)) => origin.ascii_serialization(),
        _ => text.to_owned(),
    }
}

/// Whether a host is an address; IPv6 in brackets.
fn is_address(name: &str) -> bool {
    let v6 = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match v6 {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    }
}

fn is_loopback_name(name: &str) -> bool {
    LOOPBACK_NAMES
        .iter()
        .any(|loopback| loopback.eq_ignore_ascii_case(name))
        || name
            .parse::<Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback())
}

fn is_loopback_origin(origin: &str) -> bool {
    let authority = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    authority
        .and_then(split_authority)
        .is_some_and(|(name, _)| is_loopback_name(name))
}

#[cfg(test)]
mod tests;
