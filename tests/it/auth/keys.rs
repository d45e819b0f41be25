//! Issuers found by discovery: the location of their keys, key rotation, and unreachable issuers.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;

use super::authority::{Authority, KEYS, OAUTH, OPENID, keys};
use super::{assert_invalid_token, behind, hello};
use crate::harness::http::Answer;
use crate::harness::issuer::{Issuer, unix_now};
use crate::harness::{Gateway, eventually};

const PATH: &str = "/mcp/stub";

async fn gateway(authority: &Arc<Authority>) -> Gateway {
    behind(authority).stub("stub", &[]).start().await
}

/// Presents a good token of `issuer`.
async fn present(gw: &Gateway, issuer: &Issuer) -> Answer {
    let token = issuer.mint("alice", &[format!("{}{PATH}", gw.url)], "mcp:tools");
    hello(&gw.bearer(&token), PATH).await
}

/// Presents a token that `issuer` issued two minutes ago, good but for its key.
async fn present_older(gw: &Gateway, issuer: &Issuer) -> Answer {
    let audience = format!("{}{PATH}", gw.url);
    let mut claims = issuer.claims("alice", &[audience], "mcp:tools");
    claims["iat"] = (unix_now() - 120).into();
    hello(&gw.bearer(&issuer.sign_own(&claims)), PATH).await
}

/// An issuer with this key id, of this name.
fn issuer_named(key_id: &str, name: &str) -> Issuer {
    let mut issuer = Issuer::with_key_id(key_id);
    name.clone_into(&mut issuer.name);
    issuer
}

