//! The GET stream to an upstream, for a client that has none: it closes a while after the last call.
//! Spec: BRIDGING §2.3, §3.4; DESIGN §6 (GET streams).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use drawbridge::call::{ClientCapabilities, NullIntake, Principal, UpstreamLink};
use drawbridge::config;
use drawbridge::process::HostEnvironment;
use drawbridge::protocol::Revision;
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::upstream::{ClientContext, Upstreams};
use futures_util::{StreamExt as _, stream};
use http::Method;
use rstest::rstest;

use crate::harness::eventually;
use crate::harness::upstream::serve;
use crate::unsteady_upstream::usual;

/// Counts an open GET stream until dropped.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Starts an upstream that counts its open GET streams, and its sessions that are ended; returns its URL.
async fn upstream(open: &Arc<AtomicUsize>, ended: &Arc<AtomicUsize>) -> String {
    let (open, ended) = (Arc::clone(open), Arc::clone(ended));
    let answer = move |request: Request| {
        let (open, ended) = (Arc::clone(&open), Arc::clone(&ended));
        async move {
            let method = request.method().clone();
            if method == Method::DELETE {
                ended.fetch_add(1, Ordering::SeqCst);
            }
            if method == Method::GET {
                open.fetch_add(1, Ordering::SeqCst);
                let held = Open(open);
                let first = stream::iter([Ok::<_, Infallible>(Bytes::from(": hello\n\n"))]);
                let rest = stream::poll_fn(move |_| {
                    let _held = &held;
                    std::task::Poll::Pending
                });
                let response = Response::builder().header("content-type", "text/event-stream");
                return response.body(Body::from_stream(first.chain(rest))).unwrap();
            }
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            usual(&method, &serde_json::from_slice(&body).unwrap_or_default())
        }
    };
    serve(answer).await + "/mcp"
}

fn link(url: &str, tasks: &TaskSpawner) -> Arc<dyn UpstreamLink> {
    let text =
        format!("[auth]\nmode = \"none\"\n[upstreams.up]\nurl = {url:?}\nera = \"legacy\"\n");
    let config = config::parse(&text, "test.toml", &|_| None).unwrap();
    let upstreams =
        Upstreams::new(&config, HostEnvironment::current(), None, tasks.clone()).unwrap();
    let seat = ClientContext {
        caller: None,
        owner: Principal::anonymous().owner(),
        session: [0; 16],
        capabilities: ClientCapabilities::none(),
        client_info: Bytes::from_static(b"{}"),
        offer: Revision::LATEST_LEGACY,
        intake: Arc::new(NullIntake),
        adopted: None,
    };
    upstreams.link("up", seat).unwrap()
}

/// Moves the clock, and lets everything run that is due or readable.
async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
}

#[rstest]
#[case::without_a_stream_of_its_own(false)]
#[case::with_one(true)]
#[tokio::test]
async fn get_stream_closes_a_minute_after_the_last_call(#[case] client_listens: bool) {
    let open = Arc::<AtomicUsize>::default();
    let url = upstream(&open, &Arc::default()).await;
    let tasks = TaskSpawner::new();
    let link = link(&url, &tasks);
    link.open().await.expect("a session");
    // The first step of each call of a session.
    link.prepare().await;
    if client_listens {
        link.listen(true);
    }
    eventually("the stream", async || {
        (open.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await;
    tokio::time::pause();
    pass(40).await;
    link.prepare().await;
    // A minute after the first call, and not yet one after the last.
    pass(59).await;
    assert_eq!(open.load(Ordering::SeqCst), 1, "it is still open");
    pass(2).await;
    if client_listens {
        pass(600).await;
        assert_eq!(open.load(Ordering::SeqCst), 1, "the client hears by it");
    } else {
        eventually("its end", async || {
            (open.load(Ordering::SeqCst) == 0).then_some(())
        })
        .await;
        // The next call opens it again, and waits for its head.
        tokio::time::resume();
        link.prepare().await;
        assert_eq!(open.load(Ordering::SeqCst), 1, "the stream again");
    }
}

// Spec: SPEC U-04: a caller may be dropped at any time.
#[tokio::test]
async fn session_is_ended_upstream_though_its_caller_does_not_wait() {
    let (open, ended) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let url = upstream(&open, &ended).await;
    let tasks = TaskSpawner::new();
    let link = link(&url, &tasks);
    link.open().await.expect("a session");
    link.prepare().await;
    assert_eq!(open.load(Ordering::SeqCst), 1);
    {
        let mut closing = link.close();
        assert!(futures_util::poll!(closing.as_mut()).is_pending());
    }
    eventually("the end of the session and of its stream", async || {
        let counts = [&open, &ended].map(|count| count.load(Ordering::SeqCst));
        (counts == [0, 1]).then_some(())
    })
    .await;
}
