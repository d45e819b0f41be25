//! Children from the first call to the last: none too many, none left over.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::process::{descendants, find, is_alive, resident, threads, zombies};
use crate::harness::{Setup, eventually};

// Issue: "kill -9 of the gateway leaves no child and no grandchild".
#[tokio::test]
async fn killing_the_gateway_leaves_no_child_and_no_grandchild() {
    let gw = Setup::open()
        .stub("stub", &["--ignore-sigterm", "--ignore-eof"])
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let grandchild = user
        .text("spawn_grandchild", json!({}))
        .await
        .parse()
        .unwrap();
    let grandchild = find(grandchild).expect("it runs");
    gw.kill().await;
    eventually("the grandchild is gone", async || {
        (!is_alive(grandchild)).then_some(())
    })
    .await;
}

// Issue, in short form: "200 sessions opened and abandoned over stdio with caps on".
#[tokio::test]
async fn abandoned_sessions_leave_nothing_behind() {
    let setup = Setup::secured()
        .toml("[sessions]\nidle = \"1s\"\n[stdio]\nmax_children = 16\nidle = \"1s\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let idle_family = gw.children().len();
    let round = async |sessions: usize| {
        for number in 0..sessions {
            let user = gw
                .principal(&format!("user-{}", number % 20))
                .open("/mcp/stub")
                .await;
            user.text("echo", json!({"n": number})).await;
        }
        eventually("every child has ended", async || {
            (gw.children().len() <= idle_family).then_some(())
        })
        .await;
    };
    round(100).await;
    let warm = resident(gw.pid());
    round(100).await;
    let after = resident(gw.pid());
    assert!(
        after <= warm * 12 / 10 + (8 << 20),
        "{warm} bytes grew to {after}"
    );
    assert_eq!(zombies(gw.pid()), 0);
    for process in descendants(gw.pid()) {
        assert_eq!(zombies(process.pid), 0);
    }
    eventually("no session is counted", async || {
        (gw.metric("drawbridge_sessions_open", "").await < 0.5).then_some(())
    })
    .await;
    gw.stop().await;
}

// docs/adr/0011: the setting with which the allocator is built is easily lost.
#[tokio::test]
async fn the_allocator_gives_memory_back_by_threads_of_its_own() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    eventually("such a thread runs", async || {
        threads(gw.pid())
            .iter()
            .any(|name| name.starts_with("jemalloc_bg"))
            .then_some(())
    })
    .await;
}

// Spec: DESIGN §6: over the cap the principal's own idle child is stopped, else 503.
#[tokio::test]
async fn over_the_cap_an_own_idle_child_makes_room() {
    let setup = Setup::secured()
        .toml("[stdio]\nmax_children_per_principal = 2\nspawn_wait = \"1s\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let alice = gw.principal("alice");
    let first = alice.open("/mcp/stub").await;
    let second = alice.open("/mcp/stub").await;
    let third = alice.open("/mcp/stub").await;
    for user in [&first, &second, &third] {
        assert_eq!(user.text("echo", json!({})).await, "{}");
    }
    // Both places taken by running calls: the next one is told to wait.
    let held = [
        second.start_call("never", json!({})),
        third.start_call("never", json!({})),
    ];
    let held = futures_util::future::join_all(held).await;
    let reply = first.call("echo", json!({})).await;
    assert!(
        reply.is_err() || reply.as_ref().unwrap()["isError"] == true,
        "{reply:?}"
    );
    drop(held);
    gw.stop().await;
}

// Spec: DESIGN §6: inherited PATH, LANG, LC_ALL, TZ, TMPDIR; private HOME; `env` wins.
#[tokio::test]
async fn a_child_gets_a_clean_environment_and_a_private_home() {
    let keys = "env = { API_KEY = \"k-123\" }";
    let gw = Setup::secured().stub_with("stub", &[], keys).start().await;
    let environment = async |name: &str| -> Value {
        let user = gw.principal(name).open("/mcp/stub").await;
        serde_json::from_str(&user.text("env", json!({})).await).unwrap()
    };
    let alice = environment("alice").await;
    let bob = environment("bob").await;
    assert_eq!(alice["API_KEY"], "k-123");
    assert_ne!(alice["HOME"], bob["HOME"]);
    assert_ne!(
        alice["HOME"],
        json!(std::env::var("HOME").unwrap_or_default())
    );
    assert_eq!(alice["PATH"], json!(std::env::var("PATH").unwrap()));
    let names: Vec<&String> = alice.as_object().unwrap().keys().collect();
    assert!(
        !names.iter().any(|name| name.starts_with("CARGO")),
        "{names:?}"
    );
    assert!(names.len() < 15, "{names:?}");
    gw.stop().await;
}

#[tokio::test]
async fn a_crash_loop_is_slowed_down() {
    let gw = Setup::open()
        .stub("stub", &["--crash-on-start"])
        .start()
        .await;
    let hello = crate::harness::http::initialize(1, "2025-11-25", &json!({}));
    let deadline = std::time::Instant::now() + Duration::from_secs(2);
    let mut attempts = 0;
    while std::time::Instant::now() < deadline {
        gw.anonymous().post("/mcp/stub", &[], &hello).await;
        attempts += 1;
    }
    let spawned = gw.metric("drawbridge_children_spawned_total", "").await;
    assert!(
        spawned < 12.0,
        "{spawned} children for {attempts} attempts in two seconds"
    );
    gw.stop().await;
}
