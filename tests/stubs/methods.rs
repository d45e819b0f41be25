//! Handling of an incoming message, the same for every carrier.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::catalog::{List, resource_text};
use crate::errands;
use crate::extension;
use crate::options::{Era, Options};
use crate::outlet::Outlet;
use crate::rpc::{CallParams, Message, Outcome, text_result};
use crate::session::Session;
use crate::tools::{self, Call};
use crate::world::{World, locked};

/// Revisions spoken, oldest first.
const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// Action of a transport after a message.
#[derive(Debug)]
pub(crate) enum Handled {
    /// Answer with this text.
    Reply(String),
    /// Run this work, which answers on the given outlet.
    Later(Later),
    /// No answer: the message was a notification or a response.
    Taken,
}

/// Work that takes time.
#[derive(Debug)]
pub(crate) struct Later {
    call: Box<Call>,
    work: Work,
}

/// Work that takes time.
#[derive(Debug)]
enum Work {
    Tool,
    List(List, Option<String>),
    /// `resources/subscribe` with these parameters.
    Subscribe(Value),
}

impl Later {
    /// The name of the called tool; empty for other methods.
    pub(crate) fn tool(&self) -> &str {
        &self.call.name
    }

    /// Forgets the call without answering it.
    pub(crate) fn abandon(self) {
        self.call.session.finish(&self.call.id);
    }

    /// Does the work and finishes `outlet`.
    pub(crate) async fn run(self, outlet: Outlet) {
        let Self { mut call, work } = self;
        call.outlet = outlet.clone();
        let outcome = match work {
            Work::Subscribe(params) => {
                call.world.modern.admitted().await;
                setting(&call.session, "resources/subscribe", &params)
            }
            Work::List(list, cursor) => {
                let own = call.session.with(|inner| inner.list_delay);
                tokio::time::sleep(own.max(call.world.catalog.delay)).await;
                page(&call.world, &call.session, list, cursor.as_deref())
            }
            Work::Tool => tools::run(&call).await,
        };
        call.session.finish(&call.id);
        outlet.finish(outcome.reply(&call.id));
        tools::afterwards(&call);
    }
}

/// Takes one message from `session`; `headers` are those of its HTTP request, if any.
pub(crate) fn receive(
    world: &Arc<World>,
    session: &Arc<Session>,
    message: &Message<'_>,
    headers: &[(String, String)],
) -> Handled {
    let (Some(method), Some(id)) = (&message.method, message.id) else {
        take(world, session, message);
        return Handled::Taken;
    };
    world.count(method);
    let outcome = match method.as_ref() {
        "tools/call" => match call(world, session, id.get(), message.params, headers) {
            Ok(later) => return Handled::Later(later),
            Err(outcome) => outcome,
        },
        "tasks/get" | "tasks/cancel" | "tasks/result" | "tasks/list" if world.options.tasks => {
            match task(world, session, id.get(), method, message.params, headers) {
                Ok(later) => return Handled::Later(later),
                Err(outcome) => outcome,
            }
        }
        "resources/subscribe" if world.options.hold_listens => {
            let call = Box::new(Call::new(world, session, id.get(), headers));
            let work = Work::Subscribe(value(message.params));
            return Handled::Later(Later { call, work });
        }
        "logging/setLevel" if world.options.refuse_levels => {
            Outcome::Error(-32602, "there are no levels here".to_owned())
        }
        "ping" | "resources/unsubscribe" | "resources/subscribe" | "logging/setLevel" => {
            setting(session, method, &value(message.params))
        }
        "initialize" => initialize(world, session, &value(message.params)),
        "prompts/get" => prompt(&value(message.params)),
        "resources/read" => read(&value(message.params)),
        "completion/complete" => complete(&value(message.params)),
        method => match List::of(method) {
            Some(list) => {
                let cursor = cursor(message.params);
                let own = session.with(|inner| inner.list_delay);
                if !own.is_zero() || !world.catalog.delay.is_zero() {
                    let call = Box::new(Call::new(world, session, id.get(), headers));
                    let work = Work::List(list, cursor);
                    return Handled::Later(Later { call, work });
                }
                page(world, session, list, cursor.as_deref())
            }
            None => extension::answer(&world.options, method, &value(message.params))
                .unwrap_or_else(|| unknown(world, method)),
        },
    };
    outcome
        .reply(id.get())
        .map_or(Handled::Taken, Handled::Reply)
}

