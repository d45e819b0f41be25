//! A client of any revision: says the same things in the words of its own.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::cells::{Cell, Front, R3, R4, R5, Revision};
use super::line::Line;
use crate::harness::events::EventStream;
use crate::harness::session::{Exchange, Reply, reply_of};
use crate::harness::{Actor, Answer as Answered, Session, within};

const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// Rounds of questions that a call may take.
const MAX_ROUNDS: usize = 10;

/// One client of one endpoint.
pub(super) struct Client {
    pub(super) actor: Actor,
    pub(super) revision: Revision,
    pub(super) path: String,
    wire: Wire,
    next: AtomicI64,
    wants_logs: AtomicBool,
    takes_tasks: AtomicBool,
}

enum Wire {
    /// Streamable HTTP with a session.
    Session(Box<Session>),
    /// Streamable HTTP, every request by itself.
    Modern,
    /// A single connection for all messages.
    Line(Box<Line>),
}

/// Answer of a client to a question: a result or an error object.
pub(super) type Answer = Result<Value, Value>;

/// A finished exchange.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) notices: Vec<Value>,
    /// Questions that were asked meanwhile, with `method` and `params`.
    pub(super) questions: Vec<Value>,
    pub(super) reply: Reply,
}

/// An exchange that goes on. Dropping it closes its connection.
pub(super) struct Running {
    pub(super) id: i64,
    messages: mpsc::Receiver<Value>,
    /// The newest event id.
    pub(super) last_event: Arc<Mutex<Option<String>>>,
    /// Reads the connection, where it is the exchange's own.
    task: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Running {
    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Value> {
        within("the next message", self.messages.recv()).await
    }
}

/// A stream of messages that belong to no call.
pub(super) enum Ear<'a> {
    Stream(EventStream),
    Line(&'a Line),
    /// A subscription.
    Call(Running),
}

impl Ear<'_> {
    /// Waits for a notice of `method`, unless it is in `heard` already.
    pub(super) async fn hears(&mut self, method: &str, heard: &[Value]) -> Value {
        if let Some(notice) = heard.iter().find(|notice| notice["method"] == method) {
            return notice.clone();
        }
        match self {
            Self::Stream(stream) => stream.until(method).await,
            Self::Call(running) => loop {
                let message = running.next().await.expect("a notice");
                if message["method"] == method {
                    return message;
                }
            },
            Self::Line(line) => loop {
                let mut general = line.general.lock().await;
                let message = within("a notice", general.recv()).await.expect("a notice");
                if message["method"] == method {
                    return message;
                }
            },
        }
    }
}

/// Everything that a client of `revision` can be asked.
fn capabilities(revision: Revision) -> Value {
    let mut capabilities = json!({"sampling": {}, "roots": {}});
    if !revision.is_modern() {
        capabilities["roots"] = json!({"listChanged": true});
    }
    if revision >= R4 {
        capabilities["elicitation"] = json!({"form": {}, "url": {}});
    } else if revision == R3 {
        capabilities["elicitation"] = json!({});
    }
    capabilities
}

impl Client {
    /// Connects `actor` as the client of `cell`.
    pub(super) async fn open(actor: Actor, base: &str, cell: Cell) -> Self {
        let (path, revision) = (cell.path(), cell.client);
        let capabilities = capabilities(revision);
        let wire = if cell.front != Front::Streamable {
            let line = Line::open(&actor, base, cell, &capabilities).await;
            if let Some(hello) = &line.hello {
                assert_eq!(hello["protocolVersion"], revision.wire());
            }
            Wire::Line(Box::new(line))
        } else if revision.is_modern() {
            Wire::Modern
        } else {
            let session = actor.open_as(&path, revision.wire(), capabilities).await;
            assert_eq!(session.revision, revision.wire());
            Wire::Session(Box::new(session))
        };
        Self {
            actor,
            revision,
            path,
            wire,
            next: AtomicI64::new(100),
            wants_logs: AtomicBool::new(false),
            takes_tasks: AtomicBool::new(false),
        }
    }

    /// The session of a client with a session id; panics for others.
    pub(super) fn session(&self) -> &Session {
        match &self.wire {
            Wire::Session(session) => session,
            _ => panic!("a client without a session id"),
        }
    }

