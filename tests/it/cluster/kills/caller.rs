//! A client that calls and streams, resumes what broke off, and reads again what it has read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::line::{Body, Front, Line, Sent};
use crate::harness::session::text_of;

/// Messages of a streamed call, and the time between two.
const MESSAGES: u64 = 5;
const GAP_MS: u64 = 350;
/// What a call takes that is answered by no stream.
const SLEEP_MS: u64 = 200;
/// Notices of a call that sends them on the GET stream.
const NOTICES: u64 = 2;
/// Every so many-th stream is read again after its end.
const AGAIN: u64 = 3;
/// A stream is read again as often as it takes, with kills in between, but no longer than this.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks whether the test is over.
const LOOK: Duration = Duration::from_millis(200);

/// The id and the message of one event.
type Heard = (Option<String>, Value);

/// A client with its session.
pub(super) struct Caller {
    line: Line,
    next: u64,
    /// Notices that were asked for on the GET stream.
    announced: u64,
    /// When the first call broke off after the last one that succeeded.
    broken: Option<Instant>,
}

/// A call that was answered by a stream.
#[derive(Default)]
struct Streamed {
    /// The id of its first event.
    first: Option<String>,
    last: Option<String>,
    heard: Vec<Heard>,
}

/// Whether a stream has the same events when it is read again. An event without an id may have one by now: an error by the
/// replica that had passed the call on.
fn is_same(was: &[Heard], now: &[Heard]) -> bool {
    let same = |(was, now): (&Heard, &Heard)| {
        was.1 == now.1 && (was.0 == now.0 || was.0.is_none() && was.1["error"].is_object())
    };
    was.len() == now.len() && was.iter().zip(now).all(same)
}

/// How a call ended.
enum Ending {
    Reply(Value),
    /// Its connection was lost, and there is no stream to resume.
    Broken,
}

/// The number of the client that the id of a reply names.
pub(super) fn number_of(reply: &Value) -> Option<usize> {
    reply["id"].as_str()?.split_once('-')?.0.parse().ok()
}

impl Caller {
    pub(super) async fn open(front: &Arc<Front>, number: usize, token: String) -> Self {
        let mut line = Line {
            front: Arc::clone(front),
            token,
            id: None,
            number,
        };
        line.open().await;
        Self {
            line,
            next: 3,
            announced: 0,
            broken: None,
        }
    }

    /// The part that reads the GET stream.
    pub(super) fn listener(&self) -> Line {
        self.line.clone()
    }

    /// Calls until the test is over, and once more with success.
    pub(super) async fn keep_calling(mut self) {
        let number = u64::try_from(self.line.number).unwrap();
        // Spread over two seconds.
        tokio::time::sleep(Duration::from_millis(number * 10)).await;
        for round in 0_u64.. {
            let is_last = self.line.front.is_over();
            self.ask(round).await;
            if is_last && self.broken.is_none() {
                return;
            }
            if is_last
                && self
                    .broken
                    .is_some_and(|broken| broken.elapsed() > PATIENCE)
            {
                return self.line.wrong("it did not go on");
            }
            self.rest().await;
            if !is_last {
                self.stream(round % AGAIN == number % AGAIN).await;
                self.announce().await;
                self.rest().await;
            }
        }
    }

    async fn rest(&self) {
        let spread = u64::try_from(self.line.number).unwrap() * 37 % 800;
        tokio::time::sleep(Duration::from_millis(1200 + spread)).await;
    }

    /// A call that is answered at once, or after a little while.
    async fn ask(&mut self, round: u64) {
        let text = format!("{} {round}", self.line.number);
        let (tool, arguments, expected) = if round.is_multiple_of(2) {
            ("sleep", json!({"ms": SLEEP_MS}), "slept")
        } else {
            ("echo", json!({"text": text}), &*text)
        };
        let ending = self.call(tool, arguments, &mut Streamed::default()).await;
        if let Ending::Reply(reply) = ending
            && self.is_result(&reply, 0)
            && text_of(&reply["result"]) != expected
        {
            self.line
                .wrong(format!("{expected:?} came back as {reply}"));
        }
    }

    /// A call that sends numbered messages before its reply.
    async fn stream(&mut self, again: bool) {
        let arguments = json!({"n": MESSAGES, "gap_ms": GAP_MS});
        let mut streamed = Streamed::default();
        let ending = self.call("notices", arguments, &mut streamed).await;
        let said: Vec<&str> = streamed
            .heard
            .iter()
            .filter_map(|(_, message)| message["params"]["data"].as_str())
            .filter_map(|text| text.split(' ').next())
            .collect();
        let heard = u64::try_from(said.len()).unwrap();
        let wanted = (1..=heard).map(|number| number.to_string());
        if !wanted.eq(said.iter().copied()) {
            self.line.wrong(format!("messages {said:?}"));
        }
        if let Ending::Reply(reply) = &ending {
            if self.is_result(reply, streamed.heard.len()) && heard != MESSAGES {
                self.line.wrong(format!("a result after messages {said:?}"));
            }
            if again && streamed.first.is_some() {
                self.read_again(&streamed, reply).await;
            }
        }
    }

    /// A call that sends notices on the GET stream, whose numbers go on from the last one's.
    async fn announce(&mut self) {
        let first = self.announced + 1;
        self.announced += NOTICES;
        let arguments = json!({"level": "info", "via": "get", "n": NOTICES, "first": first});
        let ending = self.call("log", arguments, &mut Streamed::default()).await;
        if let Ending::Reply(reply) = ending {
            self.is_result(&reply, 0);
        }
    }

