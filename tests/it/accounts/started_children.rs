//! What the next child of a caller is started with, and when it may be.

use rstest::rstest;
use serde_json::json;

use super::children::{keys_table, page};
use super::user_key::{KEY, OTHER};
use super::world::{Answering, AuthServer, account};
use crate::harness::http::initialize;
use crate::harness::{Gateway, Setup, eventually};

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

/// A server that ends at once with another key than [`OTHER`].
const PICKY: &str = r#"
case "$TRACKER_TOKEN" in another-*) ;; *) echo "the key is wrong" >&2; exit 1 ;; esac
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case "$line" in
        *'"initialize"'*) printf '%s\n' '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"picky","version":"1"}}}' ;;
        *'"tools/call"'*) printf '%s\n' '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"done"}]}}' ;;
    esac
done"#;

/// The answer to a client that opens a session.
async fn hello(gw: &Gateway) -> String {
    let hello = initialize(1, "2025-11-25", &json!({}));
    gw.anonymous()
        .post("/mcp/up", &[], &hello)
        .await
        .text()
        .await
}

#[tokio::test]
async fn crashes_with_another_key_hold_up_no_child() {
    let state = tempfile::tempdir().unwrap();
    let gw = Setup::open()
        .stdio("up", "sh", &["-c", PICKY], "era = \"legacy\"\n")
        .toml(&keys_table(state.path()))
        .start()
        .await;
    page(&gw).await.submit("connect", KEY).await;
    eventually("the wait after crashes", async || {
        hello(&gw).await.contains("keeps crashing").then_some(())
    })
    .await;
    page(&gw).await.submit("connect", OTHER).await;
    let session = gw.anonymous().open("/mcp/up").await;
    assert_eq!(session.text("anything", json!({})).await, "done");
    gw.stop().await;
}

/// The account of a child whose user agrees at an authorization server.
const AGREED: &str = "kind = \"user\"\nissuer = \"https://login.test\"\nclient_id = \"gateway\"\n\
                      client_secret = \"hunter2\"\nresource = \"https://api.test/v1\"";

// It would be kept for nothing. What is kept already can be taken back.
#[tokio::test]
async fn account_that_no_child_would_use_is_not_connected() {
    let state = tempfile::tempdir().unwrap();
    let keys = keys_table(state.path());
    let setup = |keys: &str| Setup::open().stub("up", &[]).toml(keys);
    let gw = setup(&keys).start().await;
    page(&gw).await.submit("connect", KEY).await;
    gw.stop().await;

    let gw = Gateway::start_without_landlock(&setup(&keys).render()).await;
    let shown = page(&gw).await;
    let why = "No account can be connected now: the gateway cannot keep its credential";
    assert!(shown.text.contains(why), "{}", shown.text);
    assert!(!shown.text.contains("value=\"connect\""), "{}", shown.text);
    let form = [
        ("token", &*shown.token),
        ("action", "connect"),
        ("key", OTHER),
    ];
    let headers = [("origin", &*shown.origin), ("cookie", &*shown.cookie)];
    assert_eq!(shown.send(&form, &headers).await.0, 502);
    shown.submit("disconnect", "").await;
    let shown = page(&gw).await;
    assert!(shown.text.contains("not connected"), "{}", shown.text);
    gw.stop().await;

    for (keys, is_refused) in [
        (keys.replace("kind = \"user_key\"", AGREED), true),
        (format!("{keys}\n[stdio]\ntrust_children = true"), false),
    ] {
        let gw = Gateway::start_without_landlock(&setup(&keys).render()).await;
        let shown = page(&gw).await;
        assert_eq!(shown.text.contains(why), is_refused, "{}", shown.text);
        gw.stop().await;
    }
}
