//! A gateway whose file descriptors are few, and clients that want more.

use std::time::Duration;

use http::Method;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::harness::{Gateway, Setup, eventually};

/// Soft and hard limit on file descriptors, as `/proc` shows them.
fn limits(pid: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Max open files"));
    let words = line.unwrap().split_whitespace().skip(3).take(2);
    words.map(str::to_owned).collect()
}

/// Connections that say nothing.
async fn silent(gw: &Gateway, count: usize) -> Vec<TcpStream> {
    let address = gw.url.strip_prefix("http://").unwrap();
    let mut open = Vec::new();
    for _ in 0..count {
        open.push(TcpStream::connect(address).await.unwrap());
    }
    open
}

fn lines_with(gw: &Gateway, text: &str) -> Vec<Value> {
    let mut records = gw.log_records();
    records.retain(|record| record.to_string().contains(text));
    records
}

#[tokio::test]
async fn more_silent_connections_than_descriptors_stop_neither_probes_nor_sessions() {
    let gw = Setup::open()
        .descriptors(400, 400)
        .server("header_timeout = \"3s\"")
        .stub("stub", &[])
        .start()
        .await;
    let open = silent(&gw, 440).await;
    let live = gw.admin_text("/live").await.map(|(status, _)| status);
    assert_eq!(live, Some(200));
    eventually("a session of somebody else is served", async || {
        let hello = crate::harness::http::initialize(1, "2025-11-25", &json!({}));
        let (actor, hello) = (gw.anonymous(), hello.to_string());
        let answer = actor.try_send(Method::POST, "/mcp/stub", &[], hello.into());
        let answer = answer.await.ok()?;
        (answer.status() == 200).then_some(())
    })
    .await;
    assert!(lines_with(&gw, "cannot accept connections").is_empty());
    let [warning] = lines_with(&gw, "400 file descriptors may be open")
        .try_into()
        .expect("one line");
    assert_eq!(warning["level"], "WARN");
    let text = warning.to_string();
    for part in ["may use 11280", "LimitNOFILE", "server.max_connections"] {
        assert!(text.contains(part), "{text}");
    }
    drop(open);
    gw.stop().await;
}

#[tokio::test]
async fn soft_limit_on_descriptors_is_raised_and_children_get_their_own_back() {
    let gw = Setup::open()
        .descriptors(300, 900)
        .stub("stub", &[])
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(user.text("echo", json!({})).await, "{}");
    assert_eq!(limits(gw.pid()), ["900", "900"]);
    let is_stub = |pid: u32| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.contains("stub") && !command.contains("exec-child")
    };
    let children = gw.children().into_iter().map(|child| child.pid);
    let stubs: Vec<u32> = children.filter(|pid| is_stub(*pid)).collect();
    assert!(!stubs.is_empty());
    for pid in stubs {
        assert_eq!(limits(pid), ["300", "900"]);
    }
    gw.stop().await;
}

// Not ten times a second per listener.
#[tokio::test]
async fn lack_of_descriptors_is_logged_once_a_minute() {
    let gw = Setup::open()
        .server("max_connections = 40")
        .stub("stub", &[])
        .descriptors(400, 400)
        .start()
        .await;
    let allow = |count: u64| {
        let limit = Rlimit {
            current: Some(count),
            maximum: Some(400),
        };
        let pid = Pid::from_raw(gw.pid().cast_signed());
        prlimit(pid, Resource::Nofile, limit).unwrap();
    };
    let failed = "cannot accept connections";
    let mut open = Vec::new();
    eventually("several attempts fail", async || {
        // Fewer than are open already: a connection that waits cannot be accepted.
        allow(8);
        open.extend(silent(&gw, 1).await);
        eventually("it is logged", async || {
            (!lines_with(&gw, failed).is_empty()).then_some(())
        })
        .await;
        // For some attempts more; the loop goes on until there were enough.
        tokio::time::sleep(Duration::from_millis(300)).await;
        allow(400);
        let labels = "reason=\"accept\"";
        let failed = gw.metric("drawbridge_connections_failed_total", labels);
        (failed.await >= 5.0).then_some(())
    })
    .await;
    let [line] = lines_with(&gw, failed).try_into().expect("one line");
    let remedy = line["remedy"].as_str().unwrap();
    assert!(remedy.contains("LimitNOFILE"), "{line}");
    drop(open);
    gw.stop().await;
}
