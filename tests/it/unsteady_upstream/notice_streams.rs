//! Upstreams that open a stream of changes once, and then never again or without effect.

use super::*;

// Spec: BRIDGING §3.4. The C# SDK allows one such stream in a session, ever.
#[tokio::test]
async fn stream_allowed_once_costs_no_session() {
    const ONCE: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: This server does not support multiple GET requests. Start a new session or use Last-Event-ID header to resume."}}"#;
    let up = Upstream::start(|what, before| match (what, before) {
        ("GET", 0) => Does::Events(vec![(0, ": hello\n\n")], None),
        ("GET", _) => Does::Status(400, ONCE),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    let stream = user.listen().await;
    eventually("it is asked for again", async || {
        (up.count("GET") == 2).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), 1);
    drop(stream);
    gw.stop().await;
}
