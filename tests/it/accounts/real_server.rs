//! Tokens of a real authorization server (oidc-provider).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{AuthServer, GuardedUpstream, Verdict, tells_none};
use crate::harness::Setup;
use crate::harness::issuer::Issuer;
use crate::harness::peers;

#[rstest]
#[case::secret(false)]
#[case::private_key(true)]
#[tokio::test]
async fn a_real_server_gives_a_token_for_the_upstream(#[case] with_key: bool) {
    if !peers::are_installed() {
        return;
    }
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let public = Issuer::public_of(key.public_key_raw());
    let env = [("CLIENT_KEY", public.to_string())];
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let script = peers::script("as/server.mjs");
    let server = peers::serve(&peers::node(), &[&script], &env).await;
    let issuer = server.first_line.clone();
    let unused = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&unused, &[]).await;
    let resource = upstream.url();
    upstream.publishes(json!({"resource": resource, "authorization_servers": [issuer]}));
    let expected = (issuer.clone(), resource);
    upstream.judges(move |token, _| {
        let claims = token.and_then(|token| {
            let claims = BASE64_URL_SAFE_NO_PAD
                .decode(token.split('.').nth(1)?)
                .ok()?;
            serde_json::from_slice::<Value>(&claims).ok()
        });
        let is_good = |claims: &Value| {
            claims["iss"] == expected.0.as_str()
                && claims["aud"] == expected.1.as_str()
                && claims["scope"] == "mcp:tools"
        };
        Verdict::of(claims.as_ref().is_some_and(is_good))
    });
    let pem = key.serialize_pem();
    let proof = if with_key {
        format!("client_id = \"with-key\"\nprivate_key = {pem:?}")
    } else {
        "client_id = \"with-secret\"\nclient_secret = \"a service's secret: %&+\"".to_owned()
    };
    let account = format!(
        "[upstreams.up.auth]\nkind = \"client_credentials\"\nissuer = {issuer:?}\nscopes = [\"mcp:tools\"]\n{proof}\n"
    );
    let gw = Setup::secured()
        .url("up", &upstream.url(), "")
        .toml(&account)
        .start()
        .await;
    let session = gw.principal("alice").open("/mcp/up").await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    assert_eq!(session.text("echo", json!({"text": "y"})).await, "y");
    tells_none(&gw, &["a service's secret".to_owned(), pem]).await;
    gw.stop().await;
}