/// A notification or an answer.
fn take(world: &World, session: &Session, message: &Message<'_>) {
    let Some(method) = &message.method else {
        let id: Option<Value> = message
            .id
            .and_then(|id| serde_json::from_str(id.get()).ok());
        let answer = match message.error {
            Some(error) => json!({"error": value(Some(error))}),
            None => json!({"result": value(message.result)}),
        };
        let known = id
            .as_ref()
            .and_then(Value::as_str)
            .is_some_and(|id| session.answer(id, answer));
        world.count(if known { "answers" } else { "stray_answers" });
        return;
    };
    world.count(method);
    let params = value(message.params);
    if let Some(number) = params.get("number").and_then(Value::as_u64) {
        world.note_number(number);
    }
    if method == "notifications/cancelled" {
        let id = params
            .get("requestId")
            .map_or_else(String::new, Value::to_string);
        let known = session.cancel(&id);
        world.record_cancel(&params, known);
    }
}

/// A request about a task, answered at once or after the task's end.
fn task(
    world: &Arc<World>,
    session: &Arc<Session>,
    id: &str,
    method: &str,
    params: Option<&RawValue>,
    headers: &[(String, String)],
) -> Result<Later, Outcome> {
    let mut call = Call::new(world, session, id, headers);
    method.clone_into(&mut call.name);
    call.arguments = value(params);
    match method {
        "tasks/list" => Err(Outcome::Result(world.errands.list().to_string())),
        "tasks/result" => {
            call.cancelled = session.begin(id);
            Ok(Later {
                call: Box::new(call),
                work: Work::Tool,
            })
        }
        _ => Err(errands::legacy(&call)),
    }
}

/// The result of an echo at once, or the call to be run.
fn call(
    world: &Arc<World>,
    session: &Arc<Session>,
    id: &str,
    params: Option<&RawValue>,
    headers: &[(String, String)],
) -> Result<Later, Outcome> {
    let Some(Ok(params)) = params.map(|p| serde_json::from_str::<CallParams<'_>>(p.get())) else {
        return Err(Outcome::Error(-32602, "unreadable params".to_owned()));
    };
    // Servers that validate with a schema refuse `null` like this.
    if params.task.is_some_and(|task| task.get() == "null") {
        let error = "task: expected object, received null".to_owned();
        return Err(Outcome::Error(-32602, error));
    }
    if params.name == "echo" || params.name.starts_with("filler_") {
        return Err(Outcome::Result(echo(params.arguments)));
    }
    let mut call = Call::new(world, session, id, headers);
    if params.name == "stall" {
        // Before the next line is read.
        let arguments = value(params.arguments);
        let until = arguments
            .get("until")
            .and_then(Value::as_str)
            .map(PathBuf::from);
        *locked(&world.stalled_until) = until;
        world.stalled.store(true, Ordering::Relaxed);
    }
    call.name = if world.stalled.load(Ordering::Relaxed) {
        "never".to_owned()
    } else {
        params.name
    };
    call.arguments = value(params.arguments);
    call.meta = params.meta.map(|meta| meta.get().to_owned());
    if world.options.era == Era::Dual && !world.options.tasks && call.name == "errand" {
        return Err(Outcome::Error(-32021, errands::EXTENSION.to_owned()));
    }
    if world.options.tasks && matches!(call.name.as_str(), "errand" | "chore") {
        let task = params.task.map(|task| value(Some(task)));
        if task.is_some() || call.name == "errand" {
            return Err(errands::begin_legacy(&call, task.as_ref()));
        }
    }
    call.cancelled = session.begin(id);
    Ok(Later {
        call: Box::new(call),
        work: Work::Tool,
    })
}

/// JSON text of the string `text`, where that is all that the arguments are.
pub(crate) fn only_text(arguments: &str) -> Option<&str> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Text<'a> {
        #[serde(borrow)]
        text: &'a RawValue,
    }
    let Text { text } = serde_json::from_str(arguments).ok()?;
    Some(text.get()).filter(|text| text.starts_with('"'))
}

