//! Closed-loop load: every session does one thing after the other and checks every answer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Caller, Client, request_text, result_slice};
use crate::modern::{self, CallResult};
use crate::said;
use crate::sse::Decoder;
use crate::watch::{Cpu, Ticks};
use crate::wire::{invalid, limited};

/// Notices in front of the reply.
const NOTICES: u64 = 20;
/// Bytes of text in a call.
const TEXT: usize = 1024;
/// Problems whose text is kept.
const MAX_PROBLEMS: usize = 5;

/// What a session does over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// `tools/call` of an echo of 1 KB.
    Call,
    /// The same in the modern era, without a session.
    ModernCall,
    /// `tools/list` of 100 tools.
    List,
    /// `initialize`, `notifications/initialized`, DELETE.
    OpenClose,
    /// `tools/call` with 20 progress notifications before the reply, written at once.
    Notices,
    /// The same, each written by itself.
    NoticesApart,
}

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    /// One per session.
    pub(crate) callers: Vec<Caller>,
    pub(crate) warm: Duration,
    pub(crate) window: Duration,
    /// Processes whose CPU time is read, by name. Times of processes with the same name are added up.
    pub(crate) watch: Vec<(String, u32)>,
    /// Expected result of `tools/list`.
    pub(crate) list: Arc<str>,
}

/// What came out.
#[derive(Debug, Default, Clone)]
pub(crate) struct Measured {
    pub(crate) replies: u64,
    pub(crate) failures: u64,
    pub(crate) problems: Vec<String>,
    pub(crate) per_second: f64,
    /// CPU microseconds per verified reply, by process name.
    pub(crate) cpu_micros: BTreeMap<String, f64>,
    /// The same time in ticks, not per reply.
    pub(crate) ticks: BTreeMap<String, Ticks>,
    pub(crate) p50_micros: u64,
    pub(crate) p99_micros: u64,
}

/// Shared by the sessions of a run.
#[derive(Debug, Default)]
struct Tally {
    stop: AtomicBool,
    measuring: AtomicBool,
    open: AtomicU64,
    replies: AtomicU64,
    failures: AtomicU64,
    problems: Mutex<Vec<String>>,
    latencies: Mutex<Vec<u64>>,
}

impl Tally {
    fn fail(&self, error: &io::Error) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.len() < MAX_PROBLEMS {
            problems.push(error.to_string());
        }
    }
}

/// Runs the plan; failures are counted, not returned.
pub(crate) async fn run(plan: &Plan) -> anyhow::Result<Measured> {
    let tally = Arc::new(Tally::default());
    let mut sessions = tokio::task::JoinSet::new();
    for (number, caller) in plan.callers.iter().enumerate() {
        sessions.spawn(Session::new(plan, number, caller, &tally).run());
    }
    while tally.open.load(Ordering::Relaxed) + tally.failures.load(Ordering::Relaxed)
        < plan.callers.len() as u64
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(plan.warm).await;
    let cpu = || {
        let read = |(name, pid): &(String, u32)| Ok((name.clone(), Cpu::of(*pid)?));
        plan.watch
            .iter()
            .map(read)
            .collect::<anyhow::Result<Vec<_>>>()
    };
    let (before, counted, start) = (
        cpu()?,
        tally.replies.load(Ordering::Relaxed),
        Instant::now(),
    );
    tally.measuring.store(true, Ordering::Relaxed);
    tokio::time::sleep(plan.window).await;
    let (after, replies) = (cpu()?, tally.replies.load(Ordering::Relaxed) - counted);
    let seconds = start.elapsed().as_secs_f64();
    tally.stop.store(true, Ordering::Relaxed);
    while sessions.join_next().await.is_some() {}

    let mut latencies = tally
        .latencies
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    latencies.sort_unstable();
    let quantile = |part: usize| {
        let at = (latencies.len() * part / 100).min(latencies.len().saturating_sub(1));
        latencies.get(at).copied().unwrap_or_default()
    };
    let (mut cpu_micros, mut ticks) = (BTreeMap::new(), BTreeMap::new());
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let per_reply = after.since(before) as f64 / 1000.0 / replies.max(1) as f64;
        *cpu_micros.entry(name.clone()).or_default() += per_reply;
        let sum: &mut Ticks = ticks.entry(name.clone()).or_default();
        *sum = [*sum, after.ticks_since(before)].into_iter().sum();
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(Measured {
        replies,
        failures: tally.failures.load(Ordering::Relaxed),
        problems: tally
            .problems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone(),
        per_second: replies as f64 / seconds,
        cpu_micros,
        ticks,
        p50_micros: quantile(50),
        p99_micros: quantile(99),
    })
}

