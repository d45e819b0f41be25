//! The modern era, 2026-07-28: every request stands for itself and is checked strictly.

#![expect(
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    reason = "a JSON value that has no such member gives null, and is written where it is used"
)]

mod ask;
mod check;
mod listen;
mod piped;
mod quick;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

pub(crate) use check::check;
pub(crate) use piped::piped;
pub(crate) use quick::echo;

use crate::catalog::List;
use crate::errands::EXTENSION;
use crate::extension;
use crate::methods;
use crate::options::{Era, Options};
use crate::outlet::Outlet;
use crate::rpc::{Outcome, error_reply, notification, request, result_reply};
use crate::session::Session;
use crate::stream::Event;
use crate::tools::{self, Call};
use crate::world::World;

/// The one modern revision.
pub(crate) const REVISION: &str = "2026-07-28";
pub(crate) const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// Severities, least severe first.
const LEVELS: [&str; 4] = ["debug", "info", "warning", "error"];

/// State of the modern era; none of it belongs to a caller.
#[derive(Debug)]
pub(crate) struct Modern {
    /// State that tools change for all callers.
    session: Arc<Session>,
    listens: Arc<Listens>,
    /// Whether `shifting` asks for a header by now.
    shifted: AtomicBool,
    probes: AtomicU64,
    handshakes: AtomicU64,
    calls: AtomicU64,
    /// Whether the process was opened by a modern request.
    opened: OnceLock<bool>,
}

impl Modern {
    pub(crate) fn new() -> Self {
        let listens = Arc::new(Listens::default());
        let general = Outlet::Listens(Arc::clone(&listens));
        Self {
            session: Session::new("modern".to_owned(), general),
            listens,
            shifted: AtomicBool::new(false),
            probes: AtomicU64::new(0),
            handshakes: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            opened: OnceLock::new(),
        }
    }

    /// A name for a request whose id is unique only among its client's.
    pub(crate) fn key(&self) -> String {
        format!("post-{}", self.calls.fetch_add(1, Ordering::Relaxed))
    }

    /// Cancels a running request; false when it does not run.
    pub(crate) fn cancel(&self, key: &str) -> bool {
        self.session.cancel(key)
    }

    /// Waits until `listen` and `subscribe` requests are admitted.
    pub(crate) async fn admitted(&self) {
        self.listens.admitted().await;
    }

    /// Lets them in.
    pub(crate) fn admit(&self) {
        self.listens.admit();
    }

    /// Cancels the running calls of the connection `scope`.
    pub(crate) fn cancel_all(&self, scope: &str) {
        self.session.cancel_all(scope);
    }
}

pub(crate) use listen::Listens;

/// Whether a message is for this module.
pub(crate) fn is_modern(options: &Options, message: &Value) -> bool {
    let has_version = message["params"]["_meta"].get(PROTOCOL_VERSION).is_some();
    options.era == Era::Modern || options.era == Era::Dual && has_version
}

/// Scripted answer to a probe.
#[derive(Debug)]
pub(crate) enum Scripted {
    /// Say nothing.
    Silence,
    /// Die.
    Exit,
    /// Break the connection.
    Cut,
    /// Answer with this status and body.
    Answer(u16, String),
}

/// With `--first-decides`, the refusal of a request whose era differs from the first request's.
pub(crate) fn of_the_other_era(world: &World, message: &Value) -> Option<String> {
    let id = message
        .get("id")
        .filter(|_| message["method"].is_string())?;
    let modern = is_modern(&world.options, message);
    let decided = world.options.first_decides;
    if !decided || *world.modern.opened.get_or_init(|| modern) == modern {
        return None;
    }
    world.count("refused");
    let text = "the process was opened in the other era";
    Some(error_reply(&id.to_string(), -32022, text))
}

/// The scripted answer to `server/discover` or `initialize`, if any is left.
pub(crate) fn scripted(world: &World, message: &Value) -> Option<Scripted> {
    let options = &world.options;
    let script = match message["method"].as_str()? {
        "server/discover" => {
            let script = options.probe.as_deref()?;
            let before = world.modern.probes.fetch_add(1, Ordering::Relaxed);
            if before >= options.probe_times {
                return None;
            }
            world.count("scripted_probes");
            script
        }
        "initialize" => {
            let script = options.handshake.as_deref()?;
            let before = world.modern.handshakes.fetch_add(1, Ordering::Relaxed);
            if before >= options.handshake_times {
                return None;
            }
            world.count("scripted_handshakes");
            script
        }
        _ => return None,
    };
    Some(play(script, &message["id"]))
}

