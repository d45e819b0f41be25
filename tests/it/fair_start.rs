//! Servers that hang on start beside a working one. Spec: DESIGN §6; SPEC G-03.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Setup, within};

/// How long a first call takes from the beginning of its session.
async fn first_call(setup: Setup) -> Duration {
    let gw = setup.stub("good", &[]).start().await;
    let begun = Instant::now();
    let user = gw.anonymous().open("/mcp").await;
    let echoed = within(
        "the first call",
        user.text("good__echo", json!({"text": "hi"})),
    )
    .await;
    let took = begun.elapsed();
    assert_eq!(echoed, "hi");
    gw.stop().await;
    took
}

/// Configures servers that run without ever answering, before other servers in the file.
fn hanging(count: usize) -> Setup {
    (0..count).fold(Setup::open(), |setup, number| {
        let name = format!("hangs{number}");
        setup.stdio(&name, "sh", &["-c", "exec sleep 600"], "")
    })
}

// A place for a start is free again after 2 s, not after the 30 s that a handshake may take. The bound
// lies between the two, far from either.
#[tokio::test]
async fn hanging_servers_do_not_hold_up_the_first_call_to_another() {
    let alone = first_call(hanging(0).stub("other", &["--tools", "1"])).await;
    let cores = std::thread::available_parallelism().unwrap().get();
    // As many as may start at once, as the other one begins.
    let beside = first_call(hanging(2 * cores)).await;
    let bound = Duration::from_secs(15).max(5 * alone);
    assert!(beside <= bound, "{beside:?} beside them, {alone:?} alone");
}
