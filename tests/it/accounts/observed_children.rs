//! What operators and users see of accounts whose tokens and keys are in the environment of children.

use serde_json::json;

use super::children::{keys_table, page};
use super::user_key::KEY;
use super::watch::{audited, records};
use super::world::tells_none;
use crate::harness::{Setup, eventually};

#[tokio::test]
async fn key_of_a_child_is_audited_with_the_program_that_uses_it() {
    let state = tempfile::tempdir().unwrap();
    let gw = Setup::open()
        .stub("up", &[])
        .toml(&keys_table(state.path()))
        .start()
        .await;
    page(&gw).await.submit("connect", KEY).await;
    let connected = audited(&gw, 0, "account_connected").await;
    assert_eq!(connected["upstream"], "up");
    assert!(
        page(&gw).await.text.contains("none yet"),
        "no program so far"
    );

    let session = gw.anonymous().open("/mcp/up").await;
    for _ in 0..2 {
        let token = session.text("env", json!({"name": "TRACKER_TOKEN"})).await;
        assert_eq!(token, KEY);
    }
    let used = audited(&gw, 0, "account_first_use").await;
    assert_eq!(
        (&used["program"], &used["upstream"]),
        (&"harness".into(), &"up".into())
    );
    eventually("the program", async || {
        let shown = page(&gw).await.text;
        shown.contains("<li>harness, last on 20").then_some(())
    })
    .await;

    page(&gw).await.submit("disconnect", "").await;
    audited(&gw, 0, "account_disconnected").await;
    let first_uses = records(&gw)
        .into_iter()
        .filter(|one| one["event"] == "account_first_use");
    assert_eq!(first_uses.count(), 1);
    tells_none(&gw, &[KEY.to_owned()]).await;
    gw.stop().await;
}
