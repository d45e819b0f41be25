//! Tokens that were verified before.

use super::*;
use crate::clock::Clock as _;

#[tokio::test]
async fn a_remembered_token_still_expires() {
    let world = World::new();
    let token = world.changed(&json!({}), &json!({"exp": NOW + 10}));
    world.present(&token).await.expect("good");
    world.clock.advance(Duration::from_secs(70));
    assert_invalid(world.present(&token).await, "token_expired");
}

#[tokio::test]
async fn a_remembered_token_is_the_same_principal() {
    let world = World::new();
    let token = world.signer.mint(ISSUER);
    let first = world.present(&token).await.expect("good");
    let second = world.present(&token).await.expect("good");
    assert!(Arc::ptr_eq(&first, &second));
}

#[tokio::test]
async fn a_bad_signature_is_not_checked_again() {
    let world = World::new();
    let forged = Signer::new("k1").mint(ISSUER);
    let key = TokenKey::of(&endpoint().resource, forged.as_bytes());
    let now = world.clock.now();
    assert!(world.authenticator.recall(&key, now).is_none());
    for _ in 0..2 {
        assert_invalid(world.present(&forged).await, "token_signature");
        let remembered = world.authenticator.recall(&key, now);
        let refusal = TokenRefusal {
            reject: RejectReason::Signature,
            issuer: Some(0),
        };
        assert_eq!(remembered.and_then(Result::err), Some(refusal));
    }
    let later = now + Duration::from_secs(10);
    assert!(world.authenticator.recall(&key, later).is_none());
}

#[tokio::test]
async fn bad_tokens_push_out_no_good_one() {
    let world = World::new();
    let good = world.signer.mint(ISSUER);
    let first = world.present(&good).await.expect("good");
    for n in 0..20_000 {
        let key = TokenKey::of("", format!("junk {n}").as_bytes());
        let age = Duration::from_hours(1);
        let refused = &world.authenticator.refused;
        refused.put(key, RejectReason::Signature.into(), world.clock.now(), age);
    }
    let second = world.present(&good).await.expect("good");
    assert!(Arc::ptr_eq(&first, &second), "remembered");
}