    /// The connection of a client with one connection for everything; panics for others.
    pub(super) fn line(&self) -> &Line {
        match &self.wire {
            Wire::Line(line) => line,
            _ => panic!("a client without a connection of its own"),
        }
    }

    /// A message of this client, whole.
    fn message(&self, id: Option<i64>, method: &str, mut params: Value) -> Value {
        if self.revision.is_modern() {
            let mut meta = params["_meta"].take();
            meta[PROTOCOL_VERSION] = R5.wire().into();
            meta[CAPABILITIES] = capabilities(R5);
            if self.takes_tasks.load(Ordering::Relaxed) {
                meta[CAPABILITIES]["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
            }
            if self.wants_logs.load(Ordering::Relaxed) {
                meta[LOG_LEVEL] = "debug".into();
            }
            params["_meta"] = meta;
        }
        let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        if let Some(id) = id {
            message["id"] = id.into();
        }
        message
    }

    fn headers(&self, message: &Value) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match &self.wire {
            Wire::Session(session) => session
                .headers()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            Wire::Modern => {
                let mut headers = vec![
                    ("mcp-protocol-version".to_owned(), R5.wire().to_owned()),
                    ("mcp-method".to_owned(), text(&message["method"])),
                ];
                let params = &message["params"];
                let name = ["name", "uri", "taskId"]
                    .into_iter()
                    .find(|key| params[key].is_string());
                headers.extend(name.map(|key| ("mcp-name".to_owned(), text(&params[key]))));
                headers
            }
            Wire::Line(_) => Vec::new(),
        }
    }

    /// Sends a message that is no request; its HTTP status.
    async fn tell(&self, message: Value) -> u16 {
        match &self.wire {
            Wire::Line(line) => line.send(message).await,
            _ => self.post(&message).await.status(),
        }
    }

    async fn post(&self, message: &Value) -> Answered {
        let headers = self.headers(message);
        let headers: Vec<_> = headers
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        self.actor.post(&self.path, &headers, message).await
    }

    /// Starts a request without waiting for anything.
    pub(super) async fn start(&self, method: &str, params: Value) -> Running {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = self.message(Some(id), method, params);
        if let Wire::Line(line) = &self.wire {
            let messages = line.expect(id);
            line.send(message).await;
            return Running {
                id,
                messages,
                last_event: Arc::default(),
                task: None,
            };
        }
        let headers = self.headers(&message);
        let (actor, path) = (self.actor.clone(), self.path.clone());
        let (sender, messages) = mpsc::channel(1000);
        let last_event = Arc::new(Mutex::new(None));
        let newest = Arc::clone(&last_event);
        let task = tokio::spawn(async move {
            let headers: Vec<_> = headers
                .iter()
                .map(|(n, v)| (n.as_str(), v.as_str()))
                .collect();
            let answer = actor.post(&path, &headers, &message).await;
            let mut exchange = if answer.is_stream() {
                Exchange::Stream(answer.events())
            } else {
                Exchange::Whole(Some(answer.json().await))
            };
            while let Some(message) = exchange.next().await {
                if let Exchange::Stream(stream) = &exchange {
                    newest.lock().unwrap().clone_from(&stream.last_id);
                }
                if sender.send(message).await.is_err() {
                    return;
                }
            }
        });
        Running {
            id,
            messages,
            last_event,
            task: Some(task),
        }
    }

    /// Sends a request and answers every question until its reply comes.
    pub(super) async fn talk(
        &self,
        method: &str,
        params: Value,
        answer: impl Fn(&Value) -> Answer,
    ) -> Talk {
        let mut talk = Talk {
            notices: Vec::new(),
            questions: Vec::new(),
            reply: Err(Value::Null),
        };
        let mut again = params.clone();
        for _ in 0..MAX_ROUNDS {
            let mut running = self.start(method, again).await;
            self.follow(&mut running, &mut talk, &answer).await;
            let Ok(result) = &talk.reply else { return talk };
            if result["resultType"] != "input_required" {
                return talk;
            }
            // Spec: SPEC M-63: the same parameters, the answers, the exact state.
            again = params.clone();
            if let Some(state) = result.get("requestState") {
                again["requestState"] = state.clone();
            }
            let mut answers = json!({});
            for (key, question) in result["inputRequests"].as_object().into_iter().flatten() {
                talk.questions.push(question.clone());
                // `inputResponses` cannot carry an error: such a question stays open.
                if let Ok(result) = answer(question) {
                    answers[key] = result;
                }
            }
            again["inputResponses"] = answers;
        }
        panic!("no end after {MAX_ROUNDS} rounds: {talk:?}");
    }

