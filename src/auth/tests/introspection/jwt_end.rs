//! When a JWT ends that its issuer was asked about too.

use super::*;

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
    let signer = Signer::new("k1");
    let dir = tempfile::tempdir().expect("a directory");
    super::super::publish(&dir, &[signer.jwk()]);
    let world = World::with(|issuer| {
        issuer.jwks_file = Some(dir.path().join("jwks.json"));
        issuer.introspection.as_mut().expect("it is set").tokens = config::IntrospectedTokens::All;
    })
    .await;
    let answer = merged(world.server.good(), &json!({"exp": told}));
    world.server.says(&answer);
    let token = signer.mint(&world.server.origin);
    let principal = world.present(&token).await.expect("a good token");
    assert_eq!(principal.expires_at(), Some(Duration::from_secs(end)));
}
