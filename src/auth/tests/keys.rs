//! Tests of key selection and of reloading keys.

use std::pin::pin;

use futures_util::poll;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::super::samples::{NOW, Signer, auth, claims, encode, endpoint};
use super::super::*;
use super::{FROM, ISSUER, World, assert_invalid, bearer, merged, publish};
use crate::clock::TestClock;

#[tokio::test]
async fn a_published_symmetric_key_verifies_nothing() {
    let world = World::new();
    let secret = json!({"kty": "oct", "kid": "k1", "k": encode(&[7; 32])});
    publish(&world.dir, &[secret, Signer::new("k2").jwk()]);
    world.refresh().await;
    let token = world.signer.mint(ISSUER);
    assert_invalid(world.present(&token).await, "token_unknown_key");
}

#[rstest]
#[case::for_encryption(json!({"use": "enc"}))]
#[case::for_signing_only(json!({"use": null, "key_ops": ["sign"]}))]
#[case::for_another_algorithm(json!({"alg": "ES384"}))]
#[case::for_key_agreement(json!({"alg": "ECDH-ES"}))]
#[case::on_another_curve(json!({"crv": "P-384", "alg": null}))]
#[case::without_coordinates(json!({"y": null}))]
#[tokio::test]
async fn a_key_made_for_something_else_is_not_used(#[case] change: Value) {
    let world = World::new();
    let made_for_else = merged(world.signer.jwk(), &change);
    publish(&world.dir, &[made_for_else, Signer::new("k2").jwk()]);
    world.refresh().await;
    let token = world.signer.mint(ISSUER);
    assert_invalid(world.present(&token).await, "token_unknown_key");
}

#[tokio::test]
async fn keys_of_kinds_we_do_not_know_do_not_spoil_a_set() {
    let world = World::new();
    let strange = json!({"kty": "AKP", "alg": "ML-DSA-65", "kid": "k1", "pub": "x"});
    let broken = json!({"kty": "EC", "kid": 7});
    publish(&world.dir, &[strange, broken, world.signer.jwk()]);
    world.refresh().await;
    let token = world.signer.mint(ISSUER);
    world.present(&token).await.expect("the good key is there");
}

// RFC 7515 §4.1.4: a token may leave out which key signed it.
#[rstest]
#[case::last_of_sixteen(15, None)]
#[case::beyond(16, Some("token_signature"))]
#[tokio::test]
async fn sixteen_keys_are_tried_for_a_token_that_names_none(
    #[case] before: usize,
    #[case] refused: Option<&str>,
) {
    let world = World::new();
    let mut keys: Vec<_> = (0..before).map(|_| Signer::new("k2").jwk()).collect();
    keys.push(world.signer.jwk());
    publish(&world.dir, &keys);
    world.refresh().await;
    let token = world.changed(&json!({"kid": null}), &json!({}));
    let result = world.present(&token).await;
    match refused {
        None => drop(result.expect("a good token")),
        Some(reason) => assert_invalid(result, reason),
    }
}

#[tokio::test]
async fn a_token_of_a_foreign_key_is_refused() {
    let world = World::new();
    let token = Signer::new("k1").mint(ISSUER);
    assert_invalid(world.present(&token).await, "token_signature");
}

#[tokio::test]
async fn the_keys_of_one_issuer_do_not_sign_for_another() {
    let dir = tempfile::tempdir().expect("a directory");
    let other = Signer::new("k1");
    publish(&dir, &[other.jwk()]);
    let file = dir.path().join("jwks.json");
    let world = World::with(|config| {
        config.issuers.push(config::IssuerConfig {
            issuer: "https://other.test".to_owned(),
            jwks_file: Some(file),
            audiences: Vec::new(),
            subject_claim: None,
            introspection: None,
        });
    });
    let theirs = other.mint("https://other.test");
    world.present(&theirs).await.expect("its own token");
    assert_invalid(world.present(&other.mint(ISSUER)).await, "token_signature");
}

#[tokio::test]
async fn a_new_key_is_found_when_a_token_names_it() {
    let world = World::new();
    let next = Signer::new("k2");
    publish(&world.dir, &[world.signer.jwk(), next.jwk()]);
    let token = next.mint(ISSUER);
    world.present(&token).await.expect("the key was published");
}

// RFC 7515 §4.1.4: a token may leave out which key signed it.
#[tokio::test]
async fn a_new_key_is_found_when_a_token_names_none() {
    let world = World::new();
    let next = Signer::new("k2");
    publish(&world.dir, &[next.jwk()]);
    let header = merged(next.header(), &json!({"kid": null}));
    let token = next.sign(&header.to_string(), &claims(ISSUER).to_string());
    world.present(&token).await.expect("the key was published");
}