// SPEC B-02 (the same orders on this side)
#[tokio::test]
async fn metadata_is_found_at_each_of_its_places_in_order() {
    let places: [(&'static str, Vec<String>); 2] = [
        ("", vec![OAUTH.into(), OPENID.into()]),
        (
            "/realms/x",
            vec![
                format!("{OAUTH}/realms/x"),
                format!("{OPENID}/realms/x"),
                format!("/realms/x{OPENID}"),
            ],
        ),
    ];
    for (path, places) in places {
        for last in 0..places.len() {
            let authority = Authority::empty(path).await;
            let issuer = issuer_named("k", &authority.issuer());
            authority.put(&places[last], &authority.metadata());
            authority.put(KEYS, &keys(&[&issuer]));
            let gw = gateway(&authority).await;
            present(&gw, &issuer).await.expect(StatusCode::OK).await;
            let mut expected = places[..=last].to_vec();
            expected.push(KEYS.to_owned());
            assert_eq!(authority.asked(), expected);
            gw.stop().await;
        }
    }
}

// SPEC B-03
#[tokio::test]
async fn metadata_of_another_issuer_is_not_used() {
    let authority = Authority::empty("").await;
    let issuer = issuer_named("k", &authority.issuer());
    let mut metadata = authority.metadata();
    metadata["issuer"] = json!(format!("{}/", authority.issuer()));
    authority.put(OAUTH, &metadata);
    authority.put(KEYS, &keys(&[&issuer]));
    let gw = gateway(&authority).await;
    assert_eq!(present(&gw, &issuer).await.status(), 503);
    assert_eq!(authority.count(KEYS), 0);
    gw.stop().await;
}

// SPEC
#[tokio::test]
async fn a_key_set_elsewhere_must_be_public_and_https() {
    let inside = Authority::empty("").await;
    let secret = "inside information";
    inside.put_raw("/secret", "200 OK", secret);
    for url in [
        format!("http://127.0.0.1:{}/secret", inside.port),
        format!("https://127.0.0.1:{}/secret", inside.port),
        format!("https://2130706433:{}/secret", inside.port),
        format!("https://[::ffff:7f00:1]:{}/secret", inside.port),
        format!("https://localhost:{}/secret", inside.port),
        "https://169.254.169.254/latest".to_owned(),
        "file:///etc/passwd".to_owned(),
    ] {
        let authority = Authority::empty("").await;
        let issuer = issuer_named("k", &authority.issuer());
        let metadata = json!({"issuer": authority.issuer(), "jwks_uri": url});
        authority.put(OAUTH, &metadata);
        let gw = gateway(&authority).await;
        let answer = present(&gw, &issuer).await;
        assert_eq!(answer.status(), 503, "{url}");
        assert!(answer.header("www-authenticate").is_none(), "{url}");
        assert!(!answer.text().await.contains(secret), "{url}");
        gw.stop().await;
    }
    assert_eq!(inside.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn keys_inside_are_fetched_where_that_is_allowed() {
    let (authority, inside) = (Authority::empty("").await, Authority::empty("").await);
    let issuer = issuer_named("k", &authority.issuer());
    let url = format!("http://127.0.0.1:{}{KEYS}", inside.port);
    authority.put(
        OAUTH,
        &json!({"issuer": authority.issuer(), "jwks_uri": url}),
    );
    inside.put(KEYS, &keys(&[&issuer]));
    let allowed = "[egress]\nallow = [\"127.0.0.1\"]\n";
    let gw = behind(&authority)
        .stub("stub", &[])
        .toml(allowed)
        .start()
        .await;
    present(&gw, &issuer).await.expect(StatusCode::OK).await;
    gw.stop().await;
}

// SPEC X-01
#[tokio::test]
async fn redirects_are_not_followed_and_endless_documents_not_read() {
    let elsewhere = Authority::empty("").await;
    for (head, body) in [
        (
            format!(
                "302 Found\r\nlocation: http://127.0.0.1:{}/",
                elsewhere.port
            ),
            String::new(),
        ),
        (
            "200 OK".to_owned(),
            format!("{{\"keys\":[]{}}}", " ".repeat(2 << 20)),
        ),
        ("500 Oops".to_owned(), "inside information".to_owned()),
    ] {
        let authority = Authority::empty("").await;
        let issuer = issuer_named("k", &authority.issuer());
        authority.put(OAUTH, &authority.metadata());
        authority.put_raw(KEYS, &head, &body);
        let gw = gateway(&authority).await;
        let answer = present(&gw, &issuer).await;
        assert_eq!(answer.status(), 503, "{head}");
        assert!(!answer.text().await.contains("inside"));
        gw.stop().await;
    }
    assert_eq!(elsewhere.asked(), Vec::<String>::new());
}

// SPEC A-23
#[tokio::test]
async fn keys_are_rotated_without_a_refused_call() {
    let mut old = Issuer::with_key_id("old");
    let authority = Authority::of(&mut old).await;
    let new = issuer_named("new", &authority.issuer());
    let gw = gateway(&authority).await;
    present(&gw, &old).await.expect(StatusCode::OK).await;
    authority.put(KEYS, &keys(&[&old, &new]));
    present(&gw, &new).await.expect(StatusCode::OK).await;
    present(&gw, &old).await.expect(StatusCode::OK).await;
    let last = issuer_named("last", &authority.issuer());
    authority.put(KEYS, &keys(&[&last]));
    present(&gw, &last).await.expect(StatusCode::OK).await;
    // Tokens signed by withdrawn keys are refused, whether verified before or not.
    for withdrawn in [&old, &new] {
        assert_invalid_token(&gw, PATH, &present_older(&gw, withdrawn).await);
    }
    gw.stop().await;
}

// SPEC A-23
#[tokio::test]
async fn a_flood_of_unknown_keys_costs_the_issuer_three_fetches() {
    let mut issuer = Issuer::with_key_id("k");
    let authority = Authority::of(&mut issuer).await;
    let gw = gateway(&authority).await;
    let flood = (0..40).map(|n| {
        let stranger = issuer_named(&format!("x{n}"), &authority.issuer());
        let gw = &gw;
        async move { assert_invalid_token(gw, PATH, &present_older(gw, &stranger).await) }
    });
    futures_util::future::join_all(flood).await;
    assert!(authority.count(KEYS) <= 3, "{:?}", authority.asked());
    present(&gw, &issuer).await.expect(StatusCode::OK).await;
    gw.stop().await;
}

// SPEC A-23
#[tokio::test]
async fn callers_who_wait_for_keys_share_one_fetch() {
    let mut issuer = Issuer::with_key_id("k");
    let authority = Authority::of(&mut issuer).await;
    let gw = gateway(&authority).await;
    let crowd = (0..20).map(|_| async {
        present(&gw, &issuer).await.expect(StatusCode::OK).await;
    });
    futures_util::future::join_all(crowd).await;
    assert_eq!(authority.count(KEYS), 1);
    gw.stop().await;
}

// SPEC A-23
#[tokio::test]
async fn known_keys_serve_on_while_the_issuer_is_down() {
    let mut issuer = Issuer::with_key_id("k");
    let authority = Authority::of(&mut issuer).await;
    let gw = gateway(&authority).await;
    present(&gw, &issuer).await.expect(StatusCode::OK).await;
    authority.fall().await;
    let stranger = issuer_named("x", &authority.issuer());
    assert_invalid_token(&gw, PATH, &present_older(&gw, &stranger).await);
    let answer = present(&gw, &stranger).await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("retry-after"), Some("5"));
    // A different token, which is in no cache.
    present(&gw, &issuer).await.expect(StatusCode::OK).await;
    gw.stop().await;
}

#[tokio::test]
async fn without_keys_the_answer_is_come_back_later_until_the_issuer_rises() {
    let mut issuer = Issuer::with_key_id("k");
    let authority = Authority::of(&mut issuer).await;
    authority.fall().await;
    let gw = gateway(&authority).await;
    let answer = present(&gw, &issuer).await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("retry-after"), Some("5"));
    assert!(answer.header("www-authenticate").is_none());
    authority.rise().await;
    eventually("the keys are fetched", async || {
        (present(&gw, &issuer).await.status() == 200).then_some(())
    })
    .await;
    gw.stop().await;
}
