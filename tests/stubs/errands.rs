//! Tools that run as tasks, in the design of 2025-11-25 and in that of the extension. An errand lasts `ms`
//! milliseconds and until it was polled `looks` times; `ask` makes it ask for a name first; `fail` ends it in a
//! tool's error, `code` in a JSON-RPC error; `interval` is its poll interval in milliseconds. `call_off` cancels all
//! errands, and notifies the calling session. `report` sends progress of each errand with a token, finished ones
//! included, to the session that began the errand; every other report also logs a message, and both then name the
//! task.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value that has no such member gives null"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rpc::{Outcome, notification};
use crate::session::Session;
use crate::tools::{self, Call};
use crate::world::locked;

/// How often a request that waits for an errand looks after it.
const LOOK: Duration = Duration::from_millis(10);
const RELATED: &str = "io.modelcontextprotocol/related-task";
pub(crate) const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Every errand of the process, by its id.
#[derive(Debug, Default)]
pub(crate) struct Errands(Mutex<BTreeMap<String, Arc<Errand>>>);

/// One errand.
#[derive(Debug)]
pub(crate) struct Errand {
    id: String,
    arguments: Value,
    /// Session and token for its progress notifications.
    told: Option<(Arc<Session>, Value)>,
    begun: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    looks: u64,
    reports: u64,
    asked: bool,
    answer: Option<Value>,
    cancelled: bool,
}

impl Errands {
    pub(crate) fn begin(
        &self,
        arguments: &Value,
        told: Option<(Arc<Session>, Value)>,
    ) -> Arc<Errand> {
        let mut errands = locked(&self.0);
        let errand = Arc::new(Errand {
            id: format!("errand-{}", errands.len() + 1),
            arguments: arguments.clone(),
            told,
            begun: Instant::now(),
            inner: Mutex::default(),
        });
        errands.insert(errand.id.clone(), Arc::clone(&errand));
        errand
    }

    pub(crate) fn find(&self, params: &Value) -> Result<Arc<Errand>, Outcome> {
        let id = params["taskId"].as_str().unwrap_or_default();
        let found = locked(&self.0).get(id).map(Arc::clone);
        found.ok_or_else(|| Outcome::Error(-32602, format!("Task not found: {id}")))
    }

    /// All errands, in the form of a 2025-11-25 list.
    pub(crate) fn list(&self) -> Value {
        let errands = locked(&self.0);
        json!({"tasks": errands.values().map(|errand| errand.legacy()).collect::<Vec<_>>()})
    }
}

impl Errand {
    fn status(&self) -> &'static str {
        let inner = locked(&self.inner);
        let number = |name: &str| self.arguments[name].as_u64().unwrap_or_default();
        if inner.cancelled {
            "cancelled"
        } else if self.arguments["ask"] == 1 && inner.answer.is_none() {
            "input_required"
        } else if inner.looks < number("looks")
            || self.begun.elapsed() < Duration::from_millis(number("ms"))
        {
            "working"
        } else if !self.arguments["code"].is_null() {
            "failed"
        } else {
            "completed"
        }
    }

    /// Somebody looks after it.
    pub(crate) fn look(&self) {
        locked(&self.inner).looks += 1;
    }

    pub(crate) fn cancel(&self) {
        locked(&self.inner).cancelled = true;
    }

    /// Takes the answers of `tasks/update`.
    pub(crate) fn update(&self, params: &Value) {
        let answer = &params["inputResponses"]["who"];
        if !answer.is_null() {
            locked(&self.inner).answer.get_or_insert(answer.clone());
        }
    }

    fn is_over(&self) -> bool {
        !matches!(self.status(), "working" | "input_required")
    }

    fn message(&self) -> String {
        format!("look {}", locked(&self.inner).looks)
    }

    /// As 2025-11-25 shows it.
    pub(crate) fn legacy(&self) -> Value {
        let failed = self.status() == "completed" && self.arguments["fail"] == 1;
        let interval = self.arguments["interval"].as_u64().unwrap_or(50);
        json!({
            "taskId": self.id, "status": if failed { "failed" } else { self.status() },
            "statusMessage": self.message(), "ttl": 60_000, "pollInterval": interval,
            "createdAt": "2025-11-25T00:00:00Z", "lastUpdatedAt": "2025-11-25T00:00:00Z",
        })
    }

    /// The task in the form of the extension.
    pub(crate) fn modern(&self, kind: &str) -> Value {
        let mut task = json!({
            "resultType": kind, "taskId": self.id, "status": self.status(),
            "statusMessage": self.message(), "ttlMs": 60_000, "pollIntervalMs": 50,
            "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z",
        });
        match self.status() {
            "input_required" => {
                let params = form(None);
                task["inputRequests"] =
                    json!({"who": {"method": "elicitation/create", "params": params}});
            }
            "completed" => task["result"] = self.result(),
            "failed" => task["error"] = self.error(),
            _ => {}
        }
        task
    }

    fn result(&self) -> Value {
        let answer = locked(&self.inner).answer.clone();
        let text = answer.map_or_else(|| "errand done".to_owned(), |answer| answer.to_string());
        json!({
            "content": [{"type": "text", "text": text}],
            "isError": self.arguments["fail"] == 1,
        })
    }

    fn error(&self) -> Value {
        json!({"code": self.arguments["code"], "message": "the errand failed"})
    }
}

