//! Upstreams that open a stream of changes once, and then never again or without effect.

use super::*;

/// What the C# SDK answers to a second GET of a session.
const ONCE: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: This server does not support multiple GET requests. Start a new session or use Last-Event-ID header to resume."}}"#;

// Spec: BRIDGING §3.4. The C# SDK allows one such stream in a session, ever.
#[tokio::test]
async fn stream_allowed_once_costs_no_session() {
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
    eventually("the log says that the stream has ended", async || {
        let log = gw.log();
        let mut told = log.iter();
        told.any(|line| line.contains("opens one GET stream in a session"))
            .then_some(())
    })
    .await;
    drop(stream);
    gw.stop().await;
}

// Spec: SPEC U-10. The Java SDK gives ids to its events and stores none: a resumed stream stays open without any.
#[tokio::test]
async fn stream_of_the_java_sdk_is_not_resumed() {
    const EVENT: &str =
        "id: 0a6e7c54-3f1d-4b1e-9d53-7d2a8f0c9b11_5b0b3c1e-8a53-4c53-a0f4-1f6f0f6f3c22\ndata:\n\n";
    let begun = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&begun);
    let answer = move |request: Request| {
        let count = Arc::clone(&count);
        async move {
            let method = request.method().clone();
            let is_resumed = request.headers().contains_key("last-event-id");
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            if method != Method::GET {
                return usual(&method, &serde_json::from_slice(&body).unwrap_or_default());
            }
            let stream = Response::builder().header("content-type", "text/event-stream");
            if is_resumed {
                let silence = stream::pending::<Result<Bytes, Infallible>>();
                return stream.body(Body::from_stream(silence)).unwrap();
            }
            count.fetch_add(1, Ordering::SeqCst);
            stream.body(Body::from(EVENT)).unwrap()
        }
    };
    let url = serve(answer).await + "/mcp";
    let gw = Setup::open().url("up", &url, LEGACY).start().await;
    let user = gw.anonymous().open("/mcp/up").await;
    let listening = user.listen().await;
    eventually("a stream that resumes nothing", async || {
        (begun.load(Ordering::SeqCst) > 1).then_some(())
    })
    .await;
    drop(listening);
    gw.stop().await;
}
