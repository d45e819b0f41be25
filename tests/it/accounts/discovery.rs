//! Where tokens are asked for, and where not. Spec: SPEC B-01…B-03, B-10, X-01.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::LOCATION;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{
    AuthServer, GuardedUpstream, SECRET, Verdict, answer, gateway, logged, refusal, tells_none,
    with_keys,
};
use crate::harness::upstream::serve;
use crate::harness::{Gateway, Setup, within};

/// An account whose server the upstream names.
async fn without_issuer(upstream: &GuardedUpstream, tables: &str) -> Gateway {
    let account = format!(
        "[upstreams.up.auth]\nkind = \"client_credentials\"\nclient_id = \"drawbridge\"\n\
         client_secret = \"{SECRET}\"\n{tables}\n"
    );
    Setup::secured()
        .url("up", &upstream.url(), "")
        .toml(&account)
        .start()
        .await
}

#[rstest]
#[case::another_host(json!("https://evil.test/mcp"))]
#[case::half_a_segment(json!("ORIGIN/mc"))]
#[case::below(json!("ORIGIN/mcp/below"))]
#[tokio::test]
async fn metadata_of_another_resource_is_refused(#[case] resource: Value) {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let resource = resource
        .as_str()
        .unwrap()
        .replace("ORIGIN", &upstream.origin);
    upstream.publishes(json!({"resource": resource, "authorization_servers": [server.origin]}));
    let gw = gateway(&server, &upstream).await;
    refusal(&gw).await;
    logged(&gw, "is that of another resource").await;
    logged(&gw, &format!("{resource:?} and not {:?}", upstream.url())).await;
    assert_eq!(server.forms().len(), 0);
    gw.stop().await;
    // The operator may know better.
    let gw = with_keys(&server, &upstream, &format!("resource = {resource:?}")).await;
    let session = gw.principal("alice").open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    assert_eq!(server.forms()[0]["resource"], resource);
    gw.stop().await;
}

#[tokio::test]
async fn the_origin_of_the_upstream_may_be_its_resource() {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let resource = upstream.origin.clone();
    upstream.publishes(json!({"resource": resource, "authorization_servers": [server.origin]}));
    let gw = gateway(&server, &upstream).await;
    let session = gw.principal("alice").open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    assert_eq!(server.forms()[0]["resource"], resource);
    assert!(!server.forms()[0].contains_key("scope"));
    gw.stop().await;
}

// SPEC B-03
#[tokio::test]
async fn metadata_of_another_issuer_is_refused() {
    let server = AuthServer::start().await;
    let endpoint = format!("{}/token", server.origin);
    server.publishes(json!({"issuer": "https://evil.test", "token_endpoint": endpoint}));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = gateway(&server, &upstream).await;
    refusal(&gw).await;
    logged(&gw, "is that of another issuer").await;
    assert_eq!(server.forms().len(), 0);
    gw.stop().await;
}

// SPEC B-10
#[tokio::test]
async fn credentials_go_to_no_other_server() {
    let (server, other) = (AuthServer::start().await, AuthServer::start().await);
    let upstream = GuardedUpstream::start(&other, &[]).await;
    let gw = gateway(&server, &upstream).await;
    refusal(&gw).await;
    logged(&gw, "the credentials are of").await;
    assert_eq!((server.forms().len(), other.forms().len()), (0, 0));
    gw.stop().await;
}

// SPEC X-01
#[tokio::test]
async fn a_server_that_the_upstream_names_inside_is_asked_only_if_that_is_allowed() {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = without_issuer(&upstream, "").await;
    refusal(&gw).await;
    logged(&gw, "[egress] allow").await;
    assert_eq!(server.forms().len(), 0);
    gw.stop().await;
    let gw = without_issuer(&upstream, "[egress]\nallow = [\"127.0.0.0/8\"]").await;
    let session = gw.principal("alice").open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    tells_none(&gw, &[SECRET.to_owned()]).await;
    gw.stop().await;
}

// SPEC X-01
#[rstest]
#[case::cloud("https://169.254.169.254/token")]
#[case::private("https://10.0.0.1/token")]
#[case::mapped("https://[::ffff:10.0.0.1]/token")]
#[case::octal("https://0177.0.0.1/token")]
#[case::script("javascript:alert(1)")]
#[case::plain("http://auth.example.com/token")]
#[tokio::test]
async fn a_token_endpoint_inside_is_refused(#[case] endpoint: &str) {
    let server = AuthServer::start().await;
    server.publishes(json!({"issuer": server.origin, "token_endpoint": endpoint}));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = gateway(&server, &upstream).await;
    refusal(&gw).await;
    logged(&gw, "the gateway does not ask there").await;
    assert_eq!(server.forms().len(), 0);
    gw.stop().await;
}

#[rstest]
#[case::oversized(&"x".repeat(300_000), "larger than")]
#[case::no_json("<html>", "cannot be read")]
#[tokio::test]
async fn what_is_no_document_is_refused(#[case] document: &str, #[case] why: &str) {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    upstream.publishes(document.into());
    let gw = gateway(&server, &upstream).await;
    refusal(&gw).await;
    logged(&gw, why).await;
    gw.stop().await;
}