/// Tools that a legacy server lists in addition.
pub(crate) fn legacy_tools() -> [Value; 4] {
    let support = [
        ("errand", "required"),
        ("chore", "optional"),
        ("call_off", "forbidden"),
        ("report", "forbidden"),
    ];
    support.map(|(name, support)| {
        let mut tool = tools::entry(name, "Runs as a task", ARGUMENTS);
        tool["execution"] = json!({"taskSupport": support});
        tool
    })
}

const ARGUMENTS: &[&str] = &["ms", "looks", "ask", "via$", "fail", "code", "interval"];

/// A legacy call of an errand tool: begun as a task, or refused without `task`.
pub(crate) fn begin_legacy(call: &Call, task: Option<&Value>) -> Outcome {
    let Some(task) = task else {
        return Outcome::Error(-32601, format!("{} requires a task", call.name));
    };
    call.world.count(if task["ttl"].is_u64() {
        "ttl"
    } else {
        "no ttl"
    });
    let meta: Value =
        serde_json::from_str(call.meta.as_deref().unwrap_or("null")).unwrap_or_default();
    let token = meta.get("progressToken").cloned();
    let told = token.map(|token| (Arc::clone(&call.session), token));
    let errand = call.world.errands.begin(&call.arguments, told);
    Outcome::Result(json!({"task": errand.legacy()}).to_string())
}

/// `tasks/result`: waits for the end, and asks on the way.
pub(crate) async fn result(call: &Call) -> Outcome {
    let errand = match call.world.errands.find(&call.arguments) {
        Ok(errand) => errand,
        Err(outcome) => return outcome,
    };
    while !errand.is_over() {
        let asks = {
            let mut inner = locked(&errand.inner);
            let asks = errand.arguments["ask"] == 1 && !inner.asked && inner.answer.is_none();
            inner.asked |= asks;
            asks
        };
        if asks {
            let outlet = match errand.arguments["via"].as_str() {
                Some("get") => &call.session.general,
                _ => &call.outlet,
            };
            let params = form(Some(&errand.id));
            let answer = call
                .session
                .ask(outlet, "elicitation/create", &params)
                .await;
            locked(&errand.inner).answer = Some(answer);
        }
        tokio::time::sleep(LOOK).await;
    }
    match errand.status() {
        "failed" => {
            let code = errand.arguments["code"].as_i64().unwrap_or_default();
            Outcome::Error(code, "the errand failed".to_owned())
        }
        "cancelled" => Outcome::Error(-32603, "the errand was cancelled".to_owned()),
        _ => {
            let mut result = errand.result();
            result["_meta"] = json!({RELATED: {"taskId": errand.id}});
            Outcome::Result(result.to_string())
        }
    }
}

/// Cancels all errands, of their server's own accord.
pub(crate) fn call_off(call: &Call) -> Outcome {
    for errand in locked(&call.world.errands.0).values() {
        errand.cancel();
        let notice = notification("notifications/tasks/status", &errand.legacy());
        call.session.general.message(notice);
    }
    Outcome::text("called off")
}

/// Tells of the progress of all errands.
pub(crate) fn report(call: &Call) -> Outcome {
    for errand in locked(&call.world.errands.0).values() {
        let Some((session, token)) = &errand.told else {
            continue;
        };
        let mut inner = locked(&errand.inner);
        inner.reports += 1;
        let mut params = json!({"progressToken": token, "progress": inner.reports});
        // Many servers omit the related-task metadata.
        let is_named = inner.reports % 2 == 0;
        if is_named {
            params["_meta"] = json!({RELATED: {"taskId": errand.id}});
            let log = json!({"level": "info", "data": "reported", "_meta": params["_meta"]});
            let log = notification("notifications/message", &log);
            session.general.message(log);
        }
        let notice = notification("notifications/progress", &params);
        session.general.message(notice);
    }
    Outcome::text("reported")
}

/// `tasks/get` and `tasks/cancel` of 2025-11-25.
pub(crate) fn legacy(call: &Call) -> Outcome {
    let errand = match call.world.errands.find(&call.arguments) {
        Ok(errand) => errand,
        Err(outcome) => return outcome,
    };
    if call.name == "tasks/cancel" {
        if errand.is_over() {
            return Outcome::Error(-32602, "the errand is over".to_owned());
        }
        errand.cancel();
    } else {
        errand.look();
    }
    Outcome::Result(errand.legacy().to_string())
}

fn form(task: Option<&str>) -> Value {
    let mut form = json!({
        "message": "Whose errand?",
        "requestedSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    });
    if let Some(task) = task {
        form["_meta"] = json!({RELATED: {"taskId": task}});
    }
    form
}
