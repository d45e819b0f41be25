//! JWTs that their issuer is asked about too.

use super::super::super::samples::claims;
use super::*;

/// An issuer that is asked about its JWTs too, and what signs them.
async fn with_jwts() -> (World, Signer) {
    let signer = Signer::new("k1");
    let dir = tempfile::tempdir().expect("a directory");
    super::super::publish(&dir, &[signer.jwk()]);
    let world = World::with(|issuer| {
        issuer.jwks_file = Some(dir.path().join("jwks.json"));
        issuer.introspection.as_mut().expect("it is set").tokens = config::IntrospectedTokens::All;
    });
    (world.await, signer)
}

// SPEC T-50; RFC 7662 §2.2: `exp` is optional in the answer.
#[rstest]
#[case::not_said(Value::Null, NOW + 600)]
#[case::later(json!(NOW + 900), NOW + 600)]
#[case::earlier(json!(NOW + 20), NOW + 20)]
#[tokio::test]
async fn a_jwt_ends_at_the_earlier_of_its_end_and_the_one_that_its_issuer_tells(
    #[case] told: Value,
    #[case] end: u64,
) {
    let (world, signer) = with_jwts().await;
    let answer = merged(world.server.good(), &json!({"exp": told}));
    world.server.says(&answer);
    let token = signer.mint(&world.server.origin);
    let principal = world.present(&token).await.expect("a good token");
    assert_eq!(principal.expires_at(), Some(Duration::from_secs(end)));
}

#[rstest]
#[case::revoked(json!({"active": false}), "token_inactive")]
#[case::somebody_else(json!({"sub": "mallory"}), "token_subject")]
#[case::somebody_else_without_client(json!({"sub": "mallory", "client_id": null}), "token_subject")]
#[case::another_client(json!({"client_id": "d"}), "token_subject")]
#[tokio::test]
async fn a_good_jwt_ends_when_its_issuer_says_otherwise(#[case] said: Value, #[case] reason: &str) {
    let (world, signer) = with_jwts().await;
    world.server.says(&merged(world.server.good(), &said));
    let token = signer.mint(&world.server.origin);
    assert_invalid(world.present(&token).await, reason);
}

// RFC 7662 §2.2: `client_id` is optional in the answer. Some servers have another claim for it in their tokens.
#[rstest]
#[case::jwt(json!({}), json!({"client_id": null}))]
#[case::answer(json!({"client_id": null}), json!({}))]
#[tokio::test]
async fn client_may_be_named_by_the_jwt_or_by_the_answer_alone(
    #[case] claimed: Value,
    #[case] said: Value,
) {
    let (world, signer) = with_jwts().await;
    world.server.says(&merged(world.server.good(), &said));
    let claims = merged(claims(&world.server.origin), &claimed);
    let token = signer.sign(&signer.header().to_string(), &claims.to_string());
    let principal = world.present(&token).await.expect("a good token");
    assert_eq!(principal.client(), "c");
}