/// Where the metadata of a server is.
const METADATA: &str = "/.well-known/oauth-authorization-server";

/// An upstream whose metadata names the server at `origin`, and a gateway that may go there.
async fn sent_to(origin: &str) -> (GuardedUpstream, Gateway) {
    let unused = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&unused, &[]).await;
    upstream.publishes(json!({"resource": upstream.url(), "authorization_servers": [origin]}));
    let gw = without_issuer(&upstream, "[egress]\nallow = [\"127.0.0.0/8\"]").await;
    (upstream, gw)
}

// SPEC X-02: it could lead inside, and a client's secret with it.
#[rstest]
#[case::of_metadata(METADATA)]
#[case::of_a_token_request("/token")]
#[tokio::test]
async fn redirect_of_an_authorization_server_is_not_followed(#[case] redirects: &'static str) {
    let (redirected, reached) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, followed) = (Arc::clone(&redirected), Arc::clone(&reached));
    let target = serve(move |_: Request| {
        followed.fetch_add(1, Ordering::Relaxed);
        ready(answer(200, "{}"))
    })
    .await;
    let origin = serve(move |request: Request| {
        let origin = format!("http://{}", request.headers()["host"].to_str().unwrap());
        let path = request.uri().path();
        ready(if path == redirects {
            count.fetch_add(1, Ordering::Relaxed);
            let mut away = answer(307, "");
            let place = format!("{target}{path}").parse().unwrap();
            away.headers_mut().insert(LOCATION, place);
            away
        } else if path == METADATA {
            let token_endpoint = format!("{origin}/token");
            let metadata = json!({"issuer": origin, "token_endpoint": token_endpoint});
            answer(200, &metadata.to_string())
        } else {
            answer(404, "")
        })
    })
    .await;
    let (_upstream, gw) = sent_to(&origin).await;
    refusal(&gw).await;
    logged(&gw, "the account of an upstream cannot be used").await;
    assert!(
        redirected.load(Ordering::Relaxed) > 0,
        "nobody was redirected"
    );
    assert_eq!(reached.load(Ordering::Relaxed), 0);
    gw.stop().await;
}

// SPEC X-02
#[tokio::test]
async fn document_that_does_not_end_is_given_up() {
    let origin = serve(|_: Request| {
        let begun = stream::once(ready(Ok::<_, Infallible>(Bytes::from_static(b"{"))));
        ready(Response::new(Body::from_stream(
            begun.chain(stream::pending()),
        )))
    })
    .await;
    let (_upstream, gw) = sent_to(&origin).await;
    within("a refusal", refusal(&gw)).await;
    logged(&gw, "the account of an upstream cannot be used").await;
    gw.stop().await;
}

// SPEC B-01. An upstream behind a proxy may name http, or a name that only the proxy has.
#[rstest]
#[case::no_url("/.well-known/oauth-protected-resource/mcp")]
#[case::plain("http://up.example.com/.well-known/oauth-protected-resource/mcp")]
#[case::inside("https://10.0.0.1/.well-known/oauth-protected-resource/mcp")]
#[tokio::test]
async fn challenge_that_leads_nowhere_hides_no_metadata(#[case] named: &'static str) {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let issued = server.clone();
    upstream.judges(move |token, _| {
        let is_good = token.is_some_and(|token| issued.issued().iter().any(|one| one == token));
        if is_good {
            Verdict::Good
        } else {
            Verdict::Names(named)
        }
    });
    let gw = gateway(&server, &upstream).await;
    let session = gw.principal("alice").open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    assert_eq!(server.forms()[0]["scope"], "notes:read");
    logged(&gw, "challenge of an upstream leads to no metadata").await;
    gw.stop().await;
}

// SPEC B-11
#[tokio::test]
async fn challenge_to_requests_alone_is_heard() {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let issued = server.clone();
    upstream.judges(move |token, body| {
        let is_good = token.is_some_and(|token| issued.issued().iter().any(|one| one == token));
        let is_open = body.is_empty() || body.contains("\"initialize\"");
        Verdict::unless(!is_good && !is_open, "notes:write")
    });
    let gw = gateway(&server, &upstream).await;
    let session = gw.principal("alice").open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    assert_eq!(server.forms()[0]["scope"], "notes:write");
    gw.stop().await;
}

// An upstream without metadata is served by the configuration alone.
#[tokio::test]
async fn an_upstream_without_metadata_needs_an_issuer() {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    upstream.judges(|token, _| Verdict::unless(token.is_none(), "x"));
    upstream.publishes(Value::Null);
    let gw = gateway(&server, &upstream).await;
    let session = gw.principal("alice").open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    assert_eq!(server.forms()[0]["resource"], upstream.url());
    gw.stop().await;
    let gw = without_issuer(&upstream, "").await;
    refusal(&gw).await;
    logged(&gw, "write `issuer` and `resource`").await;
    gw.stop().await;
}