#[tokio::test]
async fn a_withdrawn_key_ends_the_tokens_it_signed_also_the_remembered_ones() {
    let world = World::new();
    let old = world.signer.mint(ISSUER);
    world.present(&old).await.expect("good");
    let next = Signer::new("k2");
    publish(&world.dir, &[next.jwk()]);
    world
        .present(&next.mint(ISSUER))
        .await
        .expect("the new key");
    assert_invalid(world.present(&old).await, "token_unknown_key");
}

// SPEC A-23
#[tokio::test]
async fn a_flood_of_unknown_key_ids_costs_three_loads() {
    let world = World::new();
    let before = LABELED.key_set_fetches.total();
    for n in 0..50 {
        let token = world.changed(&json!({"kid": format!("x{n}")}), &json!({"iat": NOW - 600}));
        assert_invalid(world.present(&token).await, "token_unknown_key");
    }
    // Other tests count too when they share the process.
    let issuer = &world.authenticator.issuers[0];
    assert!(LABELED.key_set_fetches.total() > before);
    assert_eq!(issuer.loads_started(), 3);
}

#[tokio::test]
async fn an_issuer_has_its_last_cause_until_its_keys_load() {
    let world = World::new();
    let issuer = &world.authenticator.issuers[0];
    let cause = || {
        world
            .authenticator
            .last_causes()
            .next()
            .and_then(|(_, cause)| cause)
    };
    assert_eq!(cause(), None);
    let file = world.dir.path().join("jwks.json");
    let keys = std::fs::read(&file).expect("a key set");
    std::fs::write(&file, "<html>").expect("a file");
    issuer.reload().await;
    let failed = cause().expect("a cause");
    assert!(
        failed.text.contains("not a JWK set: expected value"),
        "{failed:?}"
    );
    std::fs::write(&file, r#"{"keys":[]}"#).expect("a file");
    issuer.reload().await;
    let empty = cause().expect("a cause").text;
    assert!(
        empty.contains("jwks.json") && empty.ends_with("the set is empty"),
        "{empty}"
    );
    std::fs::write(&file, keys).expect("a file");
    issuer.reload().await;
    assert_eq!(cause(), None);
}

/// Uses up the loads that are allowed for now.
async fn exhaust_loads(world: &World) {
    for _ in 0..3 {
        world.refresh().await;
    }
}

// SPEC A-23
#[rstest]
#[case::of_a_named_key(json!({}))]
#[case::that_names_none(json!({"kid": null}))]
#[tokio::test]
async fn a_token_newer_than_the_keys_may_come_back_when_they_cannot_be_looked_at_again(
    #[case] header: Value,
) {
    let world = World::new();
    exhaust_loads(&world).await;
    let next = Signer::new("k2");
    publish(&world.dir, &[world.signer.jwk(), next.jwk()]);
    let header = merged(next.header(), &header);
    let token = next.sign(&header.to_string(), &claims(ISSUER).to_string());
    let denied = world.present(&token).await.expect_err("no key");
    assert_eq!(
        (denied.status, denied.reason),
        (StatusCode::SERVICE_UNAVAILABLE, "keys_outdated")
    );
    assert!(denied.challenge.is_none());
}

// SPEC A-23
#[rstest]
#[case::older_than_the_keys(json!({"iat": NOW - 61}))]
#[case::of_unknown_age(json!({"iat": null}))]
#[tokio::test]
async fn other_tokens_of_unknown_keys_are_refused_without_looking(#[case] issued: Value) {
    let world = World::new();
    exhaust_loads(&world).await;
    let token = world.changed(&json!({"kid": "k2"}), &issued);
    assert_invalid(world.present(&token).await, "token_unknown_key");
}

/// Answers the two requests of one fetch: where the keys are, and that there are none.
async fn serve_no_keys(first: TcpStream, listener: &TcpListener, issuer: &str) {
    let metadata = json!({"issuer": issuer, "jwks_uri": format!("{issuer}/jwks")});
    let mut socket = first;
    for body in [metadata.to_string(), json!({"keys": []}).to_string()] {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(socket.read_u8().await.expect("a request"));
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(answer.as_bytes()).await.expect("sent");
        drop(socket);
        (socket, _) = listener.accept().await.expect("the next request");
    }
}

// SPEC A-23
#[tokio::test]
async fn a_new_token_may_come_back_when_the_keys_were_asked_for_before_it_came() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let issuer = format!("http://127.0.0.1:{port}");
    let clock = TestClock::at(NOW);
    let made = Authenticator::new(
        &auth(&[&issuer]),
        &config::EgressConfig::default(),
        clock,
        TaskSpawner::new(),
    );
    let authenticator = made.expect("a configuration");
    authenticator.issuers[0].refresh_stale(&TaskSpawner::new());
    let (under_way, _) = listener.accept().await.expect("a fetch");
    let headers = bearer(&Signer::new("k1").mint(&issuer));
    let endpoint = endpoint();
    let mut presented = pin!(authenticator.authenticate(&headers, None, FROM, &endpoint));
    assert!(poll!(&mut presented).is_pending());
    let denied = tokio::select! {
        result = presented => result.expect_err("no key"),
        () = serve_no_keys(under_way, &listener, &issuer) => panic!("a third request"),
    };
    assert_eq!(
        (denied.status, denied.reason),
        (StatusCode::SERVICE_UNAVAILABLE, "keys_outdated")
    );
}

