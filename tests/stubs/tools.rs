//! Tools of the stub: name, arguments and behaviour of each.

mod ask;
mod change;
mod fault;
mod linger;
mod plain;
mod process;
mod visit;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::errands;
use crate::extension;
use crate::outlet::Outlet;
use crate::rpc::Outcome;
use crate::session::Session;
use crate::stream::Event;
use crate::world::World;

/// Name, description, and integer or string arguments: a string ends in `$`, and `@` precedes the header that repeats
/// the argument.
type Tool = (&'static str, &'static str, &'static [&'static str]);

const TOOLS: &[Tool] = &[
    ("echo", "Returns its arguments byte for byte", &["text$"]),
    ("sleep", "Answers after so many milliseconds", &["ms"]),
    (
        "notices",
        "Sends n progress (or log) notifications, and a log message after so many, then answers",
        &["n", "bytes", "gap_ms", "apart", "logs"],
    ),
    ("big", "Answers with so many bytes of text", &["bytes"]),
    (
        "regional",
        "Says which region it was called for; with `ask`, asks first, or `in vain`",
        &["region$@Region", "ask$"],
    ),
    (
        "bad_headers",
        "Asks for a header that cannot be",
        &["price$@no token"],
    ),
    (
        "fail",
        "Answers isError, or a JSON-RPC error when a code is given",
        &["code", "message$"],
    ),
    (
        "ask_form",
        "Asks for a form and returns the answer",
        &["via$", "shape$", "then_ms"],
    ),
    (
        "ask_url",
        "Asks to visit a URL and returns the answer",
        &["via$", "url$"],
    ),
    (
        "ask_sampling",
        "Asks for a completion and returns it",
        &["via$", "shape$"],
    ),
    (
        "ask_roots",
        "Asks for the roots and returns them",
        &["via$"],
    ),
    ("ask_two", "Asks two questions at once", &["via$", "shape$"]),
    (
        "needs_visit",
        "Refuses to answer before a page was visited",
        &["url$"],
    ),
    ("end_visit", "Ends that visit and says so", &[]),
    (
        "change_tools",
        "Adds or removes a tool and announces it",
        &[],
    ),
    (
        "change_prompts",
        "Adds or removes a prompt and announces it",
        &[],
    ),
    (
        "change_resources",
        "Adds or removes a resource and announces it",
        &[],
    ),
    (
        "announce",
        "Announces n changes of a list, or of the resource, within so many ms",
        &["list$", "uri$", "n", "ms", "via$"],
    ),
    (
        "touch_resource",
        "Announces an update if the resource is subscribed to",
        &["uri$"],
    ),
    (
        "log",
        "Logs n messages of a level, numbered from first",
        &["level$", "n", "first", "via$"],
    ),
    (
        "slow_list",
        "Delays the session's lists from now on",
        &["ms"],
    ),
    (
        "state_set",
        "Sets a value of this session",
        &["key$", "value$"],
    ),
    ("state_get", "Reads a value of this session", &["key$"]),
    (
        "session_info",
        "Revision and client facts of this session",
        &[],
    ),
    ("seen_headers", "HTTP headers of this request", &[]),
    ("seen_meta", "The _meta of this request, byte for byte", &[]),
    ("stats", "Everything received so far", &[]),
    ("env", "An environment variable, or all of them", &["name$"]),
    ("cwd", "The working directory", &[]),
    ("pid", "The process id", &[]),
    (
        "spawn_grandchild",
        "Starts a long sleep; its process id",
        &[],
    ),
    (
        "crash",
        "Writes a line to stderr and exits with the code",
        &["words$", "code"],
    ),
    ("exit_after_reply", "Answers, then exits", &[]),
    ("never", "Never answers", &[]),
    (
        "linger",
        "Lasts until the ledger lets it go; the ledger says how it went",
        &["key$"],
    ),
    ("hang_up", "Breaks the connection, over stdio exits", &[]),
    ("unauthorized", "Over HTTP answers with status 401", &[]),
    ("answer_twice", "Sends its reply twice", &[]),
    (
        "foreign_id",
        "Answers an id nobody asked, then its own",
        &[],
    ),
    ("garbage", "Sends what is not JSON-RPC, then answers", &[]),
    (
        "split_lines",
        "Sends its reply in many small writes",
        &["bytes"],
    ),
    (
        "long_line",
        "Sends a long log message, then answers",
        &["bytes"],
    ),
    (
        "flood_stderr",
        "Writes so many bytes to stderr, then answers",
        &["bytes"],
    ),
    (
        "stall",
        "Never answers, and reads nothing until that file appears",
        &["until$"],
    ),
    (
        "forget_session",
        "Answers; from then on the session is unknown",
        &[],
    ),
    (
        "admit_listens",
        "Lets in who listens or subscribes, where that is held",
        &[],
    ),
    (
        "end_stream",
        "Ends the stream outside calls; it may be opened again",
        &[],
    ),
    (
        "break_stream",
        "Sends a notice, breaks (or with retry_ms closes) the stream, then answers",
        &["retry_ms", "ms"],
    ),
];

