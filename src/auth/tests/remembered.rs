//! Tokens that were verified before.

use super::*;

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