/// Open sessions that take a number of steps at a time.
pub(crate) struct Crowd(Vec<(Session, Client)>);

impl Crowd {
    /// Opens the sessions of a plan.
    pub(crate) async fn open(plan: &Plan) -> io::Result<Self> {
        let tally = Arc::new(Tally::default());
        let mut sessions = Vec::new();
        for (number, caller) in plan.callers.iter().enumerate() {
            let mut session = Session::new(plan, number, caller, &tally);
            let client = session.open().await?;
            sessions.push((session, client));
        }
        Ok(Self(sessions))
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Takes each session `each` steps further, all at once; how many replies that were.
    pub(crate) async fn step(&mut self, each: u64) -> io::Result<u64> {
        let steps = self.0.iter_mut().map(|(session, client)| async move {
            for _ in 0..each {
                limited(session.step(client)).await?;
            }
            io::Result::Ok(())
        });
        futures_util::future::try_join_all(steps).await?;
        Ok(each * self.len())
    }

    /// Ends the sessions.
    pub(crate) async fn close(self) -> io::Result<()> {
        for (session, mut client) in self.0 {
            if session.keeps_session() {
                client.close().await?;
            }
        }
        Ok(())
    }
}

struct Session {
    number: usize,
    caller: Caller,
    scenario: Scenario,
    list: Arc<str>,
    tally: Arc<Tally>,
    body: String,
    /// Members of `_meta` that are the same in every request.
    about: String,
    /// All members of `_meta`.
    meta: String,
}

impl Session {
    fn new(plan: &Plan, number: usize, caller: &Caller, tally: &Arc<Tally>) -> Self {
        let about = match plan.scenario {
            Scenario::ModernCall => {
                modern::describe(&caller.kind.info(), caller.kind.capabilities())
            }
            _ => String::new(),
        };
        Self {
            number,
            caller: caller.clone(),
            scenario: plan.scenario,
            list: Arc::clone(&plan.list),
            tally: Arc::clone(tally),
            body: String::new(),
            about,
            meta: String::new(),
        }
    }

    /// Connects, and opens a session if the scenario uses one.
    async fn open(&mut self) -> io::Result<Client> {
        let mut client = Client::connect(self.caller.clone()).await?;
        if self.scenario == Scenario::ModernCall {
            client.speak_modern(modern::head_lines("echo"));
        } else if self.keeps_session() {
            client.open().await?;
        }
        Ok(client)
    }

    async fn run(mut self) {
        if let Err(error) = self.work().await {
            self.tally.fail(&error);
        }
    }

    async fn work(&mut self) -> io::Result<()> {
        let mut client = self.open().await?;
        self.tally.open.fetch_add(1, Ordering::Relaxed);
        let mut latencies = Vec::new();
        while !self.tally.stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            limited(self.step(&mut client)).await?;
            self.tally.replies.fetch_add(1, Ordering::Relaxed);
            if self.tally.measuring.load(Ordering::Relaxed) {
                let micros = start.elapsed().as_micros();
                latencies.push(u64::try_from(micros).unwrap_or(u64::MAX));
            }
        }
        if self.keeps_session() {
            client.close().await?;
        }
        let mut all = self
            .tally
            .latencies
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.append(&mut latencies);
        Ok(())
    }

    fn keeps_session(&self) -> bool {
        !matches!(self.scenario, Scenario::OpenClose | Scenario::ModernCall)
    }

    async fn step(&mut self, client: &mut Client) -> io::Result<()> {
        match self.scenario {
            Scenario::Call => self.call(client).await,
            Scenario::ModernCall => self.modern_call(client).await,
            Scenario::List => self.list(client).await,
            Scenario::Notices => self.notices(client, 0).await,
            Scenario::NoticesApart => self.notices(client, 1).await,
            Scenario::OpenClose => {
                client.open().await?;
                client.close().await
            }
        }
    }