    /// Whether a reply is a result; it may only be the error of a replica that was lost beside.
    fn is_result(&self, reply: &Value, events: usize) -> bool {
        let error = &reply["error"]["message"];
        let is_lost = error
            .as_str()
            .is_some_and(|text| text.contains("outcome is unknown"));
        if reply["result"].is_object() {
            self.line.front.findings.called(events);
            return true;
        }
        if !is_lost {
            self.line.wrong(format!("the reply {reply}"));
        }
        false
    }

    /// Calls a tool and resumes its stream until there is a reply.
    async fn call(&mut self, tool: &str, arguments: Value, streamed: &mut Streamed) -> Ending {
        self.next += 1;
        // Says whose it is, in the logs too.
        let id = format!("{}-{}", self.line.number, self.next);
        let params = json!({"name": tool, "arguments": arguments});
        let request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let started = Instant::now();
        let (answer, mut entry) = loop {
            match self.line.post(&request).await {
                Sent::Answer(answer, entry) => break (answer, entry),
                Sent::Later(pause) => tokio::time::sleep(pause).await,
                Sent::Broken(entry) => return self.break_off(&entry, started),
                Sent::Refused(how) => {
                    self.line.wrong(format!("{tool} got {how}"));
                    return Ending::Broken;
                }
            }
        };
        let mut body = Body::of(answer).await;
        let mut broken = None;
        loop {
            let reply = match &mut body {
                Body::Json(reply) => reply.take(),
                Body::Stream(stream) => streamed.read(stream, &json!(id)).await,
            };
            if let Some(reply) = reply {
                let (number, heard) = (self.line.number, &streamed.heard);
                self.line
                    .front
                    .findings
                    .acknowledgements
                    .heard(number, heard);
                if reply["error"].is_object() && broken.is_none() {
                    // A living replica had passed the call on.
                    self.line.front.findings.broken(&entry, started);
                }
                return self.end(reply, broken);
            }
            // A stream of a call ends without its reply where its replica is lost, and there alone.
            self.line.front.findings.broken(&entry, started);
            broken.get_or_insert_with(Instant::now);
            let Some(last) = streamed.last.clone() else {
                self.broken.get_or_insert_with(Instant::now);
                return Ending::Broken;
            };
            let Some((answer, next)) = self.line.insist(Method::GET, Some(&last), "").await else {
                return Ending::Broken;
            };
            entry = next;
            body = Body::of(answer).await;
        }
    }

    /// The call may have run, and its outcome cannot be asked for.
    fn break_off(&mut self, entry: &str, since: Instant) -> Ending {
        self.line.front.findings.broken(entry, since);
        self.broken.get_or_insert_with(Instant::now);
        Ending::Broken
    }

    fn end(&mut self, reply: Value, broken: Option<Instant>) -> Ending {
        let findings = &self.line.front.findings;
        if reply["error"].is_object()
            && let Some(broken) = broken
        {
            findings.told(broken.elapsed());
        }
        if reply["result"].is_object()
            && let Some(broken) = self.broken.take()
        {
            findings.resumed(broken.elapsed());
        }
        Ending::Reply(reply)
    }

    /// Reads a finished stream again, from its first event on: each event is still there, once.
    async fn read_again(&self, streamed: &Streamed, reply: &Value) {
        let first = streamed.first.as_deref();
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let Some((answer, _)) = self.line.insist(Method::GET, first, "").await else {
                return;
            };
            let Body::Stream(mut stream) = Body::of(answer).await else {
                return self.line.wrong("a replay that is no stream");
            };
            let mut again = Streamed::default();
            if again.read(&mut stream, &reply["id"]).await.is_none() {
                // The replica that sent the event was killed.
                continue;
            }
            if !is_same(&streamed.heard, &again.heard) {
                let (was, now) = (&streamed.heard, &again.heard);
                self.line.wrong(format!("read {was:?}, and again {now:?}"));
            }
            return self.line.front.findings.replayed();
        }
        self.line.wrong("a finished stream cannot be read again");
    }
}

impl Streamed {
    /// Reads to the reply; `None` where the stream ends before.
    async fn read(
        &mut self,
        stream: &mut crate::harness::events::EventStream,
        id: &Value,
    ) -> Option<Value> {
        while let Some(event) = stream.next().await {
            if event.id.is_some() {
                self.first = self.first.take().or_else(|| event.id.clone());
                self.last.clone_from(&event.id);
            }
            if let Some(message) = event.message() {
                let is_reply = message["id"] == *id;
                self.heard.push((event.id, message.clone()));
                if is_reply {
                    return Some(message);
                }
            }
        }
        None
    }
}

impl Line {
    /// Reads the GET stream until the test is over, resumed each time it ends. No notice comes twice, and none before an
    /// earlier one. Those that reached a replica in its last moment may be missing.
    pub(super) async fn keep_listening(self) {
        let (mut last, mut newest) = (None::<String>, 0);
        while !self.front.is_over() {
            let Some((answer, _)) = self.insist(Method::GET, last.as_deref(), "").await else {
                return;
            };
            let Body::Stream(mut stream) = Body::of(answer).await else {
                return self.wrong("a GET that is no stream");
            };
            while !self.front.is_over() {
                let Ok(event) = tokio::time::timeout(LOOK, stream.next()).await else {
                    continue;
                };
                let Some(event) = event else { break };
                let Some(message) = event.message() else {
                    last = event.id.or(last);
                    continue;
                };
                if event.id.is_none() || event.id == last {
                    self.wrong(format!("{message} with the id {:?}", event.id));
                }
                last = event.id;
                let number = message["params"]["data"]
                    .as_str()
                    .and_then(|text| text.strip_prefix("entry ")?.parse::<u64>().ok());
                match number {
                    Some(number) if number > newest => newest = number,
                    Some(number) => self.wrong(format!("notice {number} after {newest}")),
                    None => {}
                }
            }
        }
        if newest == 0 {
            self.wrong("no notice came");
        }
    }
}
