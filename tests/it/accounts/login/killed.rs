//! `kill -9` while a login is kept. After the restart it is there, or its user is asked once more.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use rstest::rstest;
use serde_json::json;

use super::asserted::{AssertedWorld, REFRESH, greeting};

#[rstest]
#[case::redeemed("login_redeemed", true)]
#[case::stored("login_stored", false)]
#[tokio::test]
async fn killed_login_is_asked_for_again_or_kept(#[case] point: &str, #[case] is_asked: bool) {
    let world = AssertedWorld::doomed(point).await;
    let nothing = json!({});
    let tokens = (&nothing, Some(REFRESH));
    let killed = AssertUnwindSafe(world.connect("alice", tokens));
    assert!(
        killed.catch_unwind().await.is_err(),
        "the gateway has answered"
    );
    let world = world.restarted().await;
    let session = world.session("alice", "up").await;
    let mut said = greeting(&session, "alice").await;
    assert_eq!(said.contains("/connect/up?for="), is_asked, "{said}");
    if is_asked {
        let page = world.connect("alice", tokens).await;
        assert!(page.contains("up is connected"), "{page}");
        said = greeting(&session, "alice").await;
    }
    assert_eq!(said, "I am alice");
    world.gw.stop().await;
}