    /// An echo whose text differs each time.
    async fn call(&mut self, client: &mut Client) -> io::Result<()> {
        let id = client.take_id();
        let text = self.text(id);
        let meta = self.meta_member(id);
        self.body.clear();
        let written = write!(
            self.body,
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"text":"{text}"}}{}{meta}}}}}"#,
            if meta.is_empty() { "" } else { "," }
        );
        written.map_err(io::Error::other)?;
        let head = client.post(&self.body).await?;
        let reply = client.reply(&head).await?;
        if head.status != 200 {
            return Err(io::Error::other(format!("call got {}", head.status)));
        }
        let result = result_slice(&reply, id)?.get();
        let got = result
            .strip_prefix(r#"{"content":[{"type":"text","text":""#)
            .and_then(|rest| rest.strip_suffix(r#""}]}"#));
        if got == Some(text.as_str()) {
            Ok(())
        } else {
            Err(invalid("call: another text"))
        }
    }

    /// The same in the modern era.
    async fn modern_call(&mut self, client: &mut Client) -> io::Result<()> {
        let id = client.take_id();
        let text = self.text(id);
        let arguments = format!(r#"{{"text":"{text}"}}"#);
        self.write_meta(id);
        modern::write_call(&mut self.body, id, "echo", &arguments, &self.meta)?;
        let head = client.post(&self.body).await?;
        let reply = client.reply(&head).await?;
        if head.status != 200 {
            return Err(io::Error::other(format!("modern call got {}", head.status)));
        }
        let result: CallResult<'_> = serde_json::from_str(result_slice(&reply, id)?.get())?;
        match result.text() {
            Some(got) if got == text => Ok(()),
            _ => Err(invalid("modern call: another text")),
        }
    }

    fn text(&self, id: u64) -> String {
        let mut text = format!("{}-{id}-", self.number);
        text.extend(std::iter::repeat_n('x', TEXT.saturating_sub(text.len())));
        text
    }

    /// Writes the members of `_meta` of one request.
    fn write_meta(&mut self, id: u64) {
        self.meta.clear();
        self.meta.push_str(&self.about);
        let end = self.meta.len();
        if end > 0 {
            self.meta.push(',');
        }
        if !said::write_differing(&mut self.meta, self.number, id) {
            self.meta.truncate(end);
        }
    }

    /// `_meta` of one request as a member; empty without anything in it.
    fn meta_member(&mut self, id: u64) -> String {
        self.write_meta(id);
        match &*self.meta {
            "" => String::new(),
            meta => format!(r#""_meta":{{{meta}}}"#),
        }
    }

    async fn list(&mut self, client: &mut Client) -> io::Result<()> {
        let id = client.take_id();
        let params = format!("{{{}}}", self.meta_member(id));
        let head = client
            .post(&request_text(id, "tools/list", &params))
            .await?;
        let reply = client.reply(&head).await?;
        if head.status != 200 {
            return Err(io::Error::other(format!("list got {}", head.status)));
        }
        let result = result_slice(&reply, id)?.get();
        let is_right = *self.list == *result;
        is_right
            .then_some(())
            .ok_or_else(|| invalid("list: another content"))
    }

    async fn notices(&mut self, client: &mut Client, apart: u8) -> io::Result<()> {
        let id = client.take_id();
        let params = format!(
            r#"{{"name":"notices","arguments":{{"n":{NOTICES},"bytes":100,"apart":{apart}}},"_meta":{{"progressToken":"t{id}"}}}}"#
        );
        let head = client
            .post(&request_text(id, "tools/call", &params))
            .await?;
        if head.status != 200 || !head.is_events {
            return Err(io::Error::other(format!("notices got {}", head.status)));
        }
        let mut decoder = Decoder::default();
        let mut seen = 0;
        let mut answered = false;
        while let Some(event) = client.event(&mut decoder).await? {
            if event.data.is_empty() {
                continue;
            }
            let message: Value = serde_json::from_str(&event.data).map_err(io::Error::other)?;
            if message.get("method").is_some() {
                seen += 1;
                let token = message
                    .pointer("/params/progressToken")
                    .and_then(Value::as_str);
                let progress = message.pointer("/params/progress").and_then(Value::as_u64);
                if token != Some(&format!("t{id}")) || progress != Some(seen) || answered {
                    return Err(invalid("notices: out of order or not ours"));
                }
            } else {
                answered = message.get("id").and_then(Value::as_u64) == Some(id);
            }
        }
        if answered && seen == NOTICES {
            Ok(())
        } else {
            Err(invalid("notices: some are missing"))
        }
    }
}
