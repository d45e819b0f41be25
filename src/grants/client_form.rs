//! Forms that the gateway posts as a client of an authorization server. Spec: RFC 6749 §2.3.1; RFC 7523 §2.2.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use url::form_urlencoded::{Serializer, byte_serialize};

use super::client_key::{AssertionAudience, ClientProof};
use super::extension_grant::RequestingClient;
use super::token_endpoint::{ASSERTION_TYPE, TokenError};
use crate::secret::Secret;

/// A form of `fields` and the client's proof, for the endpoint of its server. `is_basic`: a secret goes into `Authorization`. An
/// assertion is for `audience`.
///
/// # Errors
/// No assertion can be signed that the server takes.
pub(super) fn request(
    client: &RequestingClient<'_>,
    (is_basic, audience): (bool, AssertionAudience),
    fields: &[(&str, &str)],
) -> Result<Request<Vec<u8>>, TokenError> {
    let (client_id, server) = (client.client_id, client.server);
    let mut form = Serializer::new(String::new());
    form.extend_pairs(fields);
    let mut basic = None;
    match client.proof {
        ClientProof::Public => {
            form.append_pair("client_id", client_id);
        }
        ClientProof::Secret(secret) if is_basic => basic = basic_credentials(client_id, secret),
        ClientProof::Secret(secret) => {
            form.append_pair("client_id", client_id);
            form.append_pair("client_secret", secret.expose());
        }
        ClientProof::Key(key) => {
            let taken = server.assertion_algorithms.as_deref();
            let assertion = key
                .assertion(client_id, server.audience(audience), taken)
                .ok_or(TokenError::Assertion)?;
            form.append_pair("client_id", client_id);
            form.append_pair("client_assertion_type", ASSERTION_TYPE);
            form.append_pair("client_assertion", assertion.expose());
        }
    }
    let mut request = Request::new(form.finish().into_bytes());
    *request.method_mut() = Method::POST;
    // It was a URL until now.
    *request.uri_mut() = (server.token_endpoint.as_str().parse())
        .map_err(|_| TokenError::Unreadable { status: 0 })?;
    let headers = request.headers_mut();
    let media = HeaderValue::from_static("application/x-www-form-urlencoded");
    headers.insert(CONTENT_TYPE, media);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.extend(basic.map(|value| (AUTHORIZATION, value)));
    Ok(request)
}

/// HTTP Basic with both parts form-encoded first. Spec: RFC 6749 §2.3.1
#[must_use]
pub fn basic_credentials(client_id: &str, secret: &Secret) -> Option<HeaderValue> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let pair = format!("{}:{}", encoded(client_id), encoded(secret.expose()));
    let text = format!("Basic {}", BASE64_STANDARD.encode(pair));
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_and_secret_are_encoded_before_they_are_joined() {
        let value = basic_credentials("a:b", &Secret::new("c d%")).unwrap();
        let text = value.to_str().unwrap().strip_prefix("Basic ").unwrap();
        let pair = BASE64_STANDARD.decode(text).unwrap();
        assert_eq!(pair, b"a%3Ab:c+d%25");
    }
}
