//! Assertions of a client with a private key: servers take different audiences. Spec: RFC 7523 §3.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rstest::rstest;
use serde_json::json;

use super::personal::claims;
use super::world::{Answering, AuthServer, GuardedUpstream, Verdict};
use crate::harness::Setup;

/// The audience of the assertion in `form`.
fn audience(form: &BTreeMap<String, String>) -> String {
    let claims = claims(&form["client_assertion"]).unwrap();
    claims["aud"].as_str().unwrap().to_owned()
}

/// Okta takes the endpoint alone, and servers of FAPI 2.0 the issuer.
#[rstest]
#[case::issuer(&["issuer", "issuer"], "issuer")]
#[case::endpoint(&["issuer", "endpoint", "endpoint"], "endpoint")]
#[tokio::test]
async fn audience_that_the_server_takes_is_found_out_once(
    #[case] tried: &[&str],
    #[case] taken: &str,
) {
    let server = AuthServer::start().await;
    let endpoint = format!("{}/token", server.origin);
    server.publishes(json!({
        "issuer": server.origin, "token_endpoint": endpoint,
        "token_endpoint_auth_methods_supported": ["private_key_jwt"],
    }));
    let taken = match taken {
        "issuer" => server.origin.clone(),
        _ => endpoint.clone(),
    };
    let issued = AtomicUsize::new(0);
    let judge = move |form: &BTreeMap<String, String>| {
        if audience(form) != taken {
            return (401, json!({"error": "invalid_client"}));
        }
        let token = format!("token-{}", issued.fetch_add(1, Ordering::Relaxed));
        (200, json!({"access_token": token, "token_type": "Bearer"}))
    };
    server.answers(Answering::Judged(Arc::new(judge)));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    upstream.judges(|token, _| Verdict::of(token == Some("token-0")));
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let account = format!(
        "[upstreams.up.auth]\nkind = \"client_credentials\"\nissuer = {:?}\nclient_id = \"drawbridge\"\n\
         private_key = {:?}\n",
        server.origin,
        key.serialize_pem()
    );
    let gw = Setup::secured()
        .url("up", &upstream.url(), "")
        .toml(&account)
        .start()
        .await;
    let session = gw.principal("alice").open("/mcp/up").await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    // The token was revoked.
    upstream.judges(|token, _| Verdict::of(token == Some("token-1")));
    assert_eq!(session.text("echo", json!({"text": "y"})).await, "y");
    let seen: Vec<String> = server.forms().iter().map(audience).collect();
    let named = |word: &&str| match *word {
        "issuer" => server.origin.clone(),
        _ => endpoint.clone(),
    };
    let expected: Vec<String> = tried.iter().map(named).collect();
    assert_eq!(seen, expected);
    gw.stop().await;
}