/// The answer of a script to the request `id`.
pub(crate) fn play(script: &str, id: &Value) -> Scripted {
    let (status, body) = script.split_once(' ').unwrap_or((script, ""));
    match status {
        "silent" => Scripted::Silence,
        "exit" => Scripted::Exit,
        "cut" => Scripted::Cut,
        status => {
            let mut reply: Value = serde_json::from_str(body).unwrap_or_default();
            if reply.is_object() {
                reply["jsonrpc"] = "2.0".into();
                reply["id"] = id.clone();
            }
            let body = if reply.is_null() {
                body.to_owned()
            } else {
                reply.to_string()
            };
            Scripted::Answer(status.parse().unwrap_or(500), body)
        }
    }
}

/// Answers one checked request on `outlet`.
pub(crate) async fn serve(
    world: Arc<World>,
    key: String,
    message: Value,
    headers: Vec<(String, String)>,
    outlet: Outlet,
) {
    let method = message["method"].as_str().unwrap_or_default().to_owned();
    world.count(&method);
    for (name, _) in &headers {
        if name.starts_with("mcp-param-") {
            world.count(&format!("{method} with {name}"));
        }
    }
    let cancelled = world.modern.session.begin(&key);
    let work = answer(&world, &method, &message, &headers, &outlet);
    let reply = tokio::select! {
        reply = work => reply,
        () = cancelled.cancelled() => {
            world.count("calls_cancelled");
            None
        }
    };
    world.modern.session.finish(&key);
    outlet.finish(reply);
    match message["params"]["name"].as_str() {
        // A written line has left the process; a message on a socket may still be queued.
        Some("exit_after_reply") if matches!(outlet, Outlet::Lines(_)) => std::process::exit(0),
        // A modern client has no other state here than its connection.
        Some("forget_session") => outlet.event(Event::Close),
        _ => {}
    }
}

async fn answer(
    world: &Arc<World>,
    method: &str,
    message: &Value,
    headers: &[(String, String)],
    outlet: &Outlet,
) -> Option<String> {
    let id = message["id"].to_string();
    let params = &message["params"];
    let outcome = match method {
        "server/discover" => Outcome::Result(discover(world).to_string()),
        "tools/call" => call(world, &id, params, headers, outlet).await,
        "prompts/get" => methods::prompt(params),
        "resources/read" if params["uri"] == "stub://asks" => ask::read(params),
        "resources/read" => match methods::read(params) {
            Outcome::Error(_, message) => Outcome::Error(-32602, message),
            result => result,
        },
        "completion/complete" => methods::complete(params),
        "tasks/get" if params["taskId"] == "own-task" => Outcome::Result(task("complete")),
        "tasks/get" | "tasks/update" | "tasks/cancel" => errand(world, method, params),
        "subscriptions/listen" => return listen::serve(world, &id, params, outlet).await,
        method => match List::of(method) {
            Some(list) => self::list(world, list, params),
            None => extension::answer(&world.options, method, params)
                .unwrap_or_else(|| Outcome::Error(-32601, format!("Method not found: {method}"))),
        },
    };
    Some(match outcome {
        Outcome::Result(result) => result_reply(&id, &complete(world, &result)),
        Outcome::Error(-32602, text) if method == "resources/read" => {
            json!({"jsonrpc": "2.0", "id": message["id"],
                   "error": {"code": -32602, "message": text, "data": {"uri": params["uri"]}}})
            .to_string()
        }
        other => return other.reply(&id),
    })
}

/// The stub's only task, as a result of this kind.
fn task(kind: &str) -> String {
    json!({
        "resultType": kind, "taskId": "own-task", "status": "working", "ttlMs": null,
        "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z",
    })
    .to_string()
}

/// A result with the members that every modern result has.
fn complete(world: &World, result: &str) -> String {
    let mut result: Value = serde_json::from_str(result).unwrap_or_default();
    if result.get("resultType").is_none() {
        result["resultType"] = "complete".into();
    }
    result["_meta"][SERVER_INFO] = world.options.server_info();
    result.to_string()
}

/// The refusal of a request whose client lacks a capability; `id` is a JSON text.
pub(crate) fn missing(id: &str, what: &str) -> String {
    let id: Value = serde_json::from_str(id).unwrap_or_default();
    let required = match what {
        EXTENSION => json!({"extensions": {EXTENSION: {}}}),
        _ => json!({"elicitation": {}}),
    };
    json!({"jsonrpc": "2.0", "id": id,
           "error": {"code": -32021, "message": "a capability is missing",
                     "data": {"requiredCapabilities": required}}})
    .to_string()
}

/// Text of an echo: the string `text` if it is the only argument, as in the legacy era.
fn echoed(arguments: &Value) -> String {
    let text = || {
        let members = arguments.as_object().filter(|members| members.len() == 1)?;
        members.get("text")?.as_str()
    };
    text().map_or_else(|| arguments.to_string(), str::to_owned)
}

/// Whether the request declares tasks.
fn takes_tasks(params: &Value) -> bool {
    params["_meta"][CAPABILITIES]["extensions"][EXTENSION].is_object()
}

