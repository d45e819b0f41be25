//! From an upstream to its token endpoint: the upstream's metadata, then that of its authorization server. Spec: SPEC
//! B-01…B-03, B-10, B-11.

use std::collections::BTreeSet;

use url::Url;

use super::challenge::Challenge;
use super::discovery_error::DiscoveryError;
use super::documents::{DocumentClients, MAX_SHOWN};
use super::resource_metadata::{self, ResourceMetadata};
use super::server_metadata::{self, ServerMetadata};
use crate::config::UserAccountConfig;
use crate::telemetry::redact::shown;

/// Bytes of the scopes that are requested because the upstream names them, a space after each included. Servers refuse
/// longer URLs, and each scope is compared with every other.
const MAX_SCOPES: usize = 4 * 1024;

/// The result of a discovery: what token requests for an upstream need.
#[derive(Debug)]
pub(super) struct DiscoveredServer {
    pub(super) server: ServerMetadata,
    /// The `resource` parameter of token requests.
    pub(super) resource: String,
    /// Scopes to request.
    pub(super) scopes: Vec<String>,
}

/// Values of the configuration that discovery need not look up.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiscoveryHints<'a> {
    /// `issuer`, as trusted as the operator who configured it.
    pub(super) issuer: Option<&'a str>,
    /// The issuer of the caller whose token is exchanged, one of those in `[auth]`.
    pub(super) caller_issuer: Option<&'a str>,
    /// `resource`.
    pub(super) resource: Option<&'a str>,
    /// `scopes`.
    pub(super) scopes: &'a [String],
}

impl<'a> From<&'a UserAccountConfig> for DiscoveryHints<'a> {
    fn from(config: &'a UserAccountConfig) -> Self {
        Self {
            issuer: config.issuer.as_deref(),
            caller_issuer: None,
            resource: config.resource.as_deref(),
            scopes: &config.scopes,
        }
    }
}

impl DiscoveryHints<'_> {
    /// The issuer whose origin may be contacted without the egress rules.
    pub(super) fn trusted(&self) -> Option<Url> {
        let issuer = self.issuer.or(self.caller_issuer)?;
        Url::parse(issuer).ok()
    }
}

/// Finds the token endpoint for `upstream`. `issuer`, where it is known, is the only server that may be contacted.
///
/// # Errors
/// [`DiscoveryError`].
///
/// # Cancel safety
/// Dropping the future abandons the request under way.
pub(super) async fn discover(
    clients: &DocumentClients,
    upstream: &Url,
    hints: &DiscoveryHints<'_>,
    issuer: Option<&str>,
) -> Result<DiscoveredServer, DiscoveryError> {
    let is_told = issuer.is_some() && hints.resource.is_some();
    let (challenge, metadata) = if is_told {
        (Challenge::default(), None)
    } else {
        look(clients, upstream, hints).await?
    };
    let named = metadata
        .as_ref()
        .map_or(&[][..], |metadata| &metadata.authorization_servers);
    let issuer = match (issuer, named.first()) {
        (Some(issuer), Some(first)) if !named.iter().any(|one| is_same(one, issuer)) => {
            return Err(DiscoveryError::ForeignServer {
                named: shown(first, MAX_SHOWN).into_owned(),
                known: issuer.to_owned(),
            });
        }
        (Some(issuer), _) => issuer,
        (None, Some(first)) => first,
        (None, None) => return Err(DiscoveryError::NoMetadata),
    };
    let server = server_metadata::fetch(clients, issuer, hints.trusted().as_ref()).await?;
    let supported = metadata.as_ref().map(|metadata| &metadata.scopes_supported);
    let supported = supported.map_or(&[][..], Vec::as_slice);
    let named = [challenge.scopes.as_slice(), supported];
    let named = named.into_iter().find(|scopes| !scopes.is_empty());
    let scopes = if hints.scopes.is_empty() {
        requestable(named.unwrap_or_default(), upstream)
    } else {
        hints.scopes.to_vec()
    };
    let of_metadata = metadata.as_ref().map(|metadata| metadata.resource.clone());
    Ok(DiscoveredServer {
        server,
        resource: (hints.resource.map(str::to_owned))
            .or(of_metadata)
            .unwrap_or_else(|| upstream.to_string()),
        scopes,
    })
}

/// The scopes to request of those that `upstream` has `named`: each once, with the characters of a scope, and 4 KiB at most.
/// Any text of theirs would stand on the page that asks a person. Spec: RFC 6749 §3.3
fn requestable(named: &[String], upstream: &Url) -> Vec<String> {
    let is_scope_char = |byte: u8| matches!(byte, b'!' | b'#'..=b'[' | b']'..=b'~');
    let (mut seen, mut bytes) = (BTreeSet::new(), 0);
    let mut left_out: usize = 0;
    let mut scopes = Vec::new();
    for scope in named {
        let is_scope = !scope.is_empty() && scope.bytes().all(is_scope_char);
        if !is_scope || bytes + scope.len() >= MAX_SCOPES {
            left_out += 1;
        } else if seen.insert(scope) {
            bytes += scope.len() + 1;
            scopes.push(scope.clone());
        }
    }
    if left_out > 0 {
        tracing::warn!(
            host = upstream.host_str(),
            left_out,
            requested = scopes.len(),
            "upstream names scopes that are not requested: they are no scopes, or longer than 4 KiB together"
        );
    }
    scopes
}

/// Requests the upstream without a token, and fetches its metadata.
async fn look(
    clients: &DocumentClients,
    upstream: &Url,
    hints: &DiscoveryHints<'_>,
) -> Result<(Challenge, Option<ResourceMetadata>), DiscoveryError> {
    // No answer here is not reported: the request for the metadata fails too, and its error says why.
    let challenge = match clients.knock().await {
        Ok(Some(headers)) => Challenge::of(&headers),
        _ => Challenge::default(),
    };
    let is_checked = hints.resource.is_none();
    let metadata = resource_metadata::fetch(clients, upstream, &challenge, is_checked).await?;
    Ok((challenge, metadata))
}

/// Whether both name one server: a trailing slash is often lost or added when an issuer is copied into a list.
fn is_same(named: &str, issuer: &str) -> bool {
    named.trim_end_matches('/') == issuer.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn requested<'a>(named: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let named: Vec<String> = named.into_iter().map(str::to_owned).collect();
        requestable(&named, &Url::parse("https://up.test/mcp").unwrap())
    }

    #[rstest]
    #[case::uri("https://www.googleapis.com/auth/drive", true)]
    #[case::signs("a:b/c.d-e_f+g~!", true)]
    #[case::space("a b", false)]
    #[case::quote("a\"b", false)]
    #[case::backslash("a\\b", false)]
    #[case::right_to_left("a\u{202e}b", false)]
    #[case::control("a\u{7f}", false)]
    #[case::empty("", false)]
    fn scope_has_the_characters_of_one(#[case] scope: &str, #[case] is_requested: bool) {
        let expected = if is_requested {
            vec![scope]
        } else {
            Vec::new()
        };
        assert_eq!(requested([scope]), expected);
    }

    // Hundreds of thousands fit into a document.
    #[test]
    fn named_scopes_are_bounded_and_requested_once() {
        let (long, longer) = ("x".repeat(MAX_SCOPES - 3), "x".repeat(MAX_SCOPES));
        let named = ["a", "a", long.as_str(), "b", "c"];
        assert_eq!(requested(named), vec!["a", long.as_str()]);
        assert_eq!(requested(["a", longer.as_str(), "b"]), vec!["a", "b"]);
    }
}
