//! State that a new upstream session takes over from a lost one. Spec: SPEC U-02, D-06.

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::process::{find, is_alive};
use crate::harness::upstream::HttpStub;
use crate::harness::{Session, Setup, eventually};

const FOLLOWED: [&str; 2] = ["stub://static/1", "stub://static/2"];

/// The resources followed by the upstream's session.
async fn followed(user: &Session, prefix: &str) -> Value {
    let info = user.text(&format!("{prefix}session_info"), json!({})).await;
    let info: Value = serde_json::from_str(&info).unwrap();
    info["subscriptions"].clone()
}

// Spec: SPEC U-02, D-06.
#[rstest]
#[tokio::test]
async fn subscriptions_and_log_level_outlive_the_upstreams_session(
    #[values("stdio", "http", "ws")] carrier: &str,
    #[values("/mcp/stub", "/mcp")] path: &str,
) {
    let remote = match carrier {
        "stdio" => None,
        mode => Some(HttpStub::start_as(mode, 0, &[]).await),
    };
    let setup = Setup::open().stub("other", &["--tools", "1"]);
    let setup = match &remote {
        Some(stub) => setup.http("stub", stub, "era = \"legacy\""),
        None => setup.stub("stub", &[]),
    };
    let gw = setup.start().await;
    let user = gw.anonymous().open(path).await;
    let (tools, uris) = if path == "/mcp" {
        ("stub__", "stub+")
    } else {
        ("", "")
    };
    for uri in FOLLOWED {
        let uri = json!({"uri": format!("{uris}{uri}")});
        let reply = user.request("resources/subscribe", uri).await;
        reply.expect("subscribed");
    }
    // An unsubscribed resource is not followed again.
    let over = json!({"uri": format!("{uris}{}", FOLLOWED[1])});
    let reply = user.request("resources/unsubscribe", over).await;
    reply.expect("unsubscribed");
    let level = json!({"level": "error"});
    let reply = user.request("logging/setLevel", level).await;
    reply.expect("a level");
    let tool = |name: &str| format!("{tools}{name}");
    let logged = async |level: &str| user.text(&tool("log"), json!({"level": level})).await;
    assert_eq!(logged("warning").await, "not logged");
    assert_eq!(logged("error").await, "logged");
    user.text(&tool("state_set"), json!({"key": "k", "value": "v"}))
        .await;
    if remote.is_some() {
        user.text(&tool("forget_session"), json!({})).await;
    } else {
        let pid = user.text(&tool("pid"), json!({})).await.parse().unwrap();
        let child = find(pid).expect("it runs");
        user.text(&tool("exit_after_reply"), json!({})).await;
        eventually("the child is gone", async || {
            (!is_alive(child)).then_some(())
        })
        .await;
    }
    eventually("another session at the upstream", async || {
        let reply = user.call(&tool("state_get"), json!({"key": "k"})).await;
        let is_new = reply.is_ok_and(|result| result.to_string().contains("(unset)"));
        is_new.then_some(())
    })
    .await;
    assert_eq!(followed(&user, tools).await, json!([FOLLOWED[0]]));
    let touched = async |uri: &str| {
        user.text(&tool("touch_resource"), json!({"uri": uri}))
            .await
    };
    assert_eq!(touched(FOLLOWED[0]).await, "announced");
    assert_eq!(touched(FOLLOWED[1]).await, "not subscribed");
    assert_eq!(logged("warning").await, "not logged");
    assert_eq!(logged("error").await, "logged");
    gw.stop().await;
}