/// A request about one task.
fn errand(world: &World, method: &str, params: &Value) -> Outcome {
    if !takes_tasks(params) {
        return Outcome::Error(-32021, EXTENSION.to_owned());
    }
    let errand = match world.errands.find(params) {
        Ok(errand) => errand,
        Err(outcome) => return outcome,
    };
    match method {
        "tasks/update" => errand.update(params),
        "tasks/cancel" => errand.cancel(),
        _ => {
            errand.look();
            return Outcome::Result(errand.modern("complete").to_string());
        }
    }
    Outcome::Result("{}".to_owned())
}

fn discover(world: &World) -> Value {
    let versions = match world.options.era {
        Era::Dual => json!([REVISION, "2025-11-25", "2025-06-18"]),
        _ => json!([REVISION]),
    };
    json!({
        "supportedVersions": versions,
        "capabilities": methods::capabilities(&world.options),
        "instructions": "Call the tools to make this server misbehave.",
        "ttlMs": 60_000,
        "cacheScope": "public",
    })
}

fn list(world: &World, list: List, params: &Value) -> Outcome {
    let changed = world
        .modern
        .session
        .with(|inner| inner.changed.contains(list.member()));
    let page = world.catalog.page(list, params["cursor"].as_str(), changed);
    let Some(page) = page else {
        return Outcome::Error(-32602, "unknown cursor".to_owned());
    };
    let mut page: Value = serde_json::from_str(&page).unwrap_or_default();
    page["ttlMs"] = world.options.ttl.into();
    page["cacheScope"] = world.options.scope.as_str().into();
    if list == List::Tools
        && params.get("cursor").is_none()
        && let Some(tools) = page["tools"].as_array_mut()
    {
        let more = check::tools(world.modern.shifted.load(Ordering::Relaxed));
        let more = more.into_iter().chain(ask::tools());
        tools.extend(more.map(|tool| world.options.with_icons(tool)));
    }
    Outcome::Result(page.to_string())
}

async fn call(
    world: &Arc<World>,
    id: &str,
    params: &Value,
    headers: &[(String, String)],
    outlet: &Outlet,
) -> Outcome {
    let name = params["name"].as_str().unwrap_or_default();
    world.count(&format!("tool {name}"));
    let arguments = &params["arguments"];
    match name {
        "task" => return Outcome::Result(task("task")),
        "errand" | "asks_then_errand" if !takes_tasks(params) => {
            return Outcome::Error(-32021, EXTENSION.to_owned());
        }
        "asks_then_errand" if params.get("inputResponses").is_none() => {
            return ask::before_errand();
        }
        "errand" | "asks_then_errand" | "unasked_errand" => {
            let errand = world.errands.begin(arguments, None);
            return Outcome::Result(errand.modern("task").to_string());
        }
        "echo" => return Outcome::text(&echoed(arguments)),
        "headered" | "shifting" => return Outcome::text(&arguments.to_string()),
        "shift" => {
            world.modern.shifted.store(true, Ordering::Relaxed);
            return Outcome::text("shifted");
        }
        "log" => return log(params, outlet),
        "touch_resource" => {
            let notice = json!({"uri": arguments["uri"]});
            let notice = notification("notifications/resources/updated", &notice);
            world.modern.session.general.message(notice);
            return Outcome::text("announced");
        }
        "end_listens" => {
            world.modern.listens.end();
            return Outcome::text("ended");
        }
        "odd_result" => return Outcome::Result(json!({"resultType": "zzz"}).to_string()),
        "server_request" => {
            outlet.message(request("q", "elicitation/create", &json!({"message": "?"})));
            return Outcome::text("asked out of turn");
        }
        "break_off" => {
            outlet.message(notification(
                "notifications/message",
                &json!({"level": "info", "data": "x"}),
            ));
            outlet.event(Event::Pause);
            outlet.event(Event::Cut);
            return Outcome::Silence;
        }
        name if ask::knows(name) => {
            ask::report(params, outlet);
            return ask::run(name, params);
        }
        _ => {}
    }
    let mut call = Call::new(world, &world.modern.session, id, headers);
    call.name = name.to_owned();
    call.arguments = arguments.clone();
    call.meta = params.get("_meta").map(Value::to_string);
    call.outlet = outlet.clone();
    tools::run(&call).await
}

/// Logs only at the levels that the request asked for.
fn log(params: &Value, outlet: &Outlet) -> Outcome {
    let rank = |word: &Value| LEVELS.iter().position(|level| word == level);
    let arguments = &params["arguments"];
    let (Some(level), Some(wanted)) =
        (rank(&arguments["level"]), rank(&params["_meta"][LOG_LEVEL]))
    else {
        return Outcome::text("not logged");
    };
    if level < wanted && arguments["anyway"] != 1 {
        return Outcome::text("not logged");
    }
    let entry = json!({"level": arguments["level"], "logger": "stub", "data": "entry"});
    outlet.message(notification("notifications/message", &entry));
    Outcome::text("logged")
}