// SPEC A-23
#[tokio::test]
async fn a_new_token_is_refused_when_the_keys_are_just_loaded() {
    let world = World::new();
    let token = world.changed(&json!({"kid": "k2"}), &json!({}));
    assert_invalid(world.present(&token).await, "token_unknown_key");
}

#[rstest]
#[case::broken(json!({"x": 7}))]
#[case::without_coordinates(json!({"y": null}))]
#[case::not_encoded(json!({"x": "!"}))]
#[case::of_no_type(json!({"kty": null}))]
#[case::of_another_shape(json!({"key_ops": "verify"}))]
#[tokio::test]
async fn keys_are_kept_when_a_set_holds_nothing_that_is_a_key(#[case] change: Value) {
    let world = World::new();
    publish(&world.dir, &[merged(world.signer.jwk(), &change)]);
    let before = LABELED.key_set_failures.total();
    world.refresh().await;
    assert!(LABELED.key_set_failures.total() > before);
    let token = world.signer.mint(ISSUER);
    world.present(&token).await.expect("the key is kept");
}

#[rstest]
#[case::encrypting(json!({"use": "enc"}))]
#[case::of_an_unknown_type(json!({"kty": "AKP", "alg": "ML-DSA-65"}))]
#[case::on_an_unknown_curve(json!({"crv": "secp256k1", "alg": "ES256K"}))]
#[case::symmetric(json!({"kty": "oct", "k": "AAAA"}))]
#[tokio::test]
async fn a_set_of_keys_for_other_purposes_withdraws_every_key(#[case] change: Value) {
    let world = World::new();
    let token = world.signer.mint(ISSUER);
    world.present(&token).await.expect("good");
    publish(&world.dir, &[merged(world.signer.jwk(), &change)]);
    let before = LABELED.key_set_failures.total();
    world.refresh().await;
    assert!(LABELED.key_set_failures.total() > before);
    assert_invalid(world.present(&token).await, "token_unknown_key");
}

#[tokio::test]
async fn an_empty_set_withdraws_every_key() {
    let world = World::new();
    publish(&world.dir, &[]);
    let before = LABELED.key_set_failures.total();
    world.refresh().await;
    assert!(LABELED.key_set_failures.total() > before);
    let token = world.signer.mint(ISSUER);
    assert_invalid(world.present(&token).await, "token_unknown_key");
}

#[tokio::test]
async fn keys_are_kept_while_their_source_is_gone() {
    let world = World::new();
    std::fs::remove_file(world.dir.path().join("jwks.json")).expect("it was there");
    world.refresh().await;
    let token = world.signer.mint(ISSUER);
    world.present(&token).await.expect("the key is kept");
}

#[rstest]
#[case::no_set("[]")]
#[case::empty(r#"{"keys":[]}"#)]
#[case::no_key(r#"{"keys":[{"kty":"EC"}]}"#)]
#[case::nothing_usable(r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#)]
#[tokio::test]
async fn a_key_file_without_keys_is_told_at_start(#[case] content: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("jwks.json");
    std::fs::write(&path, content).expect("a file");
    let mut config = auth(&[ISSUER]);
    config.issuers[0].jwks_file = Some(path);
    let clock = TestClock::at(NOW);
    let made = Authenticator::new(
        &config,
        &config::EgressConfig::default(),
        clock,
        TaskSpawner::new(),
    );
    let error = made.expect_err("no keys");
    assert_eq!(
        error.to_string(),
        "the keys of https://issuer.test cannot be loaded"
    );
}
