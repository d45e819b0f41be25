//! What the next child of a caller is started with, and when it may be.

use rstest::rstest;
use serde_json::json;

use super::world::{Answering, AuthServer, account};
use crate::harness::Setup;

/// Longer than the life of a token of the test.
const MOST_CHILDREN: usize = 1000;

// It keeps the token for as long as that is good.
#[rstest]
#[tokio::test]
async fn child_that_is_started_when_a_refresh_is_due_gets_the_next_token(
    #[values("legacy", "modern")] era: &str,
) {
    let server = AuthServer::start().await;
    server.answers(Answering::Tokens(Some(5)));
    let child = "env = \"TRACKER_TOKEN\"\nresource = \"https://api.test/v1\"";
    let gw = Setup::secured()
        .stub("up", &["--era", era])
        .toml(&account(&server, child))
        .start()
        .await;
    for _ in 0..MOST_CHILDREN {
        let session = gw.principal("alice").open("/mcp/up").await;
        let token = session.text("env", json!({"name": "TRACKER_TOKEN"})).await;
        session.delete().await;
        if let [_, next, ..] = &*server.issued() {
            assert_eq!(token, *next);
            gw.stop().await;
            return;
        }
    }
    panic!("no refresh");
}
