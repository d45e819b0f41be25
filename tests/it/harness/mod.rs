//! What every test needs: a running gateway, actors who talk to it, an issuer, upstreams.
//!
//! ```ignore
//! let gw = Setup::secured().stub("stub", &[]).start().await;
//! let alice = gw.principal("alice").open("/mcp/stub").await;
//! let echoed = alice.call("echo", json!({"text": "hi"})).await.unwrap();
//! let mallory = gw.principal("mallory").post("/mcp/stub", &alice.headers(), ping(1)).await;
//! assert_eq!(mallory.status(), 404);
//! gw.stop().await;
//! ```
//!
//! Tests wait on conditions ([`eventually`]), never on time. A gateway that is dropped while its
//! test panics prints its log; [`gateway::Gateway::stop`] fails when a process is left over.

pub(crate) mod connection;
pub(crate) mod events;
pub(crate) mod gateway;
pub(crate) mod http;
pub(crate) mod issuer;
pub(crate) mod kept;
pub(crate) mod network;
pub(crate) mod nginx;
pub(crate) mod peers;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod redis;
pub(crate) mod replicas;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod socket;
pub(crate) mod tunnel;
pub(crate) mod upstream;

pub(crate) use gateway::Gateway;
pub(crate) use http::{Actor, Answer};
pub(crate) use session::Session;
pub(crate) use setup::Setup;

use std::time::{Duration, Instant};

/// How long a condition may take to come true before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Polls `claim` until it gives a value; fails the test with `what` after [`PATIENCE`].
pub(crate) async fn eventually<T>(what: &str, mut claim: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = claim().await {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Awaits `future`; fails the test with `what` after [`PATIENCE`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(PATIENCE, future).await;
    outcome.unwrap_or_else(|_| panic!("{what}: nothing within {PATIENCE:?}"))
}