/// One call that takes time.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) world: Arc<World>,
    pub(crate) session: Arc<Session>,
    pub(crate) outlet: Outlet,
    /// JSON text.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Value,
    /// JSON text.
    pub(crate) meta: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) cancelled: CancellationToken,
}

impl Call {
    pub(crate) fn new(
        world: &Arc<World>,
        session: &Arc<Session>,
        id: &str,
        headers: &[(String, String)],
    ) -> Self {
        Self {
            world: Arc::clone(world),
            session: Arc::clone(session),
            outlet: session.general.clone(),
            id: id.to_owned(),
            name: String::new(),
            arguments: Value::Null,
            meta: None,
            headers: headers.to_vec(),
            cancelled: CancellationToken::new(),
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.arguments.get(name)?.as_u64()
    }

    fn size(&self, name: &str) -> usize {
        let number = self.number(name).unwrap_or_default();
        usize::try_from(number).unwrap_or(usize::MAX)
    }

    fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name).unwrap_or_default())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.arguments.get(name)?.as_str()
    }
}

/// Runs a call until it ends or is cancelled.
pub(crate) async fn run(call: &Call) -> Outcome {
    tokio::select! {
        outcome = dispatch(call) => outcome,
        () = call.cancelled.cancelled() => {
            call.world.count("calls_cancelled");
            Outcome::Silence
        }
    }
}

async fn dispatch(call: &Call) -> Outcome {
    match call.name.as_str() {
        "regional" if call.text("ask") == Some("in vain") => {
            ask::run(call).await;
            Outcome::Error(-32603, "after all".to_owned())
        }
        "regional" if call.text("ask").is_some() => ask::run(call).await,
        "sleep" | "notices" | "big" | "regional" | "bad_headers" | "fail" | "seen_headers"
        | "seen_meta" | "stats" | "session_info" => plain::run(call).await,
        "ask_form" | "ask_url" | "ask_sampling" | "ask_roots" | "ask_two" => ask::run(call).await,
        "change_tools" | "change_prompts" | "change_resources" | "touch_resource" | "log"
        | "slow_list" | "state_set" | "state_get" | "extra" => change::run(call),
        "env" | "cwd" | "pid" | "spawn_grandchild" | "crash" | "exit_after_reply"
        | "flood_stderr" | "hang_up" => process::run(call),
        "needs_visit" | "end_visit" => visit::run(call),
        "announce" => change::announce(call).await,
        "linger" => linger::run(call).await,
        "chore" => Outcome::text("chore done"),
        "call_off" => errands::call_off(call),
        "report" => errands::report(call),
        "tasks/result" => errands::result(call).await,
        "admit_listens" => {
            call.world.modern.admit();
            Outcome::text("admitted")
        }
        "end_stream" => {
            call.session.general.event(Event::Close);
            Outcome::text("ended")
        }
        "never" | "answer_twice" | "foreign_id" | "garbage" | "split_lines" | "long_line"
        | "stall" | "forget_session" | "break_stream" => fault::run(call).await,
        "dashboard" | "vendor_notice" | "vendor_result" => extension::run(call),
        name => Outcome::Error(-32602, format!("Unknown tool: {name}")),
    }
}

/// Effects of a call after its reply was sent.
pub(crate) fn afterwards(call: &Call) {
    match call.name.as_str() {
        // A written line has left the process; a message on a socket may still be queued.
        "exit_after_reply" if matches!(call.outlet, Outlet::Lines(_)) => std::process::exit(0),
        "forget_session" => {
            call.world.remove_session(&call.session.id);
        }
        _ => {}
    }
}

/// The list's entries: the special tools, or exactly `count` plain ones.
pub(crate) fn entries(count: Option<usize>) -> Vec<Value> {
    let special = TOOLS
        .iter()
        .map(|(name, about, arguments)| entry(name, about, arguments));
    match count {
        None => special.collect(),
        Some(count) => special
            .take(1)
            .chain((1..).map(filler))
            .take(count)
            .collect(),
    }
}

/// One entry of `tools/list`.
pub(crate) fn entry(name: &str, about: &str, arguments: &[&str]) -> Value {
    let properties: serde_json::Map<String, Value> = arguments
        .iter()
        .map(|argument| {
            let (argument, header) = argument.split_once('@').unwrap_or((argument, ""));
            let (name, kind) = match argument.strip_suffix('$') {
                Some(name) => (name, "string"),
                None => (argument, "integer"),
            };
            let schema = if header.is_empty() {
                json!({"type": kind})
            } else {
                json!({"type": kind, "x-mcp-header": header})
            };
            (name.to_owned(), schema)
        })
        .collect();
    json!({
        "name": name,
        "description": about,
        "inputSchema": {"type": "object", "properties": properties},
    })
}

/// A tool of ordinary size that echoes.
fn filler(number: usize) -> Value {
    json!({
        "name": format!("filler_{number:03}"),
        "title": format!("Filler number {number}"),
        "description": "Looks up the records that match a query in one of the configured \
            collections and returns them in a stable order, newest first.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for"},
                "collection": {"type": "string", "description": "Where to look for it"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
            },
            "required": ["query"],
        },
        "annotations": {"readOnlyHint": true, "openWorldHint": false},
    })
}