    /// Follows one exchange to its reply.
    async fn follow(
        &self,
        running: &mut Running,
        talk: &mut Talk,
        answer: &impl Fn(&Value) -> Answer,
    ) {
        while let Some(message) = running.next().await {
            match (message.get("method"), message.get("id")) {
                (Some(_), Some(id)) => {
                    assert!(!self.revision.is_modern(), "a request to a modern client");
                    let reply = match answer(&message) {
                        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                        Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
                    };
                    assert_eq!(self.tell(reply).await, 202);
                    talk.questions.push(message);
                }
                (Some(_), None) => talk.notices.push(message),
                (None, _) => {
                    assert_eq!(message["id"], running.id, "{message}");
                    talk.reply = reply_of(message);
                    return;
                }
            }
        }
        panic!("the stream ended without a reply, after {talk:?}");
    }

    /// Sends a request that no question interrupts.
    pub(super) async fn request(&self, method: &str, params: Value) -> Reply {
        self.talk(method, params, |question| panic!("asked {question}"))
            .await
            .reply
    }

    /// Calls a tool that no question interrupts.
    pub(super) async fn call(&self, tool: &str, arguments: Value) -> Reply {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
            .await
    }

    /// Sends a notification; its HTTP status.
    pub(super) async fn notify(&self, method: &str, params: Value) -> u16 {
        self.tell(self.message(None, method, params)).await
    }

    /// All pages of a list.
    pub(super) async fn pages(&self, method: &str) -> Vec<Value> {
        let mut pages = Vec::new();
        let mut params = json!({});
        loop {
            let page = self.request(method, params).await.expect("a page");
            let next = page.get("nextCursor").cloned();
            pages.push(page);
            assert!(pages.len() < 20, "no end of {method}");
            match next {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return pages,
            }
        }
    }

    /// From now on log messages of every level are wanted.
    pub(super) async fn want_logs(&self) {
        self.wants_logs.store(true, Ordering::Relaxed);
        if !self.revision.is_modern() {
            let done = self
                .request("logging/setLevel", json!({"level": "debug"}))
                .await;
            done.expect("the level is set");
        }
    }

    /// From now on a call may become a task.
    pub(super) fn take_tasks(&self) {
        self.takes_tasks.store(true, Ordering::Relaxed);
    }

    /// Opens the stream for changes of lists and of these resources.
    pub(super) async fn listen(&self, uris: &[String]) -> Ear<'_> {
        if !self.revision.is_modern() {
            for uri in uris {
                let params = json!({ "uri": uri });
                let done = self.request("resources/subscribe", params).await;
                done.expect("a subscription");
            }
        }
        match &self.wire {
            Wire::Session(session) => return Ear::Stream(session.listen().await),
            Wire::Line(line) if !self.revision.is_modern() => return Ear::Line(line),
            Wire::Line(_) | Wire::Modern => {}
        }
        let mut wanted = json!({
            "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
        });
        if !uris.is_empty() {
            wanted["resourceSubscriptions"] = json!(uris);
        }
        let params = json!({ "notifications": &wanted });
        let mut running = self.start("subscriptions/listen", params).await;
        let acknowledged = running.next().await.expect("an acknowledgement");
        let honoured = &acknowledged["params"]["notifications"];
        assert_eq!(*honoured, wanted, "{acknowledged}");
        Ear::Call(running)
    }

    /// Says goodbye, where the revision has a word for it.
    pub(super) async fn end(&self) {
        if let Wire::Session(session) = &self.wire {
            session.delete().await;
        }
    }
}
