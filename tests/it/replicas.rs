//! Two gateways with one configuration, and a client whose requests go to each in turn.
//! Spec: SPEC G-06.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::session::{Reply, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup};
use crate::modern::Modern;

/// Sealing key of both replicas.
const KEYS: &str = "[keys]\nseal = [{ id = \"k1\", key = \"0123456789abcdefghijklmnopqrstuv\" }]\n";

/// A modern client behind a proxy that gives the replicas its requests in turn.
struct RoundRobin {
    users: [Modern; 2],
    sent: AtomicUsize,
}

impl RoundRobin {
    fn new(replicas: &[Gateway; 2], path: &str) -> Self {
        let users = [&replicas[0], &replicas[1]];
        Self {
            users: users.map(|gw| Modern::new(gw.anonymous(), path)),
            sent: AtomicUsize::new(0),
        }
    }

    async fn send(&self, method: &str, params: Value) -> Reply {
        let turn = self.sent.fetch_add(1, Ordering::Relaxed);
        self.users[turn % 2].send(method, params).await
    }

    /// The names of all pages of a list.
    async fn names(&self, method: &str, member: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut params = json!({});
        loop {
            let page = self.send(method, params).await.expect("a page");
            let entries = page[member].as_array().unwrap().iter();
            names.extend(entries.map(|entry| entry["name"].as_str().unwrap().to_owned()));
            match page.get("nextCursor") {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return names,
            }
        }
    }
}

async fn replicas(stub: &HttpStub) -> [Gateway; 2] {
    let start = || {
        let setup = Setup::open().toml(KEYS).http("one", stub, "");
        setup.stub("two", &["--tools", "1"]).start()
    };
    [start().await, start().await]
}

// Spec: SPEC G-06: parked calls and legacy sessions are all that belongs to one replica.
#[tokio::test]
async fn modern_requests_may_go_to_any_replica() {
    for era in ["legacy", "modern"] {
        let args = ["--era", era, "--list-page-size", "7"];
        let stub = HttpStub::start(&args).await;
        let replicas = replicas(&stub).await;
        for (path, prefix) in [("/mcp/one", ""), ("/mcp", "one__")] {
            let user = RoundRobin::new(&replicas, path);
            let found = user.send("server/discover", json!({})).await.unwrap();
            let again = user.send("server/discover", json!({})).await.unwrap();
            assert_eq!(found["capabilities"], again["capabilities"]);
            let names = user.names("tools/list", "tools").await;
            let alone = &user.users[0];
            let mut expected = Vec::new();
            let mut cursor = json!({});
            loop {
                let page = alone.send("tools/list", cursor).await.unwrap();
                let tools = page["tools"].as_array().unwrap().iter();
                expected.extend(tools.map(|tool| tool["name"].as_str().unwrap().to_owned()));
                match page.get("nextCursor") {
                    Some(next) => cursor = json!({ "cursor": next }),
                    None => break,
                }
            }
            assert!(names.len() > 14, "several pages: {names:?}");
            assert_eq!(names, expected, "{era} {path}");
            for n in 0..4 {
                let arguments = json!({"text": format!("call {n}")});
                let params = json!({"name": format!("{prefix}echo"), "arguments": arguments});
                let echoed = user.send("tools/call", params).await.unwrap();
                assert_eq!(text_of(&echoed), format!("call {n}"));
            }
        }
        for gw in replicas {
            gw.stop().await;
        }
    }
}

// Spec: SPEC G-06, M-63: the state of the call is in the request.
#[tokio::test]
async fn question_of_a_modern_upstream_is_answered_at_another_replica() {
    let stub = HttpStub::start(&["--era", "modern"]).await;
    let replicas = replicas(&stub).await;
    for (path, tool) in [("/mcp/one", "ask_form"), ("/mcp", "one__ask_form")] {
        let user = RoundRobin::new(&replicas, path);
        let call = json!({"name": tool, "arguments": {}});
        let asked = user.send("tools/call", call.clone()).await.unwrap();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let keys = asked["inputRequests"].as_object().unwrap().keys();
        let answer = json!({"action": "accept", "content": {"name": "Ada"}});
        let mut retry = call;
        retry["inputResponses"] = keys.map(|key| (key.clone(), answer.clone())).collect();
        retry["requestState"] = asked["requestState"].clone();
        let done = user.send("tools/call", retry).await.unwrap();
        assert!(text_of(&done).contains("Ada"), "{path}: {done}");
    }
    for gw in replicas {
        gw.stop().await;
    }
}
