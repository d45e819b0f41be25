//! `ResourceMetadata`: the document in which an upstream names its resource and its authorization servers. Spec: RFC
//! 9728.

use serde::{Deserialize, Deserializer};
use url::Url;

use super::challenge::Challenge;
use super::discovery_error::DiscoveryError;
use super::documents::{DocumentClients, DocumentError, MAX_SHOWN};
use super::token_answer::words;
use crate::telemetry::redact::shown;

/// The members of the document that the gateway uses.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ResourceMetadata {
    pub(super) resource: String,
    #[serde(default, deserialize_with = "list")]
    pub(super) authorization_servers: Vec<String>,
    #[serde(default, deserialize_with = "list")]
    pub(super) scopes_supported: Vec<String>,
}

/// Reads a list. Some servers write `null` in place of an empty one, or one text.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(words(deserializer)?.unwrap_or_default())
}

/// Fetches the metadata of `upstream` from the URL that the challenge names, else from the well-known URLs: also where the
/// named one cannot be asked or has no document, as behind a proxy of which the upstream does not know. `None` where the
/// upstream has none. `checked`: whether the `resource` must be the upstream.
///
/// # Errors
/// The request failed, or the document is that of another resource.
///
/// # Cancel safety
/// Dropping the future abandons the request.
// Spec: SPEC B-01
pub(super) async fn fetch(
    clients: &DocumentClients,
    upstream: &Url,
    challenge: &Challenge,
    checked: bool,
) -> Result<Option<ResourceMetadata>, DiscoveryError> {
    let mut unusable = None;
    if let Some(named) = &challenge.resource_metadata {
        match read_named(clients, upstream, named, checked).await {
            Err(error) if leads_nowhere(&error) => {
                let cause: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(
                    host = upstream.host_str(),
                    error = cause,
                    "challenge of an upstream leads to no metadata: looking at its well-known addresses"
                );
                unusable = Some(error);
            }
            other => return other.map(Some),
        }
    }
    for url in places(upstream) {
        match read(clients, upstream, url, checked).await {
            Err(DiscoveryError::Fetch { source, .. }) if source.is_absent() => {}
            other => return other.map(Some),
        }
    }
    unusable.map_or(Ok(None), Err)
}

/// Whether the address that a challenge names is of no use, whatever would stand there.
fn leads_nowhere(error: &DiscoveryError) -> bool {
    match error {
        DiscoveryError::Challenge { .. } => true,
        DiscoveryError::Fetch { source, .. } => {
            matches!(source, DocumentError::Refused(_)) || source.is_absent()
        }
        _ => false,
    }
}

/// Reads the metadata at the URL that a challenge names.
async fn read_named(
    clients: &DocumentClients,
    upstream: &Url,
    named: &str,
    checked: bool,
) -> Result<ResourceMetadata, DiscoveryError> {
    let url = Url::parse(named).map_err(|_| DiscoveryError::Challenge {
        named: shown(named, MAX_SHOWN).into_owned(),
    })?;
    read(clients, upstream, url, checked).await
}

async fn read(
    clients: &DocumentClients,
    upstream: &Url,
    url: Url,
    checked: bool,
) -> Result<ResourceMetadata, DiscoveryError> {
    let document = match clients.get(&url, None).await {
        Ok(document) => document,
        Err(source) => return Err(DiscoveryError::Fetch { url, source }),
    };
    let metadata: ResourceMetadata = match serde_json::from_slice(&document) {
        Ok(metadata) => metadata,
        Err(source) => return Err(DiscoveryError::Document { url, source }),
    };
    if checked && !covers(&metadata.resource, upstream) {
        return Err(DiscoveryError::OtherResource {
            url,
            found: shown(&metadata.resource, MAX_SHOWN).into_owned(),
            expected: upstream.to_string(),
        });
    }
    Ok(metadata)
}

/// The well-known URLs: with the path of the upstream, then without. Spec: RFC 9728 §3.1
fn places(upstream: &Url) -> Vec<Url> {
    const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
    let path = upstream.path().trim_end_matches('/');
    let at = |path: String| {
        let mut url = upstream.clone();
        url.set_path(&path);
        url.set_query(None);
        url.set_fragment(None);
        url
    };
    let mut places = vec![at(format!("{WELL_KNOWN}{path}"))];
    if !path.is_empty() {
        places.push(at(WELL_KNOWN.to_owned()));
    }
    places
}

/// Whether `resource` is the upstream's URL, its origin, or a path above it on a segment border.
pub(super) fn covers(resource: &str, upstream: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else {
        return false;
    };
    let is_plain = resource.username().is_empty()
        && resource.password().is_none()
        && resource.fragment().is_none()
        && (resource.query().is_none() || resource.query() == upstream.query());
    let above = resource.path().trim_end_matches('/');
    let rest = upstream.path().strip_prefix(above);
    is_plain
        && resource.origin() == upstream.origin()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // SPEC B-01
    #[rstest]
    #[case::with_path("https://up.test/a/mcp", &["https://up.test/.well-known/oauth-protected-resource/a/mcp", "https://up.test/.well-known/oauth-protected-resource"])]
    #[case::slash("https://up.test/mcp/?x=1", &["https://up.test/.well-known/oauth-protected-resource/mcp", "https://up.test/.well-known/oauth-protected-resource"])]
    #[case::root("https://up.test/", &["https://up.test/.well-known/oauth-protected-resource"])]
    fn metadata_is_looked_for_with_the_path_then_without(
        #[case] upstream: &str,
        #[case] expected: &[&str],
    ) {
        let found = places(&Url::parse(upstream).unwrap());
        let found: Vec<_> = found.iter().map(Url::as_str).collect();
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case::null("null", &[])]
    #[case::text("\"a b\"", &["a", "b"])]
    #[case::other("{}", &[])]
    fn list_of_another_type_hides_no_other_member(#[case] scopes: &str, #[case] expected: &[&str]) {
        let text = format!(
            r#"{{"resource":"https://up.test","authorization_servers":["https://as.test"],"scopes_supported":{scopes}}}"#
        );
        let metadata: ResourceMetadata = serde_json::from_str(&text).unwrap();
        assert_eq!(metadata.authorization_servers, ["https://as.test"]);
        assert_eq!(metadata.scopes_supported, expected);
    }

    #[rstest]
    #[case::itself("https://up.test/a/mcp", true)]
    #[case::slash("https://up.test/a/mcp/", true)]
    #[case::upper_case_host("https://UP.test:443/a/mcp", true)]
    #[case::origin("https://up.test", true)]
    #[case::parent("https://up.test/a", true)]
    #[case::half_a_segment("https://up.test/a/mc", false)]
    #[case::below("https://up.test/a/mcp/b", false)]
    #[case::sibling("https://up.test/b", false)]
    #[case::other_host("https://evil.test/a/mcp", false)]
    #[case::other_port("https://up.test:8443/a/mcp", false)]
    #[case::plain("http://up.test/a/mcp", false)]
    #[case::query("https://up.test/a/mcp?x", false)]
    #[case::fragment("https://up.test/a/mcp#x", false)]
    #[case::credentials("https://u@up.test/a/mcp", false)]
    #[case::dots("https://up.test/a/../b", false)]
    #[case::no_url("tracker", false)]
    fn the_resource_is_the_upstream_its_origin_or_a_path_above(
        #[case] resource: &str,
        #[case] fits: bool,
    ) {
        let upstream = Url::parse("https://up.test/a/mcp").unwrap();
        assert_eq!(covers(resource, &upstream), fits);
    }
}