/// The arguments, byte for byte: as text if they are one string `text`, else structured too.
fn echo(arguments: Option<&RawValue>) -> String {
    let raw = arguments.map_or("{}", RawValue::get);
    if let Some(text) = only_text(raw) {
        return text_result(text);
    }
    let text = text_result(&Value::from(raw).to_string());
    let open = text.strip_suffix('}').unwrap_or(&text);
    format!(r#"{open},"structuredContent":{raw}}}"#)
}

fn initialize(world: &World, session: &Session, params: &Value) -> Outcome {
    let newest = REVISIONS
        .iter()
        .position(|known| *known == world.options.revision)
        .unwrap_or(REVISIONS.len() - 1);
    let spoken = REVISIONS.get(..=newest).unwrap_or(&REVISIONS);
    let asked = params
        .get("protocolVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let revision = if spoken.contains(&asked) && !world.options.only {
        asked
    } else {
        spoken.last().copied().unwrap_or_default()
    };
    session.with(|inner| {
        revision.clone_into(&mut inner.revision);
        inner.client = params.clone();
    });
    let mut capabilities = capabilities(&world.options);
    if world.options.tasks
        && let Some(capabilities) = capabilities.as_object_mut()
    {
        let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
        capabilities.insert("tasks".to_owned(), tasks);
    }
    Outcome::Result(
        json!({
            "protocolVersion": revision,
            "capabilities": capabilities,
            "serverInfo": world.options.server_info(),
            "instructions": "Call the tools to make this server misbehave.",
        })
        .to_string(),
    )
}

/// Capabilities of the stub, for either era.
pub(crate) fn capabilities(options: &Options) -> Value {
    let changes = !options.no_listchanged;
    let mut all = json!({
        "tools": {"listChanged": changes},
        "prompts": {"listChanged": changes},
        "resources": {"listChanged": changes, "subscribe": true},
        "logging": {},
        "completions": {},
    });
    if let (Some(all), true) = (all.as_object_mut(), options.no_prompts) {
        all.remove("prompts");
    }
    for undeclared in &options.undeclared {
        let (outer, name) = undeclared.rsplit_once('.').unwrap_or(("", undeclared));
        let holder = if outer.is_empty() {
            Some(&mut all)
        } else {
            all.get_mut(outer)
        };
        holder
            .and_then(Value::as_object_mut)
            .map(|holder| holder.remove(name));
    }
    let extensions = extension::declared(options);
    if let (Some(all), true) = (all.as_object_mut(), extensions.is_object()) {
        all.insert("extensions".to_owned(), extensions);
    }
    all
}

fn setting(session: &Session, method: &str, params: &Value) -> Outcome {
    let text = |name| params.get(name).and_then(Value::as_str).unwrap_or_default();
    let done = match method {
        "resources/subscribe" => {
            let uri = text("uri").to_owned();
            let known = resource_text(&uri).is_some();
            known && session.with(|inner| inner.subscriptions.insert(uri) || known)
        }
        "resources/unsubscribe" => {
            session.with(|inner| inner.subscriptions.remove(text("uri")));
            true
        }
        "logging/setLevel" => session.set_level(text("level")),
        _ => true,
    };
    if done {
        Outcome::Result("{}".to_owned())
    } else {
        Outcome::Error(-32602, format!("{method}: unknown value"))
    }
}

fn page(world: &World, session: &Session, list: List, cursor: Option<&str>) -> Outcome {
    let changed = session.with(|inner| inner.changed.contains(list.member()));
    world.catalog.page(list, cursor, changed).map_or_else(
        || Outcome::Error(-32602, "unknown cursor".to_owned()),
        Outcome::Result,
    )
}

pub(crate) fn prompt(params: &Value) -> Outcome {
    let text = match params.get("name").and_then(Value::as_str) {
        Some("greet") => match params.pointer("/arguments/name").and_then(Value::as_str) {
            Some(name) => format!("Say hello to {name}"),
            None => return Outcome::Error(-32602, "argument name is missing".to_owned()),
        },
        Some("plain" | "extra") => "Say something".to_owned(),
        _ => return Outcome::Error(-32602, "unknown prompt".to_owned()),
    };
    Outcome::Result(
        json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})
            .to_string(),
    )
}

pub(crate) fn read(params: &Value) -> Outcome {
    let uri = params
        .get("uri")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let text = resource_text(uri).map(|text| ("text/plain", text));
    let file = extension::file(uri).map(|(kind, text)| (kind, text.to_owned()));
    match text.or(file) {
        Some((kind, text)) => Outcome::Result(
            json!({"contents": [{"uri": uri, "mimeType": kind, "text": text}]}).to_string(),
        ),
        None => Outcome::Error(-32002, format!("resource not found: {uri}")),
    }
}

pub(crate) fn complete(params: &Value) -> Outcome {
    let typed = params
        .pointer("/argument/value")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let known = ["alice", "bob", "carol", "1", "2", "3"];
    let values: Vec<&str> = known.into_iter().filter(|v| v.starts_with(typed)).collect();
    let total = values.len();
    Outcome::Result(
        json!({"completion": {"values": values, "total": total, "hasMore": false}}).to_string(),
    )
}

fn unknown(world: &World, method: &str) -> Outcome {
    if world.options.exit_on_unknown {
        crate::world::last_words("stub-upstream: exiting at an unknown method, as asked");
        std::process::exit(4);
    }
    Outcome::Error(-32601, format!("Method not found: {method}"))
}

fn value(raw: Option<&RawValue>) -> Value {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default()
}

fn cursor(params: Option<&RawValue>) -> Option<String> {
    match value(params).get("cursor") {
        Some(Value::String(cursor)) => Some(cursor.clone()),
        _ => None,
    }
}
