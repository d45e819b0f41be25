//! A user who calls and listens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::front::Front;
use super::tally::Tally;
use crate::harness::Answer;
use crate::harness::http::{everything, initialize};
use crate::harness::session::text_of;

/// Log messages of each call that streams.
const BURST: u64 = 5;
/// Between two rounds of calls: replicas with a short lease need time for heartbeats beside them.
const PACE: Duration = Duration::from_millis(100);

/// A legacy client behind the front.
pub(super) struct User {
    front: Arc<Front>,
    id: String,
    next: AtomicUsize,
}

/// A reply, with the notices before it.
struct Reply {
    notices: Vec<Value>,
    without_id: usize,
    result: Value,
}

impl User {
    pub(super) async fn open(front: &Arc<Front>) -> Self {
        let hello = initialize(1, "2025-11-25", &everything()).to_string();
        let answer = front.send(Method::POST, &[], &hello).await.unwrap();
        let answer = answer.expect(StatusCode::OK).await;
        let user = Self {
            front: Arc::clone(front),
            id: answer.header("mcp-session-id").unwrap().to_owned(),
            next: AtomicUsize::new(2),
        };
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let answer = user.send(Method::POST, None, &ready.to_string()).await;
        answer.unwrap().expect(StatusCode::ACCEPTED).await;
        let level = json!({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "info"}});
        let answer = user.send(Method::POST, None, &level.to_string()).await;
        answer.unwrap().expect(StatusCode::OK).await;
        user
    }

    async fn send(&self, method: Method, last: Option<&str>, body: &str) -> Option<Answer> {
        let mut headers = vec![
            ("mcp-session-id", self.id.as_str()),
            ("mcp-protocol-version", "2025-11-25"),
        ];
        headers.extend(last.map(|last| ("last-event-id", last)));
        self.front.send(method, &headers, body).await
    }

    /// Calls a tool; a stream that ends before the reply is resumed. `None` where the outcome is unknown.
    async fn call(&self, tool: &str, arguments: Value) -> Option<Reply> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let params = json!({"name": tool, "arguments": arguments});
        let request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let mut answer = self.send(Method::POST, None, &request.to_string()).await?;
        let (mut notices, mut without_id, mut last) = (Vec::new(), 0, None);
        loop {
            if answer.status() != 200 {
                let (status, text) = (answer.status(), answer.text().await);
                self.front.tally.wrong(format!("{tool}: {status} {text}"));
                return None;
            }
            if !answer.is_stream() {
                let result = self.result(answer.json().await)?;
                return Some(Reply {
                    notices,
                    without_id,
                    result,
                });
            }
            let mut stream = answer.events();
            while let Some(event) = stream.next().await {
                let Some(message) = event.message() else {
                    continue;
                };
                without_id += usize::from(event.id.is_none());
                if message["id"] == id {
                    let result = self.result(message)?;
                    return Some(Reply {
                        notices,
                        without_id,
                        result,
                    });
                }
                notices.push(message);
            }
            last = stream.last_id.or(last);
            if last.is_none() {
                self.front.tally.reason("a stream without ids broke");
                return None;
            }
            answer = self.send(Method::GET, last.as_deref(), "").await?;
        }
    }

    /// The result of a reply, unless it says that the outcome is unknown.
    fn result(&self, mut reply: Value) -> Option<Value> {
        if reply["result"].is_object() {
            return Some(reply["result"].take());
        }
        let text = reply["error"]["message"].as_str().unwrap_or_default();
        if text.contains("outcome is unknown") {
            self.front.tally.reason(text);
        } else {
            self.front.tally.wrong(reply.to_string());
        }
        None
    }

    /// Makes one call without a stream and one with; whether all events had ids, where both were answered.
    pub(super) async fn call_twice(&self) -> Option<bool> {
        let tally = &self.front.tally;
        let text = format!("call {}", self.next.load(Ordering::Relaxed));
        let begin = Instant::now();
        let echoed = self.call("echo", json!({"text": text})).await;
        match &echoed {
            Some(reply) => {
                tally.times.lock().unwrap().push(begin.elapsed());
                Tally::count(&tally.answered);
                if text_of(&reply.result) != text {
                    tally.wrong(format!("echo of {text}: {}", reply.result));
                }
            }
            None => Tally::count(&tally.unknown),
        }
        let log = json!({"level": "info", "n": BURST, "first": 1});
        let Some(reply) = self.call("log", log).await else {
            Tally::count(&tally.unknown);
            return None;
        };
        Tally::count(&tally.answered);
        let data = reply
            .notices
            .iter()
            .map(|notice| notice["params"]["data"].clone());
        if !data.eq((1..=BURST).map(|n| json!(format!("entry {n}")))) {
            tally.wrong(format!("log: {:?}", reply.notices));
        }
        tally
            .without_id
            .fetch_add(reply.without_id, Ordering::Relaxed);
        echoed.map(|_| reply.without_id == 0)
    }

    pub(super) async fn keep_calling(&self) {
        while !self.front.is_over() {
            self.call_twice().await;
            tokio::time::sleep(PACE).await;
        }
    }

    /// Reads the GET stream, resumed each time it ends.
    pub(super) async fn keep_listening(&self) {
        let mut last = None::<String>;
        while !self.front.is_over() {
            let Some(answer) = self.send(Method::GET, last.as_deref(), "").await else {
                continue;
            };
            if answer.status() != 200 {
                let (status, text) = (answer.status(), answer.text().await);
                self.front.tally.wrong(format!("GET: {status} {text}"));
                return;
            }
            let mut stream = answer.events();
            while !self.front.is_over() {
                let next = tokio::time::timeout(2 * PACE, stream.next());
                if let Ok(None) = next.await {
                    break;
                }
            }
            last = stream.last_id.or(last);
            tokio::time::sleep(PACE).await;
        }
    }
}
