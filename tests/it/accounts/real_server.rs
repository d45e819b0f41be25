//! Tokens of a real authorization server (oidc-provider).

use rstest::rstest;
use serde_json::{Value, json};

use super::personal::claims;
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
        let claims = token.and_then(claims);
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

/// A token of `user` for `resource`, of the real server at `issuer`.
async fn token_of(issuer: &str, user: &str, resource: &str) -> String {
    let url = format!("{issuer}/test/access_token?sub={user}&resource={resource}&scope=mcp:tools");
    let answer = reqwest::get(url).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap()
}

// The issuer of the callers exchanges their tokens: nothing but the client stands in the configuration.
#[tokio::test]
async fn a_real_server_exchanges_the_tokens_of_two_users() {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("as/server.mjs");
    let server = peers::serve(&peers::node(), &[&script], &[]).await;
    let issuer = server.first_line.clone();
    let unused = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&unused, &[]).await;
    let resource = upstream.url();
    upstream.publishes(json!({
        "resource": resource, "authorization_servers": [issuer], "scopes_supported": ["mcp:tools"],
    }));
    let expected = (issuer.clone(), resource);
    upstream.judges(move |token, _| {
        let is_good = |claims: &Value| {
            let is_user = claims["sub"] == "alice" || claims["sub"] == "bob";
            is_user
                && claims["iss"] == expected.0.as_str()
                && claims["aud"] == expected.1.as_str()
                && claims["client_id"] == "with-secret"
        };
        Verdict::of(token.and_then(claims).as_ref().is_some_and(is_good))
    });
    let account = "[upstreams.up.auth]\nkind = \"token_exchange\"\nclient_id = \"with-secret\"\n\
        client_secret = \"a service's secret: %&+\"\n";
    let gw = Setup::behind_issuer(&issuer)
        .url("up", &upstream.url(), "")
        .toml(account)
        .start()
        .await;
    let mut secrets = vec!["a service's secret".to_owned()];
    for user in ["alice", "bob"] {
        let token = token_of(&issuer, user, &format!("{}/mcp/up", gw.url)).await;
        let session = gw.bearer(&token).open("/mcp/up").await;
        assert_eq!(session.text("echo", json!({"text": user})).await, user);
        let seen = upstream.seen();
        let (last, _) = seen
            .iter()
            .rev()
            .find(|(_, body)| body.contains(user))
            .unwrap();
        let sent = last.as_deref().unwrap().strip_prefix("Bearer ").unwrap();
        assert_eq!(claims(sent).unwrap()["sub"], user);
        assert_ne!(sent, token);
        secrets.extend([token, sent.to_owned()]);
    }
    tells_none(&gw, &secrets).await;
    assert!(!gw.log().join("\n").contains("another audience"));
    gw.stop().await;
}
