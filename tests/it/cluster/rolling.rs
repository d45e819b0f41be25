//! All replicas are restarted one after the other while clients call and listen: no call fails, and no event is lost.
//! Spec: DESIGN §8.1; `docs/adr/0028`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join, join_all};
use http::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{SECRET, knows, tables};
use crate::harness::http::{everything, initialize};
use crate::harness::redis;
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Actor, Answer, Gateway, Setup};
use crate::modern::{Modern, VERSION};

/// Long, so that no replica loses it on a busy machine.
const LEASE: &str = "lease = \"15s\"";
/// Log messages of each call.
const BURST: u64 = 5;

/// Gives requests to the replicas in turn, and to the next one where a port is closed: no more than nginx does.
#[derive(Default)]
struct Front {
    replicas: Mutex<Vec<Actor>>,
    turn: AtomicUsize,
    calls: AtomicUsize,
    is_over: AtomicBool,
}

impl Front {
    fn add(&self, replica: &Gateway) {
        self.replicas.lock().unwrap().push(replica.anonymous());
    }

    fn remove_oldest(&self) {
        self.replicas.lock().unwrap().remove(0);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    async fn send(&self, method: Method, headers: &[(&str, &str)], body: &str) -> Answer {
        loop {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let actor = {
                let replicas = self.replicas.lock().unwrap();
                replicas[turn % replicas.len()].clone()
            };
            let body = bytes::Bytes::copy_from_slice(body.as_bytes());
            match actor
                .try_send(method.clone(), "/mcp/stub", headers, body)
                .await
            {
                Ok(answer) => return answer,
                Err(error) => assert!(error.is_connect(), "{error:?}"),
            }
        }
    }
}

/// A legacy client behind the front.
struct Client {
    front: Arc<Front>,
    id: String,
    next: AtomicUsize,
}

impl Client {
    async fn open(front: &Arc<Front>) -> Self {
        let hello = initialize(1, "2025-11-25", &everything()).to_string();
        let answer = front.send(Method::POST, &[], &hello).await;
        let answer = answer.expect(StatusCode::OK).await;
        let client = Self {
            front: Arc::clone(front),
            id: answer.header("mcp-session-id").unwrap().to_owned(),
            next: AtomicUsize::new(2),
        };
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let answer = client.send(Method::POST, None, &ready.to_string()).await;
        answer.expect(StatusCode::ACCEPTED).await;
        let level = json!({"level": "info"});
        let level =
            json!({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": level});
        let answer = client.send(Method::POST, None, &level.to_string()).await;
        answer.expect(StatusCode::OK).await;
        client
    }

    async fn send(&self, method: Method, last: Option<&str>, body: &str) -> Answer {
        let mut headers = vec![
            ("mcp-session-id", self.id.as_str()),
            ("mcp-protocol-version", "2025-11-25"),
        ];
        headers.extend(last.map(|last| ("last-event-id", last)));
        self.front.send(method, &headers, body).await
    }

    /// Calls a tool: the messages before the reply, and the result. A stream that ends before is resumed.
    async fn call(&self, tool: &str, arguments: Value) -> (Vec<Value>, Value) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let params = json!({"name": tool, "arguments": arguments});
        let request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let mut answer = self.send(Method::POST, None, &request.to_string()).await;
        let (mut before, mut last) = (Vec::new(), None);
        self.front.calls.fetch_add(1, Ordering::Relaxed);
        loop {
            answer = answer.expect(StatusCode::OK).await;
            if !answer.is_stream() {
                return (before, answer.json().await["result"].take());
            }
            let mut stream = answer.events();
            while let Some(mut message) = stream.message().await {
                if message["id"] == id {
                    return (before, message["result"].take());
                }
                before.push(message);
            }
            last = stream.last_id.or(last);
            answer = self.send(Method::GET, last.as_deref(), "").await;
        }
    }

    /// Calls until the end; numbers of the log messages that the calls have asked for.
    async fn keep_calling(&self) -> u64 {
        let mut logged = 0;
        while !self.front.is_over() {
            let (_, echoed) = self.call("echo", json!({"text": "hi"})).await;
            assert_eq!(text_of(&echoed), "hi", "{echoed}");
            let (_, slept) = self.call("sleep", json!({"ms": 400})).await;
            assert_eq!(text_of(&slept), "slept", "{slept}");
            let log = json!({"level": "info", "n": BURST, "first": logged + 1});
            let (notices, _) = self.call("log", log).await;
            let data = notices
                .iter()
                .map(|notice| notice["params"]["data"].clone());
            let expected = (logged + 1..=logged + BURST).map(|n| json!(format!("entry {n}")));
            assert!(data.eq(expected), "{notices:?}");
            logged += BURST;
        }
        logged
    }

    /// Reads the GET stream until the end, resumed each time it ends; the events by their ids, each once.
    async fn keep_listening(&self) -> Vec<String> {
        let (mut last, mut heard) = (None::<String>, Vec::new());
        while !self.front.is_over() {
            let answer = self.send(Method::GET, last.as_deref(), "").await;
            let mut stream = answer.expect(StatusCode::OK).await.events();
            while !self.front.is_over() {
                let next = tokio::time::timeout(Duration::from_millis(200), stream.next());
                let Ok(event) = next.await else { continue };
                let Some(event) = event else { break };
                heard.extend(event.message().and(event.id));
            }
            last = stream.last_id.or(last);
            if !self.front.is_over() {
                let retry = stream.retry.expect("when to come back");
                tokio::time::sleep(Duration::from_millis(retry)).await;
            }
        }
        heard
    }
}

/// A modern client that calls until the end.
async fn keep_calling_modern(front: &Front) {
    let user = Modern::new(Actor::new("http://127.0.0.1:9", None), "/mcp/stub");
    let headers = [
        ("mcp-protocol-version", VERSION),
        ("mcp-method", "tools/call"),
        ("mcp-name", "echo"),
    ];
    while !front.is_over() {
        let params = json!({"name": "echo", "arguments": {"text": "hi"}});
        let request = user.request(&json!(7), "tools/call", params).to_string();
        let answer = front.send(Method::POST, &headers, &request).await;
        let answer = answer.expect(StatusCode::OK).await.message().await;
        assert_eq!(text_of(&answer["result"]), "hi", "{answer}");
        front.calls.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn rolling_restart_fails_no_call_and_loses_no_event() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let make = || {
        let setup = Setup::open().toml(&tables(&redis, SECRET, LEASE));
        let setup = setup.server("drain_linger = \"500ms\"");
        setup.http("stub", &stub, "").start()
    };
    let front = Arc::new(Front::default());
    let mut replicas = vec![make().await, make().await];
    for replica in &replicas {
        knows(replica, 2).await;
        front.add(replica);
    }
    let clients = join_all((0..6).map(|_| Client::open(&front))).await;
    let load = join_all(
        clients
            .iter()
            .map(|client| join(client.keep_calling(), client.keep_listening())),
    );
    let modern = join_all((0..2).map(|_| keep_calling_modern(&front)));
    let restarts = async {
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let next = make().await;
            knows(&next, 3).await;
            front.add(&next);
            let mut old = replicas.remove(0);
            old.signal(Signal::TERM);
            assert_eq!(old.exit().await, Some(0));
            front.remove_oldest();
            replicas.push(next);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        front.is_over.store(true, Ordering::Relaxed);
    };
    let (counts, _, ()) = tokio::join!(load, modern, restarts);
    assert!(
        counts.iter().all(|(logged, _)| *logged >= BURST),
        "{counts:?}"
    );
    for (_, heard) in &counts {
        let mut once = heard.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), heard.len(), "{heard:?}");
    }
    let calls = front.calls.load(Ordering::Relaxed);
    assert!(calls > 100, "{calls}");
    for replica in replicas {
        replica.stop().await;
    }
}
